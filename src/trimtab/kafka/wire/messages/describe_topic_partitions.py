"""DescribeTopicPartitions (API 75): topics' partitions, a page at a time (KIP-966)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_EPOCH
from trimtab.kafka.wire.types import ZERO_UUID, int16, int32, string, uuid


@struct()
class TopicRequest:
    name: string


@struct()
class Cursor:
    """The first partition of a page."""

    topic_name: string
    partition_index: int32


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsRequest(Request["DescribeTopicPartitionsResponse"]):
    """Ask for partitions, in the order of the topics' names."""

    # Empty for all topics.
    topics: list[TopicRequest]
    response_partition_limit: int32 = 2000
    # Null for the first page.
    cursor: Cursor | None = field(nullable_versions="0+", default=None)


@struct()
class DescribeTopicPartitionsResponsePartition:
    error_code: int16 = 0
    partition_index: int32
    # -1 if there is none.
    leader_id: int32
    leader_epoch: int32 = field(default=NO_EPOCH, ignorable=True)
    # The preferred leader first.
    replica_nodes: list[int32]
    isr_nodes: list[int32]
    eligible_leader_replicas: list[int32] | None = field(nullable_versions="0+", default=None)
    last_known_elr: list[int32] | None = field(nullable_versions="0+", default=None)
    offline_replicas: list[int32] = field(default_factory=list, ignorable=True)


@struct()
class DescribeTopicPartitionsResponseTopic:
    """One topic, or the error about it."""

    error_code: int16 = 0
    name: string | None = field(nullable_versions="0+")
    topic_id: uuid = field(default=ZERO_UUID, ignorable=True)
    is_internal: bool = field(default=False, ignorable=True)
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(default_factory=list)
    topic_authorized_operations: int32 = -(2**31)


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse:
    """A page of partitions."""

    throttle_time_ms: int32 = field(default=0, ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic]
    # Where the next page begins; null on the last.
    next_cursor: Cursor | None = field(nullable_versions="0+", default=None)
