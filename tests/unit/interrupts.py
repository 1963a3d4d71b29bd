"""Ctrl-C, placed by tracing: before any line, or any instruction, that a call runs; or while it
waits.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


def interrupt_at(
    step: int,
    call: Callable[[], object],
    is_target: Callable[[CodeType], bool],
    by_opcode: bool = False,
    handler: Callable[[str], object] | None = None,
) -> str | None:
    """Make a call, and raise KeyboardInterrupt before the `step`-th line that it runs.

    Args:
        step: from 1.
        is_target: whether the lines of this code count.
        by_opcode: counts instructions instead.
        handler: what is called there instead, with the place, as a signal's handler is.

    Returns: where it was raised; None if the call ended before.
    """
    seen = 0
    place: str | None = None

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal seen, place
        if not is_target(frame.f_code):
            return None
        frame.f_trace_opcodes = by_opcode
        if event == ("opcode" if by_opcode else "line"):
            seen += 1
            if seen == step:
                place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                if handler is None:
                    raise KeyboardInterrupt(place)
                handler(place)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt as error:
        if place is None or error.args != (place,):
            raise
    finally:
        sys.settrace(before)
    return place


def interrupt_when(condition: Callable[[], bool], done: Callable[[], object]) -> threading.Thread:
    """Calls `done` from another thread as soon as `condition` holds."""

    def watch() -> None:
        gate = threading.Event()
        while not condition():
            gate.wait(0.001)
        done()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def press_ctrl_c() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def is_waiting() -> bool:
    """Whether the main thread waits for a loop."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    while frame is not None and frame.f_code.co_name != "wait_for":
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None
