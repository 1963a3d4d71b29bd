"""Which partition comes next."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from trimtab.client.metadata import TopicView
from trimtab.client.partitioner import (
    BuiltInOptions,
    BuiltInPartitioner,
    CallablePartitioner,
    RoundRobinPartitioner,
    StickyPartitioner,
    client_rack,
)
from trimtab.errors import UsageError

MakeView = Callable[..., TopicView]


def turns(
    partitioner: BuiltInPartitioner,
    view: TopicView,
    count: int,
    queued: dict[int, int] | None = None,
    unavailable: frozenset[int] = frozenset(),
) -> Counter[int]:
    chosen: Counter[int] = Counter()
    previous = -1
    for _ in range(count):
        previous, _ = partitioner.next_turn(view, previous, 0, queued or {}, unavailable)
        chosen[previous] += 1
    return chosen


def uniform(**options: object) -> BuiltInPartitioner:
    return BuiltInPartitioner(
        BuiltInOptions(quantum=100, is_adaptive=False, **options),  # type: ignore[arg-type]
        Random(7),
    )


def adaptive(**options: object) -> BuiltInPartitioner:
    return BuiltInPartitioner(
        BuiltInOptions(quantum=100, **options),  # type: ignore[arg-type]
        Random(7),
    )


def test_round_robin_visits_every_partition_in_turn(make_view: MakeView) -> None:
    partitioner = RoundRobinPartitioner()
    chosen = [partitioner.partition(make_view([0, 1, 2]), None, b"") for _ in range(7)]
    assert chosen == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_leaves_out_partitions_without_a_leader(make_view: MakeView) -> None:
    partitioner = RoundRobinPartitioner()
    view = make_view([0, -1, 2])
    assert Counter(partitioner.partition(view, None, b"") for _ in range(100)) == {0: 50, 2: 50}


def test_round_robin_uses_all_when_none_has_a_leader(make_view: MakeView) -> None:
    partitioner = RoundRobinPartitioner()
    assert {partitioner.partition(make_view([-1, -1]), None, b"") for _ in range(4)} == {0, 1}


@pytest.mark.kip(480)
def test_sticky_never_stays_while_another_is_available(make_view: MakeView) -> None:
    partitioner = StickyPartitioner(Random(1))
    view = make_view([0, 1, -1, 3])
    previous = -1
    for _ in range(100):
        chosen, used_up = partitioner.next_turn(view, previous, 0, {}, frozenset())
        assert chosen != previous
        assert chosen != 2
        assert used_up == 0
        previous = chosen


@pytest.mark.kip(480)
def test_sticky_stays_where_it_must(make_view: MakeView) -> None:
    partitioner = StickyPartitioner(Random(1))
    assert partitioner.next_turn(make_view([-1, 1]), 1, 0, {}, frozenset()) == (1, 0)
    assert partitioner.next_turn(make_view([-1]), 0, 0, {}, frozenset()) == (0, 0)


@pytest.mark.kip(794)
def test_uniform_gives_every_partition_one_turn_of_each_round(make_view: MakeView) -> None:
    view = make_view([0, 1, 2, 3])
    partitioner = uniform()
    for rounds in range(1, 50):
        assert set(turns(partitioner, view, 4).values()) == {1}, rounds


@pytest.mark.kip(794)
def test_uniform_evens_out_what_turns_took_beyond_their_quantum(make_view: MakeView) -> None:
    """Partition 1 always overshoots by 70 %, as a slow broker's does with its partial batch."""
    view = make_view([0, 1, 2])
    partitioner = uniform()
    produced: Counter[int] = Counter()
    chosen, used_up = partitioner.next_turn(view, -1, 0, {}, frozenset())
    for _ in range(3000):
        ends_at = 170 if chosen == 1 else 100
        produced[chosen] += ends_at - used_up
        chosen, used_up = partitioner.next_turn(view, chosen, ends_at - 100, {}, frozenset())
        assert 0 <= used_up < 100
    assert max(produced.values()) - min(produced.values()) <= 2 * 100


@pytest.mark.kip(794)
def test_one_record_of_many_quanta_is_paid_back(make_view: MakeView) -> None:
    view = make_view([0, 1])
    partitioner = uniform()
    first, _ = partitioner.next_turn(view, -1, 0, {}, frozenset())
    chosen, used_up = partitioner.next_turn(view, first, 1000, {}, frozenset())
    turns_of_the_other = 0
    while chosen != first:
        turns_of_the_other += 1
        chosen, used_up = partitioner.next_turn(view, chosen, 0, {}, frozenset())
    assert turns_of_the_other in (10, 11)
    assert used_up == 0


@pytest.mark.kip(794)
def test_adaptive_weighs_by_the_inverse_of_the_queue(make_view: MakeView) -> None:
    """Queues 5, 0, 3, 0, 1: weights 1, 6, 3, 6, 5 of 21, as in Kafka's own test."""
    chosen = turns(adaptive(), make_view([0, 1, 2, 3, 4]), 42_000, {0: 5, 2: 3, 4: 1})
    for partition, weight in enumerate([1, 6, 3, 6, 5]):
        assert chosen[partition] == pytest.approx(42_000 * weight / 21, rel=0.06)


@pytest.mark.kip(794)
def test_adaptive_is_even_without_queues(make_view: MakeView) -> None:
    chosen = turns(adaptive(), make_view([0, 1, 2]), 30_000)
    for partition in range(3):
        assert chosen[partition] == pytest.approx(10_000, rel=0.05)


@pytest.mark.kip(794)
def test_adaptive_weighs_all_where_drawing_would_take_long(make_view: MakeView) -> None:
    chosen = turns(adaptive(), make_view([0, 1]), 2_000, {0: 10_000, 1: 10_000})
    assert min(chosen.values()) > 800


@pytest.mark.kip(794)
def test_unavailable_brokers_get_nothing_while_others_are_there(make_view: MakeView) -> None:
    view = make_view([0, 1, 0, 2])
    assert set(turns(adaptive(), view, 200, unavailable=frozenset({0}))) == {1, 3}
    assert set(turns(adaptive(), view, 200, unavailable=frozenset({0, 1, 2}))) == {0, 1, 2, 3}


@pytest.mark.kip(794)
def test_unavailability_is_ignored_without_adaptive_partitioning(make_view: MakeView) -> None:
    chosen = turns(uniform(), make_view([0, 1]), 100, unavailable=frozenset({0}))
    assert chosen == {0: 50, 1: 50}


@pytest.mark.kip(794)
def test_partitions_without_a_leader_are_chosen_only_when_none_has_one(make_view: MakeView) -> None:
    assert set(turns(uniform(), make_view([0, -1, 2]), 100)) == {0, 2}
    assert set(turns(uniform(), make_view([-1, -1]), 100)) == {0, 1}


@pytest.mark.kip(794)
def test_a_leader_that_comes_back_is_used_again(make_view: MakeView) -> None:
    partitioner = uniform()
    assert set(turns(partitioner, make_view([0, -1]), 10)) == {0}
    assert set(turns(partitioner, make_view([0, 1]), 10)) == {0, 1}


@pytest.mark.kip(1123)
def test_rack_aware_stays_in_the_rack(make_view: MakeView) -> None:
    view = make_view([0, 1, 2, 3], ["a", "b", "a", "b"])
    assert set(turns(uniform(rack="b"), view, 100)) == {1, 3}
    assert set(turns(adaptive(rack="b"), view, 100, {1: 3})) == {1, 3}


@pytest.mark.kip(1123)
@pytest.mark.parametrize(
    ("leaders", "racks", "unavailable", "expected"),
    [
        ([0, 1, 2], ["a", "c", None], frozenset(), {0, 1, 2}),  # no leader in the rack
        ([0, -1, 2], ["a", None, "b"], frozenset(), {2}),  # the only one left in the rack
        ([0, -1], ["a", None], frozenset(), {0}),  # those of the rack have no leader
        ([0, 1, 2], ["a", "b", "b"], frozenset({1}), {2}),  # one of the rack is unavailable
        ([0, 1, 2], ["a", "b", "b"], frozenset({1, 2}), {0}),  # all of the rack are
        ([0, 1, 2], ["a", "b", "b"], frozenset({0, 1, 2}), {1, 2}),  # everybody is
    ],
)
def test_rack_aware_falls_back(
    make_view: MakeView,
    leaders: list[int],
    racks: list[str | None],
    unavailable: frozenset[int],
    expected: set[int],
) -> None:
    chosen = turns(adaptive(rack="b"), make_view(leaders, racks), 200, unavailable=unavailable)
    assert set(chosen) == expected


@pytest.mark.kip(1123)
def test_queues_of_other_racks_do_not_flatten_the_weights(make_view: MakeView) -> None:
    view = make_view([0, 1, 2], ["a", "b", "b"])
    chosen = turns(adaptive(rack="b"), view, 6_000, {0: 1000, 1: 1})
    assert chosen[2] == pytest.approx(4_000, rel=0.1)


@pytest.mark.kip(1123)
def test_rack_awareness_without_a_rack_warns_and_uses_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert client_rack(True, "  ") is None
    assert "client.rack is empty" in caplog.text
    assert client_rack(False, "b") is None
    assert client_rack(True, "b") == "b"


def test_a_callable_decides(make_view: MakeView) -> None:
    seen: list[object] = []

    def last(topic: str, key: bytes | None, value: bytes | None, all_: object, free: object) -> int:
        seen.append((topic, key, value, list(all_), list(free)))  # type: ignore[call-overload]
        return 2

    partitioner = CallablePartitioner(last)
    assert partitioner.partition(make_view([0, -1, 2]), b"k", b"v") == 2
    assert seen == [("topic", b"k", b"v", [0, 1, 2], [0, 2])]


def test_a_callable_that_names_no_partition_is_refused(make_view: MakeView) -> None:
    partitioner = CallablePartitioner(lambda *_: 3)
    with pytest.raises(UsageError, match=r"returned 3 for topic topic, .* 0 to 2"):
        partitioner.partition(make_view([0, 1, 2]), None, None)
