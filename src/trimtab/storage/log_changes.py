"""Which logs have changed since their checkpoints were written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.storage.log import Log


class LogChanges:
    """The logs that have changed since the last checkpoint, so that a checkpoint need not visit
    all logs.

    Attributes:
        checkpoints: logs whose recovery point or log start offset may have moved, or that have
            rolled a segment.
        high_watermarks: logs whose high watermark has moved.
        unflushed: logs that wait for `flush.ms`.
        begun: called with a log before its first file is written.
        withdrawn: called with a log and an offset before the log is truncated to it. Afterwards no
            checkpoint on disk may be above that offset.
        distrusted: called when a log has failed, or has lost records.
    """

    __slots__ = ("begun", "checkpoints", "distrusted", "high_watermarks", "unflushed", "withdrawn")

    def __init__(
        self,
        begun: Callable[[Log], None] = lambda log: None,
        withdrawn: Callable[[Log, int], None] = lambda log, offset: None,
        distrusted: Callable[[], None] = lambda: None,
    ) -> None:
        # Dicts, not sets: their order is the same in every run of the simulation.
        self.checkpoints: dict[Log, None] = {}
        self.high_watermarks: dict[Log, None] = {}
        self.unflushed: dict[Log, None] = {}
        self.begun = begun
        self.withdrawn = withdrawn
        self.distrusted = distrusted

    def forget(self, log: Log) -> None:
        for changed in (self.checkpoints, self.high_watermarks, self.unflushed):
            changed.pop(log, None)
