"""Divides a process's file descriptors between files and connections.

A quarter is for files, because a file that was closed can be opened again and a refused connection
fails its client. There is no fixed maximum: a broker that writes to more partitions in turn than it
keeps files open opens and closes a file for each append. Kafka keeps all files of its logs open.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import NamedTuple

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
    return share(_present_limit())


def files_per_storage(storages: int) -> int:
    """The open files of each of `storages` in a process that has other work as well.

    The process's limit is left as it is: in a process that uses `select`, which takes no descriptor
    above 1023, it must not be raised.
    """
    return max(_LEAST, share(_present_limit()).files // storages)


def share(limit: int) -> Descriptors:
    """Divide `limit` descriptors."""
    files = max(_LEAST, limit // 4)
    return Descriptors(files, max(_LEAST, limit - files - _OWN))


def _present_limit() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _LIMITLESS if limit == resource.RLIM_INFINITY else limit
