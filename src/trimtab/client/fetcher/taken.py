"""What a reader has taken from its fetcher: which results it has begun with, and the leader epochs.

The fetcher fetches a partition again when the reader begins with its batches. The reader tells it
in steps, since each costs a wake-up of the loop: when it has begun with half of what was unread, or
has nothing left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

from trimtab.client.fetcher.plan import Batches, Fetched
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.sentinels import NO_EPOCH


class Taken:
    """Used by the reader's thread.

    Attributes:
        begun: results that the reader has begun with or dropped. The fetcher takes them from here,
            on its own thread.
    """

    def __init__(self) -> None:
        self.begun: deque[Fetched] = deque()
        self._unread: dict[int, Fetched] = {}
        self._unread_bytes = 0
        self._begun_bytes = 0
        self._epochs: dict[TopicPartition, tuple[int, list[tuple[int, int]]]] = {}

    def add_result(self, fetched: Fetched) -> None:
        """The reader has taken a result, with which it will begin later."""
        self._unread[id(fetched)] = fetched
        self._unread_bytes += _size(fetched)
        batches = fetched.result
        if not isinstance(batches, Batches):
            return
        epoch, runs = self._epochs.get(fetched.partition, (None, []))
        if epoch != fetched.epoch:
            runs = []
            self._epochs[fetched.partition] = fetched.epoch, runs
        while runs and runs[-1][0] >= batches.next_offset:
            runs.pop()  # the log was truncated, and the position with it
        for run in batches.leader_epochs:
            if not runs or run[1] != runs[-1][1]:
                runs.append(run)

    def begin_result(self, fetched: Fetched) -> None:
        """The reader begins, or goes on, with a result; or it drops the result."""
        if id(fetched) in self._unread:
            self.begun.append(fetched)
            del self._unread[id(fetched)]
            size = _size(fetched)
            self._unread_bytes -= size
            self._begun_bytes += size

    def is_due(self, is_waiting: bool = False) -> bool:
        """Whether to tell the fetcher now what was begun; assumes that it will be told.

        Args:
            is_waiting: whether the reader has nothing to read.
        """
        if not self.begun or (self._begun_bytes < self._unread_bytes and not is_waiting):
            return False
        self._begun_bytes = 0
        return True

    def leader_epoch(self, partition: TopicPartition, epoch: int, position: int) -> int:
        """The leader epoch of the record before a position; -1 if that record was not read.

        Args:
            epoch: the assignment's.
        """
        of, runs = self._epochs.get(partition, (epoch, []))
        before = bisect_left(runs, (position,)) - 1
        return runs[before][1] if of == epoch and before >= 0 else NO_EPOCH


def _size(fetched: Fetched) -> int:
    return len(fetched.result.data) if isinstance(fetched.result, Batches) else 0
