"""Partitions that options name, and their ends."""

from __future__ import annotations

import pytest

from trimtab import Admin
from trimtab.cli.groups.partitions import read_ends, read_leaders, read_topics
from trimtab.errors import BrokerError, UsageError
from trimtab.records import TopicPartition

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
OTHER = TopicPartition("other", 0)


def test_topics_are_named_with_partitions_or_whole(admin: Admin) -> None:
    assert read_topics(admin, ["t:2,0", "other", "t:2"]) == [OTHER, T0, T2]
    assert read_topics(admin, ["t"]) == [T0, T1, T2]
    assert read_topics(admin, []) == []
    with pytest.raises(BrokerError, match="topic nowhere: UNKNOWN_TOPIC_OR_PARTITION"):
        read_topics(admin, ["nowhere"])


@pytest.mark.parametrize("word", [":0", "t:", "t:,", "t:-1", "t:0:1"])
def test_other_forms_are_refused(admin: Admin, word: str) -> None:
    with pytest.raises(UsageError, match="write "):
        read_topics(admin, [word])


def test_what_does_not_exist_has_no_leader_and_no_end(admin: Admin) -> None:
    wanted = [T0, OTHER, TopicPartition("t", 3), TopicPartition("nowhere", 0)]
    assert set(read_leaders(admin, wanted)) == {T0, OTHER}
    assert read_ends(admin, wanted) == {T0: 10, OTHER: 0}
    assert read_ends(admin, []) == {}
