"""Turns where they end soonest: expected times, debts, bounds, silent brokers, racks, cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.client.conftest import view_of
from tests.unit.client.partitioner.test_pool import lines_run
from tests.unit.client.scripted_load import ScriptedLoad, ScriptedNode
from trimtab.client.partitioner.protocol import SILENT
from trimtab.client.partitioner.soonest import (
    CREDIT,
    FREE,
    HALF_LIFE,
    STRICT,
    TRUST,
    TURNS_A_HALF,
    SoonestOptions,
    SoonestPartitioner,
)
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import UsageError

MakeView = Callable[..., TopicView]
QUANTUM = 1000
NOW = 100.0


def soonest(
    bound: float = STRICT, rack: str | None = None, linger: float = 0.0
) -> SoonestPartitioner:
    return SoonestPartitioner(SoonestOptions(QUANTUM, bound, linger, rack), Random(11))


def load_of(view: TopicView, *alone: float) -> ScriptedLoad:
    """Brokers 0, 1, … whose answers take so long, and that answered just now."""
    nodes = {node: ScriptedNode(node, alone=time) for node, time in enumerate(alone)}
    return ScriptedLoad(leaders=view.leaders, nodes=nodes, clock=NOW)


def produce(
    partitioner: SoonestPartitioner,
    view: TopicView,
    load: ScriptedLoad,
    turns: int,
    size: int = QUANTUM,
) -> Counter[int]:
    """The bytes of each partition after turns of this size."""
    before, previous = load.chosen.copy(), -1
    for _ in range(turns):
        previous, used = partitioner.next_turn(view, previous, 0, load)
        load.chosen[previous] += max(1, size - used)
    return load.chosen - before


def by_broker(view: TopicView, produced: Counter[int]) -> Counter[int]:
    found = Counter[int]()
    for partition, size in produced.items():
        found[view.leaders[partition]] += size
    return found


# expected times


def test_the_broker_that_answers_soonest_gets_the_turn(make_view: MakeView) -> None:
    view = make_view([0, 1, 2])
    load = load_of(view, 0.030, 0.001, 0.010)
    assert produce(soonest(FREE), view, load, 50) == {1: 50 * QUANTUM}


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (ScriptedNode(0, alone=0.010), 0.010),
        (ScriptedNode(0, alone=0.010, requests=1, moved_at=NOW - 0.004), 0.016),
        (ScriptedNode(0, alone=0.010, requests=3, moved_at=NOW - 0.004), 0.036),
        (ScriptedNode(0, alone=0.010, behind=0.001, requests=3, moved_at=NOW - 0.002), 0.011),
        # late by 3 ms: another 3 ms are expected
        (ScriptedNode(0, alone=0.010, requests=1, moved_at=NOW - 0.013), 0.013),
        (ScriptedNode(0, alone=0.010, requests=2, moved_at=NOW - 0.013), 0.023),
        # bytes beyond one turn wait at 1 MB/s
        (ScriptedNode(0, alone=0.010, queued_bytes=QUANTUM + 5000, drain_rate=1e6), 0.015),
        (ScriptedNode(0, alone=0.010, not_ready_since=NOW - 0.5), 0.510),
    ],
)
def test_expected_times(node: ScriptedNode, expected: float, make_view: MakeView) -> None:
    view = make_view([0, 1])
    load = load_of(view, 0.001, 0.001)
    load.nodes[0] = node
    assert soonest().weigh(view, load)[0].expected == pytest.approx(expected)


def test_what_is_weighed_is_what_is_chosen(make_view: MakeView) -> None:
    view = make_view([0, 1, 1, -1])
    load = load_of(view, 0.030, 0.001)
    partitioner = soonest(0.5)
    for _ in range(100):
        weights = partitioner.weigh(view, load)
        likely = [p for p, weight in weights.items() if weight.probability == 1.0]
        chosen, _ = partitioner.next_turn(view, -1, 0, load)
        assert likely == [chosen]
        assert sum(weight.probability for weight in weights.values()) == 1.0
        assert weights[3] == (0.0, "it has no leader", None, None)
        load.chosen[chosen] += QUANTUM


def test_debts_are_shown(make_view: MakeView) -> None:
    view = make_view([0, 1, 1])
    load = load_of(view, 0.030, 0.001)
    partitioner = soonest()
    chosen, _ = partitioner.next_turn(view, -1, 0, load)
    assert chosen in (1, 2)
    load.chosen[chosen] += 600
    partitioner.next_turn(view, chosen, 0, load)
    weights = partitioner.weigh(view, load)
    assert weights[0].behind == pytest.approx(200)
    assert weights[1].behind == weights[2].behind == pytest.approx(-100)


# balance


@pytest.mark.parametrize("count", [1, 33, 1000, 10_000])
def test_equal_brokers_and_their_partitions_get_equal_bytes(count: int) -> None:
    view = view_of([p % 7 for p in range(count)])
    load = load_of(view, *[0.002] * 7)
    produced = produce(soonest(), view, load, 3 * count + 100)
    assert max(produced[p] for p in range(count)) - min(produced[p] for p in range(count)) <= (
        QUANTUM + CREDIT * QUANTUM
    )


@settings(max_examples=60, deadline=None)
@given(
    leaders=st.lists(st.integers(0, 5), min_size=1, max_size=24),
    alone=st.lists(st.sampled_from([0.0001, 0.001, 0.02, 0.5]), min_size=6, max_size=6),
    seed=st.integers(0, 99),
)
def test_with_a_bound_of_0_brokers_are_within_the_credit_and_a_turn(
    leaders: list[int], alone: list[float], seed: int
) -> None:
    """Whatever they cost, and whatever turns take."""
    view, random = view_of(leaders), Random(seed)
    load = load_of(view, *alone)
    partitioner, previous = soonest(), -1
    for _ in range(400):
        previous, _ = partitioner.next_turn(view, previous, 0, load)
        load.chosen[previous] += random.randrange(1, 2 * QUANTUM)
        total = sum(load.chosen.values())
        got = by_broker(view, load.chosen)
        for broker in set(leaders):
            share = total * leaders.count(broker) / len(leaders)
            assert abs(got[broker] - share) <= (CREDIT + 2 + len(set(leaders))) * QUANTUM
    for broker in set(leaders):
        own = [load.chosen[p] for p, leader in enumerate(leaders) if leader == broker]
        assert max(own) - min(own) <= 3 * QUANTUM


@pytest.mark.parametrize("bound", [0.1, 0.25, 0.5, 1.0])
def test_a_slow_broker_gets_its_share_less_the_bound(bound: float, make_view: MakeView) -> None:
    view = make_view([0, 1, 2])
    load = load_of(view, 0.050, 0.001, 0.001)
    produced = produce(soonest(bound), view, load, 3000)
    mean = produced.total() / 3
    assert produced[0] >= (1 - bound) * mean * 0.97
    assert produced[0] <= (1 - bound) * mean + CREDIT * QUANTUM
    assert max(produced.values()) <= (1 + bound) * mean * 1.02


def test_a_quick_broker_gets_its_share_and_the_bound(make_view: MakeView) -> None:
    view = make_view([0, 1, 2, 3])
    load = load_of(view, 0.001, 0.050, 0.050, 0.050)
    produced = produce(soonest(0.2), view, load, 4000)
    assert produced[0] / (produced.total() / 4) == pytest.approx(1.2, abs=0.02)


def test_a_lasting_difference_is_not_paid_back_beyond_the_credit(make_view: MakeView) -> None:
    """After an hour of nothing a broker does not get everything for an hour."""
    view = make_view([0, 1, 2])
    load = load_of(view, 0.050, 0.001, 0.001)
    partitioner = soonest(0.5)
    produce(partitioner, view, load, 3000)
    load.nodes[0].alone, load.nodes[1].alone = 0.001, 0.050
    produced = produce(partitioner, view, load, 300)
    assert produced[1] >= (0.5 * 100 - 2 * CREDIT) * QUANTUM
    assert produced[0] >= 50 * QUANTUM


def test_free_is_even_where_it_costs_nothing(make_view: MakeView) -> None:
    view = make_view([p % 5 for p in range(20)])
    load = load_of(view, *[0.004, 0.0041, 0.0039, 0.004, 0.0042])
    produced = by_broker(view, produce(soonest(FREE), view, load, 1000))
    assert min(produced.values()) > 0.8 * produced.total() / 5


def test_records_of_many_quanta_are_paid_back(make_view: MakeView) -> None:
    view = make_view([0, 1])
    load = load_of(view, 0.001, 0.001)
    partitioner, previous = soonest(), -1
    for _ in range(200):
        previous, _ = partitioner.next_turn(view, previous, 0, load)
        load.chosen[previous] += 50 * QUANTUM if previous == 0 else QUANTUM
    assert abs(load.chosen[0] - load.chosen[1]) <= 51 * QUANTUM


@pytest.mark.parametrize(("bound", "share"), [(STRICT, 1 / 3), (0.1, 0.3)])
def test_no_backlog_takes_a_broker_its_share(
    bound: float, share: float, make_view: MakeView
) -> None:
    """It falls behind by ten seconds, far more than any debt is worth."""
    view = make_view([0, 1, 2])
    load = load_of(view, 0.001, 0.001, 0.001)
    load.nodes[0].queued_bytes, load.nodes[0].drain_rate = 10_000_000, 1e6
    produced = produce(soonest(bound), view, load, 3000)
    assert produced[0] / produced.total() == pytest.approx(share, abs=0.01)


def test_no_backlog_of_others_gives_a_broker_more(make_view: MakeView) -> None:
    view = make_view([0, 1, 2])
    load = load_of(view, 0.001, 0.001, 0.001)
    for slow in (0, 1):
        load.nodes[slow].queued_bytes, load.nodes[slow].drain_rate = 10_000_000, 1e6
    produced = produce(soonest(), view, load, 3000)
    assert [produced[p] / produced.total() for p in range(3)] == pytest.approx(
        [1 / 3] * 3, abs=0.01
    )


# turns


def test_a_turn_ends_when_another_broker_has_become_sooner(make_view: MakeView) -> None:
    view = make_view([0, 1])
    load = load_of(view, 0.005, 0.005)
    partitioner = soonest()
    chosen, _ = partitioner.next_turn(view, -1, 0, load)
    assert partitioner.may_stay(view, chosen, load)
    load.nodes[chosen].requests, load.nodes[chosen].moved_at = 1, NOW
    assert not partitioner.may_stay(view, chosen, load)
    assert partitioner.next_turn(view, chosen, 0, load)[0] == 1 - chosen


def test_a_turn_goes_on_while_its_batch_gathers_and_the_gain_is_small(make_view: MakeView) -> None:
    view = make_view([0, 1])
    load = load_of(view, 0.005, 0.005)
    partitioner = soonest()
    chosen, _ = partitioner.next_turn(view, -1, 0, load)
    node = load.nodes[chosen]
    node.requests, node.moved_at = 1, NOW - 0.003
    node.queued_batches, load.queued[chosen] = 1, 1
    assert partitioner.may_stay(view, chosen, load), "2 ms more for one batch less"
    node.moved_at = NOW - 0.001
    assert not partitioner.may_stay(view, chosen, load), "4 ms"


def test_a_turn_that_ended_early_goes_on_while_its_batch_waits(make_view: MakeView) -> None:
    view = make_view([0, 0, 1])
    load = load_of(view, 0.005, 0.5)
    partitioner = soonest(FREE)
    first, used = partitioner.next_turn(view, -1, 0, load)
    assert used == 0
    load.chosen[first] += 300
    load.queued[first] = 1
    assert partitioner.next_turn(view, first, 0, load) == (first, 300)
    load.chosen[first] += 700
    other, used = partitioner.next_turn(view, first, 0, load)
    assert {first, other} == {0, 1}
    assert used == 0


def test_a_turn_outlasts_differences_shorter_than_linger(make_view: MakeView) -> None:
    view = make_view([0, 1])
    load = load_of(view, 0.001, 0.001)
    partitioner = soonest(linger=0.005)
    chosen, _ = partitioner.next_turn(view, -1, 0, load)
    load.nodes[chosen].requests, load.nodes[chosen].moved_at = 1, NOW
    assert partitioner.may_stay(view, chosen, load)
    load.nodes[chosen].alone = 0.010
    assert not partitioner.may_stay(view, chosen, load)


def test_a_broker_not_yet_measured_is_tried_with_one_record(make_view: MakeView) -> None:
    view = make_view([0, 1])
    load = load_of(view, 0.001, 0.0)
    assert soonest().next_turn(view, -1, 0, load) == (1, QUANTUM - 1)


def test_a_turn_ends_if_its_partition_has_gone_or_moved(make_view: MakeView) -> None:
    view = make_view([0, 1])
    load = load_of(view, 0.001, 0.001, 0.001)
    partitioner = soonest()
    chosen, _ = partitioner.next_turn(view, -1, 0, load)
    moved = make_view([2 if p == chosen else leader for p, leader in enumerate(view.leaders)])
    load.leaders = moved.leaders
    assert not partitioner.may_stay(moved, chosen, load)
    same = make_view(moved.leaders)
    chosen, _ = partitioner.next_turn(moved, chosen, 0, load)
    assert partitioner.may_stay(same, chosen, load), "nothing that matters has changed"


# silence and recovery


@pytest.mark.parametrize(
    ("bound", "share"), [(STRICT, 0.5), (0.1, 0.5), (1.0, 1 / 3), (FREE, 1 / 3)]
)
def test_a_silent_broker_gets_no_turns_and_later_at_most_twice_its_share(
    bound: float, share: float, make_view: MakeView
) -> None:
    view = make_view([0, 1, 2])
    load = load_of(view, 0.002, 0.002, 0.002)
    partitioner = soonest(bound)
    produce(partitioner, view, load, 30)
    node = load.nodes[0]
    node.requests, node.moved_at = 1, NOW
    load.clock = NOW + SILENT * 0.002 + 0.0001
    for other in (1, 2):
        load.nodes[other].moved_at = load.clock
    produced = produce(partitioner, view, load, 1000)
    assert produced[0] == 0
    assert produced[1] == pytest.approx(produced[2], rel=0.02)
    weight = partitioner.weigh(view, load)[0]
    assert "does not answer" in (weight.excluded or "")
    assert weight.behind == pytest.approx(
        max(0.0, 1 - bound) * 500_000, rel=0.02, abs=CREDIT * QUANTUM
    )
    node.requests, node.moved_at = 0, load.clock
    produced = produce(partitioner, view, load, 300)
    assert produced[0] == pytest.approx(share * 300 * QUANTUM, abs=2 * CREDIT * QUANTUM)


def test_a_silent_broker_that_is_behind_gets_its_share(make_view: MakeView) -> None:
    """Else one that is often late, however shortly, would get less and less."""
    view = make_view([0, 1, 2])
    load = load_of(view, 0.002, 0.002, 0.002)
    partitioner, node = soonest(), load.nodes[0]
    for _ in range(50):
        node.requests, node.moved_at = 1, load.clock
        load.clock += 0.060
        for other in (1, 2):
            load.nodes[other].moved_at = load.clock
        produce(partitioner, view, load, 40)
        node.requests, node.moved_at = 0, load.clock
        produce(partitioner, view, load, 1)
    share = load.chosen.total() / 3
    assert load.chosen[0] >= share - (2 * CREDIT + 2 + 40 / 3) * QUANTUM


def test_what_was_missed_is_made_up_for_although_the_leader_changed(make_view: MakeView) -> None:
    view = make_view([0, 1, 2])
    load = load_of(view, 0.002, 0.002, 0.002)
    partitioner, node = soonest(), load.nodes[0]
    produce(partitioner, view, load, 3)
    node.requests, node.moved_at = 1, NOW
    load.clock = NOW + 1.0
    for other in (1, 2):
        load.nodes[other].moved_at = load.clock
    assert produce(partitioner, view, load, 60)[0] == 0
    moved = make_view([1, 1, 2])
    load.leaders = moved.leaders
    produced = produce(partitioner, moved, load, 27)
    assert set(produced) == {0, 2}, "partition 1 has got enough"
    produce(partitioner, moved, load, 300)
    mean = load.chosen.total() / 3
    assert all(abs(each - mean) <= 2 * CREDIT * QUANTUM for each in load.chosen.values())


def test_if_all_are_silent_one_is_chosen_all_the_same(make_view: MakeView) -> None:
    view = make_view([0, 1])
    load = load_of(view, 0.001, 0.001)
    for each in load.nodes.values():
        each.requests, each.moved_at = 1, NOW - 9
    load.nodes[1].moved_at = NOW - 5
    assert soonest().next_turn(view, -1, 0, load)[0] == 1


def test_a_broker_that_accepts_no_batches_is_silent_too(make_view: MakeView) -> None:
    view = make_view([0, 1])
    load = load_of(view, 0.001, 0.001)
    load.nodes[0].not_ready_since = NOW - 1
    assert produce(soonest(), view, load, 40) == {1: 40 * QUANTUM}


def test_a_broker_that_was_slow_is_tried_again_within_seconds(make_view: MakeView) -> None:
    view = make_view([0, 1])
    load = load_of(view, 0.020, 0.001)
    partitioner, previous, tried = soonest(FREE), -1, []
    for step in range(3000):
        load.clock = NOW + step / 1000
        load.nodes[1].moved_at = load.clock
        previous, _ = partitioner.next_turn(view, previous, 0, load)
        load.chosen[previous] += 100
        if previous == 0:
            tried.append(load.clock)
            load.nodes[0].moved_at = load.clock
    assert TRUST + 3 * HALF_LIFE < tried[0] - NOW < 2.0
    assert len(tried) <= 3


def test_few_turns_try_a_slow_broker_however_slowly_they_come(make_view: MakeView) -> None:
    view = make_view([0, 1])
    load = load_of(view, 0.020, 0.001)
    partitioner, previous = soonest(FREE), -1
    for step in range(500):
        load.clock = NOW + step
        load.nodes[1].moved_at = load.clock
        previous, _ = partitioner.next_turn(view, previous, 0, load)
        load.chosen[previous] += 100
        if previous == 0:
            load.nodes[0].moved_at = load.clock
    turns_to_a_trial = TURNS_A_HALF * 4
    assert 1 <= load.chosen[0] // 100 <= 500 / turns_to_a_trial + 1


# which partitions


@pytest.mark.kip(1123)
def test_turns_stay_in_the_rack_while_it_carries_the_load(make_view: MakeView) -> None:
    view = make_view([0, 1, 2, 3], ["a", "a", "b", "b"])
    for alone in ((0.003, 0.002, 0.0001, 0.0001), (0.030, 0.030, 0.010, 0.010)):
        load = load_of(view, *alone)
        for bound in (STRICT, 0.3, FREE):
            produced = produce(soonest(bound, rack="a"), view, load, 200)
            assert produced[0] + produced[1] == 200 * QUANTUM


@pytest.mark.kip(1123)
def test_only_free_leaves_a_rack_that_does_not_carry_the_load(make_view: MakeView) -> None:
    view = make_view([0, 1, 2, 3], ["a", "a", "b", "b"])
    for bound, chosen in ((STRICT, {0, 1}), (0.9, {0, 1}), (FREE, {2, 3})):
        load = load_of(view, 0.5, 0.5, 0.001, 0.001)
        partitioner = soonest(bound, rack="a")
        assert set(produce(partitioner, view, load, 20)) <= {0, 1}, "it may be a pause"
        load.clock += 0.1
        assert set(produce(partitioner, view, load, 20)) <= chosen


@pytest.mark.kip(1123)
def test_a_turn_leaves_the_rack_at_once_if_one_just_did(make_view: MakeView) -> None:
    view = make_view([0, 1, 2, 3], ["a", "a", "b", "b"])
    load = load_of(view, 0.5, 0.5, 0.001, 0.001)
    partitioner = soonest(FREE, rack="a")
    found = []
    for is_well, seconds in (
        *((False, 0.1), (False, 0.01), (True, 0.5), (False, 0.01)),
        *((True, 2.0), (False, 0.01), (True, 0.01), (False, 0.1)),
    ):
        for node in (0, 1):
            load.nodes[node].alone = 0.001 if is_well else 0.5
        found.append(set(produce(partitioner, view, load, 20)) <= {2, 3})
        load.clock += seconds
        for each in load.nodes.values():
            each.moved_at = load.clock
    assert found == [False, True, False, True, False, False, False, False]


def test_unavailable_brokers_are_left_out(make_view: MakeView) -> None:
    view = make_view([0, 1, 2, -1])
    load = load_of(view, 0.001, 0.001, 0.001)
    load.left_out = frozenset({1})
    partitioner = soonest()
    assert set(produce(partitioner, view, load, 40)) == {0, 2}
    weights = partitioner.weigh(view, load)
    assert weights[1].excluded == (
        "broker 1 accepts no batches (partitioner.availability.timeout.ms)"
    )


# many brokers


def test_of_many_brokers_the_quickest_are_found_and_none_is_starved() -> None:
    view = view_of(range(100))
    load = load_of(view, *[0.020 if n % 10 else 0.001 for n in range(100)])
    free = by_broker(view, produce(soonest(FREE), view, load, 2000))
    assert sum(size for n, size in free.items() if n % 10 == 0) > 0.95 * free.total()
    produced = produce(soonest(0.5), view, load, 20_000)
    mean = produced.total() / 100
    assert min(produced[p] for p in range(100)) >= 0.5 * mean - CREDIT * QUANTUM


def test_a_turn_costs_no_more_with_more_partitions_or_brokers() -> None:
    costs = []
    for count, brokers in ((100, 50), (10_000, 50), (10_000, 5000)):
        view = view_of([p % brokers for p in range(count)])
        load = load_of(view, *[0.001 * (1 + n % 3) for n in range(brokers)])
        partitioner = soonest()
        produce(partitioner, view, load, 100)
        turn = partial(produce, partitioner, view, load, 1)
        costs.append(max(lines_run(turn) for _ in range(50)))
    assert max(costs) - min(costs) < 60
    assert max(costs) < 900


@pytest.mark.parametrize(
    ("quantum", "bound", "why"),
    [(0, 0.1, "quantum"), (1, -0.1, "bound"), (1, 1.5, "bound"), (1, float("nan"), "bound")],
)
def test_options_are_checked(quantum: int, bound: float, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        SoonestOptions(quantum, bound)
