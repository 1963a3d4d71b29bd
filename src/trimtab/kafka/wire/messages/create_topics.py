"""CreateTopics (API 19)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import ZERO_UUID, int8, int16, int32, string, uuid


@struct()
class CreatableReplicaAssignment:
    """The brokers of one partition, the preferred leader first."""

    partition_index: int32
    broker_ids: list[int32]


@struct()
class CreatableTopicConfig:
    """One option of the new topic."""

    name: string
    value: string | None = field(nullable_versions="0+")


@struct()
class CreatableTopic:
    name: string
    # -1 for the broker's default, and whenever assignments are given; likewise the next.
    num_partitions: int32
    replication_factor: int16
    assignments: list[CreatableReplicaAssignment] = field(default_factory=list)
    configs: list[CreatableTopicConfig] = field(default_factory=list)


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsRequest(Request["CreateTopicsResponse"]):
    """Create topics, or only check that they could be.

    v4 allows -1 for the broker's default counts (KIP-464). v5 is flexible.
    """

    topics: list[CreatableTopic]
    timeout_ms: int32 = 60000
    validate_only: bool = field(versions="1+", default=False)


@struct(versions="5+")
class CreatableTopicConfigs:
    """One option that the new topic has."""

    name: string
    value: string | None = field(nullable_versions="5+")
    read_only: bool
    config_source: int8 = field(default=-1, ignorable=True)
    is_sensitive: bool


@struct()
class CreatableTopicResult:
    name: string
    topic_id: uuid = field(versions="7+", default=ZERO_UUID, ignorable=True)
    error_code: int16 = 0
    error_message: string | None = field(
        versions="1+", nullable_versions="0+", default="", ignorable=True
    )
    # Why the configs are missing, if they are.
    topic_config_error_code: int16 = field(
        versions="5+", tag=0, tagged_versions="5+", default=0, ignorable=True
    )
    num_partitions: int32 = field(versions="5+", default=-1, ignorable=True)
    replication_factor: int16 = field(versions="5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = field(
        versions="5+", nullable_versions="5+", default_factory=list, ignorable=True
    )


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse:
    """One result per topic, in any order.

    v5 is flexible and shows the topic as created (KIP-525); v6 may answer THROTTLING_QUOTA_EXCEEDED
    (KIP-599); v7 adds the topic id.
    """

    throttle_time_ms: int32 = field(versions="2+", default=0, ignorable=True)
    topics: list[CreatableTopicResult]
