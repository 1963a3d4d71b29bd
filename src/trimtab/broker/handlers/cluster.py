"""DescribeCluster (60), versions 0-2: the brokers and the controller.

Endpoint type 2 (controllers) is refused with MISMATCHED_ENDPOINT_TYPE: this is a broker (KIP-919).
The response has the authorized operations if the request asks for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.broker.handlers.operations import ON_CLUSTER
from trimtab.errors import ErrorCode
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from trimtab.wire.sentinels import UNKNOWN_AUTHORIZED_OPERATIONS

if TYPE_CHECKING:
    from trimtab.broker.broker import Broker

_BROKERS = 1
_CONTROLLERS = 2


def describe_cluster(
    broker: Broker, header: RequestHeader, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """The cluster's id, controller and brokers."""
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if request.endpoint_type == _CONTROLLERS
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Endpoint type {request.endpoint_type} is not served here; ask for "
            f"{_BROKERS}, the brokers.",
            endpoint_type=_BROKERS,
            cluster_id="",
            brokers=[],
        )
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        endpoint_type=_BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        cluster_authorized_operations=ON_CLUSTER
        if request.include_cluster_authorized_operations
        else UNKNOWN_AUTHORIZED_OPERATIONS,
        brokers=[
            DescribeClusterBroker(
                broker_id=each.id,
                host=each.host,
                port=each.port,
                rack=each.rack,
                is_fenced=each.fenced,
            )
            for _, each in sorted(broker.image.brokers.items())
            if request.include_fenced_brokers or not each.fenced
        ],
    )
