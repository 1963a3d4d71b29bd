"""Produce (API 0): append batches to partitions."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_EPOCH, NO_LEADER, NO_OFFSET, NO_TIMESTAMP
from trimtab.kafka.wire.types import ZERO_UUID, int16, int32, int64, records, string, uuid


@struct()
class PartitionProduceData:
    index: int32
    records: records | None = field(nullable_versions="0+")


@struct()
class TopicProduceData:
    """One topic, by name up to v12 and by id from v13."""

    name: string = field(versions="0-12", default="", ignorable=True)
    topic_id: uuid = field(versions="13+", default=ZERO_UUID, ignorable=True)
    partition_data: list[PartitionProduceData]


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceRequest(Request["ProduceResponse"]):
    """Append batches to partitions that the receiver leads.

    v3 is the first with record batches of format 2 and a transactional id. v7 allows zstd. v9 is
    flexible. v12 adds the partitions to the transaction (KIP-890). v13 names
    topics by id (KIP-516). Versions 0-2 are advertised for librdkafka's sake but not served
    (KAFKA-18659).
    """

    transactional_id: string | None = field(versions="3+", nullable_versions="3+", default=None)
    # 0: do not answer; 1: the leader has it; -1: all in-sync replicas have it.
    acks: int16
    # How long the leader may wait for the other replicas.
    timeout_ms: int32
    topic_data: list[TopicProduceData]


@struct(versions="8+")
class BatchIndexAndErrorMessage:
    """One record that caused the refusal of its whole batch."""

    batch_index: int32
    batch_index_error_message: string | None = field(nullable_versions="8+", default=None)


@struct(versions="10+")
class LeaderIdAndEpoch:
    """The leader to produce to instead."""

    leader_id: int32 = NO_LEADER
    leader_epoch: int32 = NO_EPOCH


@struct()
class PartitionProduceResponse:
    index: int32
    error_code: int16 = 0
    # The offset of the first record.
    base_offset: int64
    # -1 if the topic keeps the producer's timestamps.
    log_append_time_ms: int64 = field(versions="2+", default=NO_TIMESTAMP, ignorable=True)
    log_start_offset: int64 = field(versions="5+", default=NO_OFFSET, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = field(
        versions="8+", default_factory=list, ignorable=True
    )
    error_message: string | None = field(
        versions="8+", nullable_versions="8+", default=None, ignorable=True
    )
    current_leader: LeaderIdAndEpoch = field(
        versions="10+", tag=0, tagged_versions="10+", default_factory=LeaderIdAndEpoch
    )


@struct()
class TopicProduceResponse:
    """One topic, by name up to v12 and by id from v13."""

    name: string = field(versions="0-12", default="", ignorable=True)
    topic_id: uuid = field(versions="13+", default=ZERO_UUID, ignorable=True)
    partition_responses: list[PartitionProduceResponse]


@struct(versions="10+")
class NodeEndpoint:
    """The address of a broker that some `current_leader` names."""

    node_id: int32
    host: string
    port: int32
    rack: string | None = field(nullable_versions="10+", default=None)


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceResponse:
    """The offsets of the batches, or the errors.

    v5 adds the log start offset; v8 the records at fault (KIP-467); v10 the new leader
    (KIP-951). v13 names topics by id.
    """

    responses: list[TopicProduceResponse]
    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    node_endpoints: list[NodeEndpoint] = field(
        versions="10+", tag=0, tagged_versions="10+", default_factory=list
    )
