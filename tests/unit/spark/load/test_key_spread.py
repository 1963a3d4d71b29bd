"""What tasks count of keys, and how it is judged; without Spark's JVM."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from trimtab import key_skew  # noqa: E402
from trimtab.client.partitioner.murmur2_cy import partition_for_key  # noqa: E402
from trimtab.kafka.errors import UsageError  # noqa: E402
from trimtab.spark.load import key_spread  # noqa: E402
from trimtab.spark.load.key_spread import Judge, SkewCounter, find_hot  # noqa: E402

PARTITIONS = 20
Row = tuple[str, int, bytes | None, int]


def to_batch(rows: Iterable[Row]) -> Any:
    topics, starts, keys, weights = zip(*rows, strict=True)
    return pa.record_batch(
        {
            "topic": pa.array(topics),
            "start": pa.array(starts, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "key": pa.array(keys, pa.binary()),
            "weight": pa.array(weights, pa.int64()),
        }
    )


def count(tasks: Sequence[Sequence[Row]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """By topic and window what tasks of two batches each have counted, added up as by Spark."""
    sums: dict[tuple[str, int], dict[Any, Counter[str]]] = defaultdict(dict)
    for rows in tasks:
        counter = SkewCounter(PARTITIONS)
        half = len(rows) // 2
        made = [
            part for some in (rows[:half], rows[half:]) for part in counter.eval(to_batch(some))
        ]
        for batch in [*made, *counter.terminate()]:
            starts = batch.column("start").cast(pa.int64()).to_pylist()
            for row, start in zip(batch.drop_columns("start").to_pylist(), starts, strict=True):
                of_group = sums[row.pop("topic"), start]
                of_group.setdefault((row.pop("key"), row.pop("partition")), Counter()).update(row)
    return {
        group: [{"key": key, "partition": at, **each} for (key, at), each in found.items()]
        for group, found in sums.items()
    }


def zipf(number: int, exponent: float, keys: int, seed: int = 3) -> list[bytes]:
    weights = list(accumulate(rank**-exponent for rank in range(1, keys + 1)))
    drawn = Random(seed).choices(range(keys), cum_weights=weights, k=number)
    return [b"key %d" % each for each in drawn]


@pytest.mark.parametrize("weighed", [False, True])
def test_the_numbers_are_those_of_the_function_for_lists(weighed: bool) -> None:
    keys: list[bytes | None] = [*zipf(6000, 1.2, 900), None, None]
    sizes = [1 + len(key or b"") ** 3 if weighed else 1 for key in keys]
    rows = [("t", 0, key, size) for key, size in zip(keys, sizes, strict=True)]
    parts = count([rows[:1000], rows[1000:3500], rows[3500:]])["t", 0]
    table = Judge(PARTITIONS, 1.3, 0.995, not weighed, 10).judge(parts)
    plain = key_skew(keys, partitions=PARTITIONS, weights=sizes if weighed else None)
    rank, key, share, times_mean, partition, is_hot, *whole = table[0]
    assert (rank, key, is_hot) == (0, None, False)
    assert (share * PARTITIONS, times_mean, partition) == pytest.approx(
        (plain.ratio, plain.ratio, plain.partition)
    )
    assert whole == [str(plain.evenness), plain.records, plain.without_key, plain.enough]
    assert [(row[1], row[2], row[4]) for row in table[1:11]] == [
        (each.key, each.share, each.partition) for each in plain.heaviest
    ]


def test_a_sample_that_is_too_small_says_how_many_records_are_enough() -> None:
    keys = [b"%d" % number for number in range(100)]
    plain = key_skew(keys, partitions=PARTITIONS)
    parts = count([[("t", 0, key, 1) for key in keys]])["t", 0]
    table = Judge(PARTITIONS, 1.3, 0.995, True, 3).judge(parts)
    assert str(plain.evenness) == "unclear"
    assert {row[6:] for row in table} == {("unclear", 100, 0, plain.enough)}
    assert not any(row[5] for row in table)


def test_topics_and_windows_are_counted_apart_and_handed_over_early(monkeypatch: Any) -> None:
    monkeypatch.setattr(key_spread, "_GROUPS", 2)
    rows = [
        (topic, start, b"k", 1)
        for _ in range(3)
        for start in (0, 60_000_000)
        for topic in ("t", "u")
    ]
    found = count([rows, rows[:4]])
    assert set(found) == {(topic, start) for topic in ("t", "u") for start in (0, 60_000_000)}
    at = partition_for_key(b"k", PARTITIONS)
    for parts in found.values():
        assert {(part["key"], part["partition"]): part["amount"] for part in parts} == {
            (None, None): 4,
            (None, at): 4,
            (b"k", None): 4,
        }


def test_memory_and_rows_do_not_grow_with_keys_and_heavy_ones_are_found() -> None:
    keys = zipf(60_000, 1.4, 50_000)
    parts = count([[("t", 0, key, 1) for key in keys]])["t", 0]
    assert len(parts) <= 1 + PARTITIONS + 1000
    table = Judge(PARTITIONS, 1.3, 0.995, True, 10).judge(parts)
    exact = Counter(keys)
    assert [(row[1], row[2]) for row in table[1:6]] == [
        (key, number / 60_000) for key, number in exact.most_common(5)
    ]


def test_hot_are_the_heaviest_keys_of_a_partition_until_its_rest_has_room() -> None:
    # The mean is 100. Partition 0 has room after two keys.
    amounts = [250, 60, 40, 50]
    heavy = [(120, "a"), (50, "b"), (50, "c"), (40, "d"), (3, "e")]
    assert find_hot(amounts, heavy, [0, 1, 0, 0, 0]) == {0, 2}
    assert find_hot([100, 100], [(90, "a"), (2, "b")], [0, 1]) == {0}


def test_what_has_no_keys_has_no_rows_and_negative_weights_are_refused() -> None:
    parts = count([[("t", 0, None, 1), ("t", 0, None, 1)]])["t", 0]
    assert Judge(PARTITIONS, 1.3, 0.995, True, 10).judge(parts) == []
    with pytest.raises(UsageError, match="a weight is -5: give 0 or more"):
        list(SkewCounter(PARTITIONS).eval(to_batch([("t", 0, b"k", -5)])))
