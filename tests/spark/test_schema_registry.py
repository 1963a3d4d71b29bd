"""`decode` and `encode`: columns in a Schema Registry's framing."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from tests.conformance import registry as in_memory
from trimtab.kafka.errors import UsageError
from trimtab.spark.schema_registry import decode, encode

pytest.importorskip("fastavro", reason="see CONTRIBUTING.md")
pytest.importorskip("confluent_kafka.schema_registry.json_schema", reason="see CONTRIBUTING.md")

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
VALUE = SerializationContext("flights", MessageField.VALUE)


@pytest.fixture
def registry() -> Iterator[in_memory.Registry]:
    with in_memory.running() as registry:
        yield registry


def avro(*fields: tuple[str, Any]) -> str:
    named = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "Flight", "fields": named})


def framed(registry: in_memory.Registry, schema: str, *objects: Any) -> list[bytes]:
    """What confluent-kafka's serializer writes."""
    with SchemaRegistryClient({"url": registry.url}) as client:
        write = AvroSerializer(client, schema)
        return [write(each, VALUE) or b"" for each in objects]


def frame(spark: Any, values: list[bytes | None]) -> Any:
    return spark.createDataFrame([(each,) for each in values], "value binary")


def test_values_of_several_schemas_are_read_by_their_ids(
    spark: Any, registry: in_memory.Registry
) -> None:
    old = avro(("airline", "string"), ("delay", "int"))
    new = avro(("delay", "long"), ("gate", "string"), ("airline", "string"))
    values: list[bytes | None] = [
        *framed(registry, old, {"airline": "UA", "delay": 1}, {"airline": "AA", "delay": 2}),
        None,
        *framed(registry, new, {"airline": "DL", "delay": 3, "gate": "A1"}),
    ]
    wanted = "airline string, delay bigint, gate string"
    settings = {"url": registry.url}
    rows = frame(spark, values).select(decode("value", wanted, "flights", settings).alias("f"))
    assert [tuple(row.f) if row.f else None for row in rows.collect()] == [
        ("UA", 1, None),
        ("AA", 2, None),
        None,
        ("DL", 3, "A1"),
    ]
    assert rows.schema["f"].dataType.simpleString() == (
        "struct<airline:string,delay:bigint,gate:string>"
    )


def test_the_types_of_avro_become_those_of_spark(spark: Any, registry: in_memory.Registry) -> None:
    schema = avro(
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("day", {"type": "int", "logicalType": "date"}),
        ("fare", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("legs", {"type": "array", "items": "string"}),
        ("bags", {"type": "map", "values": "int"}),
        ("gate", ["null", "string"]),
        ("kind", {"type": "enum", "name": "Kind", "symbols": ["DAY", "NIGHT"]}),
        ("raw", "bytes"),
        ("late", "boolean"),
        ("share", "double"),
        (
            "from",
            {"type": "record", "name": "Airport", "fields": [{"name": "c", "type": "string"}]},
        ),
    )
    at = datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    given = {
        "at": at,
        "day": at.date(),
        "fare": Decimal("12.50"),
        "legs": ["EWR", "IAH"],
        "bags": {"a": 1},
        "gate": None,
        "kind": "NIGHT",
        "raw": b"\0\1",
        "late": True,
        "share": 0.5,
        "from": {"c": "EWR"},
    }
    to = (
        "at timestamp, day date, fare decimal(9, 2), legs array<string>, bags map<string, int>,"
        " gate string, kind string, raw binary, late boolean, share double, `from` struct<c string>"
    )
    values: list[bytes | None] = [*framed(registry, schema, given)]
    column = decode("value", to, "flights", {"url": registry.url}).alias("f")
    [row] = frame(spark, values).select(column).selectExpr("f.*", "unix_seconds(f.at) s").collect()
    found = row.asDict(recursive=True)
    assert found.pop("s") == int(at.timestamp())
    assert {name: each for name, each in found.items() if name != "at"} == {
        name: each for name, each in given.items() if name != "at"
    }


def test_what_spark_encodes_confluents_deserializer_reads_and_spark_too(
    spark: Any, registry: in_memory.Registry
) -> None:
    schema = avro(("airline", "string"), ("delay", "int"))
    settings = {"url": registry.url}
    spark.conf.set(BATCH, 10)
    given = spark.range(200).selectExpr(
        "if(id = 7, null, struct('UA' as airline, cast(id as int) as delay)) as f"
    )
    encoded = given.select(encode("f", schema, "flights", settings).alias("value"))
    values = [row.value for row in encoded.collect()]
    with SchemaRegistryClient(dict(settings)) as client:
        read = AvroDeserializer(client)
        found = [None if value is None else read(bytes(value), VALUE) for value in values]
    wanted = [None if n == 7 else {"airline": "UA", "delay": n} for n in range(200)]
    assert found == wanted
    assert list(registry.subjects) == ["flights-value"]
    back = encoded.select(decode("value", "delay int", "flights", settings).alias("f"))
    assert [row.f and row.f.delay for row in back.collect()] == [
        None if n == 7 else n for n in range(200)
    ]
    spark.conf.unset(BATCH)
    assert len(registry.requests) < 20, "schemas are kept between batches and tasks"


def test_json_is_read_and_written(spark: Any, registry: in_memory.Registry) -> None:
    schema = json.dumps(
        {"title": "F", "type": "object", "properties": {"delay": {"type": "integer"}}}
    )
    settings = {"url": registry.url}
    with SchemaRegistryClient(dict(settings)) as client:
        values: list[bytes | None] = [JSONSerializer(schema, client)({"delay": 7}, VALUE)]
    column = decode("value", "delay int", "flights", settings, form="json").alias("f")
    decoded = frame(spark, values).select(column)
    assert [row.f.delay for row in decoded.collect()] == [7]
    again = decoded.select(encode("f", schema, "flights", settings, form="json").alias("value"))
    assert [bytes(row.value) for row in again.collect()] == values


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"plain", "CorruptData: topic flights: a value without a .*framing: SerializationError"),
        (
            b"\0\0\0\0\x63abc",
            "CorruptData: topic flights: a value of schema id 99: .*Schema 99 not found",
        ),
    ],
    ids=["no framing", "unknown id"],
)
def test_a_value_that_cannot_be_read_fails_the_query(
    spark: Any, registry: in_memory.Registry, value: bytes, why: str
) -> None:
    framed(registry, avro(("delay", "int")), {"delay": 1})
    column = decode("value", "delay int", "flights", {"url": registry.url})
    with pytest.raises(Exception, match=why):
        frame(spark, [value]).select(column).collect()


def test_a_value_that_does_not_fit_the_type_fails_the_query(
    spark: Any, registry: in_memory.Registry
) -> None:
    values: list[bytes | None] = [*framed(registry, avro(("delay", "string")), {"delay": "late"})]
    column = decode("value", "delay int", "flights", {"url": registry.url})
    with pytest.raises(Exception, match=r"CorruptData: topic flights: .*late"):
        frame(spark, values).select(column).collect()


def test_wrong_arguments_are_refused_at_once(spark: Any) -> None:
    with pytest.raises(UsageError, match="form='protobuf': must be one of avro, json"):
        decode("value", "a int", "flights", {"url": "http://a"}, form="protobuf")
    with pytest.raises(UsageError, match="part='header': must be one of key, value"):
        encode("value", "{}", "flights", {"url": "http://a"}, part="header")
    with pytest.raises(UsageError, match=r"registry=\{\}: has no url"):
        decode("value", "a int", "flights", {})
