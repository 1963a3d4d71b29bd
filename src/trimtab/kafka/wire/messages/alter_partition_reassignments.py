"""AlterPartitionReassignments (API 45): move partitions to other brokers (KIP-455)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int16, int32, string


@struct()
class ReassignablePartition:
    """The new replicas of one partition."""

    partition_index: int32
    # The preferred leader first; null cancels the move.
    replicas: list[int32] | None = field(nullable_versions="0+", default=None)


@struct()
class ReassignableTopic:
    name: string
    partitions: list[ReassignablePartition]


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest(Request["AlterPartitionReassignmentsResponse"]):
    """Start moves, or cancel them. v1 can forbid another replication factor (KIP-860)."""

    timeout_ms: int32 = 60000
    allow_replication_factor_change: bool = field(versions="1+", default=True)
    topics: list[ReassignableTopic]


@struct()
class ReassignablePartitionResponse:
    """Whether the move of one partition has begun."""

    partition_index: int32
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")


@struct()
class ReassignableTopicResponse:
    name: string
    partitions: list[ReassignablePartitionResponse]


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    """One result per partition. v1 says whether another replication factor was allowed."""

    throttle_time_ms: int32 = 0
    allow_replication_factor_change: bool = field(versions="1+", default=True, ignorable=True)
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")
    responses: list[ReassignableTopicResponse] = field(default_factory=list)
