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
        latency: from sending a Produce request to its response, a moving average; 0 while unknown.
        drain_rate: bytes per second that it acknowledges while busy; 0 while unknown.
        not_ready_since: loop time since which it accepts no batches; -1 while it accepts them.
        last_acknowledged: loop time of its last response.
    """

    @property
    def node_id(self) -> int: ...
    @property
    def queued_batches(self) -> int: ...
    @property
    def queued_bytes(self) -> int: ...
    @property
    def in_flight_batches(self) -> int: ...
    @property
    def in_flight_bytes(self) -> int: ...
    @property
    def latency(self) -> float: ...
    @property
    def drain_rate(self) -> float: ...
    @property
    def not_ready_since(self) -> float: ...
    @property
    def last_acknowledged(self) -> float: ...


class TopicLoad(Protocol):
    """The waiting batches of one topic, live: every method returns the current value in O(1)."""

    def queued_batches(self, partition: int) -> int:
        """Batches that wait to be sent, the open one included; those in flight are not."""

    def queued_bytes(self, partition: int) -> int: ...

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
    """A partition's probability of the next turn, 0 to 1, and why it is excluded (else None)."""

    probability: float
    excluded: str | None = None


class TurnPartitioner(Protocol):
    """Chooses a partition for a turn of many records.

    Attributes:
        turns_by_batch: whether a turn ends when a new batch is needed, not after some bytes.
    """

    @property
    def turns_by_batch(self) -> bool: ...

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

        Called before a record of the turn is appended if `view` or `load.unavailable()` has changed
        since the turn began or the last call, and when the turn would go on in a new batch.
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
