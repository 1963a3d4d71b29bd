"""ListGroups (API 16): the groups that a broker coordinates."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int16, int32, string


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsRequest(Request["ListGroupsResponse"]):
    """Ask a broker for its groups. v4 adds a filter by state (KIP-518), v5 by type (KIP-848)."""

    states_filter: list[string] = field(versions="4+", default_factory=list)
    types_filter: list[string] = field(versions="5+", default_factory=list)


@struct()
class ListedGroup:
    """One group. Its protocol type is empty if it only stores offsets."""

    group_id: string
    protocol_type: string
    group_state: string = field(versions="4+", default="", ignorable=True)
    group_type: string = field(versions="5+", default="", ignorable=True)


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsResponse:
    """The groups that match both filters; an empty filter matches all."""

    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    error_code: int16
    groups: list[ListedGroup]
