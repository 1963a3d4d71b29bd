"""Unsigned varints: 32 bits in groups of seven, the lowest first (KIP-482)."""

from __future__ import annotations

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.types import BytesLike


def write_unsigned_varint(value: int) -> bytes:
    """`value` (0 to 2**32 - 1) in groups of seven bits, the lowest first."""
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def read_unsigned_varint(buffer: BytesLike, position: int) -> tuple[int, int]:
    """The value at `position`, and the position after it.

    Raises:
        CorruptData: it is longer than five bytes, or beyond 2**32 - 1.
        IndexError: the buffer ends within it.
    """
    return finish_varint(buffer, position + 1, buffer[position])


def finish_varint(buffer: BytesLike, position: int, value: int) -> tuple[int, int]:
    """The value of a varint whose first byte is `value`, and the position after it."""
    shift = 7
    while value >> shift:
        if shift > 28:
            raise CorruptData("a varint of more than 32 bits")
        group = buffer[position]
        position += 1
        value = value & (1 << shift) - 1 | group << shift
        shift += 7
    if value >> 32:
        raise CorruptData("a varint of more than 32 bits")
    return value, position
