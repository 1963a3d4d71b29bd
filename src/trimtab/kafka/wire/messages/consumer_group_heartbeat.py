"""ConsumerGroupHeartbeat (API 68): how a consumer joins a group and stays in it (KIP-848)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int16, int32, string, uuid


@struct()
class TopicPartitions:
    topic_id: uuid
    partitions: list[int32]


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest(Request["ConsumerGroupHeartbeatResponse"]):
    """Join with epoch 0, stay with the received epoch, leave with -1 or -2.

    v1 adds subscriptions by regular expression, and member ids made by the client.
    """

    group_id: string
    member_id: string
    member_epoch: int32
    instance_id: string | None = field(nullable_versions="0+", default=None)
    rack_id: string | None = field(nullable_versions="0+", default=None)
    rebalance_timeout_ms: int32 = -1
    subscribed_topic_names: list[string] | None = field(nullable_versions="0+", default=None)
    subscribed_topic_regex: string | None = field(
        versions="1+", nullable_versions="1+", default=None
    )
    server_assignor: string | None = field(nullable_versions="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = field(nullable_versions="0+", default=None)


@struct()
class Assignment:
    """The partitions that the member has to read."""

    topic_partitions: list[TopicPartitions]


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    """The member's epoch, and its assignment if that has changed."""

    throttle_time_ms: int32
    error_code: int16
    error_message: string | None = field(nullable_versions="0+", default=None)
    member_id: string | None = field(nullable_versions="0+", default=None)
    member_epoch: int32
    heartbeat_interval_ms: int32
    assignment: Assignment | None = field(nullable_versions="0+", default=None)
