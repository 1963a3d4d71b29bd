"""DeleteAcls (API 31): delete ACLs (KIP-140, KIP-290)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int8, int16, int32, string


@struct()
class DeleteAclsFilter:
    resource_type_filter: int8
    # Null matches all; likewise below.
    resource_name_filter: string | None = field(nullable_versions="0+")
    # 3: exactly this name.
    pattern_type_filter: int8 = field(versions="1+", default=3)
    principal_filter: string | None = field(nullable_versions="0+")
    host_filter: string | None = field(nullable_versions="0+")
    operation: int8
    permission_type: int8


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsRequest(Request["DeleteAclsResponse"]):
    """Delete the ACLs that match. v1 adds pattern types, v2 is flexible, v3 adds users."""

    filters: list[DeleteAclsFilter]


@struct()
class DeleteAclsMatchingAcl:
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")
    resource_type: int8
    resource_name: string
    pattern_type: int8 = field(versions="1+", default=3)
    principal: string
    host: string
    operation: int8
    permission_type: int8


@struct()
class DeleteAclsFilterResult:
    """The ACLs that one filter has matched."""

    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")
    matching_acls: list[DeleteAclsMatchingAcl]


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsResponse:
    """One result per filter, in their order."""

    throttle_time_ms: int32 = 0
    filter_results: list[DeleteAclsFilterResult]
