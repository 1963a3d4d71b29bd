"""The thread that the synchronous faces ride: one event loop, running in the background.

caller's thread                     loop thread
run(coroutine) ────────────────────▶ task
     ▲ result, error, Ctrl-C            │
     └──────────────────────────────────┘
call_soon(fn) ─────────────────────▶ fn()

A client that nobody closes is closed here: when it is collected, or when the interpreter exits.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from trimtab.errors import Unavailable, UsageError
from trimtab.runtime.event_loop import new_event_loop
from trimtab.runtime.unclosed import EXIT_SECONDS, warn_unclosed
from trimtab.runtime.waiting import guarded, refuse_waiting, wait_for

T = TypeVar("T")

Close: TypeAlias = Callable[[float | None], Coroutine[Any, Any, object]]

_log = logging.getLogger(__name__)

_CANCEL_GRACE_S = 5.0
"""How long cancelled tasks may take to end before the loop is closed over them."""

_JOIN_GRACE_S = _CANCEL_GRACE_S + 1.0
"""How long the interpreter's exit waits for a loop thread; beyond, the daemon thread is left."""


class LoopThread:
    """A hold on an event loop that runs in a daemon thread of its own.

    `LoopThread(name)` starts a thread; `shared()` holds the one that all client faces of this
    process share. Either way `stop()` gives up this hold, and the last hold ends the thread.
    At the interpreter's exit whatever still runs is stopped.
    A client entrusts what closes it to its hold.

    Args:
        name: the thread's name, as debuggers and errors show it.
    """

    def __init__(self, name: str) -> None:
        self._bind(_Engine(name))

    def _bind(self, engine: _Engine) -> None:
        self._engine = engine
        self._client = ""
        self._close: Close | None = None
        self._finalizer: weakref.finalize[[], Any] | None = None
        engine.holds.add(self)

    @property
    def is_released(self) -> bool:
        """Whether this hold was given up."""
        return self not in self._engine.holds

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
                forked from, or the caller must not wait (see `refuse_waiting`).
        """
        try:
            self._refuse_unusable()
            refuse_waiting(self._engine.loop)
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

    def entrust(self, client: object, name: str, close: Close) -> None:
        """Have a client closed that nobody closes.

        When it is collected that happens in the background, for as long as it takes, with a
        ResourceWarning. When the interpreter exits, its exit waits `EXIT_SECONDS` for all of them.

        Args:
            client: what is collected; this does not keep it alive.
            name: the client's, for the warning.
            close: called on the loop with the seconds it may take, None for as long as it takes;
                says itself what is lost. It must not refer to `client`.
        """
        self._client = name
        self._close = close
        self._engine.entrusted.add(self)
        self._finalizer = weakref.finalize(client, self._drop)
        self._finalizer.atexit = False  # `_end_all` does it, when no thread uses the client

    def end(self, close: Coroutine[Any, Any, object]) -> None:
        """Run what closes the client, and give up this hold. Ending again does nothing.

        Raises:
            UsageError: the caller must not wait (see `refuse_waiting`); nothing was done.
        """
        if self.is_released or self._engine.is_forked:
            close.close()
            return
        try:
            refuse_waiting(self._engine.loop)
        except UsageError:
            close.close()
            raise
        try:
            self.run(close)
            self.stop()
        except BaseException:
            self._end_soon(0.0)  # what Ctrl-C has left
            raise

    def stop(self) -> None:
        """Give up this hold. The last one cancels all tasks, closes the loop, joins the thread.

        Tasks that resist cancellation for 5 s are logged and abandoned. Stopping again, or in
        a forked child, does nothing.

        Raises:
            UsageError: called from the loop thread, which cannot wait for its own end.
        """
        if self.is_released or self._engine.is_forked:
            return
        if self.is_current:
            raise UsageError(
                f"stop() of loop thread {self.name!r} was called from that thread; "
                "call it from the thread that started it"
            )
        if self._release():
            self._engine.stop()

    def give_up(self) -> None:
        """Give up this hold, as `stop`, but on any thread and without waiting for the end."""
        if not self._engine.is_forked and self._release():
            self._engine.begin_to_stop()

    def _release(self) -> bool:
        """Give up this hold; returns whether it was the last."""
        if self._finalizer is not None:
            self._finalizer.detach()
        return guarded(_shared_lock, self._engine.let_go, self)

    def _drop(self) -> None:
        """The client was collected: on any thread, which may hold any lock. So this takes none."""
        if self.is_released or self._engine.is_forked:
            return
        self._end_soon(None)
        warn_unclosed(self._client, "it is closed in the background")

    def _end_soon(self, timeout: float | None) -> None:
        """Have the loop close the client and give up this hold."""
        if self._finalizer is not None:
            self._finalizer.detach()
        with suppress(RuntimeError):  # the loop has ended
            self._engine.loop.call_soon_threadsafe(self._begin_to_end, timeout)

    def _begin_to_end(self, timeout: float | None) -> None:
        task = self._engine.loop.create_task(self._end(timeout))
        self._engine.closing.add(task)
        task.add_done_callback(self._engine.closing.discard)

    async def _end(self, timeout: float | None) -> None:
        await self._close_client(timeout)
        self.give_up()

    async def _close_client(self, timeout: float | None) -> None:
        assert self._close is not None
        try:
            await self._close(timeout)
        except Exception:
            _log.exception("closing failed: %s", self._client)

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
        if self.is_released or self._engine.stopping:
            raise self._stopped()

    def _stopped(self) -> UsageError:
        if self._client:
            return UsageError(f"{self._client} is closed; make a new one")
        return UsageError(f"loop thread {self.name!r} was stopped; start a new one")


class _Engine:
    """The loop and the thread that runs it, however many hold it."""

    def __init__(self, name: str) -> None:
        self.pid = os.getpid()
        # One that Ctrl-C kept from its client counts no longer once it is collected.
        self.holds: weakref.WeakSet[LoopThread] = weakref.WeakSet()
        self.entrusted: set[LoopThread] = set()
        self.closing: set[asyncio.Task[None]] = set()
        self.stopping = False
        self.loop = new_event_loop()
        self._submitting = threading.RLock()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        _watch_exit()
        self.thread.start()
        _running.append(self)

    @property
    def is_forked(self) -> bool:
        return self.pid != os.getpid()

    def let_go(self, hold: LoopThread) -> bool:
        """Forget a hold; returns whether that was the last. Under the lock of all."""
        self.holds.discard(hold)
        self.entrusted.discard(hold)
        if len(self.holds) > 0:
            return False
        self.stopping = True
        return True

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        # With the lock every coroutine is on the loop's queue before the loop's end is, so that
        # it becomes a task and is cancelled; otherwise its caller would wait for ever.
        return guarded(self._submitting, self._submit, coroutine)

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self.stopping:
            raise UsageError(f"loop thread {self.thread.name!r} was stopped; start a new one")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def close_clients(self) -> list[str]:
        """At the interpreter's exit: close those that nobody closed; returns their names."""
        holds = list(self.entrusted)
        if not holds or self.stopping:
            return []
        own = LoopThread.__new__(LoopThread)
        own._bind(self)  # so that none of theirs is the last
        future = self.submit(self._close_all(holds))
        try:
            wait_for(future, EXIT_SECONDS + _CANCEL_GRACE_S)
        except TimeoutError:
            _log.warning("clients could not be closed in %g s: gave them up", EXIT_SECONDS)
        finally:
            future.cancel()
            del own
        return [hold._client for hold in holds]

    async def _close_all(self, holds: list[LoopThread]) -> None:
        await asyncio.gather(*[hold._close_client(EXIT_SECONDS) for hold in holds])

    def begin_to_stop(self) -> None:
        guarded(self._submitting, self._begin_to_stop)

    def _begin_to_stop(self) -> None:
        self.stopping = True
        with suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self.loop.stop)

    def stop(self, join_timeout: float | None = None) -> None:
        if self.is_forked:
            return
        self.begin_to_stop()
        self.thread.join(join_timeout)

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
                with suppress(ValueError):  # in a forked child they are forgotten already
                    _running.remove(self)


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


_running: list[_Engine] = []
"""Those whose loops run in this process, the oldest first."""

_watching = 0
"""The process whose end `_end_all` is registered for."""


def _end_all() -> None:
    """At the interpreter's exit: nothing but daemon threads and other exit handlers still run.

    First the clients: a cluster of this process may have to serve them.
    """
    engines = [engine for engine in _running if not engine.is_forked]
    unclosed = []
    try:
        for engine in engines:
            unclosed += engine.close_clients()
    finally:
        for engine in reversed(engines):
            engine.stop(_JOIN_GRACE_S)
    for name in unclosed:
        warn_unclosed(name, "it was closed at the interpreter's exit")


def _watch_exit() -> None:
    """Have `_end_all` called when this process ends."""
    global _watching
    if _watching == os.getpid():
        return
    is_first, _watching = _watching == 0, os.getpid()
    if is_first:
        atexit.register(_end_all)
    # What multiprocessing has forked ends without atexit, but not without its own finalizers.
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _end_all, exitpriority=-1)


# Early, so that it is called late: exit handlers of others may still use their clients.
_watch_exit()


_shared: _Engine | None = None
_shared_lock = threading.RLock()


def shared() -> LoopThread:
    """A hold on the loop thread that the synchronous client faces of this process share.

    Started by the first hold and stopped with the last; a forked child gets its own.
    """
    hold = LoopThread.__new__(LoopThread)
    guarded(_shared_lock, _bind_to_shared, hold)
    return hold


def _bind_to_shared(hold: LoopThread) -> None:
    global _shared
    if _shared is None or _shared.stopping:
        _shared = _Engine("trimtab-clients")
    hold._bind(_shared)


_heirs: weakref.WeakKeyDictionary[object, Callable[[Any], object]] = weakref.WeakKeyDictionary()


def call_in_forked_child(heir: object, function: Callable[[Any], object]) -> None:
    """Have `function(heir)` called in every process forked from this one, while `heir` lives.

    It runs before `fork` returns there. No other thread exists, and locks may be held for ever.
    """
    _heirs[heir] = function


def _begin_as_child() -> None:
    """The parent's thread is not here, and its lock may have been held."""
    global _shared, _shared_lock
    _shared = None
    _shared_lock = threading.RLock()
    _running.clear()
    for heir, function in list(_heirs.items()):
        function(heir)


os.register_at_fork(after_in_child=_begin_as_child)
