"""The controller as a node of the cluster: its listener, and the handlers of its requests.

What only brokers ask is answered with CLUSTER_AUTHORIZATION_FAILED if it comes from others, as by
Kafka without CLUSTER_ACTION on the cluster. What brokers forward for their clients anybody may ask.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from errno import EADDRNOTAVAIL, EAFNOSUPPORT
from functools import partial
from operator import attrgetter
from random import Random
from typing import Any

from trimtab.cluster.config import BROKER
from trimtab.cluster.controller.controller import Answer, Controller
from trimtab.cluster.controller.large_requests import Decide, Parts, decide_in_parts
from trimtab.cluster.controller.leader_changes import name_partitions
from trimtab.cluster.controller.quorum import describe_cluster, describe_quorum
from trimtab.cluster.controller.sessions import Probe
from trimtab.cluster.controller.topics import is_excessive, refuse_excess
from trimtab.cluster.server.cluster_secret import CONTROLLER, ClusterSecret
from trimtab.cluster.server.listener import Listener
from trimtab.cluster.server.request import CloseConnection, Handler
from trimtab.cluster.server.turns import Steps
from trimtab.cluster.storage.storage import Storage
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.options import INT_MAX, Config, read, read_given
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from trimtab.kafka.wire.messages.alter_configs import AlterConfigsRequest
from trimtab.kafka.wire.messages.alter_partition import AlterPartitionRequest
from trimtab.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from trimtab.kafka.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
)
from trimtab.kafka.wire.messages.broker_registration import BrokerRegistrationRequest
from trimtab.kafka.wire.messages.create_partitions import CreatePartitionsRequest
from trimtab.kafka.wire.messages.create_topics import CreateTopicsRequest
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest
from trimtab.kafka.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from trimtab.kafka.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
)
from trimtab.kafka.wire.messages.elect_leaders import ElectLeadersRequest
from trimtab.kafka.wire.messages.fetch import FetchRequest, FetchResponse
from trimtab.kafka.wire.messages.fetch_snapshot import FetchSnapshotRequest
from trimtab.kafka.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from trimtab.kafka.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from trimtab.kafka.wire.messages.unregister_broker import UnregisterBrokerRequest
from trimtab.kafka.wire.messages.update_features import UpdateFeaturesRequest
from trimtab.kafka.wire.schema import Request, response_of, schema
from trimtab.kafka.wire.types import ZERO_UUID

_PROBE_TIMEOUT_S = 1.0
_STREAM = 1
"""`SOCK_STREAM`."""
_UNLIMITED = {"max.connections": INT_MAX, "max.connections.per.ip": INT_MAX}
_FETCH_SINCE = 12
_NO_SUCH_ADDRESS = (EADDRNOTAVAIL, EAFNOSUPPORT)
"""The machine has no address of this family; the host name may have others."""

_NAME = attrgetter("name")
_CREATION = Parts(
    *("topics", "topics"),
    name=_NAME,
    answers_once=True,
    partitions=lambda topic: max(topic.num_partitions, len(topic.assignments)),
)
_MORE_PARTITIONS = Parts(
    "topics", "results", name=_NAME, answers_once=True, partitions=attrgetter("count")
)
_DELETION = Parts(
    "topics", "responses", name=lambda topic: (topic.name, topic.topic_id), answers_once=True
)
_DELETION_BY_NAME = Parts(
    "topic_names", "responses", name=lambda name: (name, ZERO_UUID), answers_once=True
)
_CONFIGS = Parts(
    "resources", "responses", name=lambda each: (each.resource_type, each.resource_name)
)
_ELECTION = Parts(
    *("topic_partitions", "replica_election_results", "partitions", "partition_result")
)
_REASSIGNMENT = Parts("topics", "responses", "partitions", "partitions")
_ISR_CHANGE = Parts("topics", "topics", "partitions", "partitions")

_log = logging.getLogger(__name__)


async def is_refused(host: str, port: int) -> bool:
    """Whether a connection to this address is refused, so that no process listens there."""
    loop = asyncio.get_running_loop()
    refused = False
    try:
        # One address at a time: `create_connection` would merge several errors into another one.
        for *_, address in await loop.getaddrinfo(host, port, type=_STREAM):
            try:
                async with asyncio.timeout(_PROBE_TIMEOUT_S):
                    transport, _ = await loop.create_connection(
                        asyncio.Protocol, str(address[0]), int(address[1])
                    )
            except ConnectionRefusedError:
                refused = True
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS:
                    return False
            else:
                transport.close()
                return False
    except OSError:
        return False
    return refused


def _refuse_stranger(request: Request[Any]) -> Any:
    kind = schema(response_of(type(request)))
    required: dict[str, object] = {each.name: [] for each in kind.fields if each.required}  # arrays
    return kind.cls(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, **required)


class ControllerNode:
    """A controller with a listener. Call `listen`, then `start`, and `close` at the end.

    Args:
        node_id: different from the ids of all brokers.
        cluster_id: the cluster id that brokers must register with.
        storage: the directory of its journal, which it locks and closes.
        secret: that of the cluster.
        options: broker options (`trimtab.cluster.config.BROKER`), dotted or in snake case.
        now_ms: wall time in milliseconds.
        random: for topic ids and placement.
        probe: checks whether a broker's address refuses connections.

    Attributes:
        controller: makes the decisions.
        listener: its listener.
        failed: set once the disk has failed. All connections are closed, and no request is served:
            close the node, and start another when the disk works again.

    Raises:
        CorruptData: the journal is damaged before its end.
        StorageError: the disk failed.
        UsageError: an option is unknown or has a bad value; the directory is in use.
    """

    def __init__(
        self,
        node_id: int,
        cluster_id: str,
        storage: Storage,
        secret: ClusterSecret,
        options: Mapping[str, object],
        now_ms: Callable[[], int],
        random: Random,
        probe: Probe = is_refused,
    ) -> None:
        self._storage = storage
        self._now_ms = now_ms
        self._address = ("", 0)
        self.config = read(BROKER, options)
        self.failed = asyncio.Event()
        storage.lock()
        try:
            self.controller = Controller(
                storage,
                node_id,
                cluster_id,
                read_given(BROKER, options),
                now_ms,
                random,
                probe,
            )
        except BaseException:
            storage.close()
            raise
        self.controller.journal.on_failure = self._fail
        # Limits on clients must not keep brokers out.
        self.listener = Listener(
            node_id,
            self._handlers(),
            Config(self.config | _UNLIMITED),
            secret=secret,
            name=CONTROLLER,
        )

    async def listen(self, host: str, port: int) -> int:
        """Bind the address, without serving yet; returns the port, as `port` may be 0.

        Raises:
            OSError: the address is taken.
        """
        self._address = host, await self.listener.bind(host, port)
        return self._address[1]

    async def start(self, advertised: tuple[str, int] | None = None) -> None:
        """Begin to serve brokers.

        Args:
            advertised: host and port for other nodes, if not those it listens on.
        """
        self._address = advertised or self._address
        await self.controller.start()
        await self.listener.start()

    async def close(self) -> None:
        """Close the connections, and the journal once all decisions are on disk."""
        await self.listener.close()
        await self.controller.close()
        self._storage.close()

    def abort(self) -> None:
        """Stop at once, like a killed process: write no file and send nothing."""
        self.listener.abort()
        self.controller.abort()

    def _handlers(self) -> dict[int, Callable[[RequestHeader, Any], Any]]:
        controller = self.controller

        def ask(decide: Callable[[Any], Any]) -> Callable[[RequestHeader, Any], Any]:
            return lambda header, request: decide(request)

        def of_nodes(handle: Handler) -> Handler:
            return lambda header, request: (
                handle(header, request) if header.is_node else _refuse_stranger(request)
            )

        def in_parts(decide: Decide, parts: Parts) -> Callable[[RequestHeader, Any], Any]:
            return lambda header, request: decide_in_parts(decide, controller.reach, parts, request)

        return {
            FetchRequest.api_key: of_nodes(self._fetch),
            CreateTopicsRequest.api_key: self._create_topics,
            DeleteTopicsRequest.api_key: self._delete_topics,
            AlterConfigsRequest.api_key: in_parts(controller.alter_configs, _CONFIGS),
            CreatePartitionsRequest.api_key: in_parts(
                controller.create_partitions, _MORE_PARTITIONS
            ),
            ElectLeadersRequest.api_key: self._elect_leaders,
            IncrementalAlterConfigsRequest.api_key: in_parts(
                controller.incremental_alter_configs, _CONFIGS
            ),
            AlterPartitionReassignmentsRequest.api_key: in_parts(
                controller.alter_partition_reassignments, _REASSIGNMENT
            ),
            ListPartitionReassignmentsRequest.api_key: ask(controller.list_partition_reassignments),
            DescribeQuorumRequest.api_key: self._describe_quorum,
            AlterPartitionRequest.api_key: of_nodes(
                in_parts(controller.alter_partition, _ISR_CHANGE)
            ),
            FetchSnapshotRequest.api_key: of_nodes(ask(controller.feed.fetch_snapshot)),
            DescribeClusterRequest.api_key: self._describe_cluster,
            BrokerRegistrationRequest.api_key: of_nodes(ask(controller.register_broker)),
            BrokerHeartbeatRequest.api_key: of_nodes(self._heartbeat),
            UnregisterBrokerRequest.api_key: ask(controller.unregister_broker),
            UpdateFeaturesRequest.api_key: lambda header, request: controller.update_features(
                request, header.api_version
            ),
            AllocateProducerIdsRequest.api_key: of_nodes(ask(controller.allocate_producer_ids)),
        }

    def _fetch(
        self, header: RequestHeader, request: FetchRequest
    ) -> FetchResponse | Awaitable[FetchResponse]:
        if header.api_version < _FETCH_SINCE:
            raise CloseConnection(
                f"the controller serves Fetch from version {_FETCH_SINCE} on, to its followers"
            )
        return self.controller.feed.fetch(request)

    def _create_topics(self, header: RequestHeader, request: CreateTopicsRequest) -> Any:
        if is_excessive(request, self.config.integer("num.partitions")):
            return refuse_excess(request)
        controller = self.controller
        return decide_in_parts(controller.create_topics, controller.reach, _CREATION, request)

    def _delete_topics(self, header: RequestHeader, request: DeleteTopicsRequest) -> Any:
        parts = _DELETION if request.topics else _DELETION_BY_NAME
        controller = self.controller
        return decide_in_parts(controller.delete_topics, controller.reach, parts, request)

    def _elect_leaders(self, header: RequestHeader, request: ElectLeadersRequest) -> Any:
        controller = self.controller
        request = name_partitions(controller.image, request)
        return decide_in_parts(controller.elect_leaders, controller.reach, _ELECTION, request)

    def _heartbeat(self, header: RequestHeader, request: BrokerHeartbeatRequest) -> Answer:
        connection = self.listener.serving
        if connection is not None and connection.on_lost is None:
            connection.on_lost = partial(self.controller.connection_lost, connection)
        return self.controller.heartbeat(request, connection)

    def _describe_quorum(
        self, header: RequestHeader, request: DescribeQuorumRequest
    ) -> Steps[DescribeQuorumResponse]:
        return describe_quorum(self.controller, self._address, self._now_ms(), header, request)

    def _describe_cluster(
        self, header: RequestHeader, request: DescribeClusterRequest
    ) -> DescribeClusterResponse:
        return describe_cluster(self.controller, self._address, request)

    def _fail(self, error: BaseException) -> None:
        _log.critical("controller %d ends: %s", self.controller.node_id, error)
        self.listener.stop()
        for connection in tuple(self.listener.connections):
            connection.abort()
        self.failed.set()
