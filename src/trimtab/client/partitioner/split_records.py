"""What a split or moved key looks like in a topic: its partitions, and the headers of its records.

A split key's records go to several partitions. The header `trimtab.split` of each has 20 bytes, all
numbers unsigned and big-endian:

    sender   8 bytes   random: this key, split by this producer; another after a restart
    number   8 bytes   0 for the first record of this key that was split, then 1, 2, …
    open     4 bytes   so many numbers just before this one may not be stored yet; all earlier ones
                       are stored, or have failed for good

The first record of a moved key in its new partition has the header `trimtab.moved`, of 12 bytes:

    partition  4 bytes  which had the key's records before; all of them are stored there, or have
                        failed for good
    end        8 bytes  all of them are before this offset; with a sign: -1 if it is not known

Tests: tests/unit/client/accumulator/test_hot_keys.py
"""

from __future__ import annotations

import math
import struct
from typing import Final, NamedTuple

SPLIT_HEADER: Final = "trimtab.split"
MOVED_HEADER: Final = "trimtab.moved"

_SPLIT: Final = struct.Struct(">QQI")
_MOVED: Final = struct.Struct(">Iq")
_MOST_OPEN: Final = 0xFFFFFFFF
_LEAST_CHOICES: Final = 2
_CHOICES_A_SHARE: Final = 4


class SplitMark(NamedTuple):
    """The header of a split record: see above."""

    sender: int
    number: int
    open: int


def write_split(sender: int, number: int, open_numbers: int) -> bytes:
    """The content of `trimtab.split`."""
    return _SPLIT.pack(sender, number, min(open_numbers, _MOST_OPEN))


def read_split(content: bytes | None) -> SplitMark | None:
    """The parts of `trimtab.split`; None if the bytes have another form, as others may use the
    name for something else."""
    if content is None or len(content) != _SPLIT.size:
        return None
    mark = SplitMark(*_SPLIT.unpack(content))
    return mark if mark.open <= mark.number else None


class MovedMark(NamedTuple):
    """The header of a record in a new partition: see above."""

    partition: int
    end: int


def write_moved(partition: int, end: int) -> bytes:
    """The content of `trimtab.moved`."""
    return _MOVED.pack(partition, end)


def read_moved(content: bytes | None) -> MovedMark | None:
    """The parts of `trimtab.moved`; None if the bytes have another form."""
    if content is None or len(content) != _MOVED.size:
        return None
    return MovedMark(*_MOVED.unpack(content))


def choices(share: float, partitions: int) -> int:
    """Among how many partitions a key with this share of the bytes is split: enough that its part
    of each is about a fourth of the partition's."""
    return min(partitions, _LEAST_CHOICES + math.ceil(_CHOICES_A_SHARE * share * partitions))


def candidates(key_hash: int, partitions: int, count: int) -> list[int]:
    """The partitions that a key may be split among: its own first, then others as its hash draws
    them, so that more of them are the same ones and some more.

    Args:
        key_hash: the key's murmur2, which also gives its own partition.
        count: how many; all if there are fewer.
    """
    drawn = {(key_hash & 0x7FFFFFFF) % partitions: None}
    draw = 0
    while len(drawn) < min(count, partitions):
        draw += 1
        drawn[_mix(key_hash + draw * 0x9E3779B1) % partitions] = None
    return list(drawn)


def _mix(number: int) -> int:
    """32 bits that look random, another for each number of 32 bits (the finalizer of murmur3)."""
    mixed = number & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return mixed ^ mixed >> 16
