"""The thread that the synchronous faces ride: one event loop, running in the background.

caller's thread                     loop thread
run(coroutine) ────────────────────▶ task
     ▲ result, error, Ctrl-C            │
     └──────────────────────────────────┘
call_soon(fn) ─────────────────────▶ fn()
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from math import inf
from types import TracebackType
from typing import Any, TypeVar

from trimtab.errors import Unavailable, UsageError
from trimtab.runtime.clock import monotonic_clock
from trimtab.runtime.event_loop import new_event_loop

T = TypeVar("T")

_log = logging.getLogger(__name__)

_CANCEL_GRACE_S = 5.0
"""How long cancelled tasks may take to end before the loop is closed over them."""

_JOIN_GRACE_S = _CANCEL_GRACE_S + 1.0
"""How long the interpreter's exit waits for a loop thread; beyond, the daemon thread is left."""

_LISTEN_S = 0.1
"""How long a thread waits without hearing a signal, at most."""


class LoopThread:
    """A hold on an event loop that runs in a daemon thread of its own.

    `LoopThread(name)` starts a thread; `shared()` holds the one that all client faces of this
    process share. Either way `stop()` gives up this hold, and the last hold ends the thread.
    At the interpreter's exit whatever still runs is stopped.

    Args:
        name: the thread's name, as debuggers and errors show it.
    """

    def __init__(self, name: str) -> None:
        self._bind(_Engine(name))

    def _bind(self, engine: _Engine) -> None:
        engine.holds += 1
        self._engine = engine
        self._released = False

    @property
    def name(self) -> str:
        return self._engine.thread.name

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop. From other threads only `call_soon_threadsafe` is safe on it."""
        return self._engine.loop

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Have the loop call `function(*args)` soon, in the order of the calls made here.

        Raises:
            UsageError: the thread was stopped, or belongs to the process this one was forked from.
        """
        self._refuse_unusable()
        try:
            self._engine.loop.call_soon_threadsafe(function, *args)
        except RuntimeError as error:
            if not self._engine.stopping:
                raise
            raise self._stopped() from error

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result, on any thread but the loop's.

        Whatever ends the wait early (Ctrl-C, the timeout) also cancels the coroutine and is
        raised at once, without waiting until the coroutine has wound up.

        Args:
            timeout: seconds to wait at most; None waits as long as it takes.

        Raises:
            Unavailable: no result within `timeout`, or the thread was stopped meanwhile.
            UsageError: the thread was stopped before, or belongs to the process this one was
                forked from, or is the calling thread.
        """
        try:
            self._refuse_unusable()
            if self.is_current:
                raise UsageError(
                    f"run() on loop thread {self.name!r} was called from that thread, which would "
                    "wait for itself; use the async face there and await the coroutine"
                )
            future = self._engine.submit(coroutine)
        except UsageError:
            coroutine.close()
            raise
        try:
            return wait_for(future, timeout)
        except concurrent.futures.CancelledError as error:
            if not self._engine.stopping:
                raise
            raise Unavailable(
                f"loop thread {self.name!r} was stopped while a call was waiting on it; "
                "what the call began may have happened"
            ) from error
        except TimeoutError as error:
            if future.done():  # The coroutine's own.
                raise
            raise Unavailable(f"no result within {timeout:g} s; it may still happen") from error
        finally:
            # Nothing to do for a finished one; otherwise the wait ended before the coroutine did.
            future.cancel()

    @property
    def is_current(self) -> bool:
        """Whether the caller is on this thread, and so must not wait for it."""
        return threading.current_thread() is self._engine.thread

    def stop(self) -> None:
        """Give up this hold. The last one cancels all tasks, closes the loop, joins the thread.

        Tasks that resist cancellation for 5 s are logged and abandoned. Stopping again, or in
        a forked child, does nothing.

        Raises:
            UsageError: called from the loop thread, which cannot wait for its own end.
        """
        if self._released or self._engine.is_forked:
            return
        if self.is_current:
            raise UsageError(
                f"stop() of loop thread {self.name!r} was called from that thread; "
                "call it from the thread that started it"
            )
        self._released = True
        with _shared_lock:
            self._engine.holds -= 1
            last = self._engine.holds == 0
        if last:
            self._engine.stop()

    def __enter__(self) -> LoopThread:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _refuse_unusable(self) -> None:
        if self._engine.is_forked:
            raise UsageError(
                f"loop thread {self.name!r} was started in process {self._engine.pid} and did not "
                f"survive the fork into process {os.getpid()}; create the producer, consumer, "
                "admin or cluster after the fork, or start processes with the 'spawn' method"
            )
        if self._released or self._engine.stopping:
            raise self._stopped()

    def _stopped(self) -> UsageError:
        return UsageError(f"loop thread {self.name!r} was stopped; start a new one")


class _Engine:
    """The loop and the thread that runs it, however many hold it."""

    def __init__(self, name: str) -> None:
        self.pid = os.getpid()
        self.holds = 0
        self.stopping = False
        self.loop = new_event_loop()
        self._submitting = threading.Lock()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()
        atexit.register(self.stop, _JOIN_GRACE_S)

    @property
    def is_forked(self) -> bool:
        return self.pid != os.getpid()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        # With the lock every coroutine is on the loop's queue before the loop's end is, so that
        # it becomes a task and is cancelled; otherwise its caller would wait for ever.
        with self._submitting:
            if self.stopping:
                raise UsageError(f"loop thread {self.thread.name!r} was stopped; start a new one")
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self, join_timeout: float | None = None) -> None:
        if self.is_forked:
            return
        with self._submitting:
            if not self.stopping:
                self.stopping = True
                self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(join_timeout)
        atexit.unregister(self.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            with self._submitting:
                self.stopping = True  # Already so, unless a task raised SystemExit.
            try:
                self.loop.run_until_complete(_cancel_all())
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            finally:
                asyncio.set_event_loop(None)
                self.loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    done, resisting = await asyncio.wait(tasks, timeout=_CANCEL_GRACE_S)
    for task in resisting:
        _log.warning("abandoned a task that ignored its cancellation task=%r", task)
    for task in done:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("a task failed while being cancelled task=%r", task, exc_info=error)


_shared: _Engine | None = None
_shared_lock = threading.Lock()


def shared() -> LoopThread:
    """A hold on the loop thread that the synchronous client faces of this process share.

    Started by the first hold and stopped with the last; a forked child gets its own.
    """
    global _shared
    with _shared_lock:
        if _shared is None or _shared.holds == 0:
            _shared = _Engine("trimtab-clients")
        hold = LoopThread.__new__(LoopThread)
        hold._bind(_shared)
        return hold


_heirs: list[weakref.WeakMethod[Callable[[], object]]] = []


def call_in_forked_child(method: Callable[[], object]) -> None:
    """Have a bound method called in every process forked from this one, while its object lives.

    It runs before `fork` returns there. No other thread exists, and locks may be held for ever.
    """
    with _shared_lock:
        _heirs[:] = [heir for heir in _heirs if heir() is not None]
        _heirs.append(weakref.WeakMethod(method))


def _begin_as_child() -> None:
    """The parent's thread is not here, and its lock may have been held."""
    global _shared, _shared_lock
    _shared = None
    _shared_lock = threading.Lock()
    for heir in _heirs:
        method = heir()
        if method is not None:
            method()


os.register_at_fork(after_in_child=_begin_as_child)


def wait_for(future: concurrent.futures.Future[T], timeout: float | None = None) -> T:
    """A future's result, on a thread that is to hear Ctrl-C meanwhile.

    Python runs signal handlers between two instructions. A signal that arrives after the last one,
    but before the thread sleeps, is not seen until the sleep is over: so no sleep is long.

    Args:
        timeout: seconds to wait at most; None waits as long as it takes.

    Raises:
        TimeoutError: no result within `timeout`; or whatever the future ended with.
    """
    end = inf if timeout is None else monotonic_clock() + timeout
    while True:
        try:
            return future.result(max(0.0, min(_LISTEN_S, end - monotonic_clock())))
        except TimeoutError:
            if future.done():
                return future.result()  # It may be the future's own, or there just now.
            if monotonic_clock() >= end:
                raise


def new_lock() -> threading.Lock:
    """A lock between a client's callers and its loop thread."""
    return threading.Lock()
