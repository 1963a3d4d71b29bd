"""How a record is printed: as Kafka's formatter does, by a template, or as JSON.

Keys and values are bytes, or what a Schema Registry's schema makes of them, which is shown as JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any, Final

from trimtab.cli.consume.where import Expression, Seen, plain, show
from trimtab.cli.options import complete_properties
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import Record, TimestampType

FORMATTER_DEFAULTS: Final = {
    "print.timestamp": "false",
    "print.partition": "false",
    "print.offset": "false",
    "print.headers": "false",
    "print.key": "false",
    "print.value": "true",
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}


def to_bytes(data: Any) -> bytes:
    """A key or value as it is printed: bytes as they are."""
    return data if isinstance(data, bytes) else (show(data) or "").encode("utf-8", "replace")


def unescape(text: str) -> str:
    """A shell passes `\\t` and `\\n` as two characters each."""
    return text.replace("\\t", "\t").replace("\\n", "\n")


class Template:
    """One record by a template such as `{topic}-{partition}@{offset} {key} {value.country}`.

    The fields are those of `--where`. What is missing is `null`; keys and values are printed as
    they are, other things as text. A line end follows, unless the template has one.

    Raises:
        UsageError: it has another form.
    """

    def __init__(self, text: str) -> None:
        self._parts: list[bytes | Callable[[Seen], Any]] = []
        ended = unescape(text) if unescape(text).endswith("\n") else unescape(text) + "\n"
        try:
            fields = list(Formatter().parse(ended))
        except ValueError as error:
            raise UsageError(f"--format {text!r}: {error}; write {{{{ for a brace") from None
        for literal, field, spec, conversion in fields:
            self._parts.append(literal.encode("utf-8", "surrogateescape"))
            if field is None:
                continue
            if spec or conversion:
                raise UsageError(
                    f"--format {text!r}: {{{field}}} has no further form: leave out what follows it"
                )
            self._parts.append(_RAW.get(field) or Expression(field, "--format", True).read)

    def write(self, record: Record) -> bytes:
        seen = Seen(record)
        found = (part if isinstance(part, bytes) else part(seen) for part in self._parts)
        return b"".join(b"null" if each is None else to_bytes(each) for each in found)


_RAW: Final[Mapping[str, Callable[[Seen], Any]]] = {
    "key": lambda seen: seen.record.key,
    "value": lambda seen: seen.record.value,
}


class TextFormat:
    """One record as text, by the properties of Kafka's DefaultMessageFormatter.

    Raises:
        UsageError: an unknown property.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        chosen = complete_properties(properties, FORMATTER_DEFAULTS, "formatter")
        unescaped = {name: unescape(value).encode() for name, value in chosen.items()}
        self._key_separator = unescaped["key.separator"]
        self._line_separator = unescaped["line.separator"]
        self._headers_separator = unescaped["headers.separator"]
        self._null = unescaped["null.literal"]

        fields: dict[str, Callable[[Record], bytes]] = {
            "timestamp": _write_timestamp,
            "partition": lambda record: b"Partition:%d" % record.partition,
            "offset": lambda record: b"Offset:%d" % record.offset,
            "headers": self._write_headers,
            "key": lambda record: self._or_null(record.key),
            "value": lambda record: self._or_null(record.value),
        }
        self._fields = [
            write for name, write in fields.items() if chosen[f"print.{name}"].lower() == "true"
        ]

    def write(self, record: Record) -> bytes:
        fields = [write(record) for write in self._fields]
        return self._key_separator.join(fields) + self._line_separator

    def _write_headers(self, record: Record) -> bytes:
        pairs = (name.encode() + b":" + self._or_null(value) for name, value in record.headers)
        return self._headers_separator.join(pairs) or b"NO_HEADERS"

    def _or_null(self, data: Any) -> bytes:
        return self._null if data is None else to_bytes(data)


def _write_timestamp(record: Record) -> bytes:
    kind = {
        TimestampType.CREATE_TIME: b"CreateTime",
        TimestampType.LOG_APPEND_TIME: b"LogAppendTime",
    }.get(record.timestamp_type)
    return b"NO_TIMESTAMP" if kind is None else kind + b":%d" % record.timestamp


def write_json(record: Record) -> bytes:
    """One record as a JSON object on a line of its own."""
    shown = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": record.timestamp_type.name,
        **_show_part("key", record.key),
        **_show_part("value", record.value),
        "headers": [{"name": name, **_show_part("value", value)} for name, value in record.headers],
    }
    text = json.dumps(shown, ensure_ascii=False, default=plain)
    return text.encode("utf-8", "replace") + b"\n"


def _show_part(name: str, data: Any) -> dict[str, Any]:
    """The field as text, or as `nameBase64` where it is bytes that are not UTF-8."""
    if not isinstance(data, bytes):
        return {name: data}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(data).decode("ascii")}
