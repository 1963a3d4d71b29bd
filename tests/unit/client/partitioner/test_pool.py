"""The draw of a turn: KIP-794's weights at any number of partitions, and the cost of a draw."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import log2
from random import Random
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.client.conftest import view_of
from tests.unit.client.scripted_load import ScriptedLoad, take_turns
from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
from trimtab.client.partitioner.pool import Pool, QueueLengths
from trimtab.client.topic_view import TopicView

pytestmark = pytest.mark.kip(794)

SIZES = (5, 33, 300, 1000, 10_000)
SHAPES: dict[str, Callable[[int, int], int]] = {
    "one is free": lambda p, count: 0 if p == count // 2 else 200,
    "three are free": lambda p, count: 0 if p < 3 else 100,
    "a ramp": lambda p, count: p * 60 // count,
    "every other is long": lambda p, count: 9 * (p % 2),
    "all alike": lambda p, count: 7,
    "zipf": lambda p, count: 400 // (p + 1),
    "one is busy": lambda p, count: int(p == 3),
}


class SteadyLoad(ScriptedLoad):
    """Queues that stay as they are."""

    def take_resized(self) -> Collection[int]:
        return ()


def partitioner_of(seed: int = 5, rack: str | None = None) -> BuiltInPartitioner:
    return BuiltInPartitioner(BuiltInOptions(100, rack=rack), Random(seed))


def chances(queues: list[int]) -> list[float]:
    """KIP-794: each weighs the longest queue + 1 - its own."""
    most = max(queues) + 1
    total = sum(most - length for length in queues)
    return [(most - length) / total for length in queues]


def chi_square(chosen: Counter[int], expected: dict[int, float]) -> tuple[float, int]:
    """Of neighbours taken together until 20 turns are expected of them, and degrees of freedom."""
    statistic, cells, seen, awaited = 0.0, 0, 0, 0.0
    for partition, turns in expected.items():
        seen, awaited = seen + chosen[partition], awaited + turns
        if awaited >= 20:
            statistic += (seen - awaited) ** 2 / awaited
            cells, seen, awaited = cells + 1, 0, 0.0
    return statistic, cells - 1


def bound(freedom: int) -> float:
    """What chi-square stays below, but for once in some 100,000 times."""
    return float(freedom + 5 * (2 * freedom) ** 0.5 + 10)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", SIZES)
def test_turns_are_spread_as_the_proposal_says(count: int, shape: str) -> None:
    queues = [SHAPES[shape](p, count) for p in range(count)]
    load = SteadyLoad(dict(enumerate(queues)))
    view, partitioner = view_of([p % 3 for p in range(count)]), partitioner_of()
    turns = 10_000
    chosen = take_turns(partitioner, view, turns, load)
    expected = chances(queues)
    by_chance = sorted(range(count), key=lambda p: (expected[p], p))
    statistic, freedom = chi_square(chosen, {p: turns * expected[p] for p in by_chance})
    assert statistic < bound(freedom)
    shortest = min(queues)
    free = [p for p in range(count) if queues[p] == shortest]
    share = sum(chosen[p] for p in free) / turns
    assert share == pytest.approx(sum(expected[p] for p in free), rel=0.02)
    shown = partitioner.weigh(view, load)
    assert max(abs(shown[p].probability - expected[p]) for p in range(count)) < 1e-12


@pytest.mark.parametrize(
    ("count", "length", "free", "share"), [(33, 200, 1, 0.86), (300, 100, 3, 0.505)]
)
def test_the_share_of_those_that_are_free(count: int, length: int, free: int, share: float) -> None:
    load = SteadyLoad(dict.fromkeys(range(free, count), length))
    chosen = take_turns(partitioner_of(), view_of(range(count)), 20_000, load)
    assert sum(chosen[p] for p in range(free)) / 20_000 == pytest.approx(share, abs=0.005)


@settings(max_examples=60)
@given(queues=st.lists(st.integers(0, 30), min_size=2, max_size=60), seed=st.integers(0, 99))
def test_each_round_gives_each_partition_its_share_rounded(queues: list[int], seed: int) -> None:
    count = len(queues)
    view, load = view_of([p % 4 for p in range(count)]), ScriptedLoad(dict(enumerate(queues)))
    partitioner, expected = partitioner_of(seed), chances(queues)
    for _ in range(5):
        chosen = take_turns(partitioner, view, count, load)
        for partition in range(count):
            assert abs(chosen[partition] - count * expected[partition]) < 1


@pytest.mark.parametrize("turn", range(6))
def test_each_turn_has_the_chances_of_its_moment(turn: int) -> None:
    """Whatever the queues were before it, and wherever in a round it is."""
    view, chosen = view_of([0, 1, 0, 1]), Counter[int]()
    queues = [[0, 5, 1, 1], [9, 0, 0, 0], [2, 2, 2, 2], [0, 1, 2, 3], [4, 0, 4, 0], [7, 7, 0, 1]]
    for seed in range(4000):
        partitioner, load = partitioner_of(seed), ScriptedLoad()
        for now in queues[: turn + 1]:
            load.queued = dict(enumerate(now))
            partition, _ = partitioner.next_turn(view, -1, 0, load)
        chosen[partition] += 1
    expected = {p: 4000 * chance for p, chance in enumerate(chances(queues[turn]))}
    statistic, freedom = chi_square(chosen, expected)
    assert statistic < bound(freedom)


def test_bytes_are_in_proportion_whatever_turns_take_beyond_their_quantum() -> None:
    """Of 100 partitions every fourth ends late; a record may be many quanta long."""
    queues = [p % 7 for p in range(100)]
    view, load = view_of(range(100)), SteadyLoad(dict(enumerate(queues)))
    partitioner, produced = partitioner_of(), Counter[int]()
    chosen, used_up = partitioner.next_turn(view, -1, 0, load)
    for turn in range(60_000):
        ends_at = 350 if turn % 50 == 0 else 190 if chosen % 4 == 0 else 100
        produced[chosen] += ends_at - used_up
        chosen, used_up = partitioner.next_turn(view, chosen, ends_at - 100, load)
    expected = [chance * produced.total() for chance in chances(queues)]
    assert [produced[p] for p in range(100)] == pytest.approx(expected, rel=0.03)


def test_debts_are_reduced_in_proportion_to_the_weights() -> None:
    """Records of a thousand quanta each: bytes stay 1 to 4."""
    view, load = view_of([0, 1]), ScriptedLoad({0: 3})
    partitioner = BuiltInPartitioner(BuiltInOptions(1), Random(3))
    produced = Counter[int]()
    chosen, _ = partitioner.next_turn(view, -1, 0, load)
    for _ in range(5000):
        produced[chosen] += 1000
        chosen, _ = partitioner.next_turn(view, chosen, 999, load)
    assert produced[1] / produced[0] == pytest.approx(4, rel=0.02)


# the tree


@settings(max_examples=100)
@given(data=st.data())
def test_lengths_that_change_are_summed_as_if_read_again(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=40))
    queues = QueueLengths(lengths)
    for _ in range(20):
        place = data.draw(st.integers(0, len(lengths) - 1))
        lengths[place] = data.draw(st.integers(0, 30))
        queues.change(place, lengths[place])
        weights = [max(lengths) + 1 - length for length in lengths]
        assert (queues.longest, queues.total_weight) == (max(lengths), sum(weights))
        assert queues.weights() == weights
        assert queues.are_equal is (len(set(lengths)) == 1)
        owners = [place for place, weight in enumerate(weights) for _ in range(weight)]
        assert [queues.place_at(point) for point in range(len(owners))] == owners


def test_a_queue_that_grew_and_shrank_counts_in_every_pool() -> None:
    """Brokers become unavailable and return: changes in between are known."""
    view, load = view_of([0, 1, 2], ["a", "b", "b"]), ScriptedLoad(queued := {0: 4})
    partitioner = partitioner_of()
    for left_out in (frozenset[int](), frozenset({0}), frozenset({1})):
        load.left_out = left_out
        partitioner.next_turn(view, -1, 0, load)
    queued.update({0: 1, 2: 3})
    load.left_out = frozenset()
    weights = partitioner.weigh(view, load)
    assert [round(8 * weights[p].probability) for p in range(3)] == [3, 4, 1]
    load.left_out = frozenset({0})
    weights = partitioner.weigh(view, load)
    assert [weights[p].probability for p in range(3)] == [0.0, 0.8, 0.2]


def test_a_partition_beyond_the_pools_view_is_not_in_it() -> None:
    """The topic was made again, with fewer; its old queues may still shrink."""
    pool = Pool(2, [0, 1], Random(1))
    queues = pool.weigh_queues(ScriptedLoad())
    pool.resize(5, 3)
    assert queues.longest == 0
    assert 5 not in pool


@dataclass
class ChangingLoad(ScriptedLoad):
    """One whose test says which queues have changed."""

    changed: set[int] = field(default_factory=set)

    def take_resized(self) -> Collection[int]:
        return self.changed


# cost: lines of Python that run, whatever the machine


def lines_run(function: Callable[[], Any]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if "partitioner" not in frame.f_code.co_filename or "test_" in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("rack", [None, "b"])
def test_a_turn_costs_as_many_steps_as_the_partitions_have_binary_digits(rack: str | None) -> None:
    """Queues change at every turn, and so does the longest, which changes every weight."""
    costs = []
    for count in (100, 1000, 10_000, 100_000):
        view = view_of(range(count), ["b" if p % 3 else "a" for p in range(count)])
        load = ChangingLoad({p: p % 50 for p in range(count)})
        partitioner, random = partitioner_of(rack=rack), Random(3)
        take_turns(partitioner, view, 3, load)

        def turn(
            view: TopicView = view,
            partitioner: BuiltInPartitioner = partitioner,
            load: ChangingLoad = load,
            random: Random = random,
        ) -> None:
            queued, changed, count = load.queued, load.changed, view.partition_count
            changed.clear()
            changed.update({1, random.randrange(count), random.randrange(count)})
            for partition in changed:
                queued[partition] = random.randrange(50)
            queued[1] = 0 if queued[1] else 60
            partitioner.next_turn(view, -1, 0, load)

        costs.append(max(lines_run(turn) for _ in range(100)))
    # A level of the tree is up to six lines to find a place, and three for each of the changes.
    assert max(costs) - min(costs) <= (6 + 3 * 3) * log2(100_000 / 100) + 60
    assert max(costs) < 450
