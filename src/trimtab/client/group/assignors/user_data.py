"""What the sticky and the load assignors add to a member's subscription.

`sticky`, Apache Kafka's format: the owned partitions by topic, and from version 1 on the
generation. It has no version field: version 0 ends before the generation.

    array of (string topic, array of int32 partition), int32 generation

`cooperative-sticky`, Apache Kafka's format: the generation, since the subscription itself has the
owned partitions from its version 1 on, but the generation only from version 2 on.

    int32 generation

`load`: for each partition whether the member owns it, and its rate. A later version may add fields
behind those of version 1, and is read as version 1.

    int8    version, 1
    int32   generation, big-endian as all of these
    varint  number of topics; for each:
      varint  length of its name, then the name in UTF-8
      varint  number of partitions; for each, in ascending order:
        varint  2 x (index - previous index - 1, from -1 on) + (1 if the member owns it)
        uint16  round(1024 x log2(1 + bytes/s)), exact to 0.04 % of 1 + the rate; 65535 if unknown

Data that cannot be read count as none.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterable, Mapping

from trimtab.client.group.assignors.protocol import NO_GENERATION
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.types import BytesLike
from trimtab.kafka.wire.varint import read_unsigned_varint, write_unsigned_varint

_GENERATION = struct.Struct(">i")
_LENGTH = struct.Struct(">i")
_NAME_LENGTH = struct.Struct(">h")
_LOAD_HEAD = struct.Struct(">bi")
_RATE = struct.Struct(">H")

_LOAD_VERSION = 1
_RATE_STEPS = 1024
_NO_RATE = 2**16 - 1
_MAX_PARTITION = 2**31 - 1

# What a reader raises for damaged data.
_DAMAGED = (CorruptData, struct.error, IndexError, UnicodeDecodeError)

_NOTHING: tuple[frozenset[TopicPartition], int] = (frozenset(), NO_GENERATION)


def encode_owned(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """User data of `sticky`, version 1."""
    by_topic = _by_topic(owned)
    parts = [_LENGTH.pack(len(by_topic))]
    for topic, indexes in by_topic.items():
        name = topic.encode()
        parts += (_NAME_LENGTH.pack(len(name)), name)
        parts.append(struct.pack(f">i{len(indexes)}i", len(indexes), *indexes))
    parts.append(_GENERATION.pack(generation))
    return b"".join(parts)


def decode_owned(data: BytesLike | None) -> tuple[frozenset[TopicPartition], int]:
    """The owned partitions and the generation, from user data of `sticky` in either version."""
    if not data:
        return _NOTHING
    owned: list[TopicPartition] = []
    try:
        (topics,) = _LENGTH.unpack_from(data, 0)
        position = _LENGTH.size
        for _ in range(topics):
            (size,) = _NAME_LENGTH.unpack_from(data, position)
            position += _NAME_LENGTH.size
            name, position = _read_text(data, position, size)
            (count,) = _LENGTH.unpack_from(data, position)
            position += _LENGTH.size
            if count < 0:
                raise CorruptData(f"{name} has {count} partitions")
            indexes = struct.unpack_from(f">{count}i", data, position)
            position += 4 * count
            owned += [TopicPartition(name, index) for index in indexes]
    except _DAMAGED:
        return _NOTHING
    return frozenset(owned), decode_generation(data, position)


def encode_generation(generation: int) -> bytes:
    """User data of `cooperative-sticky`."""
    return _GENERATION.pack(generation)


def decode_generation(data: BytesLike | None, position: int = 0) -> int:
    """The generation at this position; -1 if there is none."""
    if data is None or len(data) < position + _GENERATION.size:
        return NO_GENERATION
    (generation,) = _GENERATION.unpack_from(data, position)
    return max(int(generation), NO_GENERATION)


def encode_rates(
    owned: Collection[TopicPartition], generation: int, rates: Mapping[TopicPartition, float]
) -> bytes:
    """User data of `load`: all owned partitions, and all others with a rate."""
    mine = frozenset(owned)
    by_topic = _by_topic(mine.union(rates))
    parts = [_LOAD_HEAD.pack(_LOAD_VERSION, generation), write_unsigned_varint(len(by_topic))]
    for topic, indexes in by_topic.items():
        name = topic.encode()
        parts += (write_unsigned_varint(len(name)), name, write_unsigned_varint(len(indexes)))
        previous = -1
        for index in indexes:
            partition = TopicPartition(topic, index)
            parts.append(write_unsigned_varint(2 * (index - previous - 1) + (partition in mine)))
            parts.append(_RATE.pack(_pack_rate(rates.get(partition))))
            previous = index
    return b"".join(parts)


def decode_rates(
    data: BytesLike | None,
) -> tuple[frozenset[TopicPartition], int, dict[TopicPartition, float]]:
    """The owned partitions, the generation, and the known rates, from user data of `load`."""
    owned: list[TopicPartition] = []
    rates: dict[TopicPartition, float] = {}
    try:
        version, generation = _LOAD_HEAD.unpack_from(data or b"", 0)
        if data is None or version < _LOAD_VERSION:
            return *_NOTHING, {}
        topics, position = read_unsigned_varint(data, _LOAD_HEAD.size)
        for _ in range(topics):
            size, position = read_unsigned_varint(data, position)
            name, position = _read_text(data, position, size)
            count, position = read_unsigned_varint(data, position)
            index = -1
            for _ in range(count):
                step, position = read_unsigned_varint(data, position)
                index += (step >> 1) + 1
                if index > _MAX_PARTITION:
                    raise CorruptData(f"{name} has no partition {index}")
                partition = TopicPartition(name, index)
                (rate,) = _RATE.unpack_from(data, position)
                position += _RATE.size
                if step & 1:
                    owned.append(partition)
                if rate != _NO_RATE:
                    rates[partition] = 2 ** (rate / _RATE_STEPS) - 1
    except _DAMAGED:
        return *_NOTHING, {}
    return frozenset(owned), max(generation, NO_GENERATION), rates


def _pack_rate(rate: float | None) -> int:
    if rate is None or not 0 <= rate < math.inf:
        return _NO_RATE
    return min(round(_RATE_STEPS * math.log2(1 + rate)), _NO_RATE - 1)


def _read_text(data: BytesLike, position: int, size: int) -> tuple[str, int]:
    end = position + size
    if not position <= end <= len(data):
        raise CorruptData(f"a text of {size} bytes at {position} of {len(data)}")
    return bytes(data[position:end]).decode(), end


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return found
