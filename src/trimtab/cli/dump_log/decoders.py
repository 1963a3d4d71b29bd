"""What the key and the value of a record say: as text, or decoded by the topic that has it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.records import Record
from trimtab.kafka.wire.messages.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_embedded,
)
from trimtab.kafka.wire.messages.group_records import GroupMetadataValue, decode_record
from trimtab.kafka.wire.messages.metadata_records import decode_record as decode_metadata_record
from trimtab.kafka.wire.messages.transaction_records import TransactionLogKey, decode_transaction
from trimtab.kafka.wire.schema import Field, Schema, schema
from trimtab.kafka.wire.types import UUID, WireType
from trimtab.kafka.wire.varint import read_unsigned_varint

_PREFIX: Final = 2
"""Bytes of the type before a key, and of the version before a value."""
_NEXT_WORD: Final = re.compile(r"_(\w)")
_ESCAPES: Final = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != ord("\t")
}


def show_message(message: object, version: int) -> dict[str, object]:
    """A declared message as JSON, in the form of Kafka's generated JSON converters.

    It has the fields of this version; a tagged one with its default is left out, as on the wire.
    """
    return _show(schema(type(message)), message, version)


def _show(of: Schema, message: object, version: int) -> dict[str, object]:
    shown = {}
    for field in of.fields:
        if not field.versions.includes(version):
            continue
        value = getattr(message, field.name)
        if not (field.tagged_versions.includes(version) and value == _default(field)):
            shown[_NEXT_WORD.sub(lambda found: found[1].upper(), field.name)] = _show_field(
                field, value, version
            )
    return shown


def _default(field: Field) -> object:
    return field.default() if isinstance(field.default, type) else field.default


def _show_field(field: Field, value: object, version: int) -> object:
    if field.is_array and isinstance(value, list):
        return [_show_value(field.type, each, version) for each in value]
    return _show_value(field.type, value, version)


def _show_value(kind: WireType | Schema, value: object, version: int) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(kind, Schema):
        return _show(kind, value, version)
    assert isinstance(value, bytes)
    if kind == UUID:
        return base64.urlsafe_b64encode(value).decode("ascii").rstrip("=")
    return base64.b64encode(value).decode("ascii")


class Data(NamedTuple):
    """A record's key and value.

    Attributes:
        fields: for JSON.
        words: the end of the record's line, as Kafka's tool writes it.
    """

    fields: Mapping[str, object]
    words: list[str]


Decoder = Callable[[Record], Data]


def escape(text: str) -> str:
    """The text in one line, without what would control a terminal."""
    return text.translate(_ESCAPES)


def write_json(shown: object) -> str:
    """As Kafka's tool writes JSON: without blanks."""
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


def decode_text(record: Record) -> Data:
    """Keys and values that are not UTF-8 are base64 in JSON; in a line, each wrong byte is `�`."""
    fields: dict[str, object] = {}
    words = []
    for name, word, data in (("key", "key", record.key), ("value", "payload", record.value)):
        if data is None:
            fields[name] = None
            continue
        words.append(f"{word}: {escape(data.decode('utf-8', 'replace'))}")
        try:
            fields[name] = data.decode()
        except UnicodeDecodeError:
            fields[f"{name}Base64"] = base64.b64encode(data).decode("ascii")
    return Data(fields, words)


def decode_group(record: Record) -> Data:
    """A record of `__consumer_offsets`.

    Raises:
        CorruptData: it is not one.
    """
    found = decode_record(_need_key(record), record.value)
    if found is None:
        return _unknown(record)
    key, value = found
    shown = None
    if value is not None:
        shown = show_message(value, _read_prefix(record.value))
        if isinstance(value, GroupMetadataValue) and value.protocol_type == PROTOCOL_TYPE:
            shown["members"] = [
                {**member, **_show_embedded(metadata.subscription, metadata.assignment)}
                for member, metadata in zip(_members(shown), value.members, strict=True)
            ]
    return _pair(record, show_message(key, 0), shown)


def _members(shown: Mapping[str, object]) -> list[dict[str, object]]:
    members = shown["members"]
    assert isinstance(members, list)
    return members


def _show_embedded(subscription: bytes, assignment: bytes) -> dict[str, object]:
    """What a member subscribes to, and its partitions; None for empty bytes."""
    shown: dict[str, object] = {"subscription": None, "assignment": None}
    if subscription:
        shown["subscription"] = show_message(
            *decode_embedded(ConsumerProtocolSubscription, subscription)
        )
    if assignment:
        shown["assignment"] = show_message(*decode_embedded(ConsumerProtocolAssignment, assignment))
    return shown


def decode_transaction_state(record: Record) -> Data:
    """A record of `__transaction_state`.

    Raises:
        CorruptData: it is not one.
    """
    found = decode_transaction(_need_key(record), record.value)
    if found is None:
        return _unknown(record)
    transactional_id, value = found
    key = TransactionLogKey(transactional_id=transactional_id)
    shown = None if value is None else show_message(value, _read_prefix(record.value))
    return _pair(record, show_message(key, 0), shown)


def decode_metadata(record: Record) -> Data:
    """A record of the cluster's metadata.

    Raises:
        CorruptData: it is not one.
    """
    if record.value is None:
        raise CorruptData("it has no value, so it is no record of metadata")
    message = decode_metadata_record(record.value)
    position = 0
    for _ in range(3):  # the frame's version, the type, and the version
        version, position = read_unsigned_varint(record.value, position)
    shown = {
        "type": _name_type(type(message).__name__),
        "version": version,
        "data": show_message(message, version),
    }
    return Data({"value": shown}, [f"payload: {write_json(shown)}"])


def _name_type(name: str) -> str:
    """`TopicRecord` as `TOPIC_RECORD`."""
    letters = (f"_{each}" if each.isupper() and at else each for at, each in enumerate(name))
    return "".join(letters).upper()


def _need_key(record: Record) -> bytes:
    if record.key is None:
        raise CorruptData("it has no key, so it is not a record of this topic")
    key: bytes = record.key
    return key


def _read_prefix(data: bytes) -> int:
    return int.from_bytes(data[:_PREFIX], "big")


def _unknown(record: Record) -> Data:
    number = _read_prefix(record.key)
    return Data(
        {"key": {"type": str(number)}, "value": None},
        [f"key: Unknown record type {number} at offset {record.offset}, skipping."],
    )


def _pair(record: Record, key: Mapping[str, object], value: Mapping[str, object] | None) -> Data:
    shown_key = {"type": str(_read_prefix(record.key)), "data": key}
    shown_value = (
        None if value is None else {"version": str(_read_prefix(record.value)), "data": value}
    )
    payload = "<DELETE>" if shown_value is None else write_json(shown_value)
    return Data(
        {"key": shown_key, "value": shown_value},
        [f"key: {write_json(shown_key)}", f"payload: {payload}"],
    )


DECODERS: Final[Mapping[str | None, Decoder]] = {
    None: decode_text,
    "offsets": decode_group,
    "transaction_log": decode_transaction_state,
    "cluster_metadata": decode_metadata,
}
"""By the name of the decoder that the command line asks for."""
