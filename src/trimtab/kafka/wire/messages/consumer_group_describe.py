"""ConsumerGroupDescribe (API 69): the members of consumer groups, and what each has (KIP-848)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import UNKNOWN_AUTHORIZED_OPERATIONS
from trimtab.kafka.wire.types import int8, int16, int32, string, uuid


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest(Request["ConsumerGroupDescribeResponse"]):
    """Describe these groups. v1 adds the members' type to the response (KIP-1099)."""

    group_ids: list[string]
    include_authorized_operations: bool


@struct()
class TopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid
    topic_name: string
    partitions: list[int32]


@struct()
class Assignment:
    """Partitions of a member."""

    topic_partitions: list[TopicPartitions]


@struct()
class Member:
    """One member. `member_type`: 0 uses the classic protocol, 1 the consumer protocol."""

    member_id: string
    instance_id: string | None = field(nullable_versions="0+", default=None)
    rack_id: string | None = field(nullable_versions="0+", default=None)
    member_epoch: int32
    client_id: string
    client_host: string
    subscribed_topic_names: list[string]
    subscribed_topic_regex: string | None = field(nullable_versions="0+", default=None)
    assignment: Assignment
    target_assignment: Assignment
    member_type: int8 = field(versions="1+", default=-1, ignorable=True)


@struct()
class DescribedGroup:
    """One group, or why it cannot be described."""

    error_code: int16
    error_message: string | None = field(nullable_versions="0+", default=None)
    group_id: string
    group_state: string
    group_epoch: int32
    assignment_epoch: int32
    assignor_name: string
    members: list[Member]
    authorized_operations: int32 = UNKNOWN_AUTHORIZED_OPERATIONS


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    """The groups, in the order of the request."""

    throttle_time_ms: int32 = 0
    groups: list[DescribedGroup]
