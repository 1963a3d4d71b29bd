"""Encodes and decodes messages, with functions generated per class, version and direction.

The first use of a (class, version, direction) generates a flat Python function from the class's
schema: neighbouring fields of fixed width, with the length prefix that follows them, share one
`struct.Struct`; nested structs and arrays are inlined; defaults are constants. Its source is in
`linecache`, so a traceback shows the line that failed. `codec_source.py` generates them.

    encode(message, version)       message ──▶ bytes
    encode_parts(message, version) message ──▶ [bytes, records, bytes, …]  large records uncopied
    decode(cls, version, buffer)   bytes ──▶ message                       records are views

A very large message must not block a server's loop. So `encode_parts` and `decode` take a limit,
above which they stop and raise `Exceeded`; then `…_in_turns` does the same work from the start, as
a generator that yields every millisecond.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from trimtab.kafka.errors import CorruptData, UsageError
from trimtab.kafka.wire.codec_source import (
    LARGE_RECORDS_BYTES,
    MAX_OBJECT_BYTES,
    Exceeded,
    MisfitError,
    write_decoder,
    write_encoder,
)
from trimtab.kafka.wire.schema import Schema, is_default, misfit, schema
from trimtab.kafka.wire.types import BytesLike

__all__ = [
    "AT_ONCE_BYTES",
    "AT_ONCE_ELEMENTS",
    "LARGE_RECORDS_BYTES",
    "MAX_OBJECT_BYTES",
    "Exceeded",
    "decode",
    "decode_in_turns",
    "encode",
    "encode_parts",
    "encode_parts_in_turns",
]

AT_ONCE_BYTES = 128 * 1024
"""A server decodes a request of up to this much memory at once: some hundred partitions."""
AT_ONCE_ELEMENTS = 1000
"""A server encodes a response with up to this many array elements at once."""
_UNLIMITED = 1 << 62

M = TypeVar("M")

_functions: dict[tuple[type, int, str], Callable[..., Any]] = {}


def encode(message: object, version: int) -> bytes:
    """The body of `message` in `version`.

    Raises:
        UsageError: the class has no such version; a value does not fit its type; or a field that
            the version lacks, and that is not ignorable, has a value other than its default.
    """
    try:
        return b"".join(_encoder(type(message), version)(message, [], _UNLIMITED))
    except _FAULTS as error:
        raise _refusal(message, version, error) from error


def encode_parts(message: object, version: int, limit: int = _UNLIMITED) -> list[BytesLike]:
    """As `encode`, in parts for `transport.writelines`: records above 1 KiB are separate parts
    without a copy, so they must not change until they are sent.

    Args:
        limit: array elements that may be encoded.

    Raises:
        UsageError: as `encode`.
        Exceeded: the message has more.
    """
    large: list[int] = []
    try:
        return _join(_encoder(type(message), version)(message, large, limit), large)
    except _FAULTS as error:
        raise _refusal(message, version, error) from error


def encode_parts_in_turns(message: object, version: int) -> Generator[None, None, list[BytesLike]]:
    """As `encode_parts`, but a generator that yields every millisecond. The message must not change
    meanwhile.

    Raises:
        UsageError: as `encode`.
    """
    write = _function(type(message), version, "encode in turns", write_encoder, True)
    chunks: list[BytesLike] = []
    large: list[int] = []
    parts: list[BytesLike] = []
    try:
        for _ in write(message, large, chunks, _UNLIMITED):
            parts += _join(chunks, large)
            chunks.clear()
            large.clear()
            yield
    except _FAULTS as error:
        raise _refusal(message, version, error) from error
    return parts


def _join(chunks: list[BytesLike], large: list[int]) -> list[BytesLike]:
    if not large:
        return [b"".join(chunks)]
    parts: list[BytesLike] = []
    start = 0
    for index in large:
        parts.append(b"".join(chunks[start:index]))
        parts.append(chunks[index])
        start = index + 1
    parts.append(b"".join(chunks[start:]))
    return parts


def decode(
    cls: type[M],
    version: int,
    buffer: BytesLike,
    position: int = 0,
    allow_rest: bool = False,
    limit: int = _UNLIMITED,
) -> M:
    """The message of `cls` that fills `buffer` from `position` to its end.

    `records` are views into `buffer`, which must not change while they exist.

    Args:
        allow_rest: whether bytes may follow. Kafka ignores bytes after a request's last field, and
            librdkafka 2.16 leaves three there.
        limit: bytes of memory that the message may take, roughly, besides its records.

    Raises:
        CorruptData: the bytes are no such message, or bytes follow it without `allow_rest`.
        UsageError: the class has no such version.
        Exceeded: it takes more memory than `limit`.
    """
    view = memoryview(buffer)
    size = len(view)
    try:
        decoder = _functions[cls, version, "decode"]
    except KeyError:
        decoder = _function(cls, version, "decode", write_decoder, False)
    try:
        message, end = decoder(view, position, size, limit)
    except _MALFORMED as error:
        raise _malformed(cls, version, size - position, error) from error
    if end != size and not allow_rest:
        raise CorruptData(f"{cls.__name__} v{version}: {size - end} bytes too many")
    return message  # type: ignore[no-any-return]


def decode_in_turns(
    cls: type[M],
    version: int,
    buffer: BytesLike,
    position: int = 0,
    limit: int = MAX_OBJECT_BYTES,
) -> Generator[None, None, M]:
    """As `decode` with `allow_rest`, but a generator that yields every millisecond.

    Raises:
        CorruptData: the bytes are no such message, or it would take more than `limit` bytes.
        UsageError: the class has no such version.
    """
    view = memoryview(buffer)
    size = len(view)
    read = _function(cls, version, "decode in turns", write_decoder, True)
    try:
        message, _ = yield from read(view, position, size, limit)
    except _MALFORMED as error:
        raise _malformed(cls, version, size - position, error) from error
    return message  # type: ignore[no-any-return]


# A decoder's errors for malformed bytes.
_MALFORMED = (struct.error, IndexError, UnicodeDecodeError)


def _malformed(cls: type, version: int, size: int, error: Exception) -> CorruptData:
    return CorruptData(f"{cls.__name__} v{version} of {size} bytes: {error}")


def _encoder(cls: type, version: int) -> Callable[..., list[BytesLike]]:
    try:
        return _functions[cls, version, "encode"]
    except KeyError:
        return _function(cls, version, "encode", write_encoder, False)


def _function(
    cls: type,
    version: int,
    form: str,
    write: Callable[[Schema, int, bool], Callable[..., Any]],
    in_turns: bool,
) -> Callable[..., Any]:
    known = _functions.get((cls, version, form))
    if known is None:
        known = _functions[cls, version, form] = write(schema(cls), version, in_turns)
    return known


# An encoder's errors for values that do not fit.
_FAULTS = (
    MisfitError,
    struct.error,
    TypeError,
    AttributeError,
    OverflowError,
    UnicodeEncodeError,
)


def _refusal(message: object, version: int, error: Exception) -> UsageError:
    owner = schema(type(message))
    path = f"{owner.name} v{version}: "
    return UsageError(_explain(owner, message, version, path) or f"{path}{error}")


def _explain(owner: Schema, message: Any, version: int, path: str) -> str:
    """The first field that cannot be encoded, and why; empty if all can."""
    for field in owner.fields:
        value = getattr(message, field.name)
        name = path + field.name
        if not field.versions.includes(version):
            if not field.ignorable and not is_default(field, value):
                return f"{name} = {value!r}: the version lacks it, leave it at its default"
            continue
        fault = misfit(field, value)
        if value is None and not fault and not field.nullable_versions.includes(version):
            fault = "it is None"
        if fault:
            return f"{name}: {fault}"
        if isinstance(field.type, Schema) and value is not None:
            for index, element in enumerate(value if field.is_array else [value]):
                place = f"{name}[{index}]." if field.is_array else f"{name}."
                if fault := _explain(field.type, element, version, place):
                    return fault
    return ""
