"""Fetches that wait for `min_bytes` (Kafka's `DelayedFetch`).

Nothing polls: partitions notify the slots that watch them, and the slots count bytes here. When
`min_bytes` are available, the time is up, or a partition goes away, the fetch reads all its
partitions again and answers with the records available at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from trimtab.cluster.broker.partition import Watcher
from trimtab.cluster.server.turns import Steps


class DelayedFetch:
    """One waiting fetch.

    Args:
        max_wait_s: how long to wait at most.
        min_bytes: bytes that complete the fetch.
        counted: bytes available already, by the watcher that reads them.
        answer: builds the response in steps; called once, unless the fetch is given up.
        run: runs the remaining steps if the first one does not finish (`Turns.run`).
        give_up: called if the connection is lost and the response is not needed any more.

    Attributes:
        response: resolves to the response.
    """

    __slots__ = (
        "_answer",
        "_counted",
        "_give_up",
        "_is_due",
        "_run",
        "_running",
        "_timer",
        "_total",
        "min_bytes",
        "response",
    )

    def __init__(
        self,
        max_wait_s: float,
        min_bytes: int,
        counted: dict[Watcher, int],
        answer: Callable[[], Steps[Any]],
        run: Callable[[Steps[Any]], asyncio.Future[Any]],
        give_up: Callable[[], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.min_bytes = min_bytes
        self._counted = counted
        self._total = sum(counted.values())
        self._answer = answer
        self._run = run
        self._running: asyncio.Future[Any] | None = None
        self._give_up = give_up
        self._is_due = False
        self._timer: asyncio.Handle = loop.call_later(max_wait_s, self._finish)
        self.response: asyncio.Future[Any] = loop.create_future()
        # Cancelled from outside when its connection is lost.
        self.response.add_done_callback(self._end)

    def count(self, watcher: Watcher, size: int) -> None:
        """Set the number of bytes available to a watcher; complete the fetch if they suffice."""
        self._total += size - self._counted.get(watcher, 0)
        self._counted[watcher] = size
        if self._total >= self.min_bytes:
            self.complete()

    def complete(self) -> None:
        """Answer with the records available, in the loop's next iteration: the request that caused
        this, such as a Produce, is answered first."""
        if not self._is_due:
            self._is_due = True
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_soon(self._finish)

    def _finish(self) -> None:
        if self.response.done():
            return
        try:
            steps = self._answer()
            next(steps)
        except StopIteration as end:
            self.response.set_result(end.value)
        except Exception as error:
            self.response.set_exception(error)
        else:
            self._running = self._run(steps)
            self._running.add_done_callback(self._take)

    def _take(self, made: asyncio.Future[Any]) -> None:
        if self.response.done():
            return
        error = made.exception()
        if error is None:
            self.response.set_result(made.result())
        else:
            self.response.set_exception(error)

    def _end(self, response: asyncio.Future[Any]) -> None:
        self._timer.cancel()
        if self._running is not None:
            self._running.cancel()
        if response.cancelled():
            self._give_up()
