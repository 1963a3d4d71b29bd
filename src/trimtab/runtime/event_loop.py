"""Which event loop the real world runs on."""

from __future__ import annotations

import asyncio

# Loops import it on first use, which fails once the main thread has ended.
import concurrent.futures.thread  # noqa: F401


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new uvloop loop, or asyncio's own where uvloop cannot be imported; the caller closes it.

    uvloop's `time()` stands still within one turn of the loop and counts whole milliseconds.
    """
    try:
        import uvloop
    except ImportError:  # No wheel and no compiler: slower, and otherwise the same.
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
