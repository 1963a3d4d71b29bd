"""Work that would hold up the loop for long, a step at a time.

`Steps` is a generator that yields about every millisecond, and returns what it has made. A node
runs one step in each turn of its loop, so that everybody else has their turn between two steps.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable
from heapq import merge
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from trimtab.wire.schema import Schema

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]

_SORTED_AT_ONCE = 4000


class Pace:
    """Says when a step has lasted long enough.

    Args:
        per_turn: what may be done in one step, in whatever unit `spend` is given.
    """

    __slots__ = ("_left", "_per_turn")

    def __init__(self, per_turn: int = 200) -> None:
        self._per_turn = self._left = per_turn

    def spend(self, cost: int = 1) -> bool:
        """Whether it is time to yield, after so much more."""
        self._left -= cost
        if self._left > 0:
            return False
        self._left = self._per_turn
        return True


def in_order(items: Collection[T], key: Callable[[T], Any] | None = None) -> Steps[Iterable[T]]:
    """The items, sorted. They must not change meanwhile."""
    if len(items) <= _SORTED_AT_ONCE:
        return sorted(items, key=key)  # type: ignore[type-var, arg-type]
    rest = iter(items)
    runs: list[list[T]] = []
    while run := sorted(islice(rest, _SORTED_AT_ONCE), key=key):  # type: ignore[type-var, arg-type]
        runs.append(run)
        yield
    return merge(*runs, key=key)  # type: ignore[arg-type]


class Turns:
    """Runs steps: one piece of work after the other, so that what is in memory of them is bounded
    by one, however many clients have asked."""

    __slots__ = ("_is_running", "_work")

    def __init__(self) -> None:
        self._work: deque[tuple[Steps[Any], asyncio.Future[Any]]] = deque()
        self._is_running = False

    def __len__(self) -> int:
        """How many are not finished."""
        return len(self._work)

    def run(self, steps: Steps[T], goes_first: bool = False) -> asyncio.Future[T]:
        """What the steps make, once they have; cancel it to have them stop.

        Args:
            goes_first: before what has been begun: for what frees memory when it is finished.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        if goes_first:
            self._work.appendleft((steps, done))
        else:
            self._work.append((steps, done))
        if not self._is_running:
            self._is_running = True
            _collector.hold()
            loop.call_soon(self._step)
        return done

    def _step(self) -> None:
        work = self._work
        steps, done = work[0]
        try:
            if done.done():  # cancelled
                steps.close()
                work.popleft()
            else:
                next(steps)
        except StopIteration as end:
            work.popleft()
            done.set_result(end.value)
        except Exception as error:  # is whose who has asked for it
            work.popleft()
            done.set_exception(error)
        self._is_running = bool(work)
        if work:
            asyncio.get_running_loop().call_soon(self._step)
        else:
            _collector.release()


class _Collector:
    """Puts off full collections while large work is done anywhere in the process.

    Hundreds of thousands of objects that are about to go again would have Python look through all
    there are, several times, at a cost that nobody can share out. Young objects are collected as
    ever.
    """

    _NEVER = 1 << 30

    def __init__(self) -> None:
        self._holders = 0
        self._threshold = 0

    def hold(self) -> None:
        self._holders += 1
        if self._holders == 1:
            young, middle, self._threshold = gc.get_threshold()
            gc.set_threshold(young, middle, self._NEVER)

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            young, middle, full = gc.get_threshold()
            if full == self._NEVER:  # nobody else has set it meanwhile
                gc.set_threshold(young, middle, self._threshold)


_collector = _Collector()


def let_go(owner: Schema, message: Any, pace: Pace) -> Steps[None]:
    """Free a message that nobody needs any more: its structs go one by one, not all at once."""
    for each in owner.fields:
        if not each.is_array or not isinstance(each.type, Schema):
            continue
        elements = getattr(message, each.name)
        while elements:
            element = elements.pop()
            if pace.spend():
                yield
            if any(inner.is_array for inner in each.type.fields):
                yield from let_go(each.type, element, pace)


async def in_turns(steps: Steps[T]) -> T:
    """What the steps make: one step in each turn of the loop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await asyncio.sleep(0)
