"""The files of a log's directory when it is opened: what a crash has interrupted is finished, or
undone, before anybody reads them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from trimtab.errors import CorruptData
from trimtab.storage.leader_epochs import EPOCHS_FILE
from trimtab.storage.producer_snapshots import SNAPSHOT
from trimtab.storage.segment import Segment
from trimtab.storage.storage import Storage

CLEANED = ".cleaned"
"""After the names of a segment that compaction is writing: nothing, if found."""

SWAP = ".swap"
"""After the names of one that is complete: it takes the place of those that it was made of."""

_INT64_MAX = 2**63 - 1
_LEFTOVERS = {"tmp", "deleted", CLEANED[1:], SWAP[1:]}


_log = logging.getLogger(__name__)


class LogFiles(NamedTuple):
    """What is there: segments by base offset, producer snapshots by offset (both ascending), and
    whether there is a file of leader epochs."""

    base_offsets: list[int]
    snapshots: list[int]
    has_epochs: bool


def list_files(storage: Storage, directory: str, find: Callable[[int, str], Segment]) -> LogFiles:
    """What a log is made of; what is left over is deleted.

    Args:
        find: the segment with a base offset and a suffix after its files' names.

    Raises:
        StorageError: the disk failed; the next call goes on.
    """
    by_suffix: dict[str, list[str]] = {}
    for name in storage.list(directory):
        stem, _, suffix = name.rpartition(".")
        if suffix in _LEFTOVERS or name == EPOCHS_FILE or _is_offset(stem):
            by_suffix.setdefault(suffix, []).append(stem)
    logs = by_suffix.get("log", [])
    leftovers = by_suffix.keys() & _LEFTOVERS
    indexes = {*by_suffix.get("index", ()), *by_suffix.get("timeindex", ())}
    if leftovers or not indexes <= {*logs}:
        for swap in sorted(by_suffix.get(SWAP[1:], ())):
            if swap.endswith(".log"):
                stem = swap.removesuffix(".log")
                if _is_offset(stem):
                    logs = _finish_swap(stem, logs, find)
        for suffix in sorted(leftovers):
            for stem in by_suffix[suffix]:
                storage.delete(f"{directory}/{stem}.{suffix}")
        for stem in sorted(indexes.difference(logs)):
            for suffix in ("index", "timeindex"):
                storage.delete(f"{directory}/{stem}.{suffix}")
    return LogFiles(
        sorted(map(int, logs)),
        sorted(map(int, by_suffix.get(SNAPSHOT, ()))),
        EPOCHS_FILE in by_suffix,
    )


def _is_offset(stem: str) -> bool:
    """Whether a file's name is an offset as we write it; others are not ours."""
    return len(stem) == 20 and stem.isascii() and stem.isdecimal() and int(stem) <= _INT64_MAX


def _finish_swap(stem: str, logs: list[str], find: Callable[[int, str], Segment]) -> list[str]:
    """Puts a cleaned segment in the place of what is left of those that it was made of.
    Returns the names of the segments there are then."""
    cleaned = find(int(stem), SWAP)
    try:
        last = cleaned.last_header()
    except CorruptData as error:
        _log.warning("what compaction had written is damaged: %s", error)
        if stem in logs:  # the first of those that it was made of: so all of them are there
            cleaned.delete()
            return logs
        cleaned.recover(lambda header: None, allows_gaps=True, next_offset=None)
        last = cleaned.last_header()
    end_offset = cleaned.base_offset if last is None else last.next_offset
    old = [name for name in logs if cleaned.base_offset <= int(name) < end_offset]
    for name in old:
        find(int(name), "").delete()
    cleaned.rename("")
    cleaned.close()
    return [*(name for name in logs if name not in old), stem]
