"""Decisions about adding partitions to existing topics (CreatePartitions, KIP-195).

Error codes and the order of checks are those of Kafka's
`ReplicationControlManager.createPartitions`.
"""

from __future__ import annotations

from random import Random
from typing import Any

from trimtab.balance.limits import Allowance
from trimtab.cluster.controller.decision import MAX_RECORDS, Decision, WholeRequest
from trimtab.cluster.controller.topics import assign, check_replicas, new_partition
from trimtab.cluster.metadata.image import ClusterImage, partition_record
from trimtab.kafka.errors import ErrorCode, Refusal
from trimtab.kafka.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


def decide_create_partitions(
    image: ClusterImage,
    request: CreatePartitionsRequest,
    allowance: Allowance,
    random: Random,
    whole: WholeRequest | None = None,
) -> Decision:
    """Add partitions to each topic that can have them; with `validate_only` write nothing.

    A topic whose partitions would exceed `MAX_RECORDS` in the request gets none; Kafka writes as
    many records as fit.

    Args:
        whole: state shared with the other parts of a large request.
    """
    whole = whole or WholeRequest()
    times = whole.count(topic.name for topic in request.topics)
    records: list[Any] = []
    results: dict[str, CreatePartitionsTopicResult] = {}
    for topic in request.topics:
        if topic.name in results:
            continue
        code, message = ErrorCode.NONE, None
        try:
            if times[topic.name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            added = _extend(image, topic, allowance, MAX_RECORDS - whole.records, random)
            whole.records += len(added)
            records += added
        except Refusal as refusal:
            code, message = refusal.code, refusal.message
        results[topic.name] = CreatePartitionsTopicResult(
            name=topic.name, error_code=code, error_message=message
        )
    return Decision(
        [] if request.validate_only else records,
        CreatePartitionsResponse(results=list(results.values())),
    )


def _extend(
    image: ClusterImage,
    wanted: CreatePartitionsTopic,
    allowance: Allowance,
    limit: int,
    random: Random,
) -> list[Any]:
    """The records of a topic's new partitions."""
    topic = image.topics.get(wanted.name)
    if topic is None:
        raise Refusal(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "This server does not host this topic-partition.",
        )
    count = len(topic.partitions)
    if wanted.count == count:
        raise Refusal(ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partition(s).")
    if wanted.count < count:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {count} partition(s); {wanted.count} would not "
            "be an increase.",
        )
    additional = wanted.count - count
    if wanted.assignments is not None and len(wanted.assignments) != additional:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {additional} additional partition(s), but only "
            f"{len(wanted.assignments)} assignment(s) were specified.",
        )
    if additional > limit:
        raise Refusal(
            ErrorCode.POLICY_VIOLATION,
            f"The request would write more than {MAX_RECORDS} records; add fewer partitions at a "
            "time.",
        )
    factor = len(topic.partitions[0].final_replicas)
    if wanted.assignments is None:
        assignment = assign(image, allowance, topic.name, additional, factor, random)
    else:
        assignment = [each.broker_ids for each in wanted.assignments]
        for index, replicas in enumerate(assignment, count):
            check_replicas(image, index, replicas)
            if len(replicas) != factor:
                raise Refusal(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    "The manual partition assignment includes a partition with "
                    f"{len(replicas)} replica(s), but this is not consistent with previous "
                    f"partitions, which have {factor} replica(s).",
                )
        allowance.check(topic.name, assignment)
    return [
        partition_record(topic.id, new_partition(image, index, replicas))
        for index, replicas in enumerate(assignment, count)
    ]
