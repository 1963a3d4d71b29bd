"""DescribeCluster (60), versions 0-2: the brokers and the controller.

Endpoint type 2 (controllers) is refused with MISMATCHED_ENDPOINT_TYPE: this is a broker (KIP-919).
The response has the authorized operations if the request asks for them.
"""

from __future__ import annotations

from trimtab.cluster.broker.authorized_operations import ON_CLUSTER
from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from trimtab.kafka.wire.sentinels import UNKNOWN_AUTHORIZED_OPERATIONS

_BROKERS = 1
_CONTROLLERS = 2


def describe_cluster(
    view: ClusterView, header: RequestHeader, request: DescribeClusterRequest
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
        cluster_id=view.cluster_id,
        controller_id=view.id,
        cluster_authorized_operations=ON_CLUSTER
        if request.include_cluster_authorized_operations
        else UNKNOWN_AUTHORIZED_OPERATIONS,
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.id,
                host=broker.host,
                port=broker.port,
                rack=broker.rack,
                is_fenced=broker.fenced,
            )
            for _, broker in sorted(view.image.brokers.items())
            if request.include_fenced_brokers or not broker.fenced
        ],
    )
