"""The built-in logic: equal turns, queues, unavailable brokers, racks, and the cost of a turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.client.conftest import view_of
from tests.unit.client.scripted_load import ScriptedLoad, take_turns
from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
from trimtab.client.partitioner.protocol import Weight
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import UsageError

MakeView = Callable[..., TopicView]
LOAD = ScriptedLoad()


def uniform(quantum: int = 100, rack: str | None = None) -> BuiltInPartitioner:
    return BuiltInPartitioner(BuiltInOptions(quantum, False, rack), Random(7))


def adaptive(quantum: int = 100, rack: str | None = None, seed: int = 7) -> BuiltInPartitioner:
    return BuiltInPartitioner(BuiltInOptions(quantum, True, rack), Random(seed))


class Produced:
    """Bytes to each partition, when turns end after `quantum` bytes, at the next whole record."""

    def __init__(self, partitioner: BuiltInPartitioner, view: TopicView, quantum: int) -> None:
        self.bytes: Counter[int] = Counter({p: 0 for p in view.available})
        self._partitioner, self._view, self._quantum = partitioner, view, quantum
        self._chosen, self._count = partitioner.next_turn(view, -1, 0, LOAD)

    def send(self, size: int, ends_late_by: int = 0) -> None:
        self.bytes[self._chosen] += size
        self._count += size
        if self._count >= self._quantum + ends_late_by:
            self._chosen, self._count = self._partitioner.next_turn(
                self._view, self._chosen, self._count - self._quantum, LOAD
            )

    @property
    def spread(self) -> int:
        return max(self.bytes.values()) - min(self.bytes.values())


def test_a_turn_is_at_least_a_byte() -> None:
    with pytest.raises(UsageError, match="quantum of a turn is 0 bytes; it must be at least 1"):
        BuiltInOptions(0)


# uniform: KIP-794, and that nothing is drawn twice before all were (D9)


@pytest.mark.kip(794)
def test_uniform_gives_every_partition_one_turn_of_each_round(make_view: MakeView) -> None:
    view = make_view([0, 1, 2, 3])
    partitioner = uniform()
    for rounds in range(1, 50):
        assert set(take_turns(partitioner, view, 4).values()) == {1}, rounds


@pytest.mark.kip(794)
def test_the_order_is_another_in_each_round(make_view: MakeView) -> None:
    view, partitioner = make_view(range(5)), uniform()
    rounds = {
        tuple(partitioner.next_turn(view, -1, 0, LOAD)[0] for _ in range(5)) for _ in range(200)
    }
    assert len(rounds) > 90  # of 120


@pytest.mark.kip(794)
@settings(max_examples=60)
@given(
    count=st.integers(2, 40),
    quantum=st.sampled_from([1, 10, 1000, 2**30]),
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=8),
    late=st.integers(0, 1000),
    is_adaptive=st.booleans(),
)
@example(count=2, quantum=1, sizes=[573], late=0, is_adaptive=True)
def test_no_two_partitions_are_more_than_a_turn_and_its_overshoot_apart(
    count: int, quantum: int, sizes: list[int], late: int, is_adaptive: bool
) -> None:
    """Also with nothing waiting in adaptive mode, records beyond a quantum, and late ends."""
    partitioner = BuiltInPartitioner(BuiltInOptions(quantum, is_adaptive), Random(3))
    produced = Produced(partitioner, view_of(range(count)), quantum)
    longest_turn = quantum + late + max(sizes)
    for index in range(2000):
        size = sizes[index % len(sizes)]
        produced.send(size, ends_late_by=late if index % 3 else 0)
        assert produced.spread <= longest_turn + quantum, index


@pytest.mark.kip(794)
def test_uniform_evens_out_what_turns_took_beyond_their_quantum(make_view: MakeView) -> None:
    """Partition 1 always overshoots by 70 %, as a slow broker's does with its partial batch."""
    view = make_view([0, 1, 2])
    partitioner = uniform()
    produced: Counter[int] = Counter()
    chosen, used_up = partitioner.next_turn(view, -1, 0, LOAD)
    for _ in range(3000):
        ends_at = 170 if chosen == 1 else 100
        produced[chosen] += ends_at - used_up
        chosen, used_up = partitioner.next_turn(view, chosen, ends_at - 100, LOAD)
        assert 0 <= used_up < 100
    assert max(produced.values()) - min(produced.values()) <= 2 * 100


@pytest.mark.kip(794)
def test_one_record_of_many_quanta_is_paid_back(make_view: MakeView) -> None:
    view = make_view([0, 1])
    partitioner = uniform()
    first, _ = partitioner.next_turn(view, -1, 0, LOAD)
    chosen, used_up = partitioner.next_turn(view, first, 1000, LOAD)
    turns_of_the_other = 0
    while chosen != first:
        turns_of_the_other += 1
        chosen, used_up = partitioner.next_turn(view, chosen, 0, LOAD)
    assert turns_of_the_other in (10, 11, 12)
    assert used_up == 0


@pytest.mark.kip(794)
def test_debts_of_all_partitions_are_reduced_at_once(make_view: MakeView) -> None:
    """With batch.size=0 a quantum is one byte, and every record owes hundreds of turns."""
    random = CountingRandom(7)
    partitioner = BuiltInPartitioner(BuiltInOptions(1), random)
    produced = Produced(partitioner, make_view(range(50)), 1)
    for _ in range(5000):
        produced.send(1_000_000)
    assert produced.spread <= 1_000_000
    assert random.draws < 5 * 5000


@pytest.mark.kip(794)
def test_a_turn_of_a_gibibyte_is_as_long_as_it_says(make_view: MakeView) -> None:
    """D10: twice `batch.size` does not overflow."""
    produced = Produced(uniform(2**30), make_view([0, 1]), 2**30)
    for _ in range(1023):
        produced.send(2**20)
    assert sorted(produced.bytes.values()) == [0, 1023 * 2**20]
    produced.send(2**20)
    produced.send(2**20)
    assert sorted(produced.bytes.values()) == [2**20, 2**30]


@pytest.mark.kip(794)
def test_an_equal_view_does_not_begin_a_new_round(make_view: MakeView) -> None:
    partitioner = uniform()
    turns = [partitioner.next_turn(make_view([0, 1, 2, 3]), -1, 0, LOAD)[0] for _ in range(40)]
    assert all(set(turns[i : i + 4]) == {0, 1, 2, 3} for i in range(0, 40, 4))


# adaptive: KIP-794's weights


@pytest.mark.kip(794)
def test_adaptive_weighs_by_the_inverse_of_the_queue(make_view: MakeView) -> None:
    """Queues 5, 0, 3, 0, 1: weights 1, 6, 3, 6, 5 of 21, as in Kafka's own test."""
    load = ScriptedLoad({0: 5, 2: 3, 4: 1})
    view = make_view([0, 1, 2, 3, 4])
    chosen = take_turns(adaptive(), view, 42_000, load)
    for partition, weight in enumerate([1, 6, 3, 6, 5]):
        assert chosen[partition] == pytest.approx(42_000 * weight / 21, rel=0.06)
        weighed, reason, *_ = adaptive().weigh(view, load)[partition]
        assert weighed == pytest.approx(weight / 21)
        assert reason is None


@pytest.mark.kip(794)
def test_adaptive_is_as_even_as_uniform_without_queues(make_view: MakeView) -> None:
    assert set(take_turns(adaptive(), make_view([0, 1, 2]), 300).values()) == {100}


@pytest.mark.kip(794)
@settings(max_examples=25)
@given(queues=st.lists(st.integers(0, 60), min_size=2, max_size=12), seed=st.integers(0, 99))
@example(queues=[600, 610, 605], seed=1)
@example(queues=[40] * 12, seed=1)
def test_adaptive_turns_are_in_proportion_to_the_weights(queues: list[int], seed: int) -> None:
    view = view_of(range(len(queues)))
    load = ScriptedLoad({p: n for p, n in enumerate(queues) if n})
    partitioner = adaptive(seed=seed)
    weights = partitioner.weigh(view, load)
    assert sum(weight.probability for weight in weights.values()) == pytest.approx(1)
    turns = 6000
    chosen = take_turns(partitioner, view, turns, load)
    for partition, weight in weights.items():
        assert weight.probability * sum(max(queues) + 1 - n for n in queues) == pytest.approx(
            max(queues) + 1 - queues[partition]
        )
        expected = turns * weight.probability
        assert abs(chosen[partition] - expected) < 5 * expected**0.5 + 5


@pytest.mark.kip(794)
def test_adaptive_pays_back_in_proportion_to_the_weights(make_view: MakeView) -> None:
    """Bytes, not turns, are 3 : 1, though the turns of partition 1 are twice as long."""
    view, load = make_view([0, 1]), ScriptedLoad({1: 2})
    partitioner = adaptive()
    produced: Counter[int] = Counter()
    chosen, used_up = partitioner.next_turn(view, -1, 0, load)
    for _ in range(20_000):
        ends_at = 199 if chosen == 1 else 100
        produced[chosen] += ends_at - used_up
        chosen, used_up = partitioner.next_turn(view, chosen, ends_at - 100, load)
    assert produced[0] / produced[1] == pytest.approx(3, rel=0.06)


@pytest.mark.kip(794)
def test_a_partition_never_used_has_an_empty_queue(make_view: MakeView) -> None:
    """D1, D6: weights count from the first queue on, however many partitions are still unused."""
    chosen = take_turns(adaptive(), make_view(range(1000)), 10_000, ScriptedLoad({0: 9}))
    assert chosen[0] <= 4  # a tenth of the others' 10
    assert min(chosen[p] for p in range(1, 1000)) >= 9


@pytest.mark.kip(794)
def test_load_is_that_of_now(make_view: MakeView) -> None:
    """D8: a queue that grows counts with the next turn, so no broker is overloaded."""
    view, queued = make_view(range(4)), Counter[int]()
    partitioner, load = adaptive(), ScriptedLoad(queued)
    for _ in range(400):
        chosen, _ = partitioner.next_turn(view, -1, 0, load)
        queued[chosen] += 1
    assert max(queued.values()) - min(queued.values()) <= 12


# unavailable brokers


@pytest.mark.kip(794)
def test_unavailable_brokers_get_nothing_while_others_are_there(make_view: MakeView) -> None:
    """D3: whether or not their partitions have a queue."""
    view = make_view([0, 1, 0, 2])
    for queued in ({}, {0: 3}, {0: 3, 1: 2}):
        load = ScriptedLoad(queued, left_out=frozenset({0}))
        assert set(take_turns(adaptive(), view, 200, load)) == {1, 3}
    nobody = ScriptedLoad(left_out=frozenset({0, 1, 2}))
    assert set(take_turns(adaptive(), view, 200, nobody)) == {0, 1, 2, 3}


@pytest.mark.kip(794)
def test_the_queue_of_an_unavailable_broker_does_not_count(make_view: MakeView) -> None:
    """D2: partition 0 is left out with 5 batches; 1 has none and 2 has one: 2 to 1."""
    view = make_view([0, 1, 2])
    load = ScriptedLoad({0: 5, 2: 1}, left_out=frozenset({0}))
    assert adaptive().weigh(view, load) == {
        0: Weight(0.0, "broker 0 accepts no batches (partitioner.availability.timeout.ms)"),
        1: Weight(2 / 3),
        2: Weight(1 / 3),
    }
    chosen = take_turns(adaptive(), view, 6000, load)
    assert chosen[1] == pytest.approx(4000, rel=0.05)


@pytest.mark.kip(794)
def test_unavailability_is_ignored_without_adaptive_partitioning(make_view: MakeView) -> None:
    view, load = make_view([0, 1]), ScriptedLoad(left_out=frozenset({0}))
    assert take_turns(uniform(), view, 100, load) == {0: 50, 1: 50}
    assert uniform().may_stay(view, 0, load)
    assert uniform().weigh(view, load) == {0: Weight(0.5, None), 1: Weight(0.5, None)}


@pytest.mark.kip(794)
def test_partitions_without_a_leader_are_chosen_only_when_none_has_one(make_view: MakeView) -> None:
    assert set(take_turns(uniform(), make_view([0, -1, 2]), 100)) == {0, 2}
    assert set(take_turns(uniform(), make_view([-1, -1]), 100)) == {0, 1}
    assert take_turns(adaptive(), make_view([-1, 1]), 100) == {1: 100}
    assert adaptive().weigh(make_view([-1, 1]), LOAD)[0] == Weight(0.0, "it has no leader")


@pytest.mark.kip(794)
def test_a_leader_that_comes_back_is_used_again(make_view: MakeView) -> None:
    partitioner = uniform()
    assert set(take_turns(partitioner, make_view([0, -1]), 10)) == {0}
    assert set(take_turns(partitioner, make_view([0, 1]), 10)) == {0, 1}


@pytest.mark.kip(794)
def test_brokers_that_come_and_go_in_many_combinations(make_view: MakeView) -> None:
    view, partitioner = make_view(range(6)), adaptive()
    for combination in range(2 * 63):
        left_out = frozenset(node for node in range(6) if combination % 63 >> node & 1)
        chosen = take_turns(partitioner, view, 12, ScriptedLoad(left_out=left_out))
        assert set(chosen) == set(range(6)) - left_out


@pytest.mark.kip(794)
def test_a_turn_ends_with_its_leader(make_view: MakeView) -> None:
    """D5: the next record goes elsewhere, not the next batch.size bytes."""
    partitioner = adaptive()
    view = make_view([0, 1])
    assert partitioner.may_stay(view, 0, LOAD)
    assert not partitioner.may_stay(make_view([-1, 1]), 0, LOAD)
    assert partitioner.may_stay(make_view([-1, 1]), 1, LOAD)
    assert partitioner.may_stay(make_view([-1, -1]), 0, LOAD)
    assert not partitioner.may_stay(view, 1, ScriptedLoad(left_out=frozenset({1})))
    assert partitioner.may_stay(view, 1, ScriptedLoad(left_out=frozenset({0, 1})))
    assert not partitioner.may_stay(view, 2, LOAD)  # the topic was created again, with fewer


# racks: KIP-1123


@pytest.mark.kip(1123)
def test_rack_aware_stays_in_the_rack(make_view: MakeView) -> None:
    view = make_view([0, 1, 2, 3], ["a", "b", "a", "b"])
    assert take_turns(uniform(rack="b"), view, 100) == {1: 50, 3: 50}
    assert set(take_turns(adaptive(rack="b"), view, 100, ScriptedLoad({1: 3}))) == {1, 3}
    assert adaptive(rack="b").weigh(view, LOAD) == {
        0: Weight(0.0, "broker 0 is not in rack b (partitioner.rack.aware)"),
        1: Weight(0.5, None),
        2: Weight(0.0, "broker 2 is not in rack b (partitioner.rack.aware)"),
        3: Weight(0.5, None),
    }


FALL_BACKS = [
    ([0, 1, 2], ["a", "c", None], frozenset(), {0, 1, 2}),  # no leader in the rack
    ([0, -1, 2], ["a", None, "b"], frozenset(), {2}),  # the only one left in the rack
    ([0, -1], ["a", None], frozenset(), {0}),  # those of the rack have no leader
    ([-1, -1], [None, None], frozenset(), {0, 1}),  # no partition has
    ([0, 1, 2], ["a", "b", "b"], frozenset({1}), {2}),  # one of the rack is unavailable
    ([0, 1, 2], ["a", "b", "b"], frozenset({1, 2}), {0}),  # all of the rack are
    ([0, 1, 2], ["a", "b", "b"], frozenset({0, 1, 2}), {1, 2}),  # everybody is
]


@pytest.mark.kip(1123)
@pytest.mark.parametrize(("leaders", "racks", "unavailable", "expected"), FALL_BACKS)
def test_rack_aware_falls_back(
    make_view: MakeView,
    leaders: list[int],
    racks: list[str | None],
    unavailable: frozenset[int],
    expected: set[int],
) -> None:
    view, load = make_view(leaders, racks), ScriptedLoad(left_out=unavailable)
    partitioner = adaptive(rack="b")
    assert set(take_turns(partitioner, view, 200, load)) == expected
    for partition in range(len(leaders)):
        assert partitioner.may_stay(view, partition, load) is (partition in expected)


@pytest.mark.kip(1123)
def test_a_turn_abroad_ends_when_the_rack_is_back(make_view: MakeView) -> None:
    partitioner = adaptive(rack="b")
    gone, back = make_view([0, -1], ["a", None]), make_view([0, 1], ["a", "b"])
    assert partitioner.next_turn(gone, -1, 0, LOAD) == (0, 0)
    assert partitioner.may_stay(gone, 0, LOAD)
    assert not partitioner.may_stay(back, 0, LOAD)
    assert partitioner.next_turn(back, 0, 0, LOAD) == (1, 0)


@pytest.mark.kip(1123)
def test_load_counts_within_the_rack(make_view: MakeView) -> None:
    """D1: the other racks were never used, and that keeps nothing from being weighed."""
    view = make_view([0, 1, 2, 3], ["a", "b", "c", "b"])
    chosen = take_turns(adaptive(rack="b"), view, 8000, ScriptedLoad({1: 3}))
    assert chosen[1] == pytest.approx(8000 / 5, rel=0.06)
    assert chosen[3] == pytest.approx(8000 * 4 / 5, rel=0.06)


@pytest.mark.kip(1123)
@pytest.mark.parametrize("count", [6, 3000])
def test_queues_of_other_racks_do_not_flatten_the_weights(make_view: MakeView, count: int) -> None:
    """In the rack every other partition has one batch, elsewhere one has a thousand: 2 to 1."""
    racks = ["a" if p % 3 == 0 else "b" for p in range(count)]
    queued = {p: 1 for p in range(count) if p % 3 == 1} | {0: 1000}
    chosen = take_turns(
        adaptive(rack="b"), make_view(range(count), racks), 12_000, ScriptedLoad(queued)
    )
    busy = sum(turns for partition, turns in chosen.items() if partition % 3 == 1)
    assert busy == pytest.approx(4000, rel=0.06)


class CountingRandom(Random):
    draws = 0

    def random(self) -> float:
        self.draws += 1
        return super().random()
