"""The heaviest keys in bounded memory: what is kept, and what is promised of it."""

from __future__ import annotations

from collections import Counter
from random import Random

from trimtab.balance.heavy_hitters_cy import HeavyHitters


def kept(sketch: HeavyHitters) -> dict[object, tuple[int, int, int, int]]:
    return {
        key: (hitter.amount, hitter.bytes, hitter.partition, hitter.missed)
        for key, hitter in sketch
    }


def test_few_keys_are_counted_exactly() -> None:
    sketch = HeavyHitters(3)
    for counted in [("a", 2, 20, 0), ("b", 1, 5, 2), ("a", 1, 1, 1), ("c", 7, 7, 0)]:
        sketch.count_key(*counted)
    assert kept(sketch) == {"a": (3, 21, 1, 0), "b": (1, 5, 2, 0), "c": (7, 7, 0, 0)}
    assert sketch.floor == 0


def test_the_lightest_are_forgotten_and_the_floor_says_how_much() -> None:
    sketch = HeavyHitters(2)
    for counted in [("a", 9, 9, 0), ("b", 5, 5, 0), ("c", 3, 3, 0)]:
        sketch.count_key(*counted)
    assert set(kept(sketch)) == {"a", "b"}
    assert sketch.floor == 3
    sketch.count_key("c", 4, 4, 0)
    # c may have had three records before it was met again.
    assert kept(sketch) == {"a": (9, 9, 0, 0), "c": (4, 4, 0, 3)}


def test_of_keys_with_equal_weight_as_many_are_kept_as_there_is_room_for() -> None:
    sketch = HeavyHitters(4)
    for key in range(11):
        sketch.count_key(key, 1, 0, 0)
    assert len(kept(sketch)) == 4
    assert sketch.floor == 1


def test_what_came_long_ago_fades() -> None:
    sketch = HeavyHitters(2)
    for counted in [("a", 9, 90, 1), ("b", 1, 10, 2), ("c", 5, 50, 3), ("d", 4, 40, 3)]:
        sketch.count_key(*counted)
    sketch.fade()
    assert kept(sketch) == {"a": (4, 45, 1, 0), "c": (2, 25, 3, 0)}
    assert sketch.floor == 2


def test_true_counts_lie_between_the_bounds_whatever_the_order() -> None:
    random = Random(3)
    for capacity in (1, 2, 10):
        drawn = [int(random.paretovariate(0.7)) for _ in range(5000)]
        sketch = HeavyHitters(capacity)
        for key in drawn:
            sketch.count_key(key, 1, 1, 0)
        found = kept(sketch)
        true = Counter(drawn)
        assert 0 < len(found) <= capacity
        for name, (amount, _, _, missed) in found.items():
            assert isinstance(name, int)
            assert amount <= true[name] <= amount + missed
        assert all(count <= sketch.floor for key, count in true.items() if key not in found)
        # Every key with more than its share is there.
        assert {key for key, count in true.items() if count > len(drawn) / capacity} <= set(found)
