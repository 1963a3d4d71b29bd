"""What was sent, what its sender was told, and what the logs hold: whether the three agree."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.records import Record, RecordMetadata

RecordId = tuple[int, int]
"""Which task or thread sent it, and which of its records it is."""


@dataclass
class Tally:
    """A run's records, counted; several runs' are added.

    Attributes:
        unanswered: deliveries without an outcome.
        told_again: outcomes told more than once.
        late: outcomes told after `delivery.timeout.ms`.
        lost: acknowledged, and not in the log where that says.
        doubled: in the logs more than once.
        disordered: in a log behind one that the same task sent later.
    """

    runs: int = 0
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    stored: int = 0
    unanswered: int = 0
    told_again: int = 0
    late: int = 0
    lost: int = 0
    doubled: int = 0
    disordered: int = 0

    def add(self, other: Tally) -> None:
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}".replace("_", " ") for name, count in vars(self).items())


@dataclass
class Ledger:
    """Of one run.

    Args:
        now: seconds.
        longest: seconds within which each outcome is due.
    """

    now: Callable[[], float]
    longest: float
    sent_at: dict[RecordId, float] = field(default_factory=dict)
    outcomes: dict[RecordId, RecordMetadata | Exception] = field(default_factory=dict)
    told_again: list[RecordId] = field(default_factory=list)
    late: list[RecordId] = field(default_factory=list)

    def expect(self, record: RecordId) -> Callable[[Delivery], None]:
        """A record is about to be sent; returns what is to be called with its delivery."""
        self.sent_at[record] = math.inf
        return partial(self._note, record)

    def took(self, record: RecordId) -> None:
        """`send` has returned: from here on its time counts."""
        self.sent_at[record] = self.now()

    def _note(self, record: RecordId, delivery: Delivery) -> None:
        if record in self.outcomes:
            self.told_again.append(record)
        if self.now() > self.sent_at[record] + self.longest:
            self.late.append(record)
        self.outcomes[record] = delivery.exception() or delivery.result()

    def tally(self, stored: Mapping[tuple[int, int], RecordId]) -> Tally:
        """Compare with the logs: the record at each partition and offset."""
        acknowledged = {
            record: outcome
            for record, outcome in self.outcomes.items()
            if isinstance(outcome, RecordMetadata)
        }
        return Tally(
            runs=1,
            sent=len(self.sent_at),
            acknowledged=len(acknowledged),
            failed=len(self.outcomes) - len(acknowledged),
            stored=len(stored),
            unanswered=len(self.sent_at) - len(self.outcomes),
            told_again=len(self.told_again),
            late=len(self.late),
            lost=sum(
                stored.get((told.partition, told.offset)) != record
                for record, told in acknowledged.items()
            ),
            doubled=sum(times > 1 for times in Counter(stored.values()).values()),
            disordered=sum(1 for _ in _disordered(stored)),
        )


def write_value(record: RecordId, padding: bytes) -> bytes:
    return b"%d %d " % record + padding


def read_value(record: Record) -> RecordId:
    task, number, _ = (record.value or b"").split(b" ", 2)
    return int(task), int(number)


def _disordered(stored: Mapping[tuple[int, int], RecordId]) -> Iterable[RecordId]:
    last: dict[tuple[int, int], int] = {}
    for partition, offset in sorted(stored):
        task, number = stored[partition, offset]
        if number <= last.get((partition, task), -1):
            yield task, number
        last[partition, task] = number
