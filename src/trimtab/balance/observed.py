"""What a cluster shows of its partitions while they are moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from trimtab.balance.throttles import ThrottledLists
from trimtab.kafka.records import TopicPartition

Replica: TypeAlias = tuple[TopicPartition, int]
"""A partition, and the broker of one of its replicas."""


class ShownPartition(NamedTuple):
    """A partition as the controller knows it.

    Attributes:
        replicas: all that are present. While it is reassigned: those of the target in their order,
            then those in `removing`.
        leader: -1 if there is none.
        in_sync: the ISR.
        adding, removing: empty unless it is being reassigned.
        size: bytes of the leader's replica; 0 if unknown.
    """

    replicas: tuple[int, ...]
    leader: int
    in_sync: frozenset[int]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    size: int = 0

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after its reassignment."""
        return tuple(each for each in self.replicas if each not in self.removing)

    @property
    def former(self) -> tuple[int, ...]:
        """The replicas before its reassignment, to which a cancel returns."""
        return tuple(each for each in self.replicas if each not in self.adding)


class Observed(NamedTuple):
    """A cluster at one moment.

    Attributes:
        now_s: seconds of a clock that does not go back.
        partitions: at least those wanted, and all that are being reassigned.
        counts: by topic its number of partitions.
        alive: the live brokers.
        rates: the throttles of live brokers that have any: bytes/s as leader, as follower.
        lists: the throttled replicas of the topics that have any.
        copied: bytes of replicas that are being added; unknown ones are missing.
        room: bytes that the disks of a broker have free; unknown ones are missing.
        lag: records of a moment ago that a replica lacks of its leader's; unknown ones are missing.
            None if these brokers do not tell.
        p99: by broker the 99th percentile of a probe's seconds, before the moves and now.
        unwell: by broker why it gets no leaders: it recovers, or is slow.
        under_min_isr: partitions, of any topic, with fewer in-sync replicas than
            `min.insync.replicas`.
    """

    now_s: float
    partitions: Mapping[TopicPartition, ShownPartition]
    counts: Mapping[str, int]
    alive: frozenset[int]
    rates: Mapping[int, tuple[int | None, int | None]]
    lists: Mapping[str, ThrottledLists]
    copied: Mapping[Replica, int]
    room: Mapping[int, int] = {}
    lag: Mapping[Replica, int] | None = None
    p99: Mapping[int, tuple[float, float]] = {}
    unwell: Mapping[int, str] = {}
    under_min_isr: frozenset[TopicPartition] = frozenset()
