"""trimtab's cache directory, for files that it can download or create again."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/trimtab`, else `~/.cache/trimtab`; created if it does not exist.

    If it is not writable (no home directory, or a read-only one), a temporary directory, which is
    deleted when this process ends.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(root) / "trimtab"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _private_directory()
    return directory if os.access(directory, os.W_OK | os.X_OK) else _private_directory()


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that a reader sees either all of it or none of it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@functools.cache
def _private_directory() -> Path:
    # No predictable name under /tmp: others can write to /tmp, and scripts in here are executed.
    directory = tempfile.mkdtemp(prefix="trimtab-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)
