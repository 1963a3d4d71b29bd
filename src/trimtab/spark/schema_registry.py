"""Columns of keys or values in a Schema Registry's framing: `decode` and `encode`.

flights = spark.read.format("trimtab").option("subscribe", "flights").load()
registry = {"url": "http://127.0.0.1:8081"}
flights.select(decode("value", "airline string, delay int", "flights", registry))

A framed value begins with a zero byte and the id of its schema. confluent-kafka's serializers do
the work, so they must be installed where tasks run: `pip install 'trimtab[schema-registry]'`.

Source: Confluent's wire format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow

from trimtab.client.serialization import take_deserializers, take_serializers
from trimtab.errors import CorruptData, UsageError
from trimtab.records import InContext

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

FORMS = ("avro", "json")


def decode(
    column: Column | str,
    to: DataType | str,
    topic: str,
    registry: Mapping[str, object],
    form: str = "avro",
    part: str = "value",
) -> Column:
    """The objects that a column of framed bytes stands for; a null stays null.

    Each value is read with the schema of its id. Its fields come into those of `to` by name: a
    field that `to` lacks is left out, and one that the value lacks is null.

    Args:
        to: Spark's type of the result, such as `"airline string, delay int"`.
        topic: names the subject, with `part`.
        registry: the settings of confluent-kafka's `SchemaRegistryClient`, such as `url`,
            `basic.auth.user.info`, `ssl.ca.location`, `timeout` (seconds), `max.retries`.
        form: `avro` or `json`.
        part: `value` or `key`.

    Raises:
        UsageError: `form` or `part` is none of these, or `registry` has no url.

    A task fails with CorruptData at a value that cannot be read, or does not fit into `to`.
    """
    from pyspark.sql.pandas.types import to_arrow_type

    wanted, settings = _data_type(to), _settings(registry, form, part)
    arrow_type = to_arrow_type(wanted, timezone="UTC")

    def decode_array(values: pyarrow.Array) -> pyarrow.Array:
        convert = _deserializer(form, part, settings)
        return _converted(convert, topic, part, values, arrow_type)

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
    settings = _settings(registry, form, part)

    def encode_array(values: pyarrow.Array) -> pyarrow.Array:
        convert = _serializer(form, part, schema, settings)
        return _converted(convert, topic, part, values, pyarrow.binary())

    return _apply(encode_array, "binary", column)


Settings = tuple[tuple[str, Any], ...]
Convert = Callable[[str, Any, Any], Any]


def _settings(registry: Mapping[str, object], form: str, part: str) -> Settings:
    for name, value, known in (("form", form, FORMS), ("part", part, ("key", "value"))):
        if value not in known:
            raise UsageError(f"{name}={value!r}: must be one of {', '.join(known)}")
    if not registry.get("url"):
        raise UsageError(f"registry={registry!r}: has no url; give the registry's, as 'url'")
    return tuple(sorted(registry.items()))


def _data_type(to: DataType | str) -> DataType:
    from pyspark.sql.types import DataType, _parse_datatype_string

    return to if isinstance(to, DataType) else _parse_datatype_string(to)


def _apply(function: Callable[..., Any], to: DataType | str, column: Column | str) -> Column:
    from pyspark.sql.pandas.functions import arrow_udf

    make: Any = arrow_udf  # its overloads lack types that are structs
    made: Column = make(function, to)(column)
    return made


def _converted(
    convert: Convert, topic: str, part: str, values: pyarrow.Array, to: pyarrow.DataType
) -> pyarrow.Array:
    try:
        return pyarrow.array([convert(topic, [], each) for each in values.to_pylist()], to)
    except Exception as error:
        raise CorruptData(f"topic {topic}: a {part}: {type(error).__name__}: {error}") from error


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
