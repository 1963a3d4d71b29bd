"""Calls in a forked process."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(check: Callable[[], object]) -> str:
    """What a check in a forked child returns or raises; it comes back through a pipe."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(check())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write_end, text.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text
