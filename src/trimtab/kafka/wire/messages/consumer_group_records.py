"""The records of `__consumer_offsets` about consumer groups (KIP-848): members, the target
assignment and the assignment of each member. `group_records` encodes and decodes them.

Source: the definitions of Kafka's group coordinator.
"""

from __future__ import annotations

from trimtab.kafka.wire.schema import field, message, struct
from trimtab.kafka.wire.types import binary, int8, int32, int64, string, uuid


@message(api_key=3, versions="0")
class ConsumerGroupMetadataKey:
    """A consumer group."""

    group_id: string = field(versions="0")


@message(api_key=3, versions="0", flexible="0+")
class ConsumerGroupMetadataValue:
    """The group's epoch, and a hash of the topics it subscribes to (KIP-1101)."""

    epoch: int32
    metadata_hash: int64 = field(tag=0, tagged_versions="0+", default=0)


@message(api_key=5, versions="0")
class ConsumerGroupMemberMetadataKey:
    """A member of a consumer group."""

    group_id: string = field(versions="0")
    member_id: string = field(versions="0")


@struct()
class ClassicProtocol:
    """A protocol that a member of the classic protocol supports."""

    name: string
    metadata: binary


@struct()
class ClassicMemberMetadata:
    """What is known of a member that uses the classic protocol in a consumer group."""

    session_timeout_ms: int32
    supported_protocols: list[ClassicProtocol]


@message(api_key=5, versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue:
    """The member's client, subscription and wishes."""

    instance_id: string | None = field(nullable_versions="0+")
    rack_id: string | None = field(nullable_versions="0+")
    client_id: string
    client_host: string
    subscribed_topic_names: list[string]
    subscribed_topic_regex: string | None = field(nullable_versions="0+")
    rebalance_timeout_ms: int32 = -1
    server_assignor: string | None = field(nullable_versions="0+")
    classic_member_metadata: ClassicMemberMetadata | None = field(
        nullable_versions="0+", tag=0, tagged_versions="0+", default=None
    )


@message(api_key=6, versions="0")
class ConsumerGroupTargetAssignmentMetadataKey:
    """The target assignment of a consumer group."""

    group_id: string = field(versions="0")


@message(api_key=6, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue:
    """The group epoch that the assignment was computed for, and when (wall clock, in ms)."""

    assignment_epoch: int32
    assignment_timestamp: int64 = field(tag=0, tagged_versions="0+", default=0, ignorable=True)


@message(api_key=7, versions="0")
class ConsumerGroupTargetAssignmentMemberKey:
    """A member's part of the target assignment."""

    group_id: string = field(versions="0")
    member_id: string = field(versions="0")


@struct()
class TopicPartition:
    """Partitions of a topic in the target assignment."""

    topic_id: uuid
    partitions: list[int32]


@message(api_key=7, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue:
    """The partitions that the member is to have."""

    topic_partitions: list[TopicPartition]


@message(api_key=8, versions="0")
class ConsumerGroupCurrentMemberAssignmentKey:
    """A member's own assignment."""

    group_id: string = field(versions="0")
    member_id: string = field(versions="0")


@struct()
class TopicPartitions:
    """Partitions of a topic that a member has, and the epochs at which each was assigned to it
    (KIP-1251)."""

    topic_id: uuid
    partitions: list[int32]
    assignment_epochs: list[int32] | None = field(
        nullable_versions="0+", tag=0, tagged_versions="0+", default=None
    )


@message(api_key=8, versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue:
    """The member's epoch and the one before, its state, and its partitions."""

    member_epoch: int32
    previous_member_epoch: int32
    state: int8
    assigned_partitions: list[TopicPartitions]
    partitions_pending_revocation: list[TopicPartitions]


@message(api_key=16, versions="0")
class ConsumerGroupRegularExpressionKey:
    """A regular expression that members of a consumer group subscribe with."""

    group_id: string = field(versions="0")
    regular_expression: string = field(versions="0")


@message(api_key=16, versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue:
    """The topics that the expression matched, in which version of the metadata, and when."""

    topics: list[string]
    version: int64
    timestamp: int64
