"""The types of Kafka's wire format, as annotations that both mypy and the codec read.

mypy reads `int`, `str`, `bytes`; the codec reads the `WireType` beside it. A boolean is plain
`bool`, an array is `list[...]`, and a nullable field is `... | None`.
"""

from __future__ import annotations

import struct
from typing import Annotated, NamedTuple, Protocol

from trimtab.kafka.errors import UsageError

BytesLike = bytes | bytearray | memoryview


class StoredBytes(Protocol):
    """Bytes that stay on disk until they are sent. May be given instead of `records` in a message
    that is encoded in parts."""

    def __len__(self) -> int: ...

    def read(self, start: int, size: int) -> bytes:
        """Up to `size` bytes from `start` on."""


ZERO_UUID = bytes(16)
"""The UUID that means "none" in Kafka's messages."""

MAX_INT16 = 2**15 - 1
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1


class WireType(NamedTuple):
    """One of Kafka's primitive types.

    Attributes:
        name: its name in Kafka's message definitions.
        code: its `struct` format; empty for a type of variable length.
        zero: the default of a field that declares none.
    """

    name: str
    code: str
    zero: object

    @property
    def size(self) -> int:
        """Bytes of a value; 0 for a type of variable length."""
        return struct.calcsize(">" + self.code)


BOOL = WireType("bool", "?", False)
STRING = WireType("string", "", "")
BYTES = WireType("bytes", "", b"")
RECORDS = WireType("records", "", None)
UUID = WireType("uuid", "16s", ZERO_UUID)

int8 = Annotated[int, WireType("int8", "b", 0)]
int16 = Annotated[int, WireType("int16", "h", 0)]
uint16 = Annotated[int, WireType("uint16", "H", 0)]
int32 = Annotated[int, WireType("int32", "i", 0)]
uint32 = Annotated[int, WireType("uint32", "I", 0)]
int64 = Annotated[int, WireType("int64", "q", 0)]
float64 = Annotated[float, WireType("float64", "d", 0.0)]
string = Annotated[str, STRING]
"""UTF-8, at most 32,767 bytes."""
binary = Annotated[bytes, BYTES]
"""Kafka's `bytes`. Decodes to a copy."""
uuid = Annotated[bytes, UUID]
"""Sixteen bytes."""
records = Annotated[BytesLike, RECORDS]
"""Record batches, opaque here. Decodes to a `memoryview` slice of the frame, without a copy."""


class Versions(NamedTuple):
    """A range of versions, both ends included, written as in Kafka: `3-13`, `9+`, `0`."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Read `text`.

        Raises:
            UsageError: it is not a range.
        """
        first, dash, last = text.partition("-")
        try:
            if text.endswith("+"):
                versions = cls(int(text[:-1]), MAX_INT16)
            else:
                versions = cls(int(first), int(last if dash else first))
        except ValueError:
            versions = NO_VERSIONS
        if not 0 <= versions.low <= versions.high:
            raise UsageError(f"{text!r} is not a range of versions: write it as 3-13, 9+ or 0")
        return versions

    def includes(self, version: int) -> bool:
        return self.low <= version <= self.high

    def covers(self, other: Versions) -> bool:
        """Whether every version of `other` is one of these."""
        return other.low > other.high or (self.low <= other.low and other.high <= self.high)

    def common(self, other: Versions) -> Versions:
        """The versions in both; `low` is above `high` when there are none."""
        return Versions(max(self.low, other.low), min(self.high, other.high))

    def __bool__(self) -> bool:
        return self.low <= self.high

    def __str__(self) -> str:
        if not self:
            return "none"
        if self.high == MAX_INT16:
            return f"{self.low}+"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


NO_VERSIONS = Versions(0, -1)
