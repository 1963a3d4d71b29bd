"""The background thread with the event loop of all synchronous clients.

caller's thread                     loop thread
run(function) ─────────────────────▶ task
     ▲ result, error, Ctrl-C            │
     └──────────────────────────────────┘
call_soon(fn) ─────────────────────▶ fn()

It also closes unclosed clients: when they are garbage-collected, or when the interpreter exits.
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
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, TypeAlias, TypeVar

from trimtab.kafka.errors import Unavailable, UsageError
from trimtab.threads.event_loop import new_event_loop
from trimtab.threads.unclosed import EXIT_SECONDS, warn_unclosed
from trimtab.threads.waiting import begin_on, guarded, refuse_waiting, wait_for

P = ParamSpec("P")
T = TypeVar("T")

Close: TypeAlias = Callable[[float | None], Coroutine[Any, Any, object]]

_log = logging.getLogger(__name__)

_CANCEL_GRACE_S = 5.0
"""Seconds that cancelled tasks may take to end before the loop is closed regardless."""

_JOIN_GRACE_S = _CANCEL_GRACE_S + 1.0
"""Seconds that the interpreter's exit waits for a loop thread before it abandons the thread."""


class LoopThread:
    """A counted reference (hold) to an event loop that runs in its own daemon thread.

    `LoopThread(name)` starts a thread; `shared()` returns a hold on the one that all synchronous
    clients of this process share. `stop()` releases this hold; releasing the last one ends the
    thread. The interpreter's exit stops all threads that still run.
    A client passes the function that closes it to its hold (`entrust`).

    Args:
        name: the thread's name, for debuggers and errors.
    """

    def __init__(self, name: str) -> None:
        self._bind(_Engine(name))

    def _bind(self, engine: _Engine) -> None:
        self._engine = engine
        self.warns = True
        """Whether it is worth a warning if nobody closes the client: not if its user cannot."""
        self._client = ""
        self._close: Close | None = None
        self._finalizer: weakref.finalize[[], Any] | None = None
        engine.holds.add(self)

    @property
    def is_released(self) -> bool:
        """Whether this hold was released."""
        return self not in self._engine.holds

    @property
    def is_usable(self) -> bool:
        """Whether this hold was not released, in the process that made it."""
        return not self.is_released and not self._engine.is_forked

    @property
    def name(self) -> str:
        return self._engine.thread.name

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop. From other threads only `call_soon_threadsafe` is safe on it."""
        return self._engine.loop

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Have the loop call `function(*args)` soon, in the order of these calls.

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

    def run(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an async function on the loop and wait for its result, on any thread but the loop's.

        An early end of the wait (Ctrl-C) cancels the function and is raised at once, without
        waiting for the function to finish.

        Raises:
            Unavailable: the thread was stopped meanwhile.
            UsageError: the thread was stopped before, or belongs to the process this one was
                forked from, or the caller must not wait (see `refuse_waiting`).
        """
        self._refuse_unusable()
        refuse_waiting(self._engine.loop)
        try:
            return self._engine.call(partial(function, *args, **kwargs))
        except concurrent.futures.CancelledError as error:
            if not self._engine.stopping:
                raise
            raise Unavailable(
                f"loop thread {self.name!r} was stopped while a call was waiting on it; "
                "the call may have taken effect"
            ) from error

    def close_at_exit(self, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have the interpreter's exit run `close` on the loop, if the thread still runs then: after
        the clients of all threads are closed, since a cluster on this one may serve them."""
        self._engine.close_at_exit = close

    @property
    def is_current(self) -> bool:
        """Whether the caller is on this thread, and so must not wait for it."""
        return threading.current_thread() is self._engine.thread

    def entrust(self, client: object, name: str, close: Close) -> None:
        """Close a client that its user does not close.

        When it is garbage-collected, it is closed in the background, without a time limit and with
        a ResourceWarning. The interpreter's exit waits `EXIT_SECONDS` for all unclosed clients.

        Args:
            client: the client; it is not kept alive.
            name: the client's name, for the warning.
            close: called on the loop with the seconds it may take, None for no limit; it logs what
                is lost. It must not refer to `client`.
        """
        self._client = name
        self._close = close
        self._engine.entrusted.add(self)
        self._finalizer = weakref.finalize(client, self._drop)
        self._finalizer.atexit = False  # `_end_all` closes it, when no thread uses it any more

    def close_client(
        self, function: Callable[P, Coroutine[Any, Any, object]], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run an async function that closes the client, and release this hold. Does nothing the
        second time.

        Raises:
            UsageError: the caller must not wait (see `refuse_waiting`); nothing was done.
        """
        if self.is_released or self._engine.is_forked:
            return
        refuse_waiting(self._engine.loop)
        try:
            self.run(function, *args, **kwargs)
            self.stop()
        except BaseException as error:
            if self.is_released and isinstance(error, UsageError | Unavailable):
                return  # a close that Ctrl-C interrupted has just been finished in the background
            self._end_soon(0.0)  # finish the close that Ctrl-C interrupted
            raise

    def stop(self) -> None:
        """Release this hold. If it was the last: cancel all tasks, close the loop, join the thread.

        Tasks that have not ended 5 s after their cancellation are logged and abandoned. Stopping
        again, or in a forked child, does nothing.

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

    def release_soon(self) -> None:
        """Release this hold like `stop`, but on any thread and without waiting for the end."""
        if not self._engine.is_forked and self._release():
            self._engine.begin_to_stop()

    def _release(self) -> bool:
        """Release this hold; returns whether it was the last."""
        if self._finalizer is not None:
            self._finalizer.detach()
        return guarded(_shared_lock, self._engine.remove_hold, self)

    def close_soon(self) -> bool:
        """Close the client in the background, without a time limit, and release this hold.

        Takes no lock: any thread may call this, such as in a finalizer, and may hold the lock.

        Returns:
            False if that was done before, or the process was forked since: nothing is to be done.
        """
        if self.is_released or self._engine.is_forked:
            return False
        self._end_soon(None)
        return True

    def _drop(self) -> None:
        """The client was garbage-collected."""
        if self.close_soon() and self.warns:
            warn_unclosed(self._client, "it is closed in the background")

    def _end_soon(self, timeout: float | None) -> None:
        """Have the loop close the client and release this hold."""
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
        self.release_soon()

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
    """The loop and its thread, shared by any number of holds."""

    def __init__(self, name: str) -> None:
        self.pid = os.getpid()
        # Weak, so that a hold that Ctrl-C kept from reaching its client is dropped when collected.
        self.holds: weakref.WeakSet[LoopThread] = weakref.WeakSet()
        self.entrusted: set[LoopThread] = set()
        self.closing: set[asyncio.Task[None]] = set()
        self.calls: set[concurrent.futures.Future[Any]] = set()
        self.close_at_exit: Callable[[], Coroutine[Any, Any, object]] | None = None
        self.stopping = False
        self._is_ending = False
        self.loop = new_event_loop()
        self._submitting = threading.RLock()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        _watch_exit()
        self.thread.start()
        _running.append(self)

    @property
    def is_forked(self) -> bool:
        return self.pid != os.getpid()

    def remove_hold(self, hold: LoopThread) -> bool:
        """Remove a hold; returns whether it was the last. Under `_shared_lock`."""
        self.holds.discard(hold)
        self.entrusted.discard(hold)
        if len(self.holds) > 0:
            return False
        self.stopping = True
        return True

    def call(
        self, function: Callable[[], Coroutine[Any, Any, T]], timeout: float | None = None
    ) -> T:
        """Run an async function on the loop and wait for its result, `timeout` seconds at most. An
        early end of the wait cancels the function."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            # The lock makes sure that a call is queued before the loop's stop. So it becomes a
            # task, which is cancelled; otherwise its caller would wait for ever.
            guarded(self._submitting, self._submit, function, future)
            return wait_for(future, timeout)
        finally:
            future.cancel()  # does nothing if it is done

    def _submit(
        self, function: Callable[[], Coroutine[Any, Any, T]], future: concurrent.futures.Future[T]
    ) -> None:
        if self.stopping:
            raise UsageError(f"loop thread {self.thread.name!r} was stopped; start a new one")
        self.calls.add(future)
        future.add_done_callback(self.calls.discard)
        begin_on(self.loop, function, future)

    def close_clients(self) -> list[str]:
        """At the interpreter's exit: close the unclosed clients; returns their names."""
        holds = list(self.entrusted)
        if not holds or self.stopping:
            return []
        own = LoopThread.__new__(LoopThread)
        own._bind(self)  # a hold of this method, so that no client's hold is the last
        try:
            self.call(partial(self._close_all, holds), EXIT_SECONDS + _CANCEL_GRACE_S)
        except TimeoutError:
            _log.warning("clients could not be closed in %g s, and are abandoned", EXIT_SECONDS)
        finally:
            del own
        return [hold._client for hold in holds if hold.warns]

    def close_owner(self) -> None:
        """At the interpreter's exit, when all clients are closed: run `close_at_exit`."""
        if self.close_at_exit is None or self.stopping:
            return
        try:
            self.call(self.close_at_exit, EXIT_SECONDS)
        except Exception:
            _log.exception("loop thread %r: what runs on it did not close", self.thread.name)

    async def _close_all(self, holds: list[LoopThread]) -> None:
        await asyncio.gather(*[hold._close_client(EXIT_SECONDS) for hold in holds])

    def begin_to_stop(self) -> None:
        guarded(self._submitting, self._begin_to_stop)

    def _begin_to_stop(self) -> None:
        self.stopping = True
        with suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self._stop_loop)

    def _stop_loop(self) -> None:
        """On the loop, where Ctrl-C does not interrupt: a second stop would end its last tasks."""
        if not self._is_ending:
            self._is_ending = True
            self.loop.stop()

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
                self.stopping = True  # not yet set only if a task raised SystemExit
            try:
                self.loop.run_until_complete(_cancel_all())
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            finally:
                asyncio.set_event_loop(None)
                self.loop.close()
                for future in list(self.calls):
                    future.cancel()  # its task was abandoned; this ends its caller's wait
                with suppress(ValueError):  # a forked child has already cleared the list
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
"""The engines whose loops run in this process, the oldest first."""

_watching = 0
"""The id of the process in which `_end_all` is registered."""


def _end_all() -> None:
    """At the interpreter's exit, when only daemon threads and other exit handlers still run.

    Closes the clients first, because a cluster in this process may have to serve them.
    """
    engines = [engine for engine in _running if not engine.is_forked]
    unclosed = []
    try:
        for engine in engines:
            unclosed += engine.close_clients()
        for engine in engines:
            engine.close_owner()
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
    # A process that multiprocessing has forked runs no atexit handlers, only its own finalizers.
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _end_all, exitpriority=-1)


# Registered early, so called late: other exit handlers may still use their clients.
_watch_exit()


_shared: _Engine | None = None
_shared_lock = threading.RLock()


def shared() -> LoopThread:
    """A hold on the loop thread that all synchronous clients of this process share.

    The first hold starts it, and releasing the last stops it; a forked child gets its own.
    """
    hold = LoopThread.__new__(LoopThread)
    guarded(_shared_lock, _bind_to_shared, hold)
    return hold


def _bind_to_shared(hold: LoopThread) -> None:
    global _shared
    if _shared is None or _shared.stopping:
        _shared = _Engine("trimtab-clients")
    hold._bind(_shared)


def _begin_as_child() -> None:
    """Reset the state in a forked child: the thread does not exist, the lock may be held."""
    global _shared, _shared_lock
    _shared = None
    _shared_lock = threading.RLock()
    _running.clear()


os.register_at_fork(after_in_child=_begin_as_child)
