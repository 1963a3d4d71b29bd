"""DescribeQuorum (API 55): the voters of the metadata log, and their end offsets (KIP-595)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_TIMESTAMP
from trimtab.kafka.wire.types import ZERO_UUID, int16, int32, int64, string, uint16, uuid


@struct()
class PartitionData:
    partition_index: int32


@struct()
class TopicData:
    """Partitions of one topic; only partition 0 of `__cluster_metadata` exists."""

    topic_name: string
    partitions: list[PartitionData]


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest(Request["DescribeQuorumResponse"]):
    """Ask the leader about the quorum."""

    topics: list[TopicData]


@struct()
class ReplicaState:
    """One voter or observer."""

    replica_id: int32
    replica_directory_id: uuid = field(versions="2+", default=ZERO_UUID)
    # -1 if unknown; likewise the next two.
    log_end_offset: int64
    # By the leader's clock, in milliseconds; for the leader itself the present.
    last_fetch_timestamp: int64 = field(versions="1+", default=NO_TIMESTAMP, ignorable=True)
    # When its end offset was the end of the leader's log; for the leader itself the present.
    last_caught_up_timestamp: int64 = field(versions="1+", default=NO_TIMESTAMP, ignorable=True)


# Kafka gives the next two the names of the request's: PartitionData and TopicData.
@struct()
class PartitionDataResponse:
    """The quorum of one partition, or the error about it."""

    partition_index: int32
    error_code: int16 = 0
    error_message: string | None = field(
        versions="2+", nullable_versions="2+", default="", ignorable=True
    )
    # -1 if there is none.
    leader_id: int32 = 0
    leader_epoch: int32 = 0
    high_watermark: int64 = 0
    current_voters: list[ReplicaState] = field(default_factory=list)
    observers: list[ReplicaState] = field(default_factory=list)


@struct()
class TopicDataResponse:
    topic_name: string
    partitions: list[PartitionDataResponse]


@struct(versions="2+")
class Listener:
    """One address of a node."""

    name: string
    host: string
    port: uint16


@struct(versions="2+")
class Node:
    """One voter and its addresses."""

    node_id: int32
    listeners: list[Listener]


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    """The quorum. v1 adds times (KIP-836); v2 messages, directory ids and addresses (KIP-853)."""

    error_code: int16 = 0
    error_message: string | None = field(
        versions="2+", nullable_versions="2+", default="", ignorable=True
    )
    topics: list[TopicDataResponse] = field(default_factory=list)
    nodes: list[Node] = field(versions="2+", default_factory=list)
