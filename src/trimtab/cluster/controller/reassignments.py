"""Reassignments of partitions to other brokers (KIP-455): begin, change, cancel, list.

    replicas 1 2 3, to be 1 2 4  ─▶  replicas 1 2 4 3, adding 4, removing 3
    4 is in sync                 ─▶  replicas 1 2 4            (`election.py`)

Responses are those of Kafka's `ReplicationControlManager`. They differ if a reassignment replaces
one under way: where the new list of adding or removing replicas is empty, Kafka keeps the old list
(a change of the example to 1 2 3 4 would end with 1 2 4); and Kafka does not list a replica that
both reassignments add as an adding replica.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from trimtab.balance.limits import Allowance
from trimtab.cluster.controller.decision import MAX_RECORDS, Decision, WholeRequest
from trimtab.cluster.controller.election import Election, change_partition
from trimtab.cluster.controller.leader_changes import active_brokers
from trimtab.cluster.controller.topic_rules import TopicRules
from trimtab.cluster.controller.topics import check_replicas
from trimtab.cluster.metadata.image import ClusterImage, PartitionRegistration, TopicImage
from trimtab.cluster.server.turns import Pace, Steps
from trimtab.kafka.errors import ErrorCode, Refusal
from trimtab.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from trimtab.kafka.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from trimtab.kafka.wire.messages.metadata_records import PartitionChangeRecord

_log = logging.getLogger(__name__)


def decide_alter_reassignments(
    image: ClusterImage,
    rules: TopicRules,
    allowance: Allowance,
    request: AlterPartitionReassignmentsRequest,
    whole: WholeRequest | None = None,
) -> Decision:
    """AlterPartitionReassignments: begin, change or cancel the reassignment of each partition.

    Args:
        whole: state shared with the other parts of a large request.
    """
    whole = whole or WholeRequest()
    moves = _Reassignments(
        image,
        rules,
        allowance,
        request.allow_replication_factor_change,
        MAX_RECORDS - whole.records,
    )
    responses = [
        ReassignableTopicResponse(
            name=topic.name,
            partitions=[moves.alter(topic.name, wanted) for wanted in topic.partitions],
        )
        for topic in request.topics
    ]
    whole.records += len(moves.records)
    if moves.records:
        _log.info("altering reassignments partitions=%d", len(moves.records))
    return Decision(
        moves.records,
        AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_message=None,
            responses=responses,
        ),
    )


def list_reassignments(
    image: ClusterImage, request: ListPartitionReassignmentsRequest
) -> Steps[ListPartitionReassignmentsResponse]:
    """ListPartitionReassignments: the reassignments of the named partitions, or of all."""
    pace = Pace(1000)
    wanted: Iterable[tuple[str, Iterable[int]]]
    if request.topics is None:
        wanted = [(topic.name, range(len(topic.partitions))) for topic in image.topics.values()]
    else:
        wanted = ((topic.name, topic.partition_indexes) for topic in request.topics)
    topics = []
    for name, indexes in wanted:
        topic = image.topics.get(name)
        if topic is None:
            if pace.spend():
                yield
            continue
        moving: dict[int, OngoingPartitionReassignment] = {}
        for index in indexes:
            if pace.spend():
                yield
            partition = image.partition(topic.id, index)
            if partition is not None and partition.is_reassigning:
                moving[index] = OngoingPartitionReassignment(
                    partition_index=index,
                    replicas=list(partition.replicas),
                    adding_replicas=list(partition.adding_replicas),
                    removing_replicas=list(partition.removing_replicas),
                )
        if moving:
            topics.append(OngoingTopicReassignment(name=name, partitions=list(moving.values())))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)


def begin_reassignment(
    partition: PartitionRegistration, target: list[int]
) -> PartitionRegistration:
    """The partition with a reassignment to these replicas, which replaces one under way."""
    adding = partition.adding_replicas
    original = {broker for broker in partition.replicas if broker not in adding}
    removing = sorted(set(partition.replicas) - set(target))
    return partition._replace(
        replicas=(*target, *removing),
        adding_replicas=tuple(sorted(set(target) - original)),
        removing_replicas=tuple(removing),
    )


def cancel(partition: PartitionRegistration) -> PartitionRegistration:
    """The partition with its reassignment cancelled; its ISR may be empty."""
    adding = partition.adding_replicas
    return partition._replace(
        replicas=tuple(broker for broker in partition.replicas if broker not in adding),
        isr=tuple(broker for broker in partition.isr if broker not in adding),
        adding_replicas=(),
        removing_replicas=(),
    )


class _Reassignments:
    """Decides the partitions of one request, one after the other.

    Attributes:
        records: the records of the decisions so far.
    """

    def __init__(
        self,
        image: ClusterImage,
        rules: TopicRules,
        allowance: Allowance,
        allows_other_factor: bool,
        room: int,
    ) -> None:
        self._image = image
        self._rules = rules
        self._allowance = allowance
        self._allows_other_factor = allows_other_factor
        self._room = room
        self._active = active_brokers(image)
        self._changed: dict[tuple[bytes, int], PartitionRegistration] = {}
        self.records: list[Any] = []

    def alter(self, name: str, wanted: ReassignablePartition) -> ReassignablePartitionResponse:
        code, message = ErrorCode.NONE, None
        try:
            self._alter(name, wanted)
        except Refusal as refusal:
            code, message = refusal.code, refusal.message
        return ReassignablePartitionResponse(
            partition_index=wanted.partition_index, error_code=code, error_message=message
        )

    def _alter(self, name: str, wanted: ReassignablePartition) -> None:
        topic, partition = self._find(name, wanted.partition_index)
        if wanted.replicas is None:
            record = self._cancel(topic, partition)
        else:
            check_replicas(self._image, partition.id, wanted.replicas)
            self._check_factor(partition, wanted.replicas)
            record = self._change(topic, partition, begin_reassignment(partition, wanted.replicas))
        if record is None:
            return
        if len(self.records) >= self._room:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"The request would change more than {MAX_RECORDS} partitions; move fewer at a "
                "time.",
            )
        changed = partition.merge(record)
        self._allowance.check_move(topic.name, partition, changed)
        self.records.append(record)
        self._changed[topic.id, partition.id] = changed

    def _find(self, name: str, index: int) -> tuple[TopicImage, PartitionRegistration]:
        topic = self._image.topics.get(name)
        if topic is None:
            raise Refusal(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}."
            )
        partition = self._image.partition(topic.id, index)
        if partition is None:
            raise Refusal(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}."
            )
        return topic, self._changed.get((topic.id, index), partition)

    def _check_factor(self, partition: PartitionRegistration, target: list[int]) -> None:
        before = len(partition.final_replicas)
        if before != len(target) and not self._allows_other_factor:
            raise Refusal(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {before} to {len(target)}",
            )

    def _cancel(
        self, topic: TopicImage, partition: PartitionRegistration
    ) -> PartitionChangeRecord | None:
        if not partition.is_reassigning:
            raise Refusal(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
                "No partition reassignment is in progress.",
            )
        wanted = cancel(partition)
        allows_unclean = self._rules.allows_unclean(topic.name)
        if not wanted.isr:
            if not allows_unclean:
                raise Refusal(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Unable to revert partition assignment for {topic.name}:{partition.id} "
                    "because it would require an unclean leader election.",
                )
            wanted = wanted._replace(isr=wanted.replicas[:1])
        return self._change(
            topic, partition, wanted, Election.UNCLEAN if allows_unclean else Election.ONLINE
        )

    def _change(
        self,
        topic: TopicImage,
        partition: PartitionRegistration,
        wanted: PartitionRegistration,
        election: Election = Election.ONLINE,
    ) -> PartitionChangeRecord | None:
        return change_partition(
            topic.id,
            partition,
            wanted,
            self._active.__contains__,
            self._rules.min_isr(topic.name),
            election,
        )
