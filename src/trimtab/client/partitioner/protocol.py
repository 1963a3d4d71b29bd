"""What partitioners decide from, and their interfaces.

A *per-record* partitioner chooses a partition for each record. A *turn-taking* partitioner chooses
one for a turn, a run of records: KIP-480's until a new batch is needed, KIP-794's until
`batch.size` bytes were produced. A turn-taking partitioner is not asked about records with keys,
whose partition is `murmur2(key)`, unless keys are ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from trimtab.client.topic_view import TopicView


class NodeLoad(Protocol):
    """The load that this producer puts on one broker, live. Times are in seconds.

    Attributes:
        requests: Produce requests that it has not answered.
        moved_at: loop time of its last answer, or of sending the first of these requests if that
            was later; -1 before the first.
        alone: how long its answer takes to a request sent while none was open; 0 while unknown.
        behind: the time between two answers if requests were open at once; 0 while unknown.
        drain_rate: bytes per second that it acknowledges while busy; 0 while unknown.
        not_ready_since: loop time since which it accepts no batches; -1 while it accepts them.
    """

    @property
    def node_id(self) -> int: ...
    @property
    def queued_batches(self) -> int: ...
    @property
    def queued_bytes(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def moved_at(self) -> float: ...
    @property
    def alone(self) -> float: ...
    @property
    def behind(self) -> float: ...
    @property
    def drain_rate(self) -> float: ...
    @property
    def not_ready_since(self) -> float: ...


SILENT = 2.0
"""A broker is silent if it owes an answer for this many of its usual answer times."""

SHORTEST = 0.001
"""Seconds that an answer time counts as in this, at least."""


def silent_after(node: NodeLoad) -> float:
    """Seconds without an answer, while it owes one, after which a broker is silent."""
    return SILENT * max(node.alone, node.behind, SHORTEST)


class TopicLoad(Protocol):
    """The waiting batches of one topic, live: every method returns the current value in O(1)."""

    def queued_batches(self, partition: int) -> int:
        """Batches that wait to be sent, the open one included; those in flight are not."""

    def queued_bytes(self, partition: int) -> int: ...

    def chosen_bytes(self, partition: int) -> int:
        """Bytes that the partitioner assigned to it so far, in the expected compressed size."""

    def take_resized(self) -> Collection[int]:
        """The partitions whose `queued_batches` may have changed since this was last called."""

    def used(self) -> Collection[int]:
        """The partitions that have had a batch (for `java.py`)."""

    def node(self, partition: int) -> NodeLoad | None:
        """The partition's leader; None if it has none."""

    def unavailable(self) -> frozenset[int]:
        """Node ids of leaders that accepted no batch for `partitioner.availability.timeout.ms`."""

    def now(self) -> float:
        """Loop time in seconds."""


class Weight(NamedTuple):
    """A partition's prospects of the next turn.

    Attributes:
        probability: 0 to 1.
        excluded: why it cannot be chosen; None if it can.
        expected: seconds until a turn given to its leader now would be acknowledged; None if the
            partitioner does not estimate that.
        behind: bytes that it is behind its share, negative if it is ahead; None likewise.
    """

    probability: float
    excluded: str | None = None
    expected: float | None = None
    behind: float | None = None


class TurnPartitioner(Protocol):
    """Chooses a partition for a turn of many records.

    Attributes:
        turns_by_batch: whether a turn ends when a new batch is needed, not after some bytes.
        follows_load: whether `may_stay` is also called when a request was sent or answered.
    """

    @property
    def turns_by_batch(self) -> bool: ...
    @property
    def follows_load(self) -> bool: ...

    def next_turn(
        self, view: TopicView, previous: int, overshoot: int, load: TopicLoad
    ) -> tuple[int, int]:
        """The partition of the next turn.

        Args:
            previous: the partition whose turn ends, -1 before the first turn.
            overshoot: bytes by which its turn exceeded the quantum, counting the bytes that were
                used up at its beginning; 0 if it did not exceed it.

        Returns: the partition, and how many bytes of its quantum are already used up.
        """

    def may_stay(self, view: TopicView, partition: int, load: TopicLoad) -> bool:
        """Whether the current turn may go on; if not, the next record begins another. In O(1).

        Called before a record of the turn is appended if `view`, `load.unavailable()` or, with
        `follows_load`, the requests in flight have changed since the turn began or the last call,
        and when the turn would go on in a new batch.
        """

    def weigh(self, view: TopicView, load: TopicLoad) -> Mapping[int, Weight]:
        """Every partition's probability of the next turn now, in O(partitions)."""


class ObservingPartitioner(TurnPartitioner, Protocol):
    """Decides by the load at the last `observe`, as Apache Kafka's producer does."""

    def observe(self, view: TopicView, load: TopicLoad) -> None:
        """Store the load; called in each pass of the sender."""


class PerRecordPartitioner(Protocol):
    """Chooses a partition for each record, with or without key."""

    def partition(self, view: TopicView, key: bytes | None, value: bytes | None) -> int: ...


class NewBatchPartitioner(PerRecordPartitioner, Protocol):
    """Is informed of new batches (KIP-480, deprecated by KIP-794)."""

    def on_new_batch(self, view: TopicView, previous: int) -> None:
        """A record needs a new batch in partition `previous`; `partition` is called again for it.

        Also called for records with a given partition, for which `partition` is not called.
        """


Partitioner: TypeAlias = TurnPartitioner | PerRecordPartitioner
