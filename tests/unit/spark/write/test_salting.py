"""How a task deals the rows of hot keys; without Spark's JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from random import Random

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from trimtab.client.partitioner.murmur2_cy import murmur2, partition_for_key  # noqa: E402
from trimtab.client.partitioner.split_records import (  # noqa: E402
    SplitMark,
    candidates,
    choices,
    read_split,
)
from trimtab.spark.load.key_spread import find_hot  # noqa: E402
from trimtab.spark.write.salting import KeyDealer  # noqa: E402

PARTITIONS = 100
Dealt = tuple[bytes | None, int, int | None, SplitMark | None]


def candidates_of(shares: dict[bytes, float]) -> dict[bytes, list[int]]:
    return {
        key: candidates(murmur2(key), PARTITIONS, choices(share, PARTITIONS))
        for key, share in shares.items()
    }


def make_dealer(shares: dict[bytes, float], task: bytes = b"task") -> KeyDealer:
    return KeyDealer(PARTITIONS, candidates_of(shares), task)


def deal(dealer: KeyDealer, rows: Sequence[tuple[bytes | None, int]], batch: int) -> list[Dealt]:
    dealt: list[Dealt] = []
    for start in range(0, len(rows), batch):
        some = rows[start : start + batch]
        keys = pa.array([key for key, _ in some], pa.binary())
        sizes = pa.array([None if key is None else size for key, size in some], pa.int64())
        made = dealer.deal_rows(keys, sizes)
        assert made.type == pa.struct([("partition", pa.int32()), ("mark", pa.binary())])
        for (key, size), row in zip(some, made.to_pylist(), strict=True):
            dealt.append((key, size, row["partition"], read_split(row["mark"])))
    return dealt


def zipf(number: int) -> list[tuple[bytes | None, int]]:
    """Records with keys of 50 to 500 bytes."""
    random = Random(6)
    weights = list(accumulate(rank**-1.4 for rank in range(1, 20_001)))
    drawn = random.choices(range(20_000), cum_weights=weights, k=number)
    return [(b"key %d" % each, random.randrange(50, 500)) for each in drawn]


def shares_of(rows: Sequence[tuple[bytes | None, int]]) -> dict[bytes, float]:
    """Of the keys that the table of `key_skew` would call hot."""
    sizes: Counter[bytes] = Counter()
    for key, size in rows:
        sizes[key or b""] += size
    heavy = [(size, key) for key, size in sizes.most_common()]
    placed = [partition_for_key(key, PARTITIONS) for _, key in heavy]
    amounts = [0] * PARTITIONS
    for (size, _), partition in zip(heavy, placed, strict=True):
        amounts[partition] += size
    return {heavy[at][1]: heavy[at][0] / sum(amounts) for at in find_hot(amounts, heavy, placed)}


@pytest.mark.parametrize("batch", [100, 10_000])
def test_bytes_become_even_and_each_key_stays_within_its_candidates(batch: int) -> None:
    rows = zipf(60_000)
    shares = shares_of(rows)
    dealt = deal(make_dealer(shares), rows, batch)
    loads = [0] * PARTITIONS
    allowed = candidates_of(shares)
    for key, size, partition, mark in dealt:
        assert key is not None
        loads[partition_for_key(key, PARTITIONS) if partition is None else partition] += size
        assert (partition is None) == (mark is None) == (key not in shares)
        if partition is not None:
            assert partition in allowed[key]
    assert max(loads) * PARTITIONS / sum(loads) <= 1.05


def test_rows_are_numbered_by_key_and_the_first_goes_to_the_keys_own_partition() -> None:
    rows = [(key, 10) for key in (b"a", b"b", b"cold", None, b"a") for _ in range(50)]
    dealt = deal(make_dealer({b"a": 0.4, b"b": 0.2}), rows, 60)
    senders = set()
    for name, number in ((b"a", 100), (b"b", 50)):
        found = [(partition, mark) for key, _, partition, mark in dealt if key == name]
        marks = [mark for _, mark in found if mark is not None]
        assert [(mark.number, mark.open) for mark in marks] == [(n, n) for n in range(number)]
        assert found[0][0] == partition_for_key(name, PARTITIONS)
        senders.add(marks[0].sender)
        assert len({mark.sender for mark in marks}) == 1
    assert len(senders) == 2
    assert all(
        (partition, mark) == (None, None)
        for key, _, partition, mark in dealt
        if key in (b"cold", None)
    )


def test_a_repeated_task_gives_the_same_and_another_task_has_other_senders() -> None:
    rows = zipf(3000)
    shares = shares_of(rows)
    first = deal(make_dealer(shares), rows, 1000)
    assert deal(make_dealer(shares), rows, 1000) == first
    other = deal(make_dealer(shares, b"other"), rows, 1000)
    assert [each[2] for each in other] == [each[2] for each in first]
    senders, others = (
        {mark.sender for *_, mark in each if mark is not None} for each in (first, other)
    )
    assert not senders & others


def test_the_rows_of_other_keys_are_what_hot_ones_go_around() -> None:
    """A partition that is full of others gets no more than the first row."""
    own, *others = candidates(murmur2(b"hot"), PARTITIONS, choices(0.02, PARTITIONS))
    cold = next(
        key
        for key in (b"%d" % number for number in range(10_000))
        if partition_for_key(key, PARTITIONS) == own
    )
    dealt = deal(make_dealer({b"hot": 0.02}), [(cold, 100_000), *[(b"hot", 100)] * 91], 1000)
    counts = Counter(partition for _, _, partition, _ in dealt[1:])
    assert counts == {own: 1, **dict.fromkeys(others, 90 // len(others))}


def test_rows_without_bytes_and_batches_without_rows_are_dealt_too() -> None:
    dealer = make_dealer({b"": 0.5})
    assert len(dealer.deal_rows(pa.array([], pa.binary()), pa.array([], pa.int64()))) == 0
    dealt = deal(dealer, [(b"", 0)] * 5, 2)
    assert [mark and mark.number for *_, mark in dealt] == list(range(5))
    assert deal(make_dealer({}), [(b"a", 1)], 1) == [(b"a", 1, None, None)]
