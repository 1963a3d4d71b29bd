"""The key hash, against the values that Kafka's own tests and other clients' tests assert."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture
def hashing(in_form: Callable[[str], ModuleType]) -> ModuleType:
    return in_form("trimtab.client.murmur2_cy")


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
    ("key", "count", "partition"),
    [
        (b"21", 1000, 340),
        (b"foobar", 10, 6),
        (b"abc", 12, 3),
        (b"", 12, 9),
        (b"TT0124", 15, 10),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", 1000, 677),
    ],
)
def test_key_lives_where_java_puts_it(
    hashing: ModuleType, key: bytes, count: int, partition: int
) -> None:
    assert hashing.partition_for_key(key, count) == partition
