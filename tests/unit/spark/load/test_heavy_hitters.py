"""The most frequent keys in bounded memory: what is kept, and what is promised of it."""

from __future__ import annotations

from collections import Counter
from random import Random

from trimtab.spark.load.heavy_hitters import HeavyHitters, Hitter


def test_few_keys_are_counted_exactly() -> None:
    sketch: HeavyHitters[str] = HeavyHitters(3)
    sketch.count_keys([("a", 2, 20, 0), ("b", 1, 5, 2)])
    sketch.count_keys([("a", 1, 1, 1), ("c", 7, 7, 0)])
    assert dict(sketch) == {
        "a": Hitter(3, 21, 1, 0),
        "b": Hitter(1, 5, 2, 0),
        "c": Hitter(7, 7, 0, 0),
    }
    assert sketch.floor == 0


def test_the_rarest_are_forgotten_and_the_floor_says_how_much() -> None:
    sketch: HeavyHitters[str] = HeavyHitters(2)
    sketch.count_keys([("a", 9, 9, 0), ("b", 5, 5, 0), ("c", 3, 3, 0)])
    assert set(dict(sketch)) == {"a", "b"}
    assert sketch.floor == 3
    sketch.count_keys([("c", 4, 4, 0)])
    # c may have had three records before it was met again.
    assert dict(sketch)["a"] == Hitter(9, 9, 0, 0)
    assert dict(sketch)["c"] == Hitter(4, 4, 0, 3)


def test_true_counts_lie_between_the_bounds_whatever_the_order() -> None:
    random = Random(3)
    for capacity in (1, 2, 10):
        drawn = [int(random.paretovariate(0.7)) for _ in range(5000)]
        sketch: HeavyHitters[int] = HeavyHitters(capacity)
        for key in drawn:
            sketch.count_keys([(key, 1, 1, 0)])
        kept = dict(sketch)
        true = Counter(drawn)
        assert 0 < len(kept) <= capacity
        for key, hitter in kept.items():
            assert hitter.records <= true[key] <= hitter.records + hitter.missed
        assert all(count <= sketch.floor for key, count in true.items() if key not in kept)
        # Every key with more than its share is there.
        assert {key for key, count in true.items() if count > len(drawn) / capacity} <= set(kept)
