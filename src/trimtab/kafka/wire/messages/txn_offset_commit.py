"""TxnOffsetCommit (API 28): commit a consumer group's offsets as part of a transaction."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_EPOCH
from trimtab.kafka.wire.types import int16, int32, int64, string


@struct()
class TxnOffsetCommitRequestPartition:
    """The offset of one partition: that of the next record to read."""

    partition_index: int32
    committed_offset: int64
    # The leader epoch of the last record that was read, -1 if unknown (KIP-320).
    committed_leader_epoch: int32 = field(versions="2+", default=NO_EPOCH, ignorable=True)
    committed_metadata: string | None = field(nullable_versions="0+")


@struct()
class TxnOffsetCommitRequestTopic:
    name: string
    partitions: list[TxnOffsetCommitRequestPartition]


@message(api_key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitRequest(Request["TxnOffsetCommitResponse"]):
    """Ask the group's coordinator to commit offsets when the transaction commits.

    v2 adds the leader epoch. v3 is flexible and adds the member, so that a former member is refused
    after a rebalance (KIP-447). v4 may answer TRANSACTION_ABORTABLE. v5, to be used with
    transaction.version 2 only, adds the group to the transaction too (KIP-890).
    """

    transactional_id: string
    group_id: string
    producer_id: int64
    producer_epoch: int16
    generation_id: int32 = field(versions="3+", default=NO_EPOCH)
    member_id: string = field(versions="3+", default="")
    group_instance_id: string | None = field(versions="3+", nullable_versions="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic]


@struct()
class TxnOffsetCommitResponsePartition:
    partition_index: int32
    error_code: int16 = 0


@struct()
class TxnOffsetCommitResponseTopic:
    name: string
    partitions: list[TxnOffsetCommitResponsePartition]


@message(api_key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitResponse:
    throttle_time_ms: int32 = 0
    topics: list[TxnOffsetCommitResponseTopic]
