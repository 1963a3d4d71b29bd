"""Values in a Schema Registry's framing become columns; without Spark's JVM and a registry."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")
fastavro = pytest.importorskip("fastavro", reason="see CONTRIBUTING.md")

from trimtab.kafka.errors import CorruptData, Unavailable, UsageError  # noqa: E402
from trimtab.spark.schema_registry import decode, decoded  # noqa: E402

ID = UUID("12345678-1234-5678-1234-567812345678")
FRAME = b"\0\0\0\0\x07"
AT = datetime.time(1, 2, 3, 4000)
NOON = datetime.datetime(2024, 1, 2, 12)
UTC = datetime.UTC


def logical(kind: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


def avro(kind: Any, value: Any) -> bytes:
    """A framed value of one field, `f`."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"f": value})
    SCHEMAS[FRAME] = schema
    return FRAME + out.getvalue()


SCHEMAS: dict[bytes, Any] = {}


def read(value: bytes) -> Any:
    if value[:1] != b"\0":
        raise ValueError("no framing")
    return fastavro.schemaless_reader(io.BytesIO(value[5:]), SCHEMAS[value[:5]], None)


def column(values: list[bytes | None], to: Any, is_permissive: bool = False) -> list[Any]:
    struct = pa.struct([("f", to)])
    found = decoded(read, "topic t: a value", pa.array(values, pa.binary()), struct, is_permissive)
    return [each and each["f"] for each in found.to_pylist()]


@pytest.mark.parametrize(
    ("kind", "given", "to", "wanted"),
    [
        (logical("string", "uuid"), ID, pa.string(), str(ID)),
        (logical("string", "uuid"), ID, pa.binary(), ID.bytes),
        (["null", logical("string", "uuid")], None, pa.string(), None),
        (
            {"type": "array", "items": logical("string", "uuid")},
            [ID],
            pa.list_(pa.string()),
            [str(ID)],
        ),
        (
            {"type": "map", "values": logical("int", "time-millis")},
            {"a": AT},
            pa.map_(pa.string(), pa.int32()),
            [("a", 3_723_004)],
        ),
        (logical("int", "time-millis"), AT, pa.int32(), 3_723_004),
        (logical("int", "time-millis"), AT, pa.int64(), 3_723_004_000),
        (logical("int", "time-millis"), AT, pa.time64("us"), AT),
        (logical("long", "time-micros"), AT.replace(microsecond=5), pa.int64(), 3_723_000_005),
        (
            logical("bytes", "decimal", precision=9, scale=2),
            Decimal("-12.50"),
            pa.decimal128(9, 2),
            Decimal("-12.50"),
        ),
        (
            logical("fixed", "decimal", precision=9, scale=2, name="D", size=4),
            Decimal("12.50"),
            pa.decimal128(12, 4),
            Decimal("12.5000"),
        ),
        (logical("long", "local-timestamp-millis"), NOON, pa.timestamp("us"), NOON),
        (logical("long", "local-timestamp-micros"), NOON, pa.timestamp("us"), NOON),
        (
            logical("long", "timestamp-micros"),
            NOON.replace(tzinfo=UTC),
            pa.timestamp("us", "UTC"),
            NOON.replace(tzinfo=UTC),
        ),
        (logical("fixed", "duration", name="D", size=12), bytes(12), pa.binary(), bytes(12)),
    ],
)
def test_avros_types_become_sparks(kind: Any, given: Any, to: Any, wanted: Any) -> None:
    assert column([avro(kind, given), None], to) == [wanted, None]


@pytest.mark.parametrize(
    ("kind", "given", "to", "why"),
    [
        ("string", "late", pa.int32(), "field f: 'late' does not fit into int32: "),
        ("long", 2**40, pa.int32(), "field f: 1099511627776 does not fit into int32: "),
        (
            {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "I",
                    "fields": [{"name": "g", "type": "string"}],
                },
            },
            [{"g": "x" * 1000}],
            pa.list_(pa.struct([("g", pa.int32())])),
            r"field f\.g: 'x{99} does not fit into int32: ",
        ),
        (
            logical("long", "time-micros"),
            AT.replace(microsecond=5),
            pa.int32(),
            r"field f: 01:02:03\.000005 has microseconds: read it as a bigint",
        ),
        (
            logical("bytes", "decimal", precision=9, scale=2),
            Decimal("12.55"),
            pa.decimal128(9, 1),
            r"field f: Decimal\('12.55'\) does not fit into decimal128\(9, 1\)",
        ),
        (
            logical("long", "local-timestamp-millis"),
            NOON,
            pa.timestamp("us", "UTC"),
            "field f: a local-timestamp of Avro: read it as timestamp_ntz",
        ),
        (
            logical("long", "timestamp-millis"),
            NOON.replace(tzinfo=UTC),
            pa.timestamp("us"),
            "field f: a timestamp of Avro: read it as timestamp$",
        ),
        (
            logical("fixed", "duration", name="D", size=12),
            bytes(12),
            pa.duration("us"),
            r"field f: b'.* does not fit into duration",
        ),
    ],
)
def test_what_does_not_fit_is_named(kind: Any, given: Any, to: Any, why: str) -> None:
    value = avro(kind, given)
    with pytest.raises(CorruptData, match=rf"^topic t: a value of schema id 7: {why}"):
        column([None, value], to)
    assert decoded(
        read, "", pa.array([value, None], pa.binary()), pa.struct([("f", to)]), True
    ).to_pylist() == [{"f": None}, None]


def test_a_corrupt_value_becomes_nulls_and_the_others_stay() -> None:
    good = avro("int", 5)
    values = [good, b"plain", FRAME, None, good]
    assert column(values, pa.int32(), is_permissive=True) == [5, None, None, None, 5]
    with pytest.raises(CorruptData, match="a value without a Schema Registry's framing: ValueErr"):
        column(values, pa.int32())
    plain = decoded(read, "", pa.array([b"plain"], pa.binary()), pa.int32(), True)
    assert plain.to_pylist() == [None]


class Answered(Exception):
    """As confluent-kafka's error of a registry."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.http_status_code = status


@pytest.mark.parametrize("error", [ConnectionError("refused"), Answered(503), Answered(401)])
@pytest.mark.parametrize("is_permissive", [True, False])
def test_a_registry_that_fails_nulls_no_values(error: Exception, is_permissive: bool) -> None:
    def fail(value: bytes) -> Any:
        raise error

    with pytest.raises(Unavailable, match="of schema id 7: "):
        decoded(fail, "t", pa.array([FRAME], pa.binary()), pa.int32(), is_permissive)


def test_an_unknown_id_is_a_corrupt_value() -> None:
    def fail(value: bytes) -> Any:
        raise Answered(404)

    values = pa.array([FRAME], pa.binary())
    assert decoded(fail, "t", values, pa.int32(), True).to_pylist() == [None]
    with pytest.raises(CorruptData, match="of schema id 7: Answered: status 404"):
        decoded(fail, "t", values, pa.int32(), False)


def test_a_mode_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="mode='DROPMALFORMED': must be one of FAILFAST, PERM"):
        decode("value", "a int", "t", json.loads('{"url": "http://a"}'), mode="DROPMALFORMED")
