"""DescribeAcls (API 29): the operations granted or denied to users (KIP-140, KIP-290)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int8, int16, int32, string


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsRequest(Request["DescribeAclsResponse"]):
    """Ask for the ACLs that match. v1 adds pattern types, v2 is flexible, v3 adds users."""

    resource_type_filter: int8
    # Null matches all; likewise below.
    resource_name_filter: string | None = field(nullable_versions="0+")
    # 3: exactly this name.
    pattern_type_filter: int8 = field(versions="1+", default=3)
    principal_filter: string | None = field(nullable_versions="0+")
    host_filter: string | None = field(nullable_versions="0+")
    operation: int8
    permission_type: int8


@struct()
class AclDescription:
    principal: string
    host: string
    operation: int8
    permission_type: int8


@struct()
class DescribeAclsResource:
    resource_type: int8
    resource_name: string
    pattern_type: int8 = field(versions="1+", default=3)
    acls: list[AclDescription]


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsResponse:
    """The resources that have matching ACLs."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")
    resources: list[DescribeAclsResource] = field(default_factory=list)
