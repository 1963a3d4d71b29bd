"""The cluster's brokers."""

from __future__ import annotations

from typing import Final

from trimtab.client.admin.answers import ClusterDescription
from trimtab.client.admin.calls import Calls, Family, check, check_change
from trimtab.client.network.connection import Node
from trimtab.kafka.arguments import checked_flag, checked_integer, checked_wait_ms
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.wire.messages.describe_cluster import DescribeClusterRequest
from trimtab.kafka.wire.messages.unregister_broker import UnregisterBrokerRequest

_LISTS_FENCED: Final = 2


class BrokerAdmin(Family):
    """Describes the cluster's brokers, and removes their registrations."""

    async def cluster(
        self, timeout_ms: float | None = None, include_fenced: bool = False
    ) -> ClusterDescription:
        """The cluster's id and its brokers.

        Args:
            timeout_ms: how long to wait for a broker; `default.api.timeout.ms` if None.
            include_fenced: also brokers that the controller has fenced, such as stopped ones.

        Raises:
            BrokerError: with `include_fenced` UNSUPPORTED_VERSION, from brokers before Kafka 4.0.
        """
        timeout = None if timeout_ms is None else checked_wait_ms("timeout_ms", timeout_ms)
        if checked_flag("include_fenced", include_fenced):
            return await _describe_all(self._calls, timeout)
        return await _describe_live(self._calls, timeout)

    async def unregister_broker(self, broker: int) -> None:
        """Remove the registration of a stopped broker that will not come back (KIP-631).

        A broker of trimtab's that runs registers again at its next heartbeat.

        Raises:
            BrokerError: BROKER_ID_NOT_REGISTERED.
        """
        broker = checked_integer("broker", broker, 0)

        async def unregister() -> None:
            connection = await self._calls.connect_to_controller()
            response = await self._calls.send_once(
                connection, UnregisterBrokerRequest(broker_id=broker), "cluster()"
            )
            check_change(response.error_code, response.error_message, f"broker {broker}")

        await self._calls.retry("unregister a broker", unregister)


async def _describe_live(calls: Calls, timeout: float | None) -> ClusterDescription:
    """From the metadata, which every broker serves."""
    response = await calls.retry("describe the cluster", lambda: calls.fetch_metadata([]), timeout)
    return ClusterDescription(
        response.cluster_id,
        response.controller_id,
        [node for _, node in sorted(calls.session.metadata.nodes.items())],
    )


async def _describe_all(calls: Calls, timeout: float | None) -> ClusterDescription:
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
