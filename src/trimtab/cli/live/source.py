"""Where a live view's snapshots come from: a cluster that is watched in a thread of its own, or a
recording of one.

A view reads the last snapshot whenever it wants; it is told when there is another one.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from trimtab.balance.level_plan import Goal, LevelPlan
from trimtab.cli.live.findings import Finding, find
from trimtab.cli.live.recording import (
    Recorder,
    find_recorded_plan,
    read_recording,
    refusing_malformed,
)
from trimtab.cli.live.rows import Summary, summarize
from trimtab.cli.selection import ADMIN_TIMEOUT_MS
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.collector import Collector, Snapshot
from trimtab.client.measure.history import LoadHistory
from trimtab.client.measure.probe import PROBE_TOPIC
from trimtab.kafka.errors import KafkaError, Unavailable, UsageError
from trimtab.threads.loop_thread import LoopThread

_COLLECTIONS: Final = 10_000
"""Of the middle generation, before the garbage collector goes through all that is kept: of 40,000
partitions that holds every thread for half a second, and finds nothing."""
_END_S: Final = 20.0
"""Moves end within 10 s, and the topic for probes is removed within 5."""


class Source:
    """Snapshots for any number of views, on any thread.

    Attributes:
        snapshot: the last one; None until there are rates.
        summary: of it.
        findings: in it.
        history: the rates of the last hour.
        trouble: why there is no newer snapshot; "" if there will be.
        is_live: False for a recording.
    """

    def __init__(self, is_live: bool) -> None:
        self.snapshot: Snapshot | None = None
        self.summary: Summary | None = None
        self.findings: Sequence[Finding] = ()
        self.history = LoadHistory()
        self.trouble = ""
        self.is_live = is_live
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], object]] = []

    def listen(self, changed: Callable[[], object]) -> None:
        """Have a function called, on a thread of the source's, when there is something new."""
        self._listeners.append(changed)

    def wait(self, after: int, timeout_s: float) -> Snapshot:
        """The first snapshot after this number.

        Raises:
            Unavailable: there is none within so many seconds.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._number > after or self.is_over, timeout_s)
        if self.snapshot is None or self._number <= after:
            raise Unavailable(self.trouble or f"no load was measured within {timeout_s:g} s")
        return self.snapshot

    @property
    def is_over(self) -> bool:
        """Whether no more snapshots come."""
        return not self.is_live

    @property
    def _number(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.number

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
        for listener in self._listeners:
            listener()


def _give_back() -> None:
    """Have the C library return freed memory, of glibc: after a look at 40,000 partitions 20 MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Recorded(Source):
    """The snapshots of a recording: the one with most bytes/s, with the history of all.

    Args:
        path: a file that `--record` has written, or a directory that has one, such as `make demo`
            leaves.

    Raises:
        UsageError: it cannot be read, or is empty.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(is_live=False)
        most = -1.0
        for snapshot in read_recording(path):
            with refusing_malformed(path, snapshot.number + 1):
                self.history.add(
                    snapshot.taken_s, snapshot.topics, snapshot.metered.load, snapshot.levels
                )
            load = sum(each.bytes_in for each in snapshot.metered.load.partitions)
            if load > most:
                most, self.snapshot = load, snapshot
        if self.snapshot is None:
            raise UsageError(f"{path}: the recording has no snapshot")
        with refusing_malformed(path, self.snapshot.number + 1):
            self.snapshot = find_recorded_plan(self.snapshot)
            self.summary = summarize(self.snapshot)
            self.findings = find(self.summary)
        self.trouble = "This is a recording, at its busiest moment."


class Watched(Source):
    """A cluster that is watched from `start` until `close`, in a thread of its own.

    Args:
        options: client options, by dotted name.
        show_key: makes text of a key; None to read no records.
        record: a file to which snapshots are written.

    Raises:
        UsageError: the window is shorter than 2 s, or the file cannot be written.
    """

    def __init__(
        self,
        options: dict[str, Any],
        goal: Goal | None = None,
        window_s: float = 30.0,
        probes: bool = False,
        show_key: Callable[[bytes], str] | None = None,
        record: Path | None = None,
    ) -> None:
        super().__init__(is_live=True)
        self._options = {"default.api.timeout.ms": ADMIN_TIMEOUT_MS, **options}
        self._window_s = window_s
        self._make = partial(
            Collector, goal=goal or Goal(), window_s=window_s, probes=probes, show_key=show_key
        )
        self._recorder = None if record is None else Recorder(record)
        self._why_not_recorded = ""
        self._thread: LoopThread | None = None
        self._collector: Collector | None = None
        self._running: asyncio.Task[None] | None = None
        self._is_over = False

    @property
    def is_over(self) -> bool:
        return self._is_over

    def __enter__(self) -> Self:
        """Begin to watch.

        Raises:
            UsageError: a client option or the window is wrong.
        """
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*self._thresholds[:2], _COLLECTIONS)
        self._thread = LoopThread("trimtab-collector")
        try:
            self._thread.run(self._begin)
        except BaseException:
            self._thread.stop()
            self._let_go()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End moves in progress, remove the topic for probes, and close the recording.

        Raises:
            KafkaError: the topic for probes may be left; after an error this becomes its note.
        """
        if self._thread is None:
            return
        try:
            self._thread.run(self._end)
        except KafkaError as reason:
            if error is None:
                raise
            error.add_note(str(reason))
        finally:
            self._thread.stop()
            self._let_go()

    def _let_go(self) -> None:
        gc.set_threshold(*self._thresholds)
        if self._recorder is not None:
            self._recorder.close()

    def act(self, action: Callable[[Collector], object]) -> None:
        """Call a method of the collector, such as `carry_out`, on its thread.

        Raises:
            UsageError: as that method.
        """
        collector = self._collector
        if self._thread is None or collector is None:
            raise UsageError("the cluster is not watched")

        async def call() -> None:
            action(collector)

        self._thread.run(call)

    async def _begin(self) -> None:
        loop = asyncio.get_running_loop()

        def compute(find: Callable[[], LevelPlan]) -> asyncio.Future[LevelPlan]:
            return loop.run_in_executor(None, find)

        admin = AsyncAdmin(self._options)
        try:
            self._collector = self._make(admin, compute=compute)
        except UsageError:
            await admin.close()
            raise
        self.history = self._collector.history
        self._running = loop.create_task(self._run(admin, self._collector))

    async def _run(self, admin: AsyncAdmin, collector: Collector) -> None:
        try:
            async with admin:
                await collector.run(self._note)
        except KafkaError as error:
            self.trouble = str(error)
            raise
        finally:
            self._is_over = True
            self._tell()

    async def _end(self) -> None:
        assert self._collector is not None
        assert self._running is not None
        self._collector.stop()
        await asyncio.wait([self._running], timeout=_END_S)
        if not self._running.done():
            raise Unavailable(
                f"the cluster has not let go within {_END_S:g} s: moves may go on, and the topic "
                f"{PROBE_TOPIC} may be left"
            )
        self._running.result()

    def _note(self) -> None:
        assert self._collector is not None
        snapshot = self._collector.snapshot
        if snapshot is not None and snapshot is not self.snapshot:
            summary = summarize(snapshot, self._window_s)
            self.findings, self.summary = find(summary), summary
            self.snapshot = snapshot  # last, as `wait` looks at its number
            self._record(snapshot)
            _give_back()
        self.trouble = self._collector.trouble or self._why_not_recorded
        self._tell()

    def _record(self, snapshot: Snapshot) -> None:
        if self._recorder is not None:
            try:
                self._recorder.write(snapshot)
            except OSError as error:
                self._why_not_recorded = f"the recording has ended: {error}"
