"""A virtual world: one seed, one clock, hosts, a network, disks, and a trace of the events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Any, Final, TypeVar

from trimtab.sim.disk import VirtualDisk
from trimtab.sim.loop import VirtualLoop
from trimtab.sim.network import Network
from trimtab.sim.trace import Trace

T = TypeVar("T")

START_MS: Final = 1_767_225_600_000
"""Wall time at the beginning of every world: 2026-01-01T00:00:00Z."""
_MOST_ROUNDS: Final = 20
_ROUND_S: Final = 10.0
"""How often, and for how many virtual seconds, tasks may end after they were cancelled."""


class World:
    """Clock, network, disks and random numbers for a cluster and its clients, from one seed.

        with World(seed=7) as world:
            world.run(scenario(world))
            print(world.trace.hash)

    The same seed and the same code give the same run, with the same trace.
    An error that `run` raises has a note with the seed, the virtual time and the last events.

    Args:
        seed: the seed of all random numbers.
        keep_trace: keep every line of the trace, to find the first difference of two runs.
        shown_events: how many of the last events the note of an error has.
    """

    def __init__(self, seed: int, keep_trace: bool = False, shown_events: int = 20) -> None:
        self.seed: Final = seed
        self._shown_events: Final = shown_events
        self.loop: Final = VirtualLoop()
        self.trace: Final = Trace(self.loop, keep_lines=keep_trace)
        self._randoms: dict[str, Random] = {}
        self._disks: dict[str, VirtualDisk] = {}
        self.network: Final = Network(self.loop, self.random("network"), self.trace)
        self._failures: list[BaseException] = []
        self.loop.set_exception_handler(self._note_failure)

    def wall_clock(self) -> float:
        """Wall time: seconds since the Unix epoch, UTC."""
        return START_MS / 1000 + self.loop.time()

    def now_ms(self) -> int:
        """Wall time: milliseconds since the Unix epoch, UTC."""
        return START_MS + int(self.loop.time() * 1000)

    def random(self, name: str) -> Random:
        """The stream of random numbers with this name; other streams do not affect it."""
        if name not in self._randoms:
            self._randoms[name] = Random(f"{self.seed}/{name}")
        return self._randoms[name]

    def disk(self, name: str) -> VirtualDisk:
        """The disk with this name, which is lazy; created empty by the first call."""
        if name not in self._disks:
            self._disks[name] = VirtualDisk(is_lazy=True)
        return self._disks[name]

    def run(self, awaitable: Awaitable[T]) -> T:
        """Run until the coroutine or task is done; other tasks continue in the next `run`.

        Raises:
            StalledError: it can never finish.
            UsageError: another thread called into the loop.
            Exception: its error, or one of a callback or protocol, which asyncio would
                only log.
        """
        try:
            try:
                result = self.loop.run_until_complete(awaitable)
            except RuntimeError:  # stalled, or stopped
                self._raise_failure()  # The tasks probably wait for one that failed.
                raise
            self._raise_failure()
        except BaseException as error:
            error.add_note(self._describe())
            raise
        return result

    def close(self) -> None:
        """Cancel all tasks, let them end, and close the loop.

        Raises:
            Exception: an error of a task or callback that no code has retrieved.
            RuntimeError: cancelled tasks have begun others, again and again. A client that nobody
                has closed does, because a connection that it needs is lost.
        """
        if self.loop.is_closed():
            return
        self.loop.observer = None
        self.loop.resume_all()
        try:
            for _ in range(_MOST_ROUNDS):
                if not (tasks := self.loop.tasks()):
                    break
                for task in tasks:
                    task.cancel()
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=_ROUND_S))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            if endless := self.loop.tasks():
                self.loop.run_until_complete(self._drop_tasks())
                raise RuntimeError(f"tasks that begin others when they are cancelled: {endless}")
        finally:
            self.loop.close()
        self._raise_failure()

    async def _drop_tasks(self) -> None:
        for _ in range(2):  # those that the first ones begin have not started, and end at once
            for task in self.loop.tasks():
                coroutine = task.get_coro()
                if coroutine is not None and task is not asyncio.current_task():
                    with suppress(Exception):  # the world ends with an error already
                        coroutine.close()

    def __enter__(self) -> World:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _note_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context["message"])
        error.add_note(context["message"])
        self._failures.append(error)
        if not isinstance(error, Exception):  # a test's time is over: nobody else sees that here
            self.loop.stop()

    def _raise_failure(self) -> None:
        if self._failures:
            failures, self._failures = self._failures, []
            raise failures[0]

    def _describe(self) -> str:
        events = list(self.trace.lines)[-self._shown_events :] if self._shown_events else []
        return "\n".join(
            [
                f"virtual world: seed {self.seed}, at {self.loop.time():.6f} s"
                + (", the last events:" if events else ""),
                *(f"  {line}" for line in events),
            ]
        )
