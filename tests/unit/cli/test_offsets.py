from __future__ import annotations

import pytest

from trimtab.cli.offsets import read_moment, read_topic_partitions
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

PARTITIONS = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(5)]


@pytest.mark.parametrize(
    ("rules", "chosen"),
    [
        ("a:1", [("a", 1)]),
        ("a:1,b:4", [("a", 1), ("b", 4)]),
        ("a:0-2", [("a", 0), ("a", 1)]),
        ("a:3-", [("a", 3), ("a", 4)]),
        ("b:-2", [("b", 0), ("b", 1)]),
        (":0", [("a", 0), ("b", 0)]),
        ("b", [("b", number) for number in range(5)]),
        ("[ab]:4", [("a", 4), ("b", 4)]),
    ],
)
def test_partitions_are_chosen_as_kafka_get_offsets_does(
    rules: str, chosen: list[tuple[str, int]]
) -> None:
    assert [each for each in PARTITIONS if read_topic_partitions(rules)(each)] == chosen


@pytest.mark.parametrize("rules", ["a:x", "a:1-2-3", "a:1:2"])
def test_other_forms_are_refused(rules: str) -> None:
    with pytest.raises(UsageError, match="--topic-partitions"):
        read_topic_partitions(rules)


def test_times_are_words_kafkas_numbers_or_milliseconds() -> None:
    assert [read_moment(text) for text in ("latest", "-1", "earliest", "-2", "-3", "1700")] == [
        "latest",
        "latest",
        "earliest",
        "earliest",
        "max_timestamp",
        1700,
    ]
    with pytest.raises(UsageError, match="--time 'now'"):
        read_moment("now")
