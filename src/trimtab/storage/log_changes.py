"""Which logs have changed since their checkpoints were written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.storage.log import Log


class LogChanges:
    """Which logs have changed since somebody looked, so that nobody has to ask them all.

    Attributes:
        checkpoints: those whose recovery point or start may have moved, or that have been rolled.
        high_watermarks: those whose high watermark has moved.
        unflushed: those that wait for `flush.ms`.
        begun: called with a log before its first file is written.
        withdrawn: called with a log and the offset to which its end is about to move back. No
            checkpoint on disk may say more afterwards.
        distrusted: called when a log has failed.
    """

    __slots__ = ("begun", "checkpoints", "distrusted", "high_watermarks", "unflushed", "withdrawn")

    def __init__(
        self,
        begun: Callable[[Log], None] = lambda log: None,
        withdrawn: Callable[[Log, int], None] = lambda log, offset: None,
        distrusted: Callable[[], None] = lambda: None,
    ) -> None:
        # Not sets: what is done to the logs is done in the same order in every run.
        self.checkpoints: dict[Log, None] = {}
        self.high_watermarks: dict[Log, None] = {}
        self.unflushed: dict[Log, None] = {}
        self.begun = begun
        self.withdrawn = withdrawn
        self.distrusted = distrusted

    def forget(self, log: Log) -> None:
        for changed in (self.checkpoints, self.high_watermarks, self.unflushed):
            changed.pop(log, None)
