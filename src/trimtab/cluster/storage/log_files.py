"""Lists the files of a log's directory when it is opened, after completing or undoing deletions
and compactions that a crash has interrupted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from trimtab.cluster.storage.leader_epochs import EPOCHS_FILE
from trimtab.cluster.storage.producer_snapshots import SNAPSHOT
from trimtab.cluster.storage.segment import Segment
from trimtab.cluster.storage.storage import Storage
from trimtab.kafka.errors import CorruptData

CLEANED = ".cleaned"
"""Suffix of a segment that compaction is still writing; deleted if found."""

SWAP = ".swap"
"""Suffix of a segment that compaction has completed; it replaces the segments it was made of."""

_INT64_MAX = 2**63 - 1
_INDEXES = "index", "timeindex", "txnindex"
_LEFTOVERS = {"tmp", "deleted", CLEANED[1:], SWAP[1:]}


_log = logging.getLogger(__name__)


class LogFiles(NamedTuple):
    """A log's files: base offsets of segments and offsets of producer snapshots, both ascending,
    and whether there is a file of leader epochs."""

    base_offsets: list[int]
    snapshots: list[int]
    has_epochs: bool


def list_files(storage: Storage, directory: str, find: Callable[[int, str], Segment]) -> LogFiles:
    """List a log's files, and delete leftovers of a crash.

    Args:
        find: returns the segment with a base offset and a file name suffix.

    Raises:
        StorageError: the disk failed; the next call continues.
    """
    by_suffix: dict[str, list[str]] = {}
    for name in storage.list(directory):
        stem, _, suffix = name.rpartition(".")
        if suffix in _LEFTOVERS or name == EPOCHS_FILE or _is_offset(stem):
            by_suffix.setdefault(suffix, []).append(stem)
    logs = by_suffix.get("log", [])
    leftovers = by_suffix.keys() & _LEFTOVERS
    indexes = {stem for suffix in _INDEXES for stem in by_suffix.get(suffix, ())}
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
            for suffix in _INDEXES:
                storage.delete(f"{directory}/{stem}.{suffix}")
    return LogFiles(
        sorted(map(int, logs)),
        sorted(map(int, by_suffix.get(SNAPSHOT, ()))),
        EPOCHS_FILE in by_suffix,
    )


def _is_offset(stem: str) -> bool:
    """Whether a file's name is an offset of 20 digits; other files are ignored."""
    return len(stem) == 20 and stem.isascii() and stem.isdecimal() and int(stem) <= _INT64_MAX


def _finish_swap(stem: str, logs: list[str], find: Callable[[int, str], Segment]) -> list[str]:
    """Replaces what is left of the segments that a cleaned segment was made of.
    Returns the names of the log's segments afterwards."""
    cleaned = find(int(stem), SWAP)
    try:
        last = cleaned.last_header()
    except CorruptData as error:
        _log.warning("a segment written by compaction is damaged: %s", error)
        if stem in logs:  # the first original still exists, so all of them do
            cleaned.delete()
            return logs
        cleaned.recover(lambda header, position: None, allows_gaps=True, next_offset=None)
        last = cleaned.last_header()
    end_offset = cleaned.base_offset if last is None else last.next_offset
    old = [name for name in logs if cleaned.base_offset <= int(name) < end_offset]
    for name in old:
        find(int(name), "").delete()
    cleaned.rename("")
    cleaned.close()
    return [*(name for name in logs if name not in old), stem]
