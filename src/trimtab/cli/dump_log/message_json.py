"""A declared message as JSON, in the form of Kafka's generated JSON converters."""

from __future__ import annotations

import base64
import re

from trimtab.wire.schema import Field, Schema, schema
from trimtab.wire.types import UUID, WireType

_NEXT_WORD = re.compile(r"_(\w)")


def show_message(message: object, version: int) -> dict[str, object]:
    """The fields that the message has in this version. A tagged one with its default is left out,
    as on the wire."""
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
