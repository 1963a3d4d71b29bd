"""For the tests of this folder: `HOGS=2` runs two processes beside them that take all that they get
of the CPU; what a module leaves unclosed is collected with the module."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest

_LIMIT_S: Final = 3600
_HOG: Final = f"""
import os, sys, time
parent, end = int(sys.argv[1]), time.monotonic() + {_LIMIT_S}
while os.getppid() == parent and time.monotonic() < end:
    pass
"""


@contextmanager
def hog() -> Iterator[int]:
    """A process that uses the CPU; it ends with this one, and after an hour. Yields its id."""
    process = subprocess.Popen([sys.executable, "-c", _HOG, str(os.getpid())])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session", autouse=True)
def hogs() -> Iterator[list[int]]:
    """The ids of the processes that load the machine."""
    with ExitStack() as running:
        yield [running.enter_context(hog()) for _ in range(int(os.environ.get("HOGS", "0")))]


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Collects what other projects' clients leave unclosed, while the filters of their own module
    are in force: in the next module the warning would be an error."""
    yield
    gc.collect()
