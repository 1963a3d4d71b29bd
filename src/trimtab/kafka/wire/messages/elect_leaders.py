"""ElectLeaders (API 43): elect new leaders of partitions (KIP-183)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int8, int16, int32, string


@struct()
class TopicPartitions:
    topic: string
    partitions: list[int32]


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest(Request["ElectLeadersResponse"]):
    """Elect the preferred leaders. v1 adds the other kind of election (KIP-460). v2 is flexible."""

    # 0: the preferred replica; 1: any live one if none is in sync, which may lose records.
    election_type: int8 = field(versions="1+", default=0)
    # Null for all of the cluster.
    topic_partitions: list[TopicPartitions] | None = field(nullable_versions="0+")
    timeout_ms: int32 = 60000


@struct()
class PartitionResult:
    partition_id: int32
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")


@struct()
class ReplicaElectionResult:
    topic: string
    partition_result: list[PartitionResult]


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse:
    """One result per partition. v1 adds the top-level error."""

    throttle_time_ms: int32 = 0
    error_code: int16 = field(versions="1+", default=0)
    replica_election_results: list[ReplicaElectionResult] = field(default_factory=list)
