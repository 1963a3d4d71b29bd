"""The bytes of user data."""

from __future__ import annotations

import math

import pytest

from tests.unit.client.group.assignors.vectors import parse
from trimtab.client.group.assignors.user_data import (
    decode_generation,
    decode_owned,
    decode_rates,
    encode_generation,
    encode_owned,
    encode_rates,
)
from trimtab.kafka.records import TopicPartition

NOTHING = (frozenset[TopicPartition](), -1)


def test_sticky_data_are_those_of_kafka() -> None:
    """Version 1 is version 0 and the generation."""
    owned = parse("ab-0 ab-7 c-1")
    old = bytes.fromhex("000000020002616200000002 00000000 0000000700016300000001 00000001")
    assert encode_owned(owned, 5) == old + bytes.fromhex("00000005")
    assert decode_owned(old + bytes.fromhex("00000005")) == (owned, 5)
    assert decode_owned(old) == (owned, -1)
    assert decode_owned(None) == decode_owned(b"") == NOTHING


@pytest.mark.parametrize(
    "data",
    [
        "00",
        "7fffffff",
        "00000001ffff",
        "000000010001617fffffff",
        "0000000100016180000000",
        "000000010001ff00000000",
    ],
)
def test_damaged_sticky_data_count_as_none(data: str) -> None:
    assert decode_owned(bytes.fromhex(data)) == NOTHING


def test_cooperative_data_are_those_of_kafka() -> None:
    assert encode_generation(258) == bytes.fromhex("00000102")
    assert decode_generation(bytes.fromhex("00000102")) == 258
    assert decode_generation(None) == decode_generation(b"\0\0\1") == -1
    assert decode_generation(encode_generation(-2)) == -1


def test_load_data_are_compact() -> None:
    owned = [TopicPartition("ab", index) for index in range(100)]
    data = encode_rates(owned, 5, dict.fromkeys(owned, 1e9))
    assert len(data) == 1 + 4 + 1 + 1 + 2 + 1 + 3 * 100
    data = encode_rates(parse("ab-1"), 5, {TopicPartition("ab", 3): 1.0})
    assert data == bytes.fromhex("01 00000005 01 02 6162 02 03 ffff 02 0400")


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0, 1234.5, 1e9, 1e18])
def test_rates_come_back_within_a_thousandth(rate: float) -> None:
    partition = TopicPartition("a", 2**31 - 1)
    owned, generation, rates = decode_rates(encode_rates([], 2, {partition: rate}))
    assert (owned, generation) == (frozenset(), 2)
    assert rates == {partition: pytest.approx(rate, rel=4e-4, abs=3e-3)}


def test_impossible_rates_count_as_unknown() -> None:
    partitions = [TopicPartition("a", index) for index in range(3)]
    rates = dict(zip(partitions, (math.nan, math.inf, -1.0), strict=True))
    assert decode_rates(encode_rates(partitions, 2, rates)) == (frozenset(partitions), 2, {})


def test_damaged_and_foreign_load_data_count_as_none() -> None:
    partition = TopicPartition("ab", 3)
    data = encode_rates([partition], 5, {partition: 1.0})
    for foreign in (None, b"", *(data[:size] for size in range(len(data))), b"\0" + data[1:]):
        assert decode_rates(foreign) == (*NOTHING, {})
    assert decode_rates(data[:9] + b"\xff\xff\xff\xff\x0f\0\0" * 2) == (*NOTHING, {})
    # A later version may have more.
    assert decode_rates(b"\2" + data[1:] + b"more") == (frozenset([partition]), 5, {partition: 1.0})
