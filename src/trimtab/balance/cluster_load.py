"""The load of a cluster as it is measured: its brokers, and its partitions with their rates.

Bytes that producers send are written to every replica, so a change of leader moves none of them and
no disk. It moves what the leader sends: to consumers, and to each follower what is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from trimtab.kafka.records import TopicPartition

OUT: Final = "out"
IN: Final = "in"
DISK: Final = "disk"
RESOURCES: Final = (OUT, IN, DISK)
"""Bytes/s that a broker's leaders send, bytes/s written to its replicas, and bytes they store."""


class BrokerState(NamedTuple):
    """A broker, alive or not.

    Attributes:
        free: replicas that its limit still allows (KIP-578); negative above it.
        disk: bytes of its volumes in all; None if unknown.
        is_alive: whether it can lead, and send or receive bytes.
        takes_replicas: False for a broker that is not alive, or whose directories are cordoned
            (KIP-1066).
    """

    id: int
    rack: str | None
    free: int
    disk: int | None = None
    is_alive: bool = True
    takes_replicas: bool = True


class PartitionLoad(NamedTuple):
    """A partition, its replicas and its rates.

    Attributes:
        replicas: broker ids, the preferred leader first.
        leader: -1 if there is none.
        in_sync: the brokers of the ISR.
        bytes_in: bytes/s that producers send, as stored.
        bytes_out: bytes/s that consumers fetch from the leader.
        size: bytes of one replica.
    """

    partition: TopicPartition
    replicas: tuple[int, ...]
    leader: int
    in_sync: frozenset[int]
    bytes_in: float
    bytes_out: float
    size: int

    @property
    def leader_out(self) -> float:
        """Bytes/s that its leader sends, to consumers and followers."""
        return self.bytes_out + self.bytes_in * (len(self.replicas) - 1)


class ClusterLoad(NamedTuple):
    """The brokers and partitions of a cluster over one window of time.

    Attributes:
        brokers: by id, in order.
        partitions: in order of topic and number; none that is being reassigned is left out.
        moving: the partitions in a reassignment, which no plan touches.
        measured_s: the end of the window, in seconds since the epoch.
    """

    brokers: Mapping[int, BrokerState]
    partitions: Sequence[PartitionLoad]
    moving: frozenset[TopicPartition] = frozenset()
    measured_s: float = 0.0
