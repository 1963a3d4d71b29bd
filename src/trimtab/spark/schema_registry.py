"""Columns of keys or values in a Schema Registry's framing: `decode` and `encode`.

flights = spark.read.format("trimtab").option("subscribe", "flights").load()
registry = {"url": "http://127.0.0.1:8081"}
flights.select(decode("value", "airline string, delay int", "flights", registry))

A framed value begins with a zero byte and the id of its schema. confluent-kafka's serializers do
the work, so they must be installed where tasks run: `pip install 'trimtab[schema-registry]'`.

Source: Confluent's wire format.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow

from trimtab.client.serialization import take_deserializers, take_serializers
from trimtab.kafka.errors import CorruptData, KafkaError, Unavailable, UsageError
from trimtab.kafka.records import InContext
from trimtab.spark.versions import require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

FORMS = ("avro", "json")
MODES = ("FAILFAST", "PERMISSIVE")


def decode(
    column: Column | str,
    to: DataType | str,
    topic: str,
    registry: Mapping[str, object],
    form: str = "avro",
    part: str = "value",
    mode: str = "FAILFAST",
) -> Column:
    """The objects that a column of framed bytes stands for; a null stays null.

    Each value is read with the schema of its id. Its fields come into those of `to` by name: a
    field that `to` lacks is left out, and one that the value lacks is null. Avro's logical types
    become Spark's: `uuid` a string (or its 16 bytes, as binary); `time-millis` and `time-micros` an
    int (milliseconds of the day), a bigint (microseconds) or a time; `decimal` a decimal;
    `timestamp-*` a timestamp, and `local-timestamp-*` a timestamp_ntz. A `duration` has no type in
    Spark: it is read as its 12 bytes, as binary.

    Args:
        to: Spark's type of the result, such as `"airline string, delay int"`.
        topic: names the subject, with `part`.
        registry: the settings of confluent-kafka's `SchemaRegistryClient`, such as `url`,
            `basic.auth.user.info`, `ssl.ca.location`, `timeout` (seconds), `max.retries`.
        form: `avro` or `json`.
        part: `value` or `key`.
        mode: as of Spark's `from_avro`: `FAILFAST`, or `PERMISSIVE`, where a value that cannot be
            read, or does not fit into `to`, becomes null (a struct of nulls, if `to` is a struct).

    Raises:
        UsageError: `form`, `part` or `mode` is none of these, `registry` has no url, or this
            PySpark is older than 4.1.

    A task fails with CorruptData at a value that cannot be read, or does not fit into `to`; the
    error names the schema's id and the field. In both modes it fails with Unavailable if the
    registry does not answer.
    """
    require_pyspark("trimtab.spark.schema_registry", "4.1")
    from pyspark.sql.pandas.types import to_arrow_type

    mode = mode.upper()
    _check("mode", mode, MODES)
    wanted, settings = _data_type(to), _settings(registry, form, part)
    arrow_type = to_arrow_type(wanted, timezone="UTC")

    def decode_array(values: pyarrow.Array) -> pyarrow.Array:
        convert = _deserializer(form, part, settings)
        read = partial(convert, topic, [])
        return decoded(read, f"topic {topic}: a {part}", values, arrow_type, mode == "PERMISSIVE")

    return _apply(decode_array, wanted, column)


def encode(
    column: Column | str,
    schema: str,
    topic: str,
    registry: Mapping[str, object],
    form: str = "avro",
    part: str = "value",
) -> Column:
    """The framed bytes of a column; a null stays null.

    Registers the schema under the topic's subject, unless that has it.

    Args:
        column: a struct with the schema's fields, or what else the schema describes.
        schema: the schema's text.
        topic, registry, form, part: as of `decode`.
    """
    require_pyspark("trimtab.spark.schema_registry", "4.1")
    settings = _settings(registry, form, part)

    def encode_array(values: pyarrow.Array) -> pyarrow.Array:
        convert = _serializer(form, part, schema, settings)
        try:
            framed = [convert(topic, [], each) for each in values.to_pylist()]
        except Exception as error:
            raise _failure(error, f"topic {topic}: a {part}") from error
        return pyarrow.array(framed, pyarrow.binary())

    return _apply(encode_array, "binary", column)


Settings = tuple[tuple[str, Any], ...]
Convert = Callable[[str, Any, Any], Any]


def _settings(registry: Mapping[str, object], form: str, part: str) -> Settings:
    _check("form", form, FORMS)
    _check("part", part, ("key", "value"))
    if not registry.get("url"):
        raise UsageError(f"registry={registry!r}: has no url; give the registry's, as 'url'")
    return tuple(sorted(registry.items()))


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name}={value!r}: must be one of {', '.join(known)}")


def _data_type(to: DataType | str) -> DataType:
    from pyspark.sql.types import DataType, _parse_datatype_string

    return to if isinstance(to, DataType) else _parse_datatype_string(to)


def _apply(function: Callable[..., Any], to: DataType | str, column: Column | str) -> Column:
    from pyspark.sql.pandas.functions import arrow_udf

    make: Any = arrow_udf  # its overloads lack types that are structs
    made: Column = make(function, to)(column)
    return made


def decoded(
    read: Callable[[bytes], Any],
    what: str,
    values: pyarrow.Array,
    to: pyarrow.DataType,
    is_permissive: bool,
) -> pyarrow.Array:
    """Framed values as a column.

    Args:
        read: from a framed value to its object.
        what: the topic and the part, for errors.
        is_permissive: whether what is corrupt becomes null.

    Raises:
        CorruptData: a value cannot be read, or does not fit.
        Unavailable: the registry does not answer.
    """
    corrupt: Any = {} if pyarrow.types.is_struct(to) else None
    objects = []
    for value in values.to_pylist():
        try:
            found = None if value is None else _fit(read(value), to)
            if is_permissive:
                pyarrow.array([found], to)
        except Exception as error:
            failure = _failure(error, _of_schema(what, value))
            if not is_permissive or not isinstance(failure, CorruptData):
                raise failure from error
            found = corrupt
        objects.append(found)
    try:
        return pyarrow.array(objects, to)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        for value, found in zip(values.to_pylist(), objects, strict=True):
            if why := _misfit(found, to):
                raise CorruptData(f"{_of_schema(what, value)}: {why}") from None
        raise


def _of_schema(what: str, value: bytes) -> str:
    """What, and the schema of a framed value."""
    if len(value) < 5 or value[0] != 0:
        return f"{what} without a Schema Registry's framing"
    return f"{what} of schema id {int.from_bytes(value[1:5], 'big')}"


def _failure(error: Exception, what: str) -> KafkaError:
    """The error of a value; of the registry, if that has failed, which says nothing of values."""
    status = getattr(error, "http_status_code", 404)
    kind = Unavailable if isinstance(error, OSError) or status != 404 else CorruptData
    reason = str(error) if isinstance(error, _Misfit) else f"{type(error).__name__}: {error}"
    return kind(f"{what}: {reason}")


class _Misfit(Exception):
    """A value does not fit into Spark's type."""


_MIDNIGHT = datetime.datetime.min


def _fit(found: Any, to: pyarrow.DataType, field: str = "") -> Any:
    """The object as Arrow takes it for this type: logical types of Avro become plain values."""
    kinds = pyarrow.types
    if found is None:
        return None
    if kinds.is_struct(to) and isinstance(found, dict):
        return {each.name: _fit(found.get(each.name), each.type, _in(field, each)) for each in to}
    if kinds.is_list(to) and isinstance(found, list):
        return [_fit(each, to.value_type, field) for each in found]
    if kinds.is_map(to) and isinstance(found, dict):
        return [(key, _fit(each, to.item_type, field)) for key, each in found.items()]
    if isinstance(found, uuid.UUID):
        return found.bytes if kinds.is_binary(to) else str(found)
    if isinstance(found, datetime.time) and kinds.is_integer(to):
        since = datetime.datetime.combine(_MIDNIGHT, found) - _MIDNIGHT
        microseconds = since // datetime.timedelta(microseconds=1)
        if to.bit_width == 64:
            return microseconds
        if microseconds % 1000:
            raise _Misfit(f"{_place(field)}{found} has microseconds: read it as a bigint")
        return microseconds // 1000
    if isinstance(found, datetime.datetime) and kinds.is_timestamp(to):
        is_local = found.tzinfo is None
        if is_local != (to.tz is None):
            what, right = ("a local-", "timestamp_ntz") if is_local else ("a ", "timestamp")
            raise _Misfit(f"{_place(field)}{what}timestamp of Avro: read it as {right}")
    return found


def _misfit(found: Any, to: pyarrow.DataType, field: str = "") -> str:
    """Which field of a fitted object is not of its type, and why; empty if all are."""
    try:
        pyarrow.array([found], to)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        kinds = pyarrow.types
        parts: list[tuple[Any, pyarrow.DataType, str]] = []
        if kinds.is_struct(to) and isinstance(found, dict):
            parts = [(found[each.name], each.type, _in(field, each)) for each in to]
        elif kinds.is_list(to) and isinstance(found, list):
            parts = [(each, to.value_type, field) for each in found]
        elif kinds.is_map(to) and isinstance(found, list):
            parts = [(each, to.item_type, field) for _, each in found]
        inner = next(filter(None, (_misfit(*part) for part in parts)), "")
        shown = repr(found)[:_SHOWN]
        return inner or f"{_place(field)}{shown} does not fit into {to}: {error}"
    return ""


_SHOWN = 100
"""Characters of a value in an error."""


def _in(field: str, of: pyarrow.Field) -> str:
    return f"{field}.{of.name}" if field else str(of.name)


def _place(field: str) -> str:
    return f"field {field}: " if field else ""


# Tasks that follow each other in a worker use the same clients, and so the schemas they know.


@cache
def _client(settings: Settings) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    return SchemaRegistryClient(dict(settings))


@cache
def _deserializer(form: str, part: str, settings: Settings) -> Convert:
    client = _client(settings)
    if form == "avro":
        from confluent_kafka.schema_registry.avro import AvroDeserializer

        made: Any = AvroDeserializer(client)
    else:
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer

        made = JSONDeserializer(None, schema_registry_client=client)
    return _convert(take_deserializers({f"{part}.deserializer": made}), part)


@cache
def _serializer(form: str, part: str, schema: str, settings: Settings) -> Convert:
    client = _client(settings)
    if form == "avro":
        from confluent_kafka.schema_registry.avro import AvroSerializer

        made: Any = AvroSerializer(client, schema)
    else:
        from confluent_kafka.schema_registry.json_schema import JSONSerializer

        made = JSONSerializer(schema, client)
    return _convert(take_serializers({f"{part}.serializer": made}), part)


def _convert(taken: Any, part: str) -> Convert:
    found = getattr(taken, part)
    assert isinstance(found, InContext)
    return found.convert
