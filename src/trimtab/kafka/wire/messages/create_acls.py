"""CreateAcls (API 30): grant or deny operations to users (KIP-140, KIP-290)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int8, int16, int32, string


@struct()
class AclCreation:
    resource_type: int8
    resource_name: string
    # 3: exactly this name.
    resource_pattern_type: int8 = field(versions="1+", default=3)
    principal: string
    host: string
    operation: int8
    permission_type: int8


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsRequest(Request["CreateAclsResponse"]):
    """Create ACLs. v1 adds pattern types, v2 is flexible, v3 adds users as a resource type."""

    creations: list[AclCreation]


@struct()
class AclCreationResult:
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsResponse:
    """One result per ACL, in their order."""

    throttle_time_ms: int32 = 0
    results: list[AclCreationResult]
