"""AssignReplicasToDirs (API 73): a broker says which log directory has which replica (KIP-858)."""

from __future__ import annotations

from trimtab.wire.schema import field, message, struct
from trimtab.wire.types import int16, int32, int64, uuid


@struct()
class PartitionData:
    """One partition."""

    partition_index: int32


@struct()
class TopicData:
    """Partitions of one topic."""

    topic_id: uuid
    partitions: list[PartitionData]


@struct()
class DirectoryData:
    """One directory and what is in it."""

    id: uuid
    topics: list[TopicData]


@message(api_key=73, versions="0", flexible="0+")
class AssignReplicasToDirsRequest:
    """Tell the controller where replicas are."""

    broker_id: int32
    broker_epoch: int64 = -1
    directories: list[DirectoryData]


# Kafka calls the next three as it does the request's: PartitionData, TopicData, DirectoryData.
@struct()
class PartitionDataResponse:
    """What became of one partition."""

    partition_index: int32
    error_code: int16 = 0


@struct()
class TopicDataResponse:
    """Partitions of one topic."""

    topic_id: uuid
    partitions: list[PartitionDataResponse]


@struct()
class DirectoryDataResponse:
    """Partitions in one directory."""

    id: uuid
    topics: list[TopicDataResponse]


@message(api_key=73, versions="0", flexible="0+")
class AssignReplicasToDirsResponse:
    """One result per partition."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    directories: list[DirectoryDataResponse] = field(default_factory=list)
