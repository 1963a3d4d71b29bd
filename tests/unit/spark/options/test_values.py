"""Values of options, as text."""

from __future__ import annotations

import pytest

from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.spark.options.values import EVERY_PARTITION, GivenOptions

NAME = "anOption"


def given(text: str) -> GivenOptions:
    return GivenOptions({"ANoption": text})


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("8m", 8 << 20), ("1 KB", 1024), ("2g", 2 << 30), ("65536b", 65_536)],
)
def test_sizes(text: str, size: int) -> None:
    assert given(text).size(NAME) == size


@pytest.mark.parametrize("text", ["", "0", "m", "1.5m", "-1", "1mm", "8 parsecs", "9000p", "٣"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"option anOption=.* such as 8m or 1g"):
        given(text).size(NAME)


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("90", 0.09), ("250ms", 0.25), ("2 h", 7200), ("1D", 86400)]
)
def test_durations_are_written_as_sparks(text: str, seconds: float) -> None:
    assert given(text).seconds(NAME, 1.0) == seconds


def test_what_is_not_given_is_at_its_default() -> None:
    options = GivenOptions({})
    assert NAME not in options
    assert (options.text(NAME), options.time(NAME), options.pattern(NAME)) == (None, None, "")
    assert (options.size(NAME), options.seconds(NAME, 2.0), options.number(NAME, 3)) == (0, 2.0, 3)
    assert (options.topics(NAME), options.partitions(NAME)) == ((), ())
    assert (options.flag(NAME, True), options.word(NAME, ("a", "b"))) == (True, "a")


def test_white_space_around_a_value_does_not_count() -> None:
    assert given(" true\n").flag(NAME, False)
    assert given(" 12 ").number(NAME, 0) == 12
    assert given(" .* ").pattern(NAME) == ".*"


def test_a_topic_has_offsets_by_partition_or_a_word_for_all() -> None:
    found = given('{"t":{"0":23,"1":-1},"u":"Earliest","v":"latest"}').offsets(NAME, -2)
    assert found == {
        TopicPartition("t", 0): 23,
        TopicPartition("t", 1): -1,
        TopicPartition("u", EVERY_PARTITION): -2,
        TopicPartition("v", EVERY_PARTITION): -1,
    }
    for wrong in ('{"t":"soon"}', '{"t":-2}', '{"t":{"0":"earliest"}}', '{"t":{"-1":5}}'):
        with pytest.raises(UsageError, match=r"cannot be read: .*\"topicB\":\"earliest\""):
            given(wrong).offsets(NAME, -2)
    with pytest.raises(UsageError, match="cannot be read"):
        given('{"t":"earliest"}').times(NAME)
