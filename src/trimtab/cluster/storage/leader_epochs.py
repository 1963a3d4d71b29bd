"""The leader epochs of a log and their start offsets (Kafka's `LeaderEpochFileCache`).

The file is written without fsync, and only with an epoch's first record: an epoch without a record
is gone when the log is reopened, as in Kafka. So the file may be torn or out of date; if it
contradicts the log's batches, the batches win.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from trimtab.cluster.storage.storage import Storage
from trimtab.kafka.wire.batch_cy import BatchHeader
from trimtab.kafka.wire.sentinels import NO_EPOCH, NO_OFFSET

EPOCHS_FILE = "leader-epoch-checkpoint"

_log = logging.getLogger(__name__)


class LeaderEpoch(NamedTuple):
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """A leader epoch and its end offset (exclusive); -1 and -1 if unknown."""

    epoch: int
    end_offset: int


UNKNOWN_EPOCH_END = EpochEnd(NO_EPOCH, NO_OFFSET)


class LeaderEpochs:
    """A log's leader epochs, ascending, and the file that holds them.

    Attributes:
        has_changed: the epochs differ from the file.
        entries: the epochs; the last one is current.
        is_confirmed: the file had the epoch of the log's last batch when it was opened. No CRC
            covers a batch's leader epoch.
    """

    __slots__ = ("_directory", "_storage", "entries", "has_changed", "is_confirmed")

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        self.entries: list[LeaderEpoch] = []
        self.has_changed = False
        self.is_confirmed = True

    @property
    def latest(self) -> int:
        """The epoch that began last; -1 if none has."""
        return self.entries[-1].epoch if self.entries else -1

    def end_of(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """The end offset of an epoch.

        If no record has that epoch, the result is for the largest epoch below it. An epoch that has
        not begun is unknown.
        """
        entries = self.entries
        if not entries or epoch < 0 or epoch > entries[-1].epoch:
            return UNKNOWN_EPOCH_END
        if epoch == entries[-1].epoch:
            return EpochEnd(epoch, log_end_offset)
        later = bisect_right(entries, epoch, key=_epoch_of)
        return EpochEnd(entries[later - 1].epoch if later else epoch, entries[later].start_offset)

    def begin_leader_epoch(self, epoch: int, offset: int) -> None:
        """Begins an epoch at an offset, unless it is the latest already.

        Entries with the same or a higher epoch or offset are removed, as in
        `LeaderEpochFileCache.assign`: they began here but got no record.
        """
        entries = self.entries
        if entries and entries[-1].epoch == epoch:
            return
        while entries and (entries[-1].start_offset >= offset or entries[-1].epoch >= epoch):
            entries.pop()
        entries.append(LeaderEpoch(epoch, offset))
        self.has_changed = True

    def forget_from(self, offset: int) -> None:
        """Removes the epochs that begin at `offset`, the log's new end, or later."""
        while self.entries and self.entries[-1].start_offset >= offset:
            self.entries.pop()
            self.has_changed = True

    def forget_before(self, offset: int) -> None:
        """Removes the epochs that end at `offset`, the log's new start, or before. The first
        remaining epoch then begins there."""
        entries = self.entries
        while len(entries) > 1 and entries[1].start_offset <= offset:
            entries.pop(0)
        if entries and entries[0].start_offset < offset:
            entries[0] = entries[0]._replace(start_offset=offset)
            self.has_changed = True

    def forget_after(self, epoch: int) -> None:
        """Removes the epochs above `epoch`; their batches count as written in an earlier epoch."""
        while self.entries and self.entries[-1].epoch > epoch:
            self.entries.pop()
            self.has_changed = True

    def load(self) -> None:
        """Reads the file. A damaged file counts as empty; then `check_last_batch` rebuilds the
        epochs.

        Raises:
            StorageError: the disk failed.
        """
        content = self._storage.read_file(self._path) or b""
        try:
            _, count, *lines, end = content.decode("ascii").split("\n")
            pairs = [line.split() for line in lines]
            if end or int(count) != len(pairs):
                raise ValueError("cut short")
            entries = [LeaderEpoch(int(epoch), int(start)) for epoch, start in pairs]
            if not _are_ascending(entries):
                raise ValueError(f"{entries} do not rise")
            self.entries = entries
        except ValueError as error:
            _log.warning("%s is damaged and will be rebuilt from batches: %s", self._path, error)
            self.entries = []

    def check_last_batch(self, last: BatchHeader | None, headers: Iterable[BatchHeader]) -> None:
        """Rebuilds the epochs from all batches if the last batch contradicts the file.

        Args:
            last: the last batch's header, None if there is none.
            headers: the headers of all batches; not read if the file is right.
        """
        known = self.entries[-1].epoch if self.entries else None
        if last is not None and known != last.leader_epoch >= 0:
            self.is_confirmed = False
            self.entries = []
            for header in headers:
                # A batch whose epoch is beyond that of the last one is damaged.
                if self.latest < header.leader_epoch <= last.leader_epoch:
                    self.entries.append(LeaderEpoch(header.leader_epoch, header.base_offset))
            self.has_changed = True

    def save(self) -> None:
        """Writes the file.

        Raises:
            StorageError: the disk failed; the epochs still count as changed.
        """
        lines = ["0", str(len(self.entries))]
        lines += [f"{epoch} {start_offset}" for epoch, start_offset in self.entries]
        content = "\n".join([*lines, ""]).encode("ascii")
        self._storage.write_file(self._path, content, durable=False)
        self.has_changed = False

    @property
    def _path(self) -> str:
        return f"{self._directory}/{EPOCHS_FILE}"


def _are_ascending(entries: Sequence[LeaderEpoch]) -> bool:
    """Whether epochs and offsets are in range and strictly rise."""
    return all(
        0 <= entry.epoch < 2**31 and 0 <= entry.start_offset < 2**63 for entry in entries
    ) and all(
        before.epoch < after.epoch and before.start_offset < after.start_offset
        for before, after in pairwise(entries)
    )


def _epoch_of(entry: LeaderEpoch) -> int:
    return entry.epoch
