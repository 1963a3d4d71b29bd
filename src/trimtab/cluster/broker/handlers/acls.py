"""DescribeAcls (29), CreateAcls (30) and DeleteAcls (31), versions 1-3: there are none.

Every client may do everything. The response is that of Apache Kafka without an authorizer.
"""

from __future__ import annotations

from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from trimtab.kafka.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from trimtab.kafka.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

_NONE_ON_BROKER = "No Authorizer is configured on the broker"
_NONE = "No Authorizer is configured."


def describe_acls(header: RequestHeader, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """SECURITY_DISABLED."""
    return DescribeAclsResponse(
        throttle_time_ms=0, error_code=ErrorCode.SECURITY_DISABLED, error_message=_NONE_ON_BROKER
    )


def create_acls(header: RequestHeader, request: CreateAclsRequest) -> CreateAclsResponse:
    """SECURITY_DISABLED for each ACL."""
    result = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NONE)
    return CreateAclsResponse(throttle_time_ms=0, results=[result] * len(request.creations))


def delete_acls(header: RequestHeader, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """SECURITY_DISABLED for each filter."""
    result = DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=_NONE, matching_acls=[]
    )
    return DeleteAclsResponse(throttle_time_ms=0, filter_results=[result] * len(request.filters))
