"""How threads wait for what an event loop does: heard by Ctrl-C, and never for ever."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from collections.abc import Callable
from math import inf
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar

from trimtab.errors import UsageError
from trimtab.runtime.clock import monotonic_clock

T = TypeVar("T")

_LISTEN_S = 0.1
"""How long a thread waits without hearing a signal, at most."""


def refuse_waiting(loop: asyncio.AbstractEventLoop | None) -> None:
    """Refuse to wait for what this loop does, where it would never be done.

    Raises:
        UsageError: the caller is on the loop, or in a function given to `never_wait_in`; says how
            it can be done.
    """
    try:
        is_on_loop = loop is not None and asyncio.get_running_loop() is loop
    except RuntimeError:
        is_on_loop = False
    if is_on_loop:
        raise UsageError(
            "waiting here would stop the event loop that the client itself runs on, and so never"
            " end: in a coroutine `await` it; from a delivery callback, where it would stop every"
            " client of this process, hand it to another thread, by a queue or an executor"
        )
    if _is_below(_waitless):
        raise UsageError(
            "a partitioner is called while its producer is locked: waiting there would stop every"
            " client of this process for ever. Find out before, or on another thread, what the"
            " partitioner needs to know"
        )


_waitless: set[CodeType] = set()


def never_wait_in(function: Callable[..., object]) -> None:
    """Have `refuse_waiting` refuse what this function, or what it calls, wants to wait for."""
    assert isinstance(function, FunctionType)
    _waitless.add(function.__code__)


def _is_below(codes: set[CodeType]) -> bool:
    # Asked of the stack by who is about to wait, so that who is never about to pays nothing.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def wait_for(
    future: concurrent.futures.Future[T],
    timeout: float | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
) -> T:
    """A future's result, on a thread that is to hear Ctrl-C meanwhile.

    Python runs signal handlers between two instructions. A signal that arrives after the last one,
    but before the thread sleeps, is not seen until the sleep is over: so no sleep is long.

    Args:
        timeout: seconds to wait at most; None waits as long as it takes.
        loop: what ends it, if that is known.

    Raises:
        TimeoutError: no result within `timeout`; or whatever the future ended with.
        UsageError: the caller must not wait (see `refuse_waiting`), or the loop has ended.
    """
    if not future.done():
        refuse_waiting(loop)
        _refuse_dead(loop, timeout)
    end = inf if timeout is None else monotonic_clock() + timeout
    while True:
        try:
            return future.result(max(0.0, min(_LISTEN_S, end - monotonic_clock())))
        except TimeoutError:
            if future.done():
                return future.result()  # It may be the future's own, or there just now.
            if monotonic_clock() >= end:
                raise
            if loop is not None and loop.is_closed() and not future.done():
                _refuse_dead(loop, timeout)


def _refuse_dead(loop: asyncio.AbstractEventLoop | None, timeout: float | None) -> None:
    """Refuse to wait for ever for a loop that does nothing any more."""
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

    A partitioner, which is called under it, may ask its own producer.
    """
    return threading.RLock()


def guarded(lock: threading.RLock, function: Callable[..., T], *args: object) -> T:
    """`function(*args)` under a lock that is free afterwards, wherever Ctrl-C strikes."""
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
