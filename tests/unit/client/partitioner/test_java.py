"""Java's twin, alone: its tables and its draws, as Kafka's own tests and its source have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count

import pytest

from trimtab.client.partitioner.java import JavaOptions, JavaPartitioner, LoadTable
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import UsageError

MakeView = Callable[..., TopicView]


@dataclass
class Load:
    """The accumulator's load: waiting batches of each partition that was used."""

    queued: dict[int, int]
    late: frozenset[int] = frozenset()

    def used(self) -> Collection[int]:
        return self.queued.keys()

    def queued_batches(self, partition: int) -> int:
        return self.queued[partition]

    def unavailable(self) -> frozenset[int]:
        return self.late


NO_LOAD = Load({})


def partitioner(first: int = 0, **options: object) -> JavaPartitioner:
    """A twin whose chance counts up from `first`."""
    given = JavaOptions(batch_size=100, **options)  # type: ignore[arg-type]
    return JavaPartitioner(given, count(first).__next__)


def picks(twin: JavaPartitioner, view: TopicView, times: int) -> list[int]:
    return [twin.next_turn(view, -1, 0, NO_LOAD)[0] for _ in range(times)]  # type: ignore[arg-type]


def observe(twin: JavaPartitioner, view: TopicView, load: Load) -> LoadTable | None:
    twin.observe(view, load)  # type: ignore[arg-type]
    return twin.table


def test_one_draw_for_each_turn_and_nothing_is_paid_back(make_view: MakeView) -> None:
    draws = count()
    twin = JavaPartitioner(JavaOptions(100), draws.__next__)
    view = make_view([0, 0, 0])
    assert [twin.next_turn(view, 0, 10**6, NO_LOAD) for _ in range(4)] == [  # type: ignore[arg-type]
        (0, 0),
        (1, 0),
        (2, 0),
        (0, 0),
    ]
    assert next(draws) == 4


def test_the_same_partition_may_come_twice(make_view: MakeView) -> None:
    twin = JavaPartitioner(JavaOptions(100), iter([4, 4, 7]).__next__)
    assert picks(twin, make_view([0, 0, 0]), 3) == [1, 1, 1]


def test_without_leaders_all_are_drawn_from(make_view: MakeView) -> None:
    view = make_view([-1, -1, -1], ["a", "a", "a"])
    assert picks(partitioner(rack="a"), view, 4) == [0, 1, 2, 0]


def test_the_draw_that_hits_a_sum_takes_the_next_partition() -> None:
    table = LoadTable.of([7, 8, 9], [0, 3, 1])
    assert table.sums == [4, 5, 8]
    assert [table.pick(draw) for draw in range(9)] == [7, 7, 7, 7, 8, 9, 9, 9, 7]


def test_until_every_partition_was_used_load_does_not_count(make_view: MakeView) -> None:
    """D1, D6."""
    view = make_view([0, 1, 2])
    twin = partitioner()
    assert observe(twin, view, Load({0: 5, 1: 1})) is None
    assert observe(twin, view, Load({0: 5, 1: 1, 2: 0})) == LoadTable([0, 1, 2], [1, 6, 12])
    assert observe(twin, make_view([0, 1, 2, 3]), Load({0: 5, 1: 1, 2: 0})) is None


def test_equal_queues_need_no_table_unless_a_partition_is_excluded(make_view: MakeView) -> None:
    twin = partitioner()
    assert observe(twin, make_view([0, 1, 2]), Load({0: 2, 1: 2, 2: 2})) is None
    table = observe(twin, make_view([0, 1, 2]), Load({0: 2, 1: 2, 2: 2}, frozenset({0})))
    assert table == LoadTable([1, 2], [1, 2])
    assert observe(twin, make_view([0, -1, 2]), Load({0: 2, 1: 2, 2: 2})) == LoadTable(
        [0, 2], [1, 2]
    )
    assert observe(twin, make_view([0]), Load({0: 2})) is None


def test_not_adaptive_means_no_table(make_view: MakeView) -> None:
    twin = partitioner(is_adaptive=False)
    assert observe(twin, make_view([0, 1]), Load({0: 5, 1: 0})) is None


def test_a_slot_that_is_used_again_keeps_its_queue_length(make_view: MakeView) -> None:
    """D2: partition 0 is left out with 5 batches; the empty partition 1 inherits them."""
    twin = partitioner()
    load = Load({0: 5, 1: 0, 2: 1}, frozenset({0}))
    assert observe(twin, make_view([0, 1, 2]), load) == LoadTable([1, 2], [1, 6])


def test_an_empty_queue_is_never_left_out(make_view: MakeView) -> None:
    """D3."""
    twin = partitioner()
    load = Load({0: 0, 1: 3}, frozenset({0}))
    assert observe(twin, make_view([0, 1]), load) == LoadTable([0, 1], [4, 5])


def test_everybody_left_out_means_no_table(make_view: MakeView) -> None:
    twin = partitioner()
    assert observe(twin, make_view([0, 1]), Load({0: 1, 1: 3}, frozenset({0, 1}))) is None


def test_partitions_that_the_topic_lost_are_not_weighed(make_view: MakeView) -> None:
    """A topic that was deleted and made again with fewer: Java keeps the old queues."""
    table = observe(partitioner(), make_view([0, 1]), Load({0: 1, 1: 0, 2: 9}))
    assert table == LoadTable([0, 1], [1, 3])


@pytest.mark.kip(1123)
def test_the_table_of_the_rack_has_its_own_longest_queue(make_view: MakeView) -> None:
    view = make_view([0, 1, 2, 3], ["a", "b", "a", "b"])
    twin = partitioner(rack="a")
    assert observe(twin, view, Load({0: 1, 1: 9, 2: 0, 3: 0})) == LoadTable([0, 2], [1, 3])
    assert Counter(picks(twin, view, 6)) == {0: 2, 2: 4}


@pytest.mark.kip(1123)
def test_an_empty_rack_falls_back_to_all(make_view: MakeView) -> None:
    twin = partitioner(rack="a")
    view = make_view([0, 1, -1], ["b", None, "a"])
    assert observe(twin, view, Load({0: 1, 1: 0, 2: 0})) == LoadTable([0, 1], [1, 3])
    assert set(picks(partitioner(rack="a"), view, 10)) == {0, 1}


@pytest.mark.parametrize("batch_size", [2**30, 2**31 - 1])
def test_a_batch_size_with_which_java_never_returns_is_refused(batch_size: int) -> None:
    """D10."""
    with pytest.raises(UsageError, match=rf"batch.size is {batch_size}.*partitioner.compat=kip"):
        JavaOptions(batch_size)
    assert JavaOptions(2**30 - 1).batch_size == 2**30 - 1


@pytest.mark.kip(1123)
@pytest.mark.parametrize("rack", ["", " ", "\t\n\x00"])
def test_a_blank_rack_is_refused_as_java_does(rack: str) -> None:
    with pytest.raises(UsageError, match=r"client.rack is blank"):
        JavaOptions(100, rack=rack)
    # Java trims no blank beyond U+0020.
    assert JavaOptions(100, rack="\u2003").rack == "\u2003"


def test_weights_are_those_of_the_table_or_even(make_view: MakeView) -> None:
    view = make_view([0, 1, -1, 3], ["a", "b", None, "a"])
    twin = partitioner()
    weights = twin.weigh(view, NO_LOAD)  # type: ignore[arg-type]
    assert [weight.probability for weight in weights.values()] == [1 / 3, 1 / 3, 0, 1 / 3]
    assert weights[2].excluded == "it has no leader"
    observe(twin, view, Load({0: 1, 1: 0, 2: 0, 3: 4}, frozenset({3})))
    weights = twin.weigh(view, NO_LOAD)  # type: ignore[arg-type]
    assert [weight.probability for weight in weights.values()] == [1 / 3, 2 / 3, 0, 0]
    assert "late" in (weights[3].excluded or "")
    near = partitioner(rack="a").weigh(view, NO_LOAD)  # type: ignore[arg-type]
    assert [weight.probability for weight in near.values()] == [1 / 2, 0, 0, 1 / 2]
    assert near[1].excluded == "its leader is in another rack"


def test_a_turn_goes_on_whatever_happens_to_its_leader(make_view: MakeView) -> None:
    """D5."""
    load = Load({0: 1}, frozenset({0}))
    assert partitioner().may_stay(make_view([-1, 1]), 0, load)  # type: ignore[arg-type]
