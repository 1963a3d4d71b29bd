"""DeleteGroups (API 42): delete groups without members, with their offsets."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, message, struct
from trimtab.kafka.wire.types import int16, int32, string


@message(api_key=42, versions="0-2", flexible="2+")
class DeleteGroupsRequest(Request["DeleteGroupsResponse"]):
    """Ask the coordinator to delete groups."""

    groups_names: list[string]


@struct()
class DeletableGroupResult:
    """Whether one group was deleted."""

    group_id: string
    error_code: int16


@message(api_key=42, versions="0-2", flexible="2+")
class DeleteGroupsResponse:
    """One result per group."""

    throttle_time_ms: int32
    results: list[DeletableGroupResult]
