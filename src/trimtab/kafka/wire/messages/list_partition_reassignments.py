"""ListPartitionReassignments (API 46): the unfinished moves of partitions (KIP-455)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int16, int32, string


@struct()
class ListPartitionReassignmentsTopics:
    name: string
    partition_indexes: list[int32]


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest(Request["ListPartitionReassignmentsResponse"]):
    """Ask for the unfinished moves."""

    timeout_ms: int32 = 60000
    # Null for all of the cluster.
    topics: list[ListPartitionReassignmentsTopics] | None = field(
        nullable_versions="0+", default=None
    )


@struct()
class OngoingPartitionReassignment:
    partition_index: int32
    # All present replicas, including those to add and to remove.
    replicas: list[int32]
    adding_replicas: list[int32]
    removing_replicas: list[int32]


@struct()
class OngoingTopicReassignment:
    name: string
    partitions: list[OngoingPartitionReassignment]


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    """The unfinished moves; other partitions are left out."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")
    topics: list[OngoingTopicReassignment] = field(default_factory=list)
