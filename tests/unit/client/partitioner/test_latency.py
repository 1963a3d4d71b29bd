"""Turns by their expected latency: slow, silent and returning brokers, racks, and no herd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from tests.unit.client.scripted_load import ScriptedLoad, ScriptedNode, take_turns
from trimtab.client.partitioner.built_in import BuiltInOptions
from trimtab.client.partitioner.latency import LatencyPartitioner
from trimtab.client.topic_view import TopicView

MakeView = Callable[..., TopicView]


def by_latency(rack: str | None = None) -> LatencyPartitioner:
    return LatencyPartitioner(BuiltInOptions(quantum=100, rack=rack), Random(11))


def load_of(view: TopicView, *latencies: float) -> ScriptedLoad:
    """Brokers 0, 1, … of these latencies, in seconds, that answered just now."""
    nodes = {
        node: ScriptedNode(node, latency=latency, last_acknowledged=100.0)
        for node, latency in enumerate(latencies)
    }
    return ScriptedLoad(leaders=view.leaders, nodes=nodes, clock=100.0)


def chance(partitioner: LatencyPartitioner, view: TopicView, load: ScriptedLoad) -> list[float]:
    weights = partitioner.weigh(view, load)
    return [weights[p].probability for p in range(view.partition_count)]


def test_brokers_about_as_quick_get_the_same(make_view: MakeView) -> None:
    """A factor of two, or up to 5 ms, moves nothing: they are as even as without a signal."""
    view = make_view([0, 1, 2])
    for latencies in ((0.0005, 0.001, 0.0049), (0.030, 0.045, 0.060)):
        assert set(take_turns(by_latency(), view, 300, load_of(view, *latencies)).values()) == {100}


def test_chances_fall_with_the_square_of_the_cost(make_view: MakeView) -> None:
    view = make_view([0, 1, 1, 2])
    load = load_of(view, 0.030, 0.001, 0.010)
    weights = [1 / 36, 1, 1, 1 / 4]
    assert chance(by_latency(), view, load) == pytest.approx([w / sum(weights) for w in weights])
    chosen = take_turns(by_latency(), view, 20_000, load)
    assert chosen[0] == pytest.approx(20_000 * weights[0] / sum(weights), rel=0.15)
    assert chosen[3] == pytest.approx(20_000 * weights[3] / sum(weights), rel=0.06)


def test_a_queue_counts_at_once_at_the_rate_it_drains(make_view: MakeView) -> None:
    view = make_view([0, 1])
    load = load_of(view, 0.001, 0.001)
    load.nodes[0].queued_batches, load.nodes[0].queued_bytes = 500, 40_000
    load.nodes[0].in_flight_batches, load.nodes[0].in_flight_bytes = 5, 10_000
    load.nodes[0].drain_rate = 1e6  # so 50 ms are ahead of a turn, and its own latency
    before, after = chance(by_latency(), view, load)
    assert before / after == pytest.approx((5 / 51) ** 2)


def test_a_drain_rate_of_small_requests_does_not_make_a_burst_look_long(
    make_view: MakeView,
) -> None:
    """0.5 MB/s was measured on single records; three batches take no 100 ms for that."""
    view = make_view([0, 1])
    load = load_of(view, 0.001, 0.001)
    load.nodes[0].queued_batches, load.nodes[0].queued_bytes = 3, 50_000
    load.nodes[0].drain_rate = 0.5e6
    assert chance(by_latency(), view, load) == [0.5, 0.5]


def test_no_herd(make_view: MakeView) -> None:
    """The cheapest of ten does not get all turns: its own load counts with the next turn."""
    view = make_view(range(10))
    load = load_of(view, 0.001, *[0.020] * 9)
    partitioner, chosen = by_latency(), Counter[int]()
    previous = -1
    for _ in range(600):
        previous, _ = partitioner.next_turn(view, previous, 0, load)
        node = load.nodes[previous]
        chosen[previous] += 1
        node.queued_batches += 1
        node.queued_bytes += 16_384
    assert chosen[0] < 300
    assert min(chosen.values()) > 20


def test_a_slow_broker_gets_short_turns(make_view: MakeView) -> None:
    """Record by record, a whole turn would have five requests under way, each 20 ms long."""
    view = make_view([0, 1])
    partitioner, load = by_latency(), load_of(view, 0.020, 0.001)
    used_up = {partitioner.next_turn(view, -1, 0, load) for _ in range(300)}
    assert used_up == {(0, 99), (1, 0)}


def test_a_broker_never_measured_is_tried_with_a_short_turn(make_view: MakeView) -> None:
    view = make_view([0, 1])
    partitioner, load = by_latency(), load_of(view, 0.0, 0.001)
    assert {partitioner.next_turn(view, -1, 0, load) for _ in range(4)} == {(0, 99), (1, 0)}


def test_a_short_turn_owes_what_it_takes_beyond_a_whole_one(make_view: MakeView) -> None:
    view = make_view([0, 1])
    partitioner, load = by_latency(), load_of(view, 0.0, 0.0)
    first, used_up = partitioner.next_turn(view, -1, 0, load)
    assert used_up == 99
    other, used_up = partitioner.next_turn(view, first, 60, load)  # a record of 61 bytes
    assert (other, used_up) == (1 - first, 99)
    load.nodes[0].latency = load.nodes[1].latency = 0.001
    turns = [partitioner.next_turn(view, other, 139, load)]  # one of 140: 40 too many
    turns += [partitioner.next_turn(view, turns[-1][0], 0, load) for _ in range(2)]
    assert (other, 40) in turns
    assert (first, 0) in turns


def test_equally_slow_brokers_get_whole_turns(make_view: MakeView) -> None:
    view = make_view([0, 1])
    partitioner, load = by_latency(), load_of(view, 0.2, 0.2)
    assert {partitioner.next_turn(view, -1, 0, load) for _ in range(4)} == {(0, 0), (1, 0)}


def test_silence_counts_while_it_lasts(make_view: MakeView) -> None:
    """A broker that always took 1 ms does not answer: it is left before any timeout is over."""
    view = make_view([0, 1])
    partitioner, load = by_latency(), load_of(view, 0.001, 0.001)
    load.nodes[0].in_flight_batches, load.nodes[0].in_flight_bytes = 1, 500
    assert chance(partitioner, view, load) == [0.5, 0.5]
    load.clock += 0.05
    load.nodes[1].last_acknowledged = load.clock
    before, after = chance(partitioner, view, load)
    assert before / after == pytest.approx((5 / 50) ** 2)
    assert not partitioner.may_stay(view, 0, load)
    assert partitioner.may_stay(view, 1, load)
    load.nodes[0].last_acknowledged = load.clock  # it answers, and the next request is under way
    assert chance(partitioner, view, load) == [0.5, 0.5]


def test_idleness_is_not_silence(make_view: MakeView) -> None:
    """D4: ten minutes without anything to send, then one request under way."""
    view = make_view([0, 1])
    partitioner, load = by_latency(), load_of(view, 0.001, 0.001)
    assert chance(partitioner, view, load) == [0.5, 0.5]
    load.clock += 600
    load.nodes[0].in_flight_batches = 1
    assert chance(partitioner, view, load) == [0.5, 0.5]


def test_a_broker_that_takes_nothing_is_left(make_view: MakeView) -> None:
    view = make_view([0, 1])
    partitioner, load = by_latency(), load_of(view, 0.001, 0.001)
    load.nodes[0].not_ready_since = 99.5
    load.nodes[0].last_acknowledged = 99.0
    assert take_turns(partitioner, view, 1000, load)[0] <= 30  # 1000 / 65, and chance
    load.nodes[0].last_acknowledged = 99.999  # it is at its limit, and answers
    assert take_turns(by_latency(), view, 1000, load)[0] == 500


def test_a_broker_that_was_slow_is_tried_again(make_view: MakeView) -> None:
    view = make_view([0, 1])
    partitioner, load = by_latency(), load_of(view, 3.0, 0.001)
    slow = chance(partitioner, view, load)[0]
    assert slow == pytest.approx(1 / 65)  # a probe now and then while nothing is under way
    load.nodes[0].in_flight_batches = 1
    assert chance(partitioner, view, load)[0] < 1e-5  # but one at a time
    load.nodes[0].in_flight_batches = 0
    for _ in range(40):
        load.clock += 1
        load.nodes[1].last_acknowledged = load.clock
        probability = chance(partitioner, view, load)[0]
        assert probability >= slow
        slow = probability
    assert slow == 0.5


def test_a_broker_that_returns_starts_slowly(make_view: MakeView) -> None:
    view, gone = make_view([0, 1]), make_view([-1, 1])
    partitioner, load = by_latency(), load_of(view, 0.001, 0.001)
    take_turns(partitioner, view, 2, load)
    partitioner.next_turn(gone, -1, 0, load)
    growing = []
    for _ in range(7):
        for node in load.nodes.values():
            node.last_acknowledged = load.clock
        growing.append(chance(partitioner, view, load)[0])
        load.clock += 1
    assert growing[0] < 0.02
    assert growing == sorted(growing)
    assert 0.1 < growing[2] < 0.4
    assert growing[5:] == [0.5, 0.5]


@pytest.mark.kip(794)
def test_an_unavailable_broker_is_left_out_and_comes_back_slowly(make_view: MakeView) -> None:
    view = make_view([0, 1])
    partitioner, load = by_latency(), load_of(view, 0.001, 0.001)
    load.left_out = frozenset({0})
    assert take_turns(partitioner, view, 100, load) == {1: 100}
    assert not partitioner.may_stay(view, 0, load)
    load.left_out = frozenset()
    assert take_turns(partitioner, view, 100, load)[0] <= 5


def test_a_broker_that_leads_for_the_first_time_does_not_start_slowly(make_view: MakeView) -> None:
    view = make_view([0, 1, 2])
    assert take_turns(by_latency(), view, 9, load_of(view, 0.0, 0.0, 0.0)) == {0: 3, 1: 3, 2: 3}


def test_partitions_without_a_leader_are_the_last_resort(make_view: MakeView) -> None:
    partitioner = by_latency()
    gone = make_view([-1, -1])
    assert take_turns(partitioner, gone, 10, ScriptedLoad(leaders=gone.leaders)) == {0: 5, 1: 5}
    view = make_view([-1, 1])
    assert take_turns(partitioner, view, 10, load_of(view, 0.0, 0.001)) == {1: 10}


def test_without_a_choice_turns_are_whole(make_view: MakeView) -> None:
    view = make_view([0])
    partitioner, load = by_latency(), load_of(view, 0.5)
    assert partitioner.next_turn(view, -1, 0, load) == (0, 0)
    assert partitioner.may_stay(view, 0, load)


@pytest.mark.kip(1123)
def test_the_rack_comes_first_until_it_is_clearly_worse(make_view: MakeView) -> None:
    view = make_view([0, 1, 2], ["a", "a", "b"])
    for latency, stays in ((0.001, True), (0.039, True), (0.041, False), (1.0, False)):
        load = load_of(view, latency, latency, 0.001)
        chosen = take_turns(by_latency("a"), view, 300, load)
        assert (2 not in chosen) is stays, latency
    load = load_of(view, 1.0, 0.001, 0.001)  # one of the rack is slow: its neighbour has it all
    assert 2 not in (chosen := take_turns(by_latency("a"), view, 300, load))
    assert chosen[1] > 280
    load = load_of(view, 0.041, 0.041, 1.0)  # and slower elsewhere
    assert 2 not in take_turns(by_latency("a"), view, 300, load)


@pytest.mark.kip(1123)
def test_only_the_excess_spills_over(make_view: MakeView) -> None:
    view = make_view([0, 1], ["a", "b"])
    partitioner, load = by_latency("a"), load_of(view, 0.001, 0.001)
    near, chosen = load.nodes[0], Counter[int]()
    near.drain_rate = 1e6
    for _ in range(2000):  # 16 KB are sent every 10 ms, and the rack can accept 10 KB of them
        turn, _ = partitioner.next_turn(view, -1, 0, load)
        chosen[turn] += 1
        if turn == 0:
            near.queued_bytes += 16_384
        near.queued_bytes = max(0, near.queued_bytes - 10_000)
        near.queued_batches = near.queued_bytes // 16_384 + (near.queued_bytes > 0)
        near.latency = 0.001 + near.queued_batches * 0.016
        load.clock += 0.01
        near.last_acknowledged = load.nodes[1].last_acknowledged = load.clock
    assert chosen[0] / 2000 == pytest.approx(10_000 / 16_384, rel=0.1)


@pytest.mark.kip(1123)
def test_weights_name_the_rack(make_view: MakeView) -> None:
    view = make_view([0, 1], ["a", "b"])
    assert by_latency("a").weigh(view, load_of(view, 0.001, 0.001)) == {
        0: (1.0, None),
        1: (0.0, "broker 1 is not in rack a (partitioner.rack.aware)"),
    }
    before, after = chance(by_latency("a"), view, load_of(view, 1.0, 0.001))
    assert before < 0.02
    assert after > 0.98


class CountingLoad(ScriptedLoad):
    looks = 0

    def node(self, partition: int) -> ScriptedNode | None:
        self.looks += 1
        return super().node(partition)


@pytest.mark.parametrize("rack", [None, "a"])
def test_a_turn_looks_at_few_of_many_brokers(make_view: MakeView, rack: str | None) -> None:
    """And still gives the one that is quick what it is shown to get."""
    view = make_view([p % 300 for p in range(3000)], ["ab"[p % 2] for p in range(3000)])
    latencies = [0.050] * 300
    latencies[244] = 0.001
    scripted = load_of(view, *latencies)
    load = CountingLoad(leaders=view.leaders, nodes=scripted.nodes, clock=100.0)
    partitioner = by_latency(rack)
    take_turns(partitioner, view, 100, load)
    load.looks = 0
    chosen = take_turns(partitioner, view, 2000, load)
    assert load.looks <= 2000 * (3 * 9 + 3 * 16 + 1)
    quick = sum(turns for partition, turns in chosen.items() if partition % 300 == 244)
    shown = sum(chance(partitioner, view, load)[p] for p in range(244, 3000, 300))
    assert shown == pytest.approx(1 / (1 + (299 if rack is None else 149) / 64))
    assert quick / 2000 == pytest.approx(shown, rel=0.1)


def test_of_many_dear_brokers_one_that_becomes_dearer_counts_at_once(make_view: MakeView) -> None:
    view = make_view(range(1000))
    load = load_of(view, 0.001, 0.001, *[1.0] * 998)
    for node in range(2, 1000):
        load.nodes[node].in_flight_batches = 1  # and so not to be probed
    partitioner = by_latency()
    take_turns(partitioner, view, 1, load)
    load.nodes[1].latency = 1.0
    load.nodes[1].in_flight_batches = 1
    assert 1 not in take_turns(partitioner, view, 30, load)
