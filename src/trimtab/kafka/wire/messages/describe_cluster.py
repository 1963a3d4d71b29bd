"""DescribeCluster (API 60): the brokers or controllers (KIP-700)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_BROKER
from trimtab.kafka.wire.types import int8, int16, int32, string


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest(Request["DescribeClusterResponse"]):
    """Ask for the nodes of the cluster. v1 adds controllers (KIP-919), v2 fenced brokers."""

    include_cluster_authorized_operations: bool = False
    # 1: brokers; 2: controllers.
    endpoint_type: int8 = field(versions="1+", default=1)
    include_fenced_brokers: bool = field(versions="2+", default=False)


@struct()
class DescribeClusterBroker:
    """One node and its address."""

    broker_id: int32
    host: string
    port: int32
    rack: string | None = field(nullable_versions="0+", default=None)
    is_fenced: bool = field(versions="2+", default=False)


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse:
    """The nodes of the cluster. v1 adds the endpoint type; v2 says which are fenced (KIP-1073)."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default=None)
    endpoint_type: int8 = field(versions="1+", default=1)
    cluster_id: string
    # In a broker's answer in KRaft mode, any live broker's id.
    controller_id: int32 = NO_BROKER
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: int32 = -(2**31)
