"""Changes of a consumer's partitions: the membership asks for them, the next poll carries them out.

    loop:   membership ── offer(change) ──▶ waits ─────────────────────▶ goes on
    poll:                     change ──▶ commit, listener, assign ── carried_out()

So a rebalance listener runs where the application polls, and the group gives a partition to another
member only after this member's application has let go of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from trimtab.kafka.records import TopicPartition


class Kind(Enum):
    """How the partitions of a consumer change (KIP-429)."""

    ASSIGNED = "assigned"
    REVOKED = "revoked"
    """Another member gets them after this one has let go of them."""
    LOST = "lost"
    """Other members may have all partitions already: nothing can be committed any more."""


class Change(NamedTuple):
    """Partitions that the consumer begins, or ceases, to read."""

    kind: Kind
    partitions: frozenset[TopicPartition]


class Handover:
    """Between a membership, on the event loop, and the poll of the application, on any thread.

    Attributes:
        on_due: called on the loop when there is something for a poll that waits for records.
        change: the change that the next poll has to carry out; None if there is none.
        write_rates: returns bytes/s by partition, as far as the consumer knows, at the loop's time.
        owned: the partitions that the application reads.
        releases: by partition, how often the application has let go of it.
        failure: why the membership has ended; every poll raises it.
        is_polled: set by each poll.
    """

    def __init__(self) -> None:
        self.on_due: Callable[[], object] = lambda: None
        self.write_rates: Callable[[float], Mapping[TopicPartition, float]] = lambda now: {}
        self.change: Change | None = None
        self.owned: frozenset[TopicPartition] = frozenset()
        self.releases: Counter[TopicPartition] = Counter()
        self.failure: BaseException | None = None
        self.is_polled = False
        self._polled_at = 0.0
        self._carried_out: asyncio.Future[None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether a poll has something to do before it reads."""
        return self.change is not None or self.failure is not None

    def seconds_without_poll(self, now: float) -> float:
        """Time since the last poll; `now` is the loop's time. As exact as calls are frequent."""
        if self.is_polled:
            self.is_polled = False
            self._polled_at = now
        return now - self._polled_at

    async def offer(self, change: Change) -> None:
        """Have the next poll carry out a change, and return after it has."""
        self._carried_out = asyncio.get_running_loop().create_future()
        self.change = change
        self.on_due()
        try:
            await self._carried_out
        finally:
            self.change = self._carried_out = None

    def carried_out(self, change: Change) -> None:
        """A poll has carried out a change, perhaps one that was withdrawn meanwhile because the
        membership has ended. Called on the loop."""
        self.is_polled = True
        if change.kind is Kind.ASSIGNED:
            self.owned |= change.partitions
        elif change.kind is Kind.REVOKED:
            self.owned -= change.partitions
            self.releases.update(change.partitions)
        else:
            self.releases.update(self.owned)
            self.owned = frozenset()
        if change is self.change and self._carried_out is not None:
            self.change = None
            if not self._carried_out.done():
                self._carried_out.set_result(None)

    def fail(self, error: BaseException) -> None:
        """The membership has ended with an error, which every further poll raises."""
        self.failure = error
        self.on_due()

    def reset(self) -> None:
        """The consumer has left the group."""
        self.owned = frozenset()
        self.failure = None
