"""The options of a write in format("trimtab"), and the columns of what is written."""

from __future__ import annotations

import logging

import pytest

from trimtab.kafka.errors import UsageError
from trimtab.spark.options import sink as sink_options
from trimtab.spark.options.sink import DEFAULTS, check_columns, read_sink_options

REQUIRED = {"kafka.bootstrap.servers": "here:9092"}
HEADERS = "array<struct<key:string,value:binary>>"


@pytest.fixture(autouse=True)
def _forget_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_options, "_warned", set())


def test_defaults_suit_a_task() -> None:
    options = read_sink_options(REQUIRED)
    assert options.client == {**DEFAULTS, "bootstrap.servers": "here:9092"}
    assert (options.topic, options.client_rack, options.delivery) == ("", "", "at_least_once")
    assert options.client_here() == options.client
    # Longer than Spark takes to hand over some dozens of its Arrow batches: rows can gather.
    assert int(options.client["linger.ms"]) >= 1000


def test_names_count_in_any_case_and_the_producers_options_pass_through() -> None:
    options = read_sink_options(
        {
            "Bootstrap.Servers": "here:9092",
            "TOPIC": " flights ",
            "kafka.Linger.ms": "7",
            "kafka.partitioner.class": "round_robin",
            "checkpointLocation": "/tmp/Here",
        }
    )
    assert options.client["linger.ms"] == "7"
    assert options.client["batch.size"] == DEFAULTS["batch.size"]
    assert options.client["partitioner.class"] == "round_robin"
    assert options.topic == "flights"
    assert options.spark == {"checkpointlocation": "/tmp/Here"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers is missing"),
        (
            {"kafka.bootstrap.servers": "", "kafka.bootstrap.server": "here:1"},
            "unknown option kafka.bootstrap.server: did you mean kafka.bootstrap.servers",
        ),
        ({"bootstrap.servers": "there:1"}, "contradict each other"),
        ({"topik": "t"}, "unknown option topik of a write: did you mean topic?"),
        ({"client.rack": "a"}, "did you mean clientRack?"),
        ({"kafka.topic": "a", "topic": ""}, "option topic is empty"),
        ({"topic": " "}, "option topic is empty"),
        (
            {"kafka.key.serializer": "X"},
            "kafka.key.serializer cannot be set for a write: a key is bytes",
        ),
        ({"kafka.value.serializer": "X"}, "kafka.value.serializer cannot be set for a write"),
        ({"kafka.transactional.id": "x"}, "kafka.transactional.id cannot be set for a write"),
        ({"kafka.lingr.ms": "1"}, "did you mean kafka.linger.ms"),
        ({"kafka.queue.buffering.max.ms": "1"}, "here it is linger.ms"),
        ({"kafka.linger.ms": "soon"}, "linger.ms"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "acks=all"),
        ({"kafka.interceptor.classes": "X"}, "interceptor.classes"),
        ({"clientRack": "a", "kafka.client.rack": "b"}, "contradict each other"),
        ({"delivery": "sometimes"}, "delivery='sometimes': write at_least_once"),
    ],
)
def test_refusals_name_the_option_and_the_fix(changes: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        read_sink_options({**REQUIRED, **changes})


@pytest.mark.parametrize(
    "name",
    [
        "startingOffsets",
        "failOnDataLoss",
        "includeHeaders",
        "kafka.group.id",
        "kafka.schema.registry.url",
        "mergeschema",
        "kafka.session.timeout.ms",
        "kafka.auto.offset.reset",
        "kafka.metric.reporters",
        "kafka.key.deserializer",
        "path",
    ],
)
def test_options_that_change_nothing_are_taken_with_one_warning(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        options = read_sink_options({**REQUIRED, name: "5"})
    assert name.removeprefix("kafka.") not in options.client
    assert [record.getMessage() for record in caplog.records] == [
        f"options without effect in a write: {name}"
    ]


def test_sparks_own_options_are_no_cause_for_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read_sink_options({**REQUIRED, "queryName": "q", "checkpointLocation": "c"})
    assert caplog.records == []


def test_a_rack_is_found_on_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    options = read_sink_options({**REQUIRED, "clientRack": "env:RACK_HERE"})
    assert options.client["partitioner.rack.aware"] == "true"
    monkeypatch.delenv("RACK_HERE", raising=False)
    with pytest.raises(
        UsageError, match=r"no environment variable RACK_HERE;.*spark\.executorEnv\.RACK_HERE"
    ):
        options.client_here()
    monkeypatch.setenv("RACK_HERE", "b")
    assert options.client_here() == {**options.client, "client.rack": "b"}


def test_a_rack_may_be_given_by_either_name_and_not_count() -> None:
    for name in ("clientRack", "kafka.client.rack"):
        options = read_sink_options(
            {**REQUIRED, name: "a", "kafka.partitioner.rack.aware": "false"}
        )
        assert options.client_here()["client.rack"] == "a"
        assert options.client["partitioner.rack.aware"] == "false"


# -- Columns


def test_columns_are_those_of_sparks_sink_and_a_time() -> None:
    schema = [
        ("topic", "string"),
        ("timestamp", "timestamp"),
        ("partition", "int"),
        ("headers", HEADERS),
        ("value", "binary"),
        ("key", "string"),
    ]
    every = ("value", "key", "topic", "headers", "partition", "timestamp")
    assert check_columns(schema, "") == every
    assert check_columns([("value", "string")], "t") == ("value",)


def test_the_topic_option_wins_over_a_column_of_any_type() -> None:
    assert check_columns([("topic", "int"), ("value", "binary")], "t") == ("value",)


@pytest.mark.parametrize(
    ("schema", "topic", "message"),
    [
        ([], "t", r"column value is missing: name what to write"),
        ([("Value", "string")], "t", r"value is missing \(is it Value\? rename that\)"),
        ([("value", "string")], "", "no topic: give the option topic, or a column topic"),
        ([("value", "string"), ("topics", "string")], "", r"\(is it topics\? rename that\)"),
        ([("value", "int")], "t", r"value has type int, .* string or binary: CAST\(value AS ST"),
        ([("value", "struct<a:int>")], "t", r"to_json\(value\)"),
        ([("value", "string"), ("key", "bigint")], "t", r"key has type bigint.*CAST\(key AS STR"),
        ([("value", "string"), ("topic", "int")], "", r"topic has type int.*CAST\(topic AS STR"),
        ([("value", "string"), ("partition", "bigint")], "t", r"CAST\(partition AS INT\)"),
        ([("value", "string"), ("timestamp", "double")], "t", r"CAST\(timestamp AS TIMESTAMP\)"),
        ([("value", "string"), ("headers", "map<string,binary>")], "t", r"array\(struct\("),
        ([("value", "string"), ("value", "string")], "t", "two columns value: drop or rename"),
    ],
)
def test_columns_that_cannot_be_say_why(
    schema: list[tuple[str, str]], topic: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_columns(schema, topic)


def test_other_columns_are_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    schema = [("value", "string"), ("carrier", "string"), ("a", "int"), ("a", "int")]
    for _ in range(2):
        assert check_columns(schema, "t") == ("value",)
    assert len(caplog.records) == 1
    assert "not written: carrier, a;" in caplog.text
    check_columns([("value", "binary"), ("offset", "bigint"), ("timestampType", "int")], "t")
    assert len(caplog.records) == 1  # a copied topic has these
