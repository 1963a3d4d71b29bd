"""Cooperative scheduling of long work, in steps.

`Steps` is a generator that yields about every millisecond and returns the result of the work. A
node runs one step per loop iteration (a turn), so that other tasks run between two steps.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Sequence,
)
from heapq import merge
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from trimtab.kafka.wire.schema import Schema

T = TypeVar("T")
Topic = TypeVar("Topic")
Partition = TypeVar("Partition")
Answer = TypeVar("Answer")
TopicAnswer = TypeVar("TopicAnswer")
Response = TypeVar("Response")
Steps: TypeAlias = Generator[None, None, T]

_SORTED_AT_ONCE = 4000
_ANSWERED_AT_ONCE = 200


class Pace:
    """Decides when to yield.

    Args:
        per_turn: the cost of one step, in the unit of `spend`'s `cost`.
    """

    __slots__ = ("_left", "_per_turn")

    def __init__(self, per_turn: int = 200) -> None:
        self._per_turn = self._left = per_turn

    def spend(self, cost: int = 1) -> bool:
        """Count `cost`; returns whether to yield now."""
        self._left -= cost
        if self._left > 0:
            return False
        self._left = self._per_turn
        return True


def divide(elements: Sequence[T], size: int = _ANSWERED_AT_ONCE) -> list[Sequence[T]]:
    """The elements in parts of this size; the last may be smaller."""
    return [elements[begin : begin + size] for begin in range(0, len(elements), size)]


def answer_each(
    elements: Iterable[T],
    answer: Callable[[T], Answer],
    respond: Callable[[list[Answer]], Response],
    cost: Callable[[T, Answer], int] | None = None,
) -> Steps[Response]:
    """Cuts a large request: answers its elements, such as groups, with a pause after some of them.

    Args:
        elements: they are iterated between the pauses, so they must not change before the end.
        answer: answers one element.
        respond: makes the response of all answers, in the order of the elements.
        cost: what an element and its answer cost, if not 1. There is a pause after 200.
    """
    pace = Pace(_ANSWERED_AT_ONCE)
    answers: list[Answer] = []
    rest = iter(elements)
    while some := list(islice(rest, _ANSWERED_AT_ONCE if cost is None else 1)):
        answers += map(answer, some)
        if pace.spend(len(some) if cost is None else cost(some[0], answers[-1])):
            yield
    return respond(answers)


def answer_partitions(
    topics: Iterable[Topic],
    partitions_of: Callable[[Topic], Sequence[Partition]],
    answer: Callable[[Topic, Partition], Answer],
    put_together: Callable[[Topic, list[Answer]], TopicAnswer],
    respond: Callable[[list[TopicAnswer]], Response],
    cost: Callable[[Answer], int] | None = None,
) -> Steps[Response]:
    """Cuts a large request about partitions, as `answer_each`: neither many topics nor many
    partitions of a topic make a long step.

    Args:
        topics: a topic costs 1, besides its partitions.
        partitions_of: the partitions of a topic that the request names.
        answer: answers one partition.
        put_together: makes a topic's part of the response of the answers about its partitions.
        respond: makes the response, in the order of the request.
        cost: what the answer about a partition costs, if not 1.
    """
    pace = Pace(_ANSWERED_AT_ONCE)
    size = _ANSWERED_AT_ONCE if cost is None else 1
    answered: list[TopicAnswer] = []
    for topic in topics:
        partitions = partitions_of(topic)
        answers: list[Answer] = []
        for begin in range(0, len(partitions), size):
            some = partitions[begin : begin + size]
            answers += [answer(topic, partition) for partition in some]
            if pace.spend(len(some) if cost is None else cost(answers[-1])):
                yield
        answered.append(put_together(topic, answers))
        if pace.spend():
            yield
    return respond(answered)


def in_order(items: Collection[T], key: Callable[[T], Any] | None = None) -> Steps[Iterable[T]]:
    """The items, sorted in steps. The collection must not change before the end."""
    if len(items) <= _SORTED_AT_ONCE:
        return sorted(items, key=key)  # type: ignore[type-var, arg-type]
    rest = iter(items)
    runs: list[list[T]] = []
    while run := sorted(islice(rest, _SORTED_AT_ONCE), key=key):  # type: ignore[type-var, arg-type]
        runs.append(run)
        yield
    return merge(*runs, key=key)  # type: ignore[arg-type]


class Turns:
    """Runs pieces of work in steps, one piece after the other, so that only one of them uses memory
    at a time, however many clients have sent large requests."""

    __slots__ = ("_next", "_work")

    def __init__(self) -> None:
        self._work: deque[tuple[Steps[Any], asyncio.Future[Any]]] = deque()
        self._next: asyncio.Handle | None = None

    def __len__(self) -> int:
        """The number of unfinished pieces of work."""
        return len(self._work)

    def run(self, steps: Steps[T], goes_first: bool = False) -> asyncio.Future[T]:
        """Run the steps; the future has their result. Cancel it to stop them.

        Args:
            goes_first: run it before all other work, even work that has begun; for work that frees
            memory.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        if goes_first:
            self._work.appendleft((steps, done))
        else:
            self._work.append((steps, done))
        if self._next is None:
            _collector.hold(self)
            self._next = loop.call_soon(self._step)
        return done

    def close(self) -> None:
        """Stop all unfinished work, and cancel its futures."""
        work, self._work = self._work, deque()
        for steps, done in work:
            steps.close()
            done.cancel()
        self._stop()

    def _step(self) -> None:
        steps, done = self._work.popleft()
        try:
            if done.done():  # cancelled
                steps.close()
            else:
                next(steps)
                if self._next is not None:
                    self._work.appendleft((steps, done))
                else:  # closed within the step
                    steps.close()
                    done.cancel()
        except StopIteration as end:
            done.set_result(end.value)
        except Exception as error:
            done.set_exception(error)
        except BaseException:  # an interrupt, such as Ctrl-C: stop all work
            done.cancel()
            self.close()
            raise
        finally:
            # The error's traceback has this frame. With the future in it, which has the error, all
            # that the steps knew, such as the request, would stay until a full collection.
            del steps, done
        if not self._work:
            self._stop()
        elif self._next is not None:
            self._next = asyncio.get_running_loop().call_soon(self._step)

    def _stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
            _collector.release(self)


class _Collector:
    """Suspends full garbage collections while large work runs anywhere in the process.

    Large work creates hundreds of thousands of short-lived objects, which would trigger several
    full collections. A full collection visits all objects and cannot be split into steps. Young
    objects are still collected, fewer at a time.

    The thresholds belong to the process, so nodes in several threads share this object. If other
    code changes the thresholds meanwhile, its values are kept. No lock is needed: `hold` adds the
    holder before it reads the thresholds, and never saves the suspended values for restoring.
    """

    _YOUNG = 2000
    _NEVER = 1 << 30

    def __init__(self) -> None:
        self._holders: set[int] = set()
        self._before = self._held = (0, 0, 0)

    def hold(self, holder: object) -> None:
        self._holders.add(id(holder))
        before = gc.get_threshold()
        if before[2] != self._NEVER:
            self._before = before
            self._held = min(before[0], self._YOUNG), before[1], self._NEVER
            gc.set_threshold(*self._held)

    def release(self, holder: object) -> None:
        self._holders.discard(id(holder))
        if not self._holders and gc.get_threshold() == self._held:
            gc.set_threshold(*self._before)


_collector = _Collector()


def free_in_steps(owner: Schema, message: Any, pace: Pace) -> Steps[None]:
    """Free a large message in steps: its structs one by one, not all at once."""
    for field in owner.fields:
        if not field.is_array or not isinstance(field.type, Schema):
            continue
        elements = getattr(message, field.name)
        while elements:
            element = elements.pop()
            if pace.spend():
                yield
            if any(inner.is_array for inner in field.type.fields):
                yield from free_in_steps(field.type, element, pace)


async def in_turns(steps: Steps[T]) -> T:
    """Run the steps, one per loop iteration; returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await asyncio.sleep(0)


async def results_of(asked: Iterable[Awaitable[T]], per_turn: int = 200) -> AsyncIterator[T]:
    """The results, in order. Other tasks run after so many of them, if there are more."""
    pace = Pace(per_turn)
    is_due = False
    for answer in asked:
        if is_due:
            await asyncio.sleep(0)
        yield await answer
        is_due = pace.spend()
