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

    __slots__ = ("_next", "_work")

    def __init__(self) -> None:
        self._work: deque[tuple[Steps[Any], asyncio.Future[Any]]] = deque()
        self._next: asyncio.Handle | None = None

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
        if self._next is None:
            _collector.hold(self)
            self._next = loop.call_soon(self._step)
        return done

    def close(self) -> None:
        """End what is not finished: it is cancelled for those who wait for it."""
        work, self._work = self._work, deque()
        for steps, done in work:
            steps.close()
            done.cancel()
        self._rest()

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
        except Exception as error:  # is whose who has asked for it
            done.set_exception(error)
        except BaseException:  # an interrupt: nothing of this is gone on with
            done.cancel()
            self.close()
            raise
        if not self._work:
            self._rest()
        elif self._next is not None:
            self._next = asyncio.get_running_loop().call_soon(self._step)

    def _rest(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
            _collector.release(self)


class _Collector:
    """Puts off full collections of garbage while large work is done anywhere in the process.

    Hundreds of thousands of objects that are about to go again would have Python look through all
    there are, several times, at a cost that nobody can share out. Young objects are collected as
    ever, fewer at a time.

    The thresholds are the process's, so nodes in several threads share this, and so may a user
    who embeds them: what somebody else has set meanwhile is left alone. There is no lock, as the
    order of what is done here makes up for it: whoever holds is among the holders first, and what
    is restored is never what was set here.
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
