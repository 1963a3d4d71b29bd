"""JoinGroup (API 11): join a classic consumer group, or join it again for its next generation."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_EPOCH
from trimtab.kafka.wire.types import binary, int16, int32, string


@struct()
class JoinGroupRequestProtocol:
    """A way of assigning partitions that the member knows, and what it subscribes to."""

    name: string
    metadata: binary


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupRequest(Request["JoinGroupResponse"]):
    """Ask for membership in the group's next generation.

    v1 adds the rebalance timeout; from v4 on a new member is given an id, and joins again with it
    (KIP-394); v5 adds static members (KIP-345); v8 the reason (KIP-800).
    """

    group_id: string
    session_timeout_ms: int32
    # How long the others wait for this member to join again; before v1 the session timeout.
    rebalance_timeout_ms: int32 = field(versions="1+", default=-1, ignorable=True)
    # Empty: the group gives one.
    member_id: string
    group_instance_id: string | None = field(versions="5+", nullable_versions="5+", default=None)
    # "consumer" of consumers, "connect" of Kafka Connect.
    protocol_type: string
    # The preferred one first.
    protocols: list[JoinGroupRequestProtocol]
    reason: string | None = field(
        versions="8+", nullable_versions="8+", default=None, ignorable=True
    )


@struct()
class JoinGroupResponseMember:
    """A member, and its metadata for the protocol that was chosen."""

    member_id: string
    group_instance_id: string | None = field(
        versions="5+", nullable_versions="5+", default=None, ignorable=True
    )
    metadata: binary


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupResponse:
    """The generation that the member belongs to. The leader alone is given the members.

    v9 adds `skip_assignment`: the leader's assignment of this generation stays (KIP-814).
    """

    throttle_time_ms: int32 = field(versions="2+", default=0, ignorable=True)
    error_code: int16
    generation_id: int32 = NO_EPOCH
    protocol_type: string | None = field(
        versions="7+", nullable_versions="7+", default=None, ignorable=True
    )
    protocol_name: string | None = field(nullable_versions="7+")
    leader: string
    skip_assignment: bool = field(versions="9+", default=False)
    member_id: string
    members: list[JoinGroupResponseMember]
