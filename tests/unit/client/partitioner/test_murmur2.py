"""The key hash, against the values that Kafka's own tests and other clients' tests assert."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture
def hashing(in_form: Callable[[str], ModuleType]) -> ModuleType:
    return in_form("trimtab.client.partitioner.murmur2_cy")


def unsigned(number: int) -> int:
    return number & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
        (b"a", -1563381124),
        (b"ab", 316155434),
        (b"123456789", -1822237082),
        (b"\x00\x20", 1121897742),
        (b"0", 971027396),
        (b"1", -1993445489),
        (b"128", -326012175),
        (b"kafka", 0xD067CF64),
        (b"giberish123456789", 0x8F552B0C),
        (b"1234", 0x9FC97B14),
    ],
)
def test_hashes_as_java(hashing: ModuleType, key: bytes, hashed: int) -> None:
    assert hashing.murmur2(key) == unsigned(hashed)


@pytest.mark.parametrize(
    ("key", "partitions"),
    [
        (b"21", {3: 0, 10: 0, 12: 0, 1000: 340}),
        (b"foobar", {3: 0, 10: 6, 12: 6, 1000: 166}),
        (b"a-little-bit-long-string", {3: 2, 10: 2, 12: 8, 1000: 112}),
        (b"a-little-bit-longer-string", {3: 2, 10: 9, 12: 11, 1000: 819}),
        (
            b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
            {3: 2, 10: 7, 12: 5, 1000: 677},
        ),
        (b"abc", {3: 0, 10: 7, 12: 3, 1000: 107}),
        (b"", {3: 0, 10: 1, 12: 9, 1000: 681}),
        (b"a", {3: 1, 10: 4, 12: 4, 1000: 524}),
        (b"ab", {3: 2, 10: 4, 12: 2, 1000: 434}),
        (b"123456789", {3: 0, 10: 6, 12: 6, 1000: 566}),
        (b"\x00\x20", {3: 0, 10: 2, 12: 6, 1000: 742}),
        (b"0", {3: 2, 10: 6, 12: 8, 1000: 396}),
        (b"1", {3: 0, 10: 9, 12: 3, 1000: 159}),
        (b"128", {3: 2, 10: 3, 12: 5, 1000: 473}),
        (b"kafka", {3: 1, 10: 0, 12: 4, 1000: 580}),
        (b"TT0124", {15: 10}),
    ],
)
def test_key_lives_where_java_puts_it(
    hashing: ModuleType, key: bytes, partitions: dict[int, int]
) -> None:
    assert {n: hashing.partition_for_key(key, n) for n in partitions} == partitions


def test_a_column_of_keys_has_the_hash_of_each(hashing: ModuleType) -> None:
    keys = [b"", b"1", b"a-little-bit-longer-string", b"", b"abc"]
    ends = [sum(map(len, keys[:count])) for count in range(len(keys) + 1)]
    data, offsets = bytearray(b"".join(keys)), bytearray(struct.pack("=6i", *ends))
    hashes = struct.unpack("=5i", hashing.murmur2_column(data, offsets, len(keys)))
    assert hashes == (275646681, -1993445489, -1486304829, 275646681, 479470107)
    assert hashing.murmur2_column(bytearray(), bytearray(4), 0) == b""
