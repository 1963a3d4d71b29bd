"""Creates the event loop of real processes."""

from __future__ import annotations

import asyncio

# Imported early: loops import it at first use, which fails once the main thread has ended.
import concurrent.futures.thread  # noqa: F401


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new uvloop loop, or asyncio's own if uvloop cannot be imported; the caller closes it.

    uvloop's `time()` does not change within one iteration of the loop, and has millisecond steps.
    """
    try:
        import uvloop
    except ImportError:  # neither wheel nor compiler: asyncio's is only slower
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
