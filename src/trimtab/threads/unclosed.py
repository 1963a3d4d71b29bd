"""Closes unclosed clients of event loops on their loop, when they are garbage-collected."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import warnings
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import cache
from threading import Event
from typing import Any

from trimtab.threads.waiting import begin_on

_log = logging.getLogger("trimtab.client")

_closing: set[asyncio.Task[Any]] = set()
"""The running tasks; a loop itself does not keep its tasks alive."""

EXIT_SECONDS = 30.0
"""How long the end of the process waits for an unclosed client."""

_exiting = Event()


def warn_unclosed(name: str, what_happens: str) -> None:
    """The ResourceWarning of a client that was not closed."""
    warnings.warn(
        f"unclosed {name}: {what_happens}; use `with`, or call close()",
        ResourceWarning,
        stacklevel=2,
    )


def close_when_collected(
    client: object,
    name: str,
    close: Callable[[], Coroutine[Any, Any, object]],
    unsent: Callable[[], int] = lambda: 0,
) -> Callable[[], object]:
    """Close a client on the running loop when it is garbage-collected, with a ResourceWarning.

    The end of the process waits for that if the loop runs in another thread. If the loop has ended
    by then, the log says how many records are lost. Without a running loop this does nothing.

    Args:
        client: the client; it is not kept alive.
        name: the client's name, for warning and log.
        close: closes it; must not refer to `client`.
        unsent: returns how many records it holds.

    Returns: a function that cancels this, to call when the client is closed.
    """
    loop = asyncio._get_running_loop()
    if loop is None:
        return lambda: None
    finalizer = weakref.finalize(client, _collected, os.getpid(), loop, name, close, unsent)
    _notice_exit()  # registered after weakref's own, so called before it
    return finalizer.detach


@cache
def _notice_exit() -> None:
    atexit.register(_exiting.set)


def _collected(
    pid: int,
    loop: asyncio.AbstractEventLoop,
    name: str,
    close: Callable[[], Coroutine[Any, Any, object]],
    unsent: Callable[[], int],
) -> None:
    # Takes no lock: any thread may run this, and may already hold the lock.
    if pid != os.getpid():
        return
    if asyncio._get_running_loop() is loop:
        _begin(loop, close)  # at once: asyncio.run waits for tasks that have begun when it ends
        warn_unclosed(name, "it is closed in the background")
        return
    lost = f": {records} records are lost" if (records := unsent()) else ""
    try:
        if not loop.is_running():
            loop.call_soon_threadsafe(_begin, loop, close)
            what = f"its event loop does not run{lost} unless it runs again"
        elif _exiting.is_set():
            closed: Future[object] = Future()
            begin_on(loop, close, closed)
            closed.result(EXIT_SECONDS)
            what, lost = "it was closed at the end of the process", ""
        else:
            loop.call_soon_threadsafe(_begin, loop, close)
            what, lost = "it is closed in the background", ""
    except (TimeoutError, CancelledError):
        what = f"it was not closed within {EXIT_SECONDS:g} s{lost}"
    except RuntimeError:
        what = f"its event loop is closed{lost}"
    if lost:
        _log.warning("%s was never closed, and %s", name, what)
    warn_unclosed(name, what)


def _begin(
    loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    task = loop.create_task(close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
