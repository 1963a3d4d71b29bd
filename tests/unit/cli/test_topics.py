from __future__ import annotations

import pytest

from trimtab.cli.topics import read_assignment, write_topic_id
from trimtab.errors import UsageError


def test_an_assignment_names_the_brokers_of_each_partition() -> None:
    assert read_assignment("1,0,2") == {0: [1], 1: [0], 2: [2]}
    assert read_assignment("0:1,1:2") == {0: [0, 1], 1: [1, 2]}
    assert read_assignment(None) is None
    with pytest.raises(UsageError, match="--replica-assignment"):
        read_assignment("a,b")


def test_topic_ids_are_written_as_kafka_writes_them() -> None:
    assert write_topic_id(bytes(15) + b"\x01") == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert write_topic_id(b"\xff" * 16) == "_____________________w"
