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
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple, NoReturn, cast

from trimtab import config
from trimtab.config import Value
from trimtab.controller.decision import Refusal
from trimtab.controller.placement import Room, count_placeable, place
from trimtab.controller.topic_rules import WHOLE_CLUSTER
from trimtab.errors import ErrorCode
from trimtab.metadata.image import (
    CONFIG_BROKER,
    BrokerRegistration,
    ClusterImage,
    PartitionRegistration,
)
from trimtab.metadata.replica_counts import INTERNAL_TOPICS
from trimtab.wire.messages.metadata_records import ConfigRecord

PER_BROKER = "max.broker.partitions"
PER_CLUSTER = "max.partitions"

_UNLIMITED = config.LONG_MAX
_MOST_SHOWN = 10
"""Brokers that an error message lists at most."""


class PartitionLimits(NamedTuple):
    """The maximum number of replicas on each broker, and on all brokers."""

    per_broker: int
    per_cluster: int

    @classmethod
    def read(
        cls, image: ClusterImage, given: Mapping[str, Value], controller_id: int
    ) -> PartitionLimits:
        """The limits in force: the value set for the controller's own id, else for all brokers,
        else the static one in `given`.

        Values set for other brokers are ignored, as the controller decides ("only the value that
        applies to the broker handling the request").
        """
        values = config.resolve(
            given,
            image.configs(CONFIG_BROKER, WHOLE_CLUSTER),
            image.configs(CONFIG_BROKER, str(controller_id)),
        )
        return cls(cast(int, values[PER_BROKER]), cast(int, values[PER_CLUSTER]))


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


def is_ignored(record: ConfigRecord, controller_id: int) -> bool:
    """Whether the record sets a limit for a single broker other than the controller, which has no
    effect."""
    return (
        record.resource_type == CONFIG_BROKER
        and record.name in (PER_BROKER, PER_CLUSTER)
        and record.value is not None
        and record.resource_name not in (WHOLE_CLUSTER, str(controller_id))
    )


class Allowance:
    """The replicas that one request may still create.

    If a limit is exceeded, the methods raise `Refusal` with POLICY_VIOLATION and grant nothing. The
    message has both limits, the replicas asked for, how many partitions would fit, and the
    brokers' replica counts.

    Args:
        limits: the limits when the request came.
        rejections: how often each limit has refused something; incremented here.
    """

    def __init__(
        self, image: ClusterImage, limits: PartitionLimits, rejections: Counter[str]
    ) -> None:
        self._limits = limits
        self._rejections = rejections
        self._counts = image.counts.copy()

    def place(
        self,
        topic: str,
        brokers: Sequence[BrokerRegistration],
        partitions: int,
        factor: int,
        random: Random,
    ) -> list[list[int]]:
        """Place new partitions with `factor` replicas each; returns their broker ids.

        If there are fewer live brokers than `factor`, fenced brokers get followers; they never get
        the preferred leader.

        Args:
            brokers: at least `factor`, at least one of them not fenced.
        """
        is_limited = topic not in INTERNAL_TOPICS
        rooms = [self._room(each, is_limited) for each in brokers if not each.fenced]
        spare = [self._room(each, is_limited) for each in brokers if each.fenced]
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
                PER_BROKER, _describe(topic, partitions, factor), f"at most {most} can be placed"
            )
        assignment = place(rooms, partitions, factor - followers, random)
        if followers:
            more = place(spare, partitions, followers, random)
            assignment = [[*some, *others] for some, others in zip(assignment, more, strict=True)]
        self._grant(topic, assignment)
        return assignment

    def check(self, topic: str, assignment: Sequence[Sequence[int]]) -> None:
        """Check new partitions with a manual assignment: only the limits of the named brokers and
        of the cluster count."""
        if topic not in INTERNAL_TOPICS:
            partitions, factor = len(assignment), len(assignment[0])
            what = _describe(topic, partitions, factor)
            added = Counter(broker for replicas in assignment for broker in replicas)
            self._check_brokers(what, added)
            if self._counts.total + partitions * factor > self._limits.per_cluster:
                self._refuse_total(what, partitions, factor)
        self._grant(topic, assignment)

    def check_move(
        self, topic: str, before: PartitionRegistration, after: PartitionRegistration
    ) -> None:
        """Check a reassignment. While it is under way, old and new replicas count."""
        if topic in INTERNAL_TOPICS:
            return
        added = set(after.replicas) - set(before.replicas)
        growth = _final_factor(after) - _final_factor(before)
        what = f"Unable to reassign partition {topic}-{before.id} to {_final(after)}"
        self._check_brokers(what, Counter(added))
        if added and growth > 0 and self._counts.total + growth > self._limits.per_cluster:
            raise self._refusal(PER_CLUSTER, what, self._excess(growth))
        self._counts.remove(before.replicas)
        self._counts.add(after.replicas)

    def _room(self, broker: BrokerRegistration, is_limited: bool) -> Room:
        replicas = self._counts.on[broker.id]
        free = max(0, self._limits.per_broker - replicas) if is_limited else _UNLIMITED
        return Room(broker.id, broker.rack, replicas, self._counts.preferred[broker.id], free)

    def _grant(self, topic: str, assignment: Iterable[Sequence[int]]) -> None:
        if topic not in INTERNAL_TOPICS:
            for replicas in assignment:
                self._counts.add(replicas)

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
        )

    def _excess(self, replicas: int) -> str:
        total = self._counts.total
        return (
            f"it requires {replicas} more partition replicas on top of {total}, exceeding "
            f"{PER_CLUSTER}={self._limits.per_cluster}: the brokers already host {total}"
        )

    def _refusal(self, limit: str, what: str, why: str) -> Refusal:
        self._rejections[limit] += 1
        counts = self._counts.on
        shown = sorted(sorted(counts, key=lambda each: -counts[each])[:_MOST_SHOWN])
        brokers = ", ".join(f"{broker}={counts[broker]}" for broker in shown)
        more = ", ..." if len(shown) < len(counts) else ""
        return Refusal(
            ErrorCode.POLICY_VIOLATION,
            f"{what}: {why} ({PER_BROKER}={self._limits.per_broker}, "
            f"{PER_CLUSTER}={self._limits.per_cluster}; partition replicas: "
            f"cluster={self._counts.total}, by broker={{{brokers}{more}}}).",
        )


def _describe(topic: str, partitions: int, factor: int) -> str:
    return (
        f"Unable to place {partitions} partition(s) of topic '{topic}' with replication factor "
        f"{factor}"
    )


def _final(partition: PartitionRegistration) -> list[int]:
    return [each for each in partition.replicas if each not in partition.removing_replicas]


def _final_factor(partition: PartitionRegistration) -> int:
    return len(_final(partition))
