"""The options of format("trimtab"), as a user may give them."""

from __future__ import annotations

import pytest

from trimtab.errors import UsageError
from trimtab.records import TopicPartition
from trimtab.spark.options import read_options

REQUIRED = {"kafka.bootstrap.servers": "here:9092", "subscribe": "flights"}


def test_defaults_read_a_whole_topic() -> None:
    options = read_options(REQUIRED)
    assert options.client == {"bootstrap.servers": "here:9092"}
    assert options.topics == ("flights",)
    assert (options.starting, options.ending) == ("earliest", "latest")
    assert options.fail_on_data_loss
    assert (options.include_headers, options.include_batches) == (False, False)
    assert options.min_partitions == 0


def test_names_count_in_any_case_and_client_options_pass_through() -> None:
    options = read_options(
        {
            "bootstrap.servers": "here:9092",
            "SUBSCRIBE": " b, a,b ,",
            "MinPartitions": "12",
            "failOnDataLoss": "FALSE",
            "kafka.Fetch.Max.Wait.Ms": "5",
        }
    )
    assert options.client == {"bootstrap.servers": "here:9092", "fetch.max.wait.ms": "5"}
    assert options.topics == ("b", "a")
    assert options.min_partitions == 12
    assert not options.fail_on_data_loss


def test_offsets_and_assignment_as_json() -> None:
    options = read_options(
        {
            "bootstrap.servers": "here:9092",
            "assign": '{"a":[1,0],"b":[2]}',
            "startingOffsets": '{"a":{"0":23,"1":-2}}',
            "endingOffsets": '{"a":{"0":42,"1":-1}}',
        }
    )
    zero, one = TopicPartition("a", 0), TopicPartition("a", 1)
    assert options.partitions == (one, zero, TopicPartition("b", 2))
    assert options.starting == {zero: 23, one: -2}
    assert options.ending == {zero: 42, one: -1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers is missing"),
        ({"bootstrap.servers": "there:1"}, "contradict"),
        ({"subscribe": None}, "exactly one of the options .* not none"),
        ({"assign": '{"a":[0]}'}, "not subscribe and assign"),
        ({"subscribe": ","}, "names no topic"),
        ({"subscribe": None, "subscribePattern": "("}, "no regular expression"),
        ({"subscribe": None, "subscribePattern": ""}, "is empty"),
        ({"subscribe": None, "assign": '{"a":[-1]}'}, "assign=.* cannot be read"),
        ({"subscribe": None, "assign": '{"a":[true]}'}, "assign=.* cannot be read"),
        ({"subscribe": None, "assign": "{}"}, "names no partition"),
        (
            {"subscribePatern": "x"},
            r"unknown option subscribepatern: did you mean subscribePattern",
        ),
        ({"fetch.max.bytes": "1"}, r"unknown option fetch\.max\.bytes: known are"),
        ({"kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset cannot be set"),
        ({"startingOffsets": "latest"}, "would hold nothing"),
        ({"endingOffsets": "earliest"}, "would hold nothing"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, r"-1 \(latest\) for a-0"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, r"-2 \(earliest\) for a-0"),
        ({"endingOffsets": '{"a":{"0":-3}}'}, "cannot be read"),
        ({"endingOffsets": '{"a":[1]}'}, "cannot be read"),
        ({"startingOffsets": "soon"}, "cannot be read: write for instance"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"includeHeaders": "yes"}, "true or false"),
    ],
)
def test_refusals_name_the_option_and_the_fix(changes: dict[str, str | None], message: str) -> None:
    merged: dict[str, str | None] = {**REQUIRED, **changes}
    with pytest.raises(UsageError, match=message):
        read_options({name: value for name, value in merged.items() if value is not None})
