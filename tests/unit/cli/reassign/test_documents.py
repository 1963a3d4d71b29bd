from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.cli.reassign.documents import read_assignment, read_topics, write_assignment
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "document.json"


def test_an_assignment_is_read_as_it_was_written(file: Path) -> None:
    assignment = {TopicPartition("t", 1): [2, 0], TopicPartition("t", 0): [1]}
    text = write_assignment(assignment)
    assert text == (
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1],"log_dirs":["any"]},'
        '{"topic":"t","partition":1,"replicas":[2,0],"log_dirs":["any","any"]}]}'
    )
    file.write_text(text)
    assert read_assignment(str(file)) == (assignment, {})


def test_version_and_directories_need_not_be_there(file: Path) -> None:
    file.write_text('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}')
    assert read_assignment(str(file)).replicas == {TopicPartition("t", 0): [1, 2]}
    file.write_text('{"topics": [{"topic": "t"}, {"topic": "u"}]}')
    assert read_topics(str(file)) == ["t", "u"]


def test_directories_are_kept_where_they_are_named(file: Path) -> None:
    file.write_text(
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], '
        '"log_dirs": ["any", "/d"]}]}'
    )
    assert read_assignment(str(file)).directories == {(TopicPartition("t", 0), 2): "/d"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("moves", "is not JSON"),
        ("[]", "a JSON object"),
        ('{"version": 2, "partitions": []}', '"version": 1 is needed'),
        ('{"partitions": []}', "names no partition"),
        ('{"version": 1}', "should be as in"),
        ('{"partitions": [{"topic": "t", "replicas": [1]}]}', "should be as in"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": "12"}]}', "should be as in"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "name each broker"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}',
            "each broker once",
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": []}]}',
            "1 replica, but 0 log_dirs",
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}, '
            '{"topic": "t", "partition": 0, "replicas": [2]}]}',
            "t-0 is listed more than once",
        ),
    ],
)
def test_what_cannot_be_an_assignment(file: Path, text: str, why: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=why):
        read_assignment(str(file))


def test_what_cannot_be_topics(file: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        read_topics(str(file))
    file.write_text('{"topics": ["t"]}')
    with pytest.raises(UsageError, match="should be as in"):
        read_topics(str(file))
    file.write_text('{"topics": [{"topic": "t"}, {"topic": "t"}]}')
    with pytest.raises(UsageError, match="names t more than once"):
        read_topics(str(file))
