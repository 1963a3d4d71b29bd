"""Divides a process's file descriptors between files and connections."""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import NamedTuple

_MOST_FILES = 512
_OWN = 64
"""Descriptors for connections to other nodes, the log, and a flush in each thread."""
_LEAST = 8
_LIMITLESS = 1 << 30


class Descriptors(NamedTuple):
    """The largest numbers of open files and of connections."""

    files: int
    connections: int


def share_out_descriptors() -> Descriptors:
    """Raise this process's limit on open files as far as possible without privileges, as Java does,
    and divide it, so that neither files nor connections can use up all descriptors."""
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != hard:
        with suppress(OSError, ValueError):  # macOS has a lower one beside it
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return share(_LIMITLESS if limit == resource.RLIM_INFINITY else limit)


def share(limit: int) -> Descriptors:
    """Divide `limit` descriptors."""
    files = max(_LEAST, min(_MOST_FILES, limit // 4))
    return Descriptors(files, max(_LEAST, limit - files - _OWN))
