"""Which queue is due, without a cluster: queues are stand-ins, time is a number."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from trimtab.client.sender.schedule import Schedule

LINGER = 0.005


@dataclass(eq=False)
class Waiting:
    """The fields of a batch that the schedule reads."""

    created: float = 0.0
    attempts: int = 0
    not_before: float = 0.0


@dataclass(eq=False)
class Queue:
    """The fields of a partition's queue that the schedule reads."""

    name: str = ""
    leader: int = 0
    topic: str = "topic"
    batches: deque[Waiting] = field(default_factory=deque)
    head_is_complete: bool = False


def made(linger: float = LINGER, gathers: bool = False) -> Any:
    def leader_of(queue: Any) -> int:
        return cast(int, queue.leader)

    return Schedule(linger, leader_of, gathers)


def filled(name: str = "", leader: int = 0, created: float = 0.0, complete: bool = False) -> Any:
    return Queue(name, leader, "topic", deque([Waiting(created)]), complete)


def serve(schedule: Any, leader: int, now: float) -> str:
    """Take the first due queue's oldest batch, as the sender does."""
    queue = next(schedule.due(leader))
    queue.batches.popleft()
    schedule.served(queue, now)
    return str(queue.name)


def test_an_open_batch_is_due_once_it_has_lingered() -> None:
    schedule, queue = made(), filled(created=1.0)
    schedule.review(queue, 1.0)
    assert schedule.advance(1.0) == 1.0 + LINGER
    assert schedule.due_brokers == []
    assert schedule.advance(1.0 + LINGER) == math.inf
    assert next(schedule.due(0)) is queue


def test_a_complete_batch_is_due_at_once() -> None:
    schedule, queue = made(), filled()
    schedule.review(queue, 0.0)
    queue.head_is_complete = True
    schedule.review(queue, 0.001)
    assert schedule.due_brokers == [0]
    assert schedule.advance(0.001) == math.inf


def test_without_linger_everything_is_due_at_once() -> None:
    schedule = made(linger=0)
    schedule.review(filled(leader=3), 0.0)
    assert schedule.due_brokers == [3]


def test_hurry_ends_every_lingering_and_calm_begins_it_again() -> None:
    schedule = made()
    queues = [filled(str(i)) for i in range(3)]
    for queue in queues:
        schedule.review(queue, 0.0)
    schedule.hurry(True)
    assert [serve(schedule, 0, 0.001) for _ in range(3)] == ["0", "1", "2"]
    schedule.hurry(False)
    later = filled(created=0.001)
    schedule.review(later, 0.001)
    assert schedule.due_brokers == []
    assert schedule.advance(0.001) == pytest.approx(0.001 + LINGER)


def test_a_batch_that_came_back_waits_for_its_back_off_even_in_a_hurry() -> None:
    schedule, queue = made(), filled(complete=True)
    queue.batches[0].attempts = 1
    queue.batches[0].not_before = 2.0
    schedule.hurry(True)
    schedule.review(queue, 1.0)
    assert schedule.due_brokers == []
    assert schedule.advance(1.0) == 2.0
    schedule.advance(2.0)
    assert schedule.due_brokers == [0]


def test_a_queue_that_is_due_and_comes_back_off_leaves_the_line() -> None:
    schedule, queue = made(), filled(complete=True)
    schedule.review(queue, 1.0)
    queue.batches.appendleft(Waiting(attempts=1, not_before=2.0))
    schedule.review(queue, 1.0)
    assert schedule.due_brokers == []
    assert schedule.advance(2.0) == math.inf
    assert schedule.due_brokers == [0]


def test_a_queue_that_found_no_room_is_first_in_the_next_request() -> None:
    schedule = made()
    for name in "abcde":
        queue = filled(name, complete=True)
        queue.batches.extend(Waiting() for _ in range(9))
        schedule.review(queue, 0.0)
    served = [serve(schedule, 0, 0.0) for _ in range(15)]
    assert "".join(served) == "abcdeabcdeabcde"


def test_a_queue_that_is_reviewed_keeps_its_place_in_the_line() -> None:
    schedule = made()
    queues = [filled(name, complete=True) for name in "abc"]
    for queue in (*queues, queues[0]):
        schedule.review(queue, 0.0)
    assert [serve(schedule, 0, 0.0) for _ in range(3)] == ["a", "b", "c"]


def test_a_queue_that_is_held_is_due_again_when_it_is_reviewed_or_all_are_released() -> None:
    schedule = made()
    first, second = filled("first", complete=True), filled("second", complete=True)
    for queue in (first, second):
        schedule.review(queue, 0.0)
        schedule.hold(queue)
    assert schedule.due_brokers == []
    schedule.review(second, 0.0)
    assert serve(schedule, 0, 0.0) == "second"
    schedule.release()
    assert serve(schedule, 0, 0.0) == "first"


def test_a_queue_whose_batches_are_gone_is_no_longer_due() -> None:
    schedule = made()
    for state in ("due", "lingers", "held"):
        queue = filled(complete=state != "lingers")
        schedule.review(queue, 0.0)
        if state == "held":
            schedule.hold(queue)
        queue.batches.clear()
        schedule.review(queue, 0.0)
        schedule.release()
        schedule.hurry(True)
        schedule.hurry(False)
        assert schedule.due_brokers == []
        assert schedule.advance(10.0) == math.inf


def test_a_queue_follows_its_leader() -> None:
    schedule = made()
    due, lingering = filled("due", complete=True), filled("lingering", created=0.0)
    for queue in (due, lingering):
        schedule.review(queue, 0.0)
        assert schedule.move(queue, 7)
        assert not schedule.move(queue, 7)
    schedule.advance(LINGER)
    assert schedule.due_brokers == [7]
    assert [serve(schedule, 7, LINGER) for _ in range(2)] == ["due", "lingering"]
    assert not schedule.move(filled(), 7), "never seen: its leader is asked when it is"


def test_a_topic_that_is_forgotten_leaves_nothing_behind() -> None:
    schedule = made()
    for complete in (True, False):
        schedule.review(filled(complete=complete), 0.0)
    kept = filled(complete=True)
    kept.topic = "other"
    schedule.review(kept, 0.0)
    schedule.forget("topic")
    assert schedule.advance(LINGER) == math.inf
    assert (schedule.length(0), *schedule.due(0)) == (1, kept)
    assert list(schedule._scheduled) == [kept]


def test_an_alarm_of_an_emptied_queue_wakes_nothing() -> None:
    schedule = made(linger=10.0)
    queues = [filled(str(i), created=i) for i in range(3)]
    for queue in queues:
        schedule.review(queue, 2.0)
    for queue in queues[:2]:
        queue.batches.clear()
        schedule.review(queue, 2.0)
    assert schedule.advance(2.0) == 12.0


def test_a_queue_that_fills_again_and_again_lingers_from_its_last_batch() -> None:
    """A queue has one alarm, which is set again when it rings too early: not one per batch."""
    schedule, queue = made(linger=10.0), filled()
    for i in range(1000):
        queue.batches = deque([Waiting(i / 1000)])
        queue.head_is_complete = False
        schedule.review(queue, i / 1000)
        queue.head_is_complete = True
        schedule.review(queue, i / 1000)
        assert serve(schedule, 0, i / 1000) == ""
    assert len(schedule._clock) == 1
    queue.batches, queue.head_is_complete = deque([Waiting(1.0)]), False
    schedule.review(queue, 1.0)
    assert schedule.advance(10.0) == 11.0
    schedule.advance(11.0)
    assert schedule.due_brokers == [0]


# gathering


def gathering(*queues: Any) -> Any:
    schedule = made(0.0, gathers=True)
    for queue in queues:
        schedule.review(queue, 1.0)
    return schedule


def test_open_batches_gather_until_their_broker_has_room() -> None:
    schedule = gathering(still_open := filled(), complete := filled(complete=True))
    assert schedule.due_brokers == [0]
    assert (schedule.length(0, False), *schedule.due(0, False)) == (1, complete)
    assert schedule.length(0, True) == 2
    assert next(schedule.due(0, True)) is still_open, "complete batches need no room"


def test_a_broker_for_which_batches_only_gather_is_looked_at() -> None:
    assert gathering(filled(leader=7)).due_brokers == [7]


def test_a_batch_that_becomes_complete_gathers_no_longer() -> None:
    schedule = gathering(queue := filled())
    queue.head_is_complete = True
    schedule.review(queue, 1.0)
    assert (schedule.length(0, False), schedule.length(0, True)) == (1, 1)


def test_a_retry_does_not_gather() -> None:
    queue = filled()
    queue.batches[0].attempts = 1
    assert gathering(queue).length(0, False) == 1


def test_in_a_hurry_nothing_gathers() -> None:
    schedule = gathering(filled(), filled())
    schedule.hurry(True)
    assert schedule.length(0, False) == 2
    schedule.review(filled(), 1.0)
    assert schedule.length(0, False) == 3
    schedule.hurry(False)
    schedule.review(filled(), 1.0)
    assert schedule.length(0, False) == 3


def test_batches_that_gather_follow_their_leader() -> None:
    schedule = gathering(queue := filled(leader=1))
    assert schedule.move(queue, 2)
    assert schedule.due_brokers == [2]
    assert (schedule.length(2, False), schedule.length(2, True)) == (0, 1)


def test_a_queue_is_due_once_for_each_request() -> None:
    """A request has one batch of each partition; the next one may be complete or gather."""
    schedule = gathering(first := filled("first", complete=True), second := filled("second"))
    for queue in (first, second):
        queue.batches.append(Waiting(1.0))
    second.head_is_complete = False
    served = []
    for queue in schedule.due(0, True):
        served.append(queue.name)
        queue.batches.popleft()
        queue.head_is_complete = queue is second
        schedule.served(queue, 1.0)
    assert served == ["second", "first"]
    assert schedule.length(0, True) == 2


def test_a_longer_linger_holds_for_batches_that_begin_later() -> None:
    schedule = made(0.001, gathers=True)
    schedule.linger(0.004)
    schedule.review(filled(created=1.0), 1.0)
    assert schedule.advance(1.0) == 1.004
    schedule.linger(0.0)
    schedule.review(filled("short", created=1.0), 1.0)
    assert schedule.advance(1.0) == 1.001, "at least linger.ms"
