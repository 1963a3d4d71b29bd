from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.cli.json_file import read_entries, read_partition_entries
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition


@pytest.mark.parametrize("version", ['"version": 1, ', ""])
def test_entries_are_found_by_partition(tmp_path: Path, version: str) -> None:
    path = tmp_path / "partitions.json"
    path.write_text(f'{{{version}"partitions": [{{"topic": "t", "partition": 2, "more": 5}}]}}')
    found = read_partition_entries(str(path), "FORM")
    assert found == {TopicPartition("t", 2): {"topic": "t", "partition": 2, "more": 5}}
    assert read_entries(str(path), "partitions", "FORM") == list(found.values())


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("[]", 'a JSON object with "version": 1 is needed'),
        ('{"version": 2, "partitions": []}', 'a JSON object with "version": 1 is needed'),
        ("{}", "should be as in FORM"),
        ('{"partitions": {}}', "should be as in FORM"),
        ('{"partitions": []}', "names no partition"),
        ('{"partitions": [{"topic": "t", "partition": "0"}]}', "should be as in FORM"),
        ('{"partitions": [{"topic": "t", "partition": -1}]}', "should be as in FORM"),
        ('{"partitions": [{"topic": "t", "partition": true}]}', "should be as in FORM"),
        ('{"partitions": [{"topic": "", "partition": 0}]}', "should be as in FORM"),
        ('{"partitions": [["t", 0]]}', "should be as in FORM"),
        (
            '{"partitions": [{"topic": "t", "partition": 0}, {"topic": "t", "partition": 0}]}',
            "partition t-0 is listed more than once",
        ),
        ("{", "is not JSON"),
    ],
)
def test_files_of_another_form_are_refused(tmp_path: Path, document: str, why: str) -> None:
    path = tmp_path / "partitions.json"
    path.write_text(document)
    with pytest.raises(UsageError, match=why):
        read_partition_entries(str(path), "FORM")


def test_a_file_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot read /nowhere: No such file"):
        read_entries("/nowhere", "partitions", "FORM")
