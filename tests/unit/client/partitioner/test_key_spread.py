"""How evenly keys spread records over partitions: counted right, said right, refused right."""

from __future__ import annotations

import zlib
from collections import Counter
from random import Random
from typing import Any

import numpy
import pyarrow
import pytest

from trimtab import UsageError, key_skew
from trimtab.client.partitioner.key_spread import KeySpread
from trimtab.client.partitioner.murmur2_cy import partition_for_key

KEYS = [f"user-{number}" for number in range(5000)]


def test_the_incident_a_country_as_the_key_and_a_user_as_the_key() -> None:
    random = Random(1)
    countries = ["us"] * 80 + ["de", "fr", "gb", "it"] * 5
    skew = key_skew(random.choices(countries, k=1000), partitions=48)
    assert skew.evenness == "uneven"
    assert skew.partition == partition_for_key(b"us", 48)
    assert skew.blamed[0].key == b"us"
    assert skew.blamed[0].share == pytest.approx(0.8, abs=0.05)
    assert skew.most_partitions == 1
    assert skew.keys == 5
    text = str(skew)
    assert "uneven" in text
    assert "'us' (" in text
    assert "5 different keys are few for 48 partitions" in text
    even = key_skew((f"u{random.getrandbits(40)}" for _ in range(40_000)), partitions=48)
    assert even.evenness == "even"
    assert even.keys is None
    assert even.most_partitions is None
    assert str(even).startswith("even: 40,000 records with keys on 48 partitions")


def test_ratios_are_those_of_the_producers_partitions() -> None:
    skew = key_skew(KEYS, partitions=48, tried=[1, 7, 100])
    for partitions in (1, 7, 48, 100):
        counts = Counter(partition_for_key(key.encode(), partitions) for key in KEYS)
        largest = max(counts.values())
        assert skew.ratios[partitions] == pytest.approx(largest * partitions / len(KEYS))
    assert skew.ratio == skew.ratios[48]
    assert list(skew.ratios) == [1, 7, 48, 100]


def test_librdkafkas_default_and_a_function() -> None:
    consistent = key_skew(KEYS, partitions=7, partitioner="consistent")
    counts = Counter(zlib.crc32(key.encode()) % 7 for key in KEYS)
    assert consistent.ratio == pytest.approx(max(counts.values()) * 7 / len(KEYS))
    asked: list[tuple[bytes, int]] = []

    def last(key: bytes, partitions: int) -> int:
        asked.append((key, partitions))
        return partitions - 1

    mine = key_skew([b"a", b"b"] * 50, partitions=3, tried=[5], partitioner=last)
    assert (mine.partition, mine.ratio, mine.ratios[5]) == (2, 3.0, 5.0)
    assert {partitions for _, partitions in asked} == {3, 5}


def test_weights_are_judged_by_bytes_and_count_for_fewer_records() -> None:
    keys = ["a"] * 99 + ["b"]
    by_bytes = key_skew(keys, partitions=2, worst=1.5, weights=[1] * 99 + [10**6])
    assert by_bytes.partition == partition_for_key(b"b", 2)
    assert by_bytes.ratio > 1.99
    assert by_bytes.evenness == "unclear"  # of one record that weighs, nothing can be said
    assert by_bytes.records == 100
    assert by_bytes.enough > 100


def test_a_mapping_has_the_numbers_of_records() -> None:
    counts = Counter({"a": 700, b"b": 300, None: 50})
    skew = key_skew(counts, partitions=2)
    assert (skew.records, skew.without_key, skew.keys) == (1000, 50, 2)
    assert skew.heaviest[0].share == 0.7


def test_records_without_a_key_do_not_count() -> None:
    skew = key_skew([None, "a", None, b"b"] * 10, partitions=4)
    assert (skew.records, skew.without_key) == (20, 20)
    assert "20 more records have no key" in str(skew)


def test_parts_are_counted_as_one_whole() -> None:
    parts = KeySpread(48)
    for first in range(0, len(KEYS), 777):
        parts.count_keys(KEYS[first : first + 777])
    assert parts.judge() == key_skew(KEYS, partitions=48)


def test_columns_of_arrow_and_numpy_are_taken() -> None:
    right = key_skew(KEYS, partitions=48)
    assert key_skew(pyarrow.array(KEYS), partitions=48) == right
    assert key_skew(pyarrow.chunked_array([KEYS[:9], KEYS[9:]]), partitions=48) == right
    assert key_skew(numpy.array(KEYS), partitions=48) == right


def test_memory_does_not_grow_with_the_keys() -> None:
    spread = KeySpread(8)
    spread.count_keys(str(number) for number in range(200_000))
    skew = spread.judge()
    assert skew.keys is None
    assert len(skew.heaviest) == 10
    assert len(list(spread._hitters)) <= 1000


def test_keys_that_are_no_text_are_hexadecimal() -> None:
    text = str(key_skew([b"\xff\x00"] * 100, partitions=8))
    assert "0xff00" in text
    assert "0x00" in str(key_skew([b"\x00"] * 100, partitions=8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": "one"}, "keys='one' is one key or none"),
        ({"keys": None}, "keys=None is one key or none"),
        ({"keys": ["a", 7]}, "key 1 is 7, of type int: give bytes"),
        ({"keys": [None, None]}, "none of 2 records has a key"),
        ({"keys": []}, "none of 0 records has a key"),
        ({"partitions": 0}, "partitions=0: give a number from 1"),
        ({"partitions": 2_000_000}, "partitions=2000000: give a number from 1"),
        ({"partitions": "48"}, "partitions"),
        ({"tried": [3, -1]}, "partitions=-1: must be from 0"),
        ({"worst": 1.0}, "worst=1.0: the largest partition has at least the mean"),
        ({"worst": "much"}, "worst='much': give a number"),
        ({"worst": float("nan")}, "worst=nan: give a number"),
        ({"confidence": 1}, "confidence=1: give a number between 0.5 and 1"),
        ({"weights": [1]}, "there are 1 weights and more keys"),
        ({"weights": [1, 2, 3]}, "there are more weights than the 2 keys"),
        ({"weights": [1, -2]}, "weight 1 is -2: give 0 or more"),
        ({"weights": [1, 0.5]}, "a weight between 0 and 2 is no whole number"),
        ({"keys": {"a": 1}, "weights": [1]}, "keys is a mapping, which has them"),
        ({"partitioner": "java"}, "partitioner='java' is not known: give murmur2, consistent"),
        ({"partitioner": lambda key, count: count}, "the partitioner returned 4 for key 'a'"),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        key_skew(**{"keys": ["a", "b"], "partitions": 4, **arguments})
    assert message in str(raised.value)
