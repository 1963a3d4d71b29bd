"""When the partitioner is asked for the next partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.client.accumulator.conftest import Bench, MakeView
from trimtab.kafka.errors import UsageError


class Scripted:
    """A partitioner that gives turns in a given order, and records its calls."""

    turns_by_batch = False

    def __init__(self, *turns: int) -> None:
        self.turns = list(turns)
        self.stays = True
        self.asked: list[Any] = []

    def next_turn(self, view: Any, previous: int, overshoot: int, load: Any) -> tuple[int, int]:
        self.asked.append((previous, overshoot))
        return self.turns.pop(0), 0

    def may_stay(self, view: Any, partition: int, load: Any) -> bool:
        self.asked.append(("stay", partition, sorted(load.unavailable())))
        return self.stays


def test_a_turn_may_end_when_something_is_news(
    make_bench: Callable[..., Bench], make_view: MakeView
) -> None:
    partitioner = Scripted(0, 1, 2)
    bench = make_bench(make_partitioner=lambda: partitioner)
    bench.send(b"x")
    bench.send(b"x")
    assert partitioner.asked == [(-1, 0)]
    bench.accumulator.publish_load(frozenset({0}))
    bench.accumulator.publish_load(frozenset({0}))  # no news
    bench.send(b"x")
    bench.send(b"x")
    assert partitioner.asked[1:] == [("stay", 0, [0])]
    partitioner.stays = False
    bench.accumulator.update_topic(make_view((-1, 1, 2)))
    bench.send(b"x")
    assert partitioner.asked[2:] == [("stay", 0, [0]), (0, 0)]
    bench.take_all()
    bench.send(b"x")  # in a new batch
    assert partitioner.asked[4:] == [("stay", 1, [0]), (1, 0)]
    topic = bench.accumulator.topic("topic")
    assert (topic.current, topic.switches) == (2, 3)
    assert sorted(topic.used()) == [0, 1, 2]


class Following(Scripted):
    follows_load = True


def test_a_partitioner_that_follows_the_load_is_asked_after_each_change(
    make_bench: Callable[..., Bench],
) -> None:
    """Once for each change, whatever the number of records; also in an open batch."""
    partitioner, indifferent = Following(0, 1), Scripted(0)
    for each in (partitioner, indifferent):
        bench = make_bench(make_partitioner=lambda each=each: each)
        bench.send(b"x")
        bench.send(b"x")
        bench.accumulator.load_changed()
        bench.accumulator.load_changed()
        bench.send(b"x")
        bench.send(b"x")
        each.stays = False
        bench.accumulator.load_changed()
        bench.send(b"x")
        bench.send(b"x")
    assert indifferent.asked == [(-1, 0)]
    assert partitioner.asked == [(-1, 0), ("stay", 0, []), ("stay", 0, []), (0, 0)]


@pytest.mark.parametrize(("is_java", "asked"), [(True, [(-1, 0), (0, 170)]), (False, [(-1, 0)])])
def test_java_draws_when_a_turn_ends_not_with_the_next_record(
    make_bench: Callable[..., Bench], is_java: bool, asked: list[tuple[int, int]]
) -> None:
    partitioner = Scripted(0, 1)
    bench = make_bench(batch_size=100, make_partitioner=lambda: partitioner, is_java=is_java)
    bench.send(b"x" * 200)  # more than two quanta
    assert partitioner.asked == asked
    assert bench.accumulator.topic("topic").current == len(asked) - 1


@pytest.mark.parametrize("is_java", [True, False])
def test_javas_batch_of_a_large_record_is_full_only_at_its_own_limit(
    make_bench: Callable[..., Bench], is_java: bool
) -> None:
    bench = make_bench(batch_size=100, is_java=is_java)
    bench.send(b"x" * 200, partition=0)
    (queue,) = bench.busy_queues()
    assert queue.head_is_complete is not is_java


def test_a_partitioner_with_on_new_batch_is_asked_again(
    make_bench: Callable[..., Bench],
) -> None:
    class Told:
        def __init__(self) -> None:
            self.told: list[int] = []

        def partition(self, view: Any, key: Any, value: Any) -> int:
            return len(self.told) % 3

        def on_new_batch(self, view: Any, previous: int) -> None:
            self.told.append(previous)

    partitioner = Told()
    bench = make_bench(batch_size=200, make_partitioner=lambda: partitioner)
    for _ in range(6):
        bench.send(b"x" * 60)
    assert partitioner.told == [0, 1, 2]
    assert [batch.count for batch in bench.take_all()] == [1, 1, 1] or partitioner.told


def test_a_partitioner_that_names_no_partition_is_refused(make_bench: Callable[..., Bench]) -> None:
    class Wrong:
        def partition(self, view: Any, key: Any, value: Any) -> int:
            return 3

    bench = make_bench(make_partitioner=Wrong)
    with pytest.raises(UsageError, match="partition 3 of topic topic does not exist"):
        bench.send(b"x")
    assert bench.accumulator.incomplete_batches() == []
