"""Which logs have changed since their checkpoints were written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

L = TypeVar("L")


class LogChanges(Generic[L]):
    """The logs that have changed since the last checkpoint, so that a checkpoint need not visit
    all logs.

    Attributes:
        checkpoints: logs whose recovery point or log start offset may have moved, or that have
            rolled a segment.
        high_watermarks: logs whose high watermark has moved.
        unflushed: logs that wait for `flush.ms`.
        before_first_file: called with a log before its first file is written.
        before_truncation: called with a log and an offset before the log is truncated to it.
            Afterwards no checkpoint on disk may be above that offset.
        on_loss: called when a log has failed, or has lost records.
    """

    def __init__(
        self,
        before_first_file: Callable[[L], None] = lambda log: None,
        before_truncation: Callable[[L, int], None] = lambda log, offset: None,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        # Dicts, not sets: their order is the same in every run of the simulation.
        self.checkpoints: dict[L, None] = {}
        self.high_watermarks: dict[L, None] = {}
        self.unflushed: dict[L, None] = {}
        self.before_first_file = before_first_file
        self.before_truncation = before_truncation
        self.on_loss = on_loss

    def forget(self, log: L) -> None:
        for changed in (self.checkpoints, self.high_watermarks, self.unflushed):
            changed.pop(log, None)
