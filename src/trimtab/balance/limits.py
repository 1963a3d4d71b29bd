"""Limits on replicas, per broker and for the cluster (KIP-578).

`max.broker.partitions` and `max.partitions` both count replicas. A request is checked topic by
topic; replicas granted to its first topics count for the next. If a limit is exceeded already,
existing replicas stay; deletions, reassignments to fewer replicas and cancellations are always
allowed.

Where the KIP leaves gaps: during a reassignment a partition counts on all its brokers, old and new;
`max.partitions` limits a reassignment only if it ends with more replicas than before; 0 allows no
new replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple, NoReturn, Protocol

from trimtab.balance.placement import PlacementGoal, Room, count_placeable, place
from trimtab.balance.replica_counts import INTERNAL_TOPICS, ReplicaCounts
from trimtab.kafka.errors import ErrorCode, Refusal
from trimtab.kafka.options import LONG_MAX

PER_BROKER = "max.broker.partitions"
PER_CLUSTER = "max.partitions"

_MOST_SHOWN = 10
"""Brokers that an error message lists at most."""


class PartitionLimits(NamedTuple):
    """The maximum number of replicas on each broker, and on all brokers."""

    per_broker: int
    per_cluster: int


class LimitUsage(NamedTuple):
    """Replica counts beside the limits.

    Attributes:
        replicas: by broker id, for each broker that is registered or has replicas.
        total: replicas of all brokers.
        rejections: how often each limit has refused a topic or a partition.
    """

    limits: PartitionLimits
    replicas: Mapping[int, int]
    total: int
    rejections: Counter[str]


class ClusterUsage(NamedTuple):
    """The limits, the racks of brokers that are alive, the replica counts of all brokers, and what
    placement makes even first."""

    limits: PartitionLimits
    racks: Mapping[int, str | None]
    counts: ReplicaCounts
    goal: PlacementGoal = PlacementGoal.RACKS


class PartitionReplicas(Protocol):
    """A partition that may be in a reassignment, such as a `PartitionRegistration`.

    Attributes:
        replicas: broker ids, those that the reassignment removes included.
        final_replicas: those that remain when the reassignment is complete.
    """

    @property
    def id(self) -> int: ...
    @property
    def replicas(self) -> Sequence[int]: ...
    @property
    def final_replicas(self) -> Sequence[int]: ...


class LimitExceeded(Refusal):
    """A limit allows fewer further replicas than were asked for.

    Attributes:
        limit: the option.
        most: how many of the new partitions can be placed; 0 for assignments made by hand.
    """

    def __init__(self, message: str, limit: str, most: int) -> None:
        super().__init__(ErrorCode.POLICY_VIOLATION, message)
        self.limit = limit
        self.most = most


class Allowance:
    """The replicas that one request may still create.

    If a limit is exceeded, the methods raise `LimitExceeded` and grant nothing. The message has
    both limits, the replicas asked for, how many partitions would fit, and the brokers' replica
    counts.

    Args:
        counts: the replicas when the request came; copied.
        limits: the limits when the request came.
        rejections: how often each limit has refused something; incremented here.
        exempt: topics that are neither limited nor counted.
        goal: what placement makes even first.
    """

    def __init__(
        self,
        counts: ReplicaCounts,
        limits: PartitionLimits,
        rejections: Counter[str],
        exempt: Collection[str] = INTERNAL_TOPICS,
        goal: PlacementGoal = PlacementGoal.RACKS,
    ) -> None:
        self._limits = limits
        self._rejections = rejections
        self._counts = counts.copy()
        self._exempt = exempt
        self._goal = goal

    def place(
        self,
        topic: str,
        racks: Mapping[int, str | None],
        partitions: int,
        factor: int,
        random: Random,
        fenced_racks: Mapping[int, str | None] | None = None,
    ) -> list[list[int]]:
        """Place new partitions with `factor` replicas each; returns their broker ids.

        If there are fewer live brokers than `factor`, fenced brokers get followers; they never get
        the preferred leader.

        Args:
            racks: the live brokers' racks, by broker id; at least one.
            fenced_racks: the fenced brokers' racks.
        """
        is_limited = topic not in self._exempt
        rooms = [self._room(*each, is_limited) for each in racks.items()]
        spare = [self._room(*each, is_limited) for each in (fenced_racks or {}).items()]
        followers = max(0, factor - len(rooms))
        most = count_placeable(rooms, partitions, factor - followers)
        if followers:
            most = min(most, count_placeable(spare, partitions, followers))
        if is_limited:
            free = self._limits.per_cluster - self._counts.total
            if free < partitions * factor and free // factor <= most:
                self._refuse_total(_describe(topic, partitions, factor), partitions, factor)
        if most < partitions:
            raise self._refusal(
                PER_BROKER,
                _describe(topic, partitions, factor),
                f"at most {most} can be placed",
                most,
            )
        assignment = place(rooms, partitions, factor - followers, random, self._goal)
        if followers:
            more = place(spare, partitions, followers, random, self._goal)
            assignment = [[*some, *others] for some, others in zip(assignment, more, strict=True)]
        self._grant(topic, assignment)
        return assignment

    def check(self, topic: str, assignment: Sequence[Sequence[int]]) -> None:
        """Check new partitions with a manual assignment: only the limits of the named brokers and
        of the cluster count."""
        if topic not in self._exempt:
            partitions, factor = len(assignment), len(assignment[0])
            what = _describe(topic, partitions, factor)
            added = Counter(broker for replicas in assignment for broker in replicas)
            self._check_brokers(what, added)
            if self._counts.total + partitions * factor > self._limits.per_cluster:
                self._refuse_total(what, partitions, factor)
        self._grant(topic, assignment)

    def check_move(self, topic: str, before: PartitionReplicas, after: PartitionReplicas) -> None:
        """Check a reassignment. While it is under way, old and new replicas count."""
        if topic in self._exempt:
            return
        added = set(after.replicas) - set(before.replicas)
        growth = len(after.final_replicas) - len(before.final_replicas)
        what = f"Unable to reassign partition {topic}-{before.id} to {[*after.final_replicas]}"
        self._check_brokers(what, Counter(added))
        if added and growth > 0 and self._counts.total + growth > self._limits.per_cluster:
            raise self._refusal(PER_CLUSTER, what, self._excess(growth))
        self._counts.remove_replicas(before.replicas)
        self._counts.add_replicas(after.replicas)

    def _room(self, broker: int, rack: str | None, is_limited: bool) -> Room:
        replicas = self._counts.on[broker]
        free = max(0, self._limits.per_broker - replicas) if is_limited else LONG_MAX
        return Room(broker, rack, replicas, self._counts.preferred[broker], free)

    def _grant(self, topic: str, assignment: Iterable[Sequence[int]]) -> None:
        if topic not in self._exempt:
            for replicas in assignment:
                self._counts.add_replicas(replicas)

    def _check_brokers(self, what: str, added: Mapping[int, int]) -> None:
        for broker in sorted(added):
            before = self._counts.on[broker]
            if before + added[broker] > self._limits.per_broker:
                raise self._refusal(
                    PER_BROKER,
                    what,
                    f"broker {broker} would host {before + added[broker]} partition replicas, "
                    f"{added[broker]} more than the {before} it hosts, exceeding "
                    f"{PER_BROKER}={self._limits.per_broker}",
                )

    def _refuse_total(self, what: str, partitions: int, factor: int) -> NoReturn:
        most = max(0, self._limits.per_cluster - self._counts.total) // factor
        raise self._refusal(
            PER_CLUSTER,
            what,
            f"{self._excess(partitions * factor)}, so at most {most} can be placed",
            most,
        )

    def _excess(self, replicas: int) -> str:
        total = self._counts.total
        return (
            f"it requires {replicas} more partition replicas on top of {total}, exceeding "
            f"{PER_CLUSTER}={self._limits.per_cluster}: the brokers already host {total}"
        )

    def _refusal(self, limit: str, what: str, why: str, most: int = 0) -> LimitExceeded:
        self._rejections[limit] += 1
        counts = self._counts.on
        shown = sorted(sorted(counts, key=lambda each: -counts[each])[:_MOST_SHOWN])
        brokers = ", ".join(f"{broker}={counts[broker]}" for broker in shown)
        more = ", ..." if len(shown) < len(counts) else ""
        return LimitExceeded(
            f"{what}: {why} ({PER_BROKER}={self._limits.per_broker}, "
            f"{PER_CLUSTER}={self._limits.per_cluster}; partition replicas: "
            f"cluster={self._counts.total}, by broker={{{brokers}{more}}}).",
            limit,
            most,
        )


def _describe(topic: str, partitions: int, factor: int) -> str:
    return (
        f"Unable to place {partitions} partition(s) of topic '{topic}' with replication factor "
        f"{factor}"
    )
