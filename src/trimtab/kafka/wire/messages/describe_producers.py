"""DescribeProducers (API 61): a leader's state of a partition's producers (KIP-664)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_OFFSET, NO_SEQUENCE, NO_TIMESTAMP
from trimtab.kafka.wire.types import int16, int32, int64, string


@struct()
class TopicRequest:
    name: string
    partition_indexes: list[int32]


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersRequest(Request["DescribeProducersResponse"]):
    """Ask the leader for the producers of partitions."""

    topics: list[TopicRequest]


@struct()
class ProducerState:
    """One idempotent or transactional producer."""

    producer_id: int64
    producer_epoch: int32
    last_sequence: int32 = NO_SEQUENCE
    last_timestamp: int64 = NO_TIMESTAMP
    # Of the last transaction marker; -1 if there was none.
    coordinator_epoch: int32
    # -1 if no transaction is open.
    current_txn_start_offset: int64 = NO_OFFSET


@struct()
class PartitionResponse:
    """The producers of one partition, or the error about it."""

    partition_index: int32
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default=None)
    active_producers: list[ProducerState] = field(default_factory=list)


@struct()
class TopicResponse:
    name: string
    partitions: list[PartitionResponse]


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersResponse:
    throttle_time_ms: int32 = 0
    topics: list[TopicResponse]
