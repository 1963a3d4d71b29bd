"""CreatePartitions (API 37): add partitions to topics (KIP-195)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int16, int32, string


@struct()
class CreatePartitionsAssignment:
    """The brokers of one new partition, the preferred leader first."""

    broker_ids: list[int32]


@struct()
class CreatePartitionsTopic:
    """The new number of partitions of one topic."""

    name: string
    # In all, not only the new ones.
    count: int32
    # One for each new partition, or null to leave it to the controller.
    assignments: list[CreatePartitionsAssignment] | None = field(nullable_versions="0+")


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest(Request["CreatePartitionsResponse"]):
    """Add partitions, or only check that they could be. v2 is flexible."""

    topics: list[CreatePartitionsTopic]
    timeout_ms: int32
    validate_only: bool = False


@struct()
class CreatePartitionsTopicResult:
    name: string
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default=None)


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    """One result per topic. v3 may answer THROTTLING_QUOTA_EXCEEDED (KIP-599)."""

    throttle_time_ms: int32 = 0
    results: list[CreatePartitionsTopicResult]
