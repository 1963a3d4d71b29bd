"""How threads call an event loop and wait for it: interruptible by Ctrl-C, and never for ever."""

from __future__ import annotations

import asyncio
import concurrent.futures
import operator
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, TypeVar

from trimtab.kafka.errors import UsageError
from trimtab.threads.clock import monotonic_clock

T = TypeVar("T")

_MAX_WAIT_S = 0.1
"""The longest single wait of a thread, in which it may miss a signal."""


def refuse_waiting(loop: asyncio.AbstractEventLoop | None) -> None:
    """Raise an error if waiting for this loop would never end.

    Raises:
        UsageError: the caller is on the loop, or holds a lock of `new_lock` for which the loop
            would wait; says what to do instead.
    """
    try:
        is_on_loop = loop is not None and asyncio.get_running_loop() is loop
    except RuntimeError:
        is_on_loop = False
    if is_on_loop:
        raise UsageError(
            "waiting here would block the event loop that the client itself runs on, and so never"
            " end: in a coroutine `await` it; in a delivery callback, where it would block every"
            " client of this process, pass the work to another thread, by a queue or an executor"
        )
    # `valuerefs` copies the list at once, as other threads add and remove locks meanwhile.
    locks = filter(None, map(operator.call, _locks.valuerefs()))
    if any(map(operator.methodcaller("_is_owned"), locks)):
        raise UsageError(
            "a partitioner is called while its producer is locked, and a signal handler may be:"
            " waiting there would block every client of this process for ever. A partitioner must"
            " not wait: fetch its data earlier, or on another thread. A signal handler must raise,"
            " as sys.exit does, or set a flag, and leave flush and close to the program"
        )


def begin_on(
    loop: asyncio.AbstractEventLoop,
    function: Callable[[], Coroutine[Any, Any, T]],
    future: concurrent.futures.Future[T],
) -> None:
    """Have a loop run an async function, whose outcome becomes the future's. Cancelling the future
    cancels the function.

    The loop creates the coroutine: on the caller's thread Ctrl-C could come between its creation
    and its start, and Python would warn that it was never awaited.

    Raises:
        RuntimeError: the loop is closed.
    """
    loop.call_soon_threadsafe(_begin, loop, function, future)


def _begin(
    loop: asyncio.AbstractEventLoop,
    function: Callable[[], Coroutine[Any, Any, T]],
    future: concurrent.futures.Future[T],
) -> None:
    if future.cancelled():
        return
    try:
        task = loop.create_task(function())
    except BaseException as error:  # wrong arguments
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
        return
    task.add_done_callback(partial(_hand_over, future))
    future.add_done_callback(partial(_cancel, loop, task))


def _hand_over(future: concurrent.futures.Future[T], task: asyncio.Task[T]) -> None:
    """The task has ended, and so does the future."""
    if task.cancelled():
        future.cancel()
    elif future.set_running_or_notify_cancel():
        if (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())


def _cancel(
    loop: asyncio.AbstractEventLoop, task: asyncio.Task[T], future: concurrent.futures.Future[T]
) -> None:
    """The future has ended; if its waiter cancelled it, so does the task."""
    if future.cancelled():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(task.cancel)


def wait_for(
    future: concurrent.futures.Future[T],
    timeout: float | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
) -> T:
    """A future's result, while Ctrl-C can interrupt the wait.

    Python runs signal handlers between two instructions. A signal that arrives after the last
    instruction before a wait is handled only when the wait is over. So no single wait is long.

    Args:
        timeout: seconds to wait at most; None for no limit.
        loop: the loop that ends the future, if known.

    Raises:
        TimeoutError: no result within `timeout`. Also every error of the future.
        UsageError: the caller must not wait (see `refuse_waiting`), or the loop has ended.
    """
    if not future.done():
        refuse_waiting(loop)
        _refuse_dead(loop, timeout)
    end = inf if timeout is None else monotonic_clock() + timeout
    while True:
        try:
            return future.result(max(0.0, min(_MAX_WAIT_S, end - monotonic_clock())))
        except TimeoutError:
            if future.done():
                return future.result()  # it raised TimeoutError itself, or ended just now
            if monotonic_clock() >= end:
                raise
            if loop is not None and loop.is_closed() and not future.done():
                _refuse_dead(loop, timeout)
        except RuntimeError as error:
            interrupt = error.__context__
            is_own = future.done() and not future.cancelled() and future.exception() is error
            if interrupt is None or is_own:
                raise
            # A second Ctrl-C came while `Condition.wait`, left by the first one, took its lock
            # again: `Future.result` cannot release it then.
            raise interrupt from None


def _refuse_dead(loop: asyncio.AbstractEventLoop | None, timeout: float | None) -> None:
    """Raise an error instead of waiting for ever for a loop that does not run."""
    if loop is None or (loop.is_running() and not loop.is_closed()):
        return
    if loop.is_closed() or timeout is None:
        how = "is closed" if loop.is_closed() else "does not run"
        raise UsageError(
            f"the event loop that the client runs on {how}, so that this would never end: close"
            " the client, or await its deliveries, while the loop runs"
        )


def new_lock() -> Any:
    """A lock (`threading.RLock`) between a client's callers and its loop thread.

    Reentrant, because a partitioner, which is called under it, may call its own producer. The
    thread that holds it must not wait for the loop: `refuse_waiting` checks that.
    """
    lock = threading.RLock()
    _locks[id(lock)] = lock
    return lock


_locks: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def guarded(lock: threading.RLock, function: Callable[..., T], *args: object) -> T:
    """`function(*args)` under a lock that is released afterwards, wherever Ctrl-C interrupts."""
    try:
        lock.acquire()
        result = function(*args)
        lock.release()
        return result
    except BaseException:
        if lock._is_owned():  # type: ignore[attr-defined]
            lock.release()
        raise


def new_gate() -> threading.Lock:
    """A closed gate: `acquire` waits until `release` has opened it, and closes it again."""
    gate = threading.Lock()
    gate.acquire()
    return gate


def loop_time(loop: asyncio.AbstractEventLoop) -> float:
    """A loop's time in seconds, for the threads of all loops.

    uvloop's `time()` stands still while it waits for events: to another thread it may be minutes
    old. Loops that run beside others are real ones, whose time is the monotonic clock's.
    """
    running = asyncio._get_running_loop()
    return loop.time() if running is loop or running is None else monotonic_clock()
