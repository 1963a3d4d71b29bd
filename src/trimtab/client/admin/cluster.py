"""The cluster's brokers."""

from __future__ import annotations

from typing import Final

from trimtab.client.admin.answers import ClusterDescription
from trimtab.client.admin.calls import Calls, check, raise_change_error, read_error
from trimtab.client.network.connection import Node
from trimtab.errors import BrokerError, ErrorCode
from trimtab.wire.messages.describe_cluster import DescribeClusterRequest
from trimtab.wire.messages.unregister_broker import UnregisterBrokerRequest

_LISTS_FENCED: Final = 2


async def describe_live(calls: Calls, timeout: float | None) -> ClusterDescription:
    """From the metadata, which every broker serves."""
    response = await calls.retry("describe the cluster", lambda: calls.fetch_metadata([]), timeout)
    return ClusterDescription(
        response.cluster_id,
        response.controller_id,
        [node for _, node in sorted(calls.session.metadata.nodes.items())],
    )


async def describe_all(calls: Calls, timeout: float | None) -> ClusterDescription:
    """With the fenced brokers (KIP-1073)."""

    async def describe() -> ClusterDescription:
        connection = await calls.connect_any()
        version = connection.version_of(DescribeClusterRequest)
        if version < _LISTS_FENCED:
            raise BrokerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{connection.node} does not list fenced brokers, as brokers before Kafka 4.0",
                "cluster",
            )
        response = await connection.request(
            DescribeClusterRequest(include_fenced_brokers=True), version
        )
        check(response.error_code, response.error_message, "cluster")
        brokers = sorted(response.brokers, key=lambda each: each.broker_id)
        return ClusterDescription(
            response.cluster_id,
            response.controller_id,
            [Node(each.broker_id, each.host, each.port, each.rack) for each in brokers],
            frozenset(each.broker_id for each in brokers if each.is_fenced),
        )

    return await calls.retry("describe the cluster", describe, timeout)


async def unregister_broker(calls: Calls, broker: int) -> None:
    async def unregister() -> None:
        connection = await calls.connect_to_controller()
        response = await calls.send_once(
            connection, UnregisterBrokerRequest(broker_id=broker), "cluster()"
        )
        raise_change_error(
            read_error(response.error_code, response.error_message, f"broker {broker}")
        )

    await calls.retry("unregister a broker", unregister)
