"""The options of format("trimtab"), as a user may give them."""

from __future__ import annotations

import logging

import pytest

from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.spark.options.client import resolve_rack
from trimtab.spark.options.source import (
    Timestamps,
    read_options,
    read_stream_options,
    warn_of_unused,
)
from trimtab.spark.options.values import EVERY_PARTITION

REQUIRED = {"kafka.bootstrap.servers": "here:9092", "subscribe": "flights"}
ZERO, ONE = TopicPartition("a", 0), TopicPartition("a", 1)


def test_defaults_read_a_whole_topic() -> None:
    options = read_options(REQUIRED)
    assert options.client == {"bootstrap.servers": "here:9092"}
    assert options.topics == ("flights",)
    assert (options.starting, options.ending) == ("earliest", "latest")
    assert options.fail_on_data_loss
    assert (options.include_headers, options.include_batches) == (False, False)
    assert (options.min_partitions, options.max_records_per_partition) == (0, 0)
    assert options.max_partitions == "auto"
    assert (options.offset_attempts, options.offset_retry_s) == (3, 1.0)
    assert (options.client_rack, options.pushes_filters, options.unused) == ("", False, ())


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
    assert options.partitions == (ONE, ZERO, TopicPartition("b", 2))
    assert options.starting == {ZERO: 23, ONE: -2}
    assert options.ending == {ZERO: 42, ONE: -1}


def test_a_topic_with_a_word_is_not_compared_partition_by_partition() -> None:
    given = {"bootstrap.servers": "here:9092", "subscribe": "a,b"}
    given["startingOffsets"] = '{"a":"earliest","b":{"0":7}}'
    given["endingOffsets"] = '{"a":{"0":5},"b":{"0":6}}'
    with pytest.raises(UsageError, match="b-0: startingOffsets 7 is after endingOffsets 6"):
        read_options(given)
    given["endingOffsets"] = '{"a":{"0":5},"b":"latest"}'
    assert read_options(given).starting == {
        TopicPartition("a", EVERY_PARTITION): -2,
        TopicPartition("b", 0): 7,
    }


def test_one_time_comes_before_times_and_times_before_offsets() -> None:
    given = {
        **REQUIRED,
        "startingTimestamp": " 1000 ",
        "startingOffsetsByTimestamp": '{"a":{"0":2000}}',
        "startingOffsets": "latest",  # in a batch refused, if it were read
        "endingOffsetsByTimestamp": '{"a":{"0":3000}}',
        "endingOffsets": '{"a":{"0":1}}',
    }
    options = read_options(given)
    assert options.starting == Timestamps(1000, or_latest=False)
    assert options.ending == Timestamps({ZERO: 3000}, or_latest=False)
    del given["startingTimestamp"]
    given["startingOffsetsByTimestampStrategy"] = "Latest"
    assert read_options(given).starting == Timestamps({ZERO: 2000}, or_latest=True)


def test_a_stream_begins_at_the_end_and_has_limits() -> None:
    options = read_stream_options(REQUIRED)
    assert (options.starting, options.size_source) == ("latest", "auto")
    assert (options.max_offsets_per_trigger, options.max_bytes_per_trigger) == (0, 0)
    assert (options.max_trigger_delay_s, options.commit_group) == (900, "")
    options = read_stream_options(
        {
            **REQUIRED,
            "maxOffsetsPerTrigger": "1000",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "2min",
            "maxBytesPerTrigger": "8m",
            "minBytesPerTrigger": "1 KB",
            "maxBytesPerPartition": "65536",
            "sizeSource": "PROBE",
            "commitGroup": "tools",
            "clientRack": "env:RACK",
            "startingOffsets": '{"a":{"0":-1}}',
        }
    )
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (1000, 10)
    assert (options.max_trigger_delay_s, options.size_source) == (120, "probe")
    assert (options.max_bytes_per_trigger, options.min_bytes_per_trigger) == (8 << 20, 1024)
    assert (options.max_bytes_per_partition, options.commit_group) == (65_536, "tools")
    assert (options.client_rack, options.starting) == ("env:RACK", {ZERO: -1})


@pytest.mark.parametrize(
    ("text", "meaning"), [("Auto", "auto"), (" unlimited ", 0), ("1", 1), ("500", 500)]
)
def test_at_most_so_many_spark_partitions(text: str, meaning: int | str) -> None:
    given = {**REQUIRED, "MaxPartitions": text}
    assert read_options(given).max_partitions == meaning
    assert read_stream_options(given).max_partitions == meaning


def test_what_changes_nothing_is_taken_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    unused = {
        "groupIdPrefix": "mine",
        "maxOffsetsPerTrigger": "5",
        "maxBytesPerTrigger": "1m",
        "locale": "en",
        "kafka.group.id": "mine",
        "kafka.session.timeout.ms": "45000",
        "kafka.heartbeat.interval.ms": "3000",
        "kafka.max.poll.records": "50000",
        "kafka.partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
        "kafka.metric.reporters": "com.example.Reporter",
        "kafka.acks": "all",
        "kafka.confluent.monitoring.topic": "x",
    }
    options = read_options({**REQUIRED, **unused})
    assert options.client == {"bootstrap.servers": "here:9092"}
    assert sorted(options.unused) == sorted(name for name in unused)
    warn_of_unused(options)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert all(name in caplog.text for name in unused)
    caplog.clear()
    warn_of_unused(read_options(REQUIRED))
    assert caplog.text == ""


def test_what_a_batch_does_not_use_a_stream_does_and_the_other_way_round() -> None:
    given = {**REQUIRED, "pushdown": "true", "maxBytesPerTrigger": "1m"}
    assert read_options(given).unused == ("maxBytesPerTrigger",)
    assert read_options(given).pushes_filters
    assert read_stream_options(given).unused == ("pushdown",)


def test_a_rack_is_a_name_or_a_variable_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_options({**REQUIRED, "kafka.client.rack": "b"}).client_rack == "b"
    options = read_options({**REQUIRED, "kafka.client.rack": "b", "clientRack": "b"})
    assert (options.client_rack, "client.rack" in options.client) == ("b", False)
    assert (resolve_rack(""), resolve_rack("b")) == ("", "b")
    monkeypatch.setenv("ZONE", "eu-1a")
    assert resolve_rack("env:ZONE") == "eu-1a"
    monkeypatch.delenv("ZONE")
    with pytest.raises(UsageError, match=r"no environment variable ZONE; .*spark\.executorEnv\."):
        resolve_rack("env:ZONE")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict.fromkeys(REQUIRED), "CREATE TEMPORARY VIEW"),
        ({"provider": "trimtab"}, "cannot be a table of a catalog"),
        ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers is missing"),
        (
            {"kafka.bootstrap.servers": None, "kafka.bootstrap.server": "here:1"},
            "unknown option kafka.bootstrap.server: did you mean kafka.bootstrap.servers",
        ),
        ({"bootstrap.servers": "there:1"}, "contradict"),
        ({"subscribe": None}, "exactly one of the options .* not none"),
        ({"assign": '{"a":[0]}'}, "not subscribe and assign"),
        ({"subscribe": ","}, "names no topic"),
        ({"subscribe": None, "subscribePattern": "("}, "not a valid Python regular expression"),
        (
            {"subscribe": None, "subscribePattern": r"\p{Alpha}"},
            "not a valid Python regular expression",
        ),
        ({"subscribe": None, "subscribePattern": ""}, "is empty"),
        ({"subscribe": None, "assign": '{"a":[-1]}'}, "assign=.* cannot be read"),
        ({"subscribe": None, "assign": '{"a":[true]}'}, "assign=.* cannot be read"),
        ({"subscribe": None, "assign": "[" * 100_000}, "assign=.* cannot be read"),
        ({"subscribe": None, "assign": "{}"}, "names no partition"),
        (
            {"subscribePatern": "x"},
            r"unknown option subscribepatern: did you mean subscribePattern",
        ),
        ({"startingOffset": "x"}, "did you mean startingOffsets"),
        ({"kafka.fetch.max.byte": "1"}, r"did you mean kafka\.fetch\.max\.bytes"),
        ({"kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset cannot be set"),
        ({"startingOffsets": "latest"}, "would be empty"),
        ({"endingOffsets": "earliest"}, "would be empty"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, r"-1 \(latest\) for a-0"),
        ({"startingOffsets": '{"a":"latest"}'}, r"-1 \(latest\) for a: a batch would be empty"),
        ({"endingOffsets": '{"a":"earliest"}'}, r"-2 \(earliest\) for a: a batch would be empty"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, r"-2 \(earliest\) for a-0"),
        ({"endingOffsets": '{"a":{"0":-3}}'}, "cannot be read"),
        ({"endingOffsets": '{"a":[1]}'}, "cannot be read"),
        ({"startingOffsets": "soon"}, "cannot be read: write for instance"),
        (
            {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":4}}'},
            "a-0: startingOffsets 5 is after endingOffsets 4",
        ),
        (
            {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"1":6}}'},
            "must name the same partitions: a-0, a-1",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"a":{"0":5}}',
                "endingOffsetsByTimestamp": '{"a":{"0":4}}',
            },
            "a-0: startingOffsetsByTimestamp 5 is after endingOffsetsByTimestamp 4",
        ),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"endingTimestamp": "-1"}, "milliseconds since 1970"),
        ({"endingTimestamp": str(2**63)}, "milliseconds since 1970"),
        ({"startingOffsetsByTimestamp": '{"a":{"0":-1}}'}, "cannot be read"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "write error or latest"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"maxRecordsPerPartition": "0"}, "at least 1"),
        ({"maxPartitions": "none"}, "maxPartitions='none': write auto, unlimited, or a whole"),
        ({"maxPartitions": ""}, "maxPartitions='': write auto, unlimited, or a whole"),
        ({"maxPartitions": "0"}, "at least 1"),
        ({"maxPartitions": "-1"}, "at least 1"),
        ({"maxPartitions": "1.5"}, "at least 1"),
        ({"maxPartitions": str(2**63)}, "at least 1"),
        (
            {"minPartitions": "9", "maxPartitions": "8"},
            "minPartitions=9 is more than maxPartitions=8",
        ),
        ({"maxPartition": "8"}, "did you mean maxPartitions"),
        ({"fetchOffset.numRetries": "0"}, "at least 1"),
        ({"fetchOffset.retryIntervalMs": "-1"}, "at least 0"),
        ({"kafkaConsumer.pollTimeoutMs": "²"}, "at least 1"),
        ({"includeHeaders": "yes"}, "true or false"),
        (
            {"minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"},
            "minOffsetsPerTrigger=2 is more than maxOffsetsPerTrigger=1",
        ),
        ({"minBytesPerTrigger": "1k", "maxBytesPerTrigger": "1023"}, "minBytesPerTrigger=1k is"),
        ({"clientRack": "a", "kafka.client.rack": "b"}, "clientRack='a' and .* contradict"),
        ({"clientRack": "env:"}, "names no environment variable"),
    ],
)
def test_refusals_name_the_option_and_the_fix(changes: dict[str, str | None], message: str) -> None:
    merged: dict[str, str | None] = {**REQUIRED, **changes}
    with pytest.raises(UsageError, match=message):
        read_options({name: value for name, value in merged.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is for batches"),
        ({"endingTimestamp": "1"}, "endingTimestamp is for batches"),
        ({"endingOffsetsByTimestamp": "{}"}, "endingOffsetsByTimestamp is for batches"),
        ({"maxBytesPerTrigger": "8 parsecs"}, "such as 8m or 1g"),
        ({"maxBytesPerTrigger": "0"}, "at least 1"),
        ({"maxTriggerDelay": "soon"}, "such as 15m"),
        ({"sizeSource": "exact"}, "write auto or probe"),
        ({"maxOffsetsPerTrigger": "1.5"}, "at least 1"),
    ],
)
def test_refusals_of_a_stream(changes: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_stream_options({**REQUIRED, **changes})
