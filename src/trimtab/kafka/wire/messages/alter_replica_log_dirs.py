"""AlterReplicaLogDirs (API 34): move logs between a broker's directories (KIP-113)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, message, struct
from trimtab.kafka.wire.types import int16, int32, string


@struct()
class AlterReplicaLogDirTopic:
    name: string
    partitions: list[int32]


@struct()
class AlterReplicaLogDir:
    """One directory, and the partitions to move into it."""

    # Absolute.
    path: string
    topics: list[AlterReplicaLogDirTopic]


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest(Request["AlterReplicaLogDirsResponse"]):
    """Start to move logs; a log that the broker lacks is created there. v2 is flexible."""

    dirs: list[AlterReplicaLogDir]


@struct()
class AlterReplicaLogDirPartitionResult:
    """Whether the move of one partition has begun."""

    partition_index: int32
    error_code: int16 = 0


@struct()
class AlterReplicaLogDirTopicResult:
    topic_name: string
    partitions: list[AlterReplicaLogDirPartitionResult]


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    throttle_time_ms: int32 = 0
    results: list[AlterReplicaLogDirTopicResult]
