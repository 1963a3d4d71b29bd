"""AlterPartition: a leader asks for another ISR (KIP-497, KIP-841, KIP-903).

If the leader's metadata is out of date, the error code says what it missed. An ISR with all the
added replicas of a reassignment completes it; that may remove the leader itself.

Source: Kafka's `ReplicationControlManager.alterPartition`.
"""

from __future__ import annotations

import logging
from typing import Any

from trimtab.cluster.controller.decision import Decision
from trimtab.cluster.controller.election import Election, change_partition
from trimtab.cluster.controller.leader_changes import active_brokers
from trimtab.cluster.controller.topic_rules import TopicRules
from trimtab.cluster.metadata.image import (
    RECOVERED,
    RECOVERING,
    ClusterImage,
    PartitionRegistration,
    TopicImage,
)
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResponse,
    TopicDataResponse,
)
from trimtab.kafka.wire.sentinels import NO_EPOCH, NO_LEADER_CHANGE

_log = logging.getLogger(__name__)


def decide_isr_changes(
    image: ClusterImage, rules: TopicRules, request: AlterPartitionRequest
) -> Decision:
    """Decide each partition on its own; a stale broker epoch refuses the whole request."""
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        return Decision([], AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    active = active_brokers(image)
    records: list[Any] = []
    results = []
    for asked in request.topics:
        topic = image.topics_by_id.get(asked.topic_id)
        result = TopicDataResponse(topic_id=asked.topic_id, partitions=[])
        results.append(result)
        for data in asked.partitions:
            if topic is None:
                answer = _refuse(data, ErrorCode.UNKNOWN_TOPIC_ID)
            else:
                answer = _alter(image, rules, topic, data, request.broker_id, active, records)
            result.partitions.append(answer)
    return Decision(records, AlterPartitionResponse(topics=results))


def _alter(
    image: ClusterImage,
    rules: TopicRules,
    topic: TopicImage,
    data: PartitionData,
    leader: int,
    active: set[int],
    records: list[Any],
) -> PartitionDataResponse:
    partition = image.partition(topic.id, data.partition_index)
    if partition is None:
        return _refuse(data, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    # Version 2 has no epochs.
    members = data.new_isr_with_epochs or [BrokerState(broker_id=each) for each in data.new_isr]
    code = _check(image, partition, data, members, leader)
    if code is not ErrorCode.NONE:
        _log.info(
            "refused an ISR partition=%s-%d broker=%d isr=%s code=%s",
            topic.name,
            partition.id,
            leader,
            [each.broker_id for each in members],
            code.name,
        )
        return _refuse(data, code)
    record = change_partition(
        topic.id,
        partition,
        partition._replace(
            isr=tuple(each.broker_id for each in members),
            leader_recovery_state=data.leader_recovery_state,
        ),
        active.__contains__,
        rules.min_isr(topic.name),
        Election.UNCLEAN if rules.allows_unclean(topic.name) else Election.ONLINE,
    )
    if record is not None:
        records.append(record)
        partition = partition.merge(record)
        if record.leader not in (NO_LEADER_CHANGE, leader):
            # The change completes a reassignment that removes the leader. It is committed, although
            # the response has an error code.
            return _refuse(data, ErrorCode.NEW_LEADER_ELECTED)
    return PartitionDataResponse(
        partition_index=partition.id,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )


def _check(
    image: ClusterImage,
    partition: PartitionRegistration,
    data: PartitionData,
    members: list[BrokerState],
    leader: int,
) -> ErrorCode:
    if (
        data.leader_epoch > partition.leader_epoch
        or data.partition_epoch > partition.partition_epoch
    ):
        return ErrorCode.NOT_CONTROLLER  # the leader has newer metadata than this controller
    if data.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if leader != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if data.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    isr = [each.broker_id for each in members]
    if (
        leader not in isr
        or len(set(isr)) != len(isr)
        or any(each not in partition.replicas for each in isr)
    ):
        return ErrorCode.INVALID_REQUEST
    if data.leader_recovery_state not in (RECOVERED, RECOVERING):
        return ErrorCode.INVALID_REQUEST
    if data.leader_recovery_state == RECOVERING and (
        len(isr) > 1 or partition.leader_recovery_state == RECOVERED
    ):
        return ErrorCode.INVALID_REQUEST
    for member in members:
        broker = image.brokers.get(member.broker_id)
        if (
            broker is None
            or not broker.is_active
            or member.broker_epoch not in (NO_EPOCH, broker.epoch)
        ):
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _refuse(data: PartitionData, code: ErrorCode) -> PartitionDataResponse:
    return PartitionDataResponse(partition_index=data.partition_index, error_code=code)
