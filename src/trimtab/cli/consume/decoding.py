"""Decodes keys and values by the schemas of a Schema Registry, by means of confluent-kafka.

The id of a schema is before the value, after a zero byte, or in a header. The registry knows
whether the schema is one of Avro, JSON Schema or Protobuf. What has no id stays as it is, and so
does, counted, what cannot be decoded. If the registry does not answer, or refuses, reading fails.

Tests: tests/conformance/test_consume_schemas.py
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from confluent_kafka.schema_registry import SchemaRegistryClient, dual_schema_id_deserializer
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import Deserializer
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

from trimtab.kafka.errors import UsageError

TIMEOUT_S: Final = 30
"""Confluent's client itself would wait for ever."""

_NUMBERS: Final = ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms")
_LEAST: Final = 6
"""Bytes with an id, of which confluent-kafka's deserializers refuse fewer."""


def connect_registry(url: str, settings: Mapping[str, str]) -> Registry:
    """A registry, with settings of confluent-kafka's `SchemaRegistryClient` as texts.

    Raises:
        UsageError: the client refuses a setting.
    """
    typed: dict[str, Any] = {"timeout": TIMEOUT_S, **settings, "url": url}
    try:
        for name in _NUMBERS:
            if name in typed:
                typed[name] = int(typed[name])
        return Registry(typed)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--schema-registry {url}: {error}") from None


class Registry:
    """A Schema Registry, and the deserializers of its schemas.

    Attributes:
        failed: how many keys and values could not be decoded.
        first: which of these was the first, and why.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._client = SchemaRegistryClient(dict(settings))
        # Of its own, as a client remembers one form of each schema.
        self._descriptors = SchemaRegistryClient(dict(settings))
        self._made: dict[object, Callable[[bytes, Any], Any]] = {
            "AVRO": AvroDeserializer(self._client),
            "JSON": JSONDeserializer(None, schema_registry_client=self._client),
        }
        self.failed = 0
        self.first = ""

    def close(self) -> None:
        """Close the connections to the registry."""
        self._client.close()
        self._descriptors.close()

    def options(self) -> dict[str, Any]:
        """For a consumer."""
        return {f"{part}.deserializer": Decoder(self, part) for part in ("key", "value")}

    def decode(self, data: bytes, context: Any) -> Any:
        """What the bytes stand for. Raises whatever confluent-kafka, a schema's library or HTTP
        raises."""
        found = _read_id(data, context)
        known = found.id if found.guid is None else str(found.guid)
        kind = _fetch(self._client, known).schema_type or "AVRO"
        if kind == "PROTOBUF":
            indexes = tuple(_read_id(data, context, kind).message_indexes or ())
            if (known, indexes) not in self._made:
                self._made[known, indexes] = self._make_protobuf(known, indexes)
            return _read_message(self._made[known, indexes](data, context))
        if kind not in self._made:
            raise ValueError(f"its schema is of the type {kind}")
        return self._made[kind](data, context)

    def _make_protobuf(self, known: object, indexes: tuple[int, ...]) -> Any:
        """A deserializer needs the message's class, which is made of the schema's descriptor."""
        pool = DescriptorPool()
        file = self._add_file("schema.proto", _fetch(self._descriptors, known, "serialized"), pool)
        message = file.message_type[indexes[0]]
        names = [file.package] if file.package else []
        names.append(message.name)
        for index in indexes[1:]:
            message = message.nested_type[index]
            names.append(message.name)
        made = GetMessageClass(pool.FindMessageTypeByName(".".join(names)))
        return ProtobufDeserializer(made, {"use.deprecated.format": False}, self._client)

    def _add_file(self, name: str, schema: Any, pool: DescriptorPool) -> FileDescriptorProto:
        """Add a schema to the pool, after those that it imports."""
        file = FileDescriptorProto.FromString(base64.b64decode(schema.schema_str))
        file.name = name
        references = {each.name: each for each in schema.references or ()}
        for imported in file.dependency:
            if (other := references.get(imported)) is not None:
                version = self._descriptors.get_version(
                    other.subject, other.version, True, "serialized"
                )
                self._add_file(imported, version.schema, pool)
            elif imported.startswith("google/"):  # which are not registered
                module = imported.removesuffix(".proto").replace("/", ".") + "_pb2"
                pool.AddSerializedFile(import_module(module).DESCRIPTOR.serialized_pb)
        pool.Add(file)
        return file


def _read_message(message: Any) -> Any:
    """The fields of a message by name. Protobuf's own mapping to JSON makes texts of 64-bit
    numbers, which an expression could not compare."""
    if message.DESCRIPTOR.full_name.startswith("google.protobuf."):  # a time, and the like
        return MessageToDict(message)
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value, inner = getattr(message, field.name), field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            entry = inner.fields_by_name["value"]
            found[field.name] = {str(key): _read_field(entry, value[key]) for key in value}
        elif hasattr(value, "extend"):
            found[field.name] = [_read_field(field, each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _read_field(field, value)
    return found


def _read_field(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _read_message(value)
    if field.enum_type is not None and value in field.enum_type.values_by_number:
        return field.enum_type.values_by_number[value].name
    return value


class Decoder(Deserializer):
    """A consumer's deserializer of keys, or of values."""

    def __init__(self, registry: Registry, part: str) -> None:
        self._registry = registry
        self._part = part
        self._header = f"__{part}_schema_id"

    def __call__(self, data: Any, context: Any = None) -> Any:
        is_framed = data[:1] == b"\0" and len(data) >= _LEAST
        if not is_framed and all(name != self._header for name, _ in context.headers or ()):
            return data
        registry = self._registry
        try:
            return registry.decode(data, context)
        except Exception as error:
            # What the registry, or the way to it, is to blame for, is not the value's fault.
            if "_request" in vars(error) or getattr(error, "http_status_code", 404) != 404:
                raise
            registry.failed += 1
            if not registry.first:
                why = f"{type(error).__name__}: {error}"
                registry.first = f"a {self._part} of {context.topic}: {why}"
            return data


def _read_id(data: bytes, context: Any, kind: str = "") -> SchemaId:
    found = SchemaId(kind)
    dual_schema_id_deserializer(data, context, found)
    return found


def _fetch(client: SchemaRegistryClient, known: object, form: str | None = None) -> Any:
    if isinstance(known, int):
        return client.get_schema(known, fmt=form)
    return client.get_schema_by_guid(str(known), fmt=form)
