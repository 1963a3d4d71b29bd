"""AlterPartition (API 56): a leader asks the controller for another ISR (KIP-497)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_EPOCH
from trimtab.kafka.wire.types import ZERO_UUID, int8, int16, int32, int64, uuid


@struct(versions="3+")
class BrokerState:
    """One member of the ISR, with the broker epoch that the leader knows."""

    broker_id: int32
    # -1: not checked.
    broker_epoch: int64 = NO_EPOCH


@struct()
class PartitionData:
    """The ISR that the leader wants for one partition."""

    partition_index: int32
    leader_epoch: int32
    new_isr: list[int32] = field(versions="0-2", default_factory=list)
    new_isr_with_epochs: list[BrokerState] = field(versions="3+", default_factory=list)
    # 1 while it recovers from an unclean election.
    leader_recovery_state: int8 = field(versions="1+", default=0)
    # The one that the leader knows; the request fails if the partition has changed since.
    partition_epoch: int32


@struct()
class TopicData:
    topic_id: uuid = field(versions="2+", default=ZERO_UUID, ignorable=True)
    partitions: list[PartitionData]


@message(api_key=56, versions="2-3", flexible="0+")
class AlterPartitionRequest(Request["AlterPartitionResponse"]):
    """Ask for new ISRs. v2 names topics by id (KIP-841); v3 adds broker epochs (KIP-903)."""

    broker_id: int32
    broker_epoch: int64 = NO_EPOCH
    topics: list[TopicData]


# Kafka gives the next two the names of the request's: PartitionData and TopicData.
@struct()
class PartitionDataResponse:
    """One partition as it is now, or the error about it."""

    partition_index: int32
    error_code: int16 = 0
    leader_id: int32 = 0
    leader_epoch: int32 = 0
    isr: list[int32] = field(default_factory=list)
    # 1 while it recovers from an unclean election.
    leader_recovery_state: int8 = field(versions="1+", default=0, ignorable=True)
    partition_epoch: int32 = 0


@struct()
class TopicDataResponse:
    topic_id: uuid = field(versions="2+", default=ZERO_UUID, ignorable=True)
    partitions: list[PartitionDataResponse]


@message(api_key=56, versions="2-3", flexible="0+")
class AlterPartitionResponse:
    """One result per partition. v2 has more errors (KIP-841)."""

    throttle_time_ms: int32 = 0
    # If it is set, the topics are empty.
    error_code: int16 = 0
    topics: list[TopicDataResponse] = field(default_factory=list)
