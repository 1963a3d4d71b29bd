"""Compares the records sent, the outcomes reported to their sender, and the records in the logs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.kafka.records import Record, RecordMetadata

RecordId = tuple[int, int]
"""Number of the task or thread that sent the record, and of the record among those it sent."""


@dataclass
class Tally:
    """Counts of a run's records; the counts of several runs can be added.

    Attributes:
        unanswered: deliveries without an outcome.
        reported_twice: outcomes reported a second time.
        late: outcomes reported after `delivery.timeout.ms`.
        lost: acknowledged records that are not at their offset in the log.
        doubled: records that are in the logs more than once.
        disordered: records behind one that the same task sent later.
    """

    runs: int = 0
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    stored: int = 0
    unanswered: int = 0
    reported_twice: int = 0
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
    """The records of one run, with the time and outcome of each.

    Args:
        now: the clock, in seconds.
        longest: seconds within which each outcome must be reported.
    """

    now: Callable[[], float]
    longest: float
    sent_at: dict[RecordId, float] = field(default_factory=dict)
    outcomes: dict[RecordId, RecordMetadata | Exception] = field(default_factory=dict)
    reported_twice: list[RecordId] = field(default_factory=list)
    late: list[RecordId] = field(default_factory=list)

    def expect(self, record: RecordId) -> Callable[[Delivery], None]:
        """Note a record before it is sent; returns the callback for its delivery."""
        self.sent_at[record] = math.inf
        return partial(self._note, record)

    def note_sent(self, record: RecordId) -> None:
        """Note that `send` has returned: the record's time starts now."""
        self.sent_at[record] = self.now()

    def _note(self, record: RecordId, delivery: Delivery) -> None:
        if record in self.outcomes:
            self.reported_twice.append(record)
        if self.now() > self.sent_at[record] + self.longest:
            self.late.append(record)
        self.outcomes[record] = delivery.exception() or delivery.result()

    def tally(self, stored: Mapping[tuple[int, int], RecordId]) -> Tally:
        """Compare with the logs; `stored` has the record at each partition and offset."""
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
            reported_twice=len(self.reported_twice),
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
