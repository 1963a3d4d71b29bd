"""Run one broker of a cluster; `trimtab cluster up` runs a whole cluster.

The broker joins the cluster of the given controller, and waits if the controller does not run yet.
It prints `ready HOST:PORT` on standard output when it serves requests, and logs to standard error.
On SIGTERM or Ctrl-C it hands its leaderships over and ends; a second signal ends it at once.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from trimtab.broker.broker import Broker
from trimtab.cli.node import (
    add_node_options,
    listen,
    read_node_options,
    run_node,
    serve_metrics,
)
from trimtab.config.node import BROKER_ROLE, Address, Node, format_address
from trimtab.errors import UsageError
from trimtab.server.peer import Peer, PeerLost
from trimtab.storage.identity import find_cluster_id
from trimtab.storage.storage import Storage
from trimtab.system.clock import wall_clock_ms
from trimtab.wire.messages.describe_cluster import DescribeClusterRequest

if TYPE_CHECKING:
    from trimtab.runtime.metrics_server import MetricsServer

EXAMPLES = """\
  trimtab broker --id 0 --controller 127.0.0.1:9093 --data ./broker-0
  trimtab broker --id 1 --controller 127.0.0.1:9093 --port 9192 --rack b --data ./broker-1
  trimtab broker server.properties --config log.retention.ms=3600000
                                 a configuration file of Apache Kafka: node.id, listeners,
                                 log.dirs, controller.quorum.bootstrap.servers and others
"""

_CONTROLLERS = 2
_ASK_SECONDS = 5.0
_BACKOFF_S = 0.01
_MAX_BACKOFF_S = 0.2

_log = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    add_node_options(parser, 9092)
    parser.add_argument(
        "--controller",
        metavar="HOST:PORT",
        help="the controller's address (controller.quorum.bootstrap.servers)",
    )
    parser.add_argument("--rack", help="the broker's rack (broker.rack; default: none)")
    parser.add_argument(
        "--slow",
        type=float,
        default=0.0,
        metavar="MS",
        help="delay each answer to a produce request by this many milliseconds (default: 0)",
    )


def run(arguments: argparse.Namespace) -> int:
    return run_node(arguments, read_node(arguments), partial(_BrokerProcess, arguments))


def read_node(arguments: argparse.Namespace) -> Node:
    """The broker's settings, from the command line and the file.

    Raises:
        UsageError: an option is unknown, has an invalid value, or names a feature trimtab lacks.
    """
    flags = {
        "--controller controller.quorum.bootstrap.servers": arguments.controller,
        "--rack broker.rack": arguments.rack,
    }
    return read_node_options(arguments, BROKER_ROLE, flags)


class _BrokerProcess:
    """A broker that runs in a process of its own."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        node: Node,
        storage: Storage,
        connections: int,
    ) -> None:
        self._arguments = arguments
        self._metrics: MetricsServer | None = None
        self._node = node
        self._storage = storage
        self._connections = connections
        self._broker: Broker | None = None

    async def start(self) -> Address:
        node = self._node
        assert node.controller is not None
        cluster_id = find_cluster_id(self._storage) or await ask_cluster_id(*node.controller)
        self._broker = broker = Broker(
            node.id,
            cluster_id,
            self._storage,
            node.controller,
            node.options,
            wall_clock_ms,
            Random(),
        )
        broker.listener.capacity = self._connections
        broker.listener.faults.slow(self._arguments.slow)
        self._metrics = await serve_metrics(
            lambda module: module.BrokerMetrics(broker), node, self._arguments
        )
        address = await listen(node, broker.bind)
        await broker.start(*address)
        return address

    async def fail(self) -> None:
        assert self._broker is not None
        await self._broker.failed.wait()

    async def close(self, hand_over: bool) -> None:
        if self._metrics is not None:
            self._metrics.close()
        if self._broker is None:
            return
        try:
            await self._broker.close(hand_over)
        except asyncio.CancelledError:
            self._broker.abort()
            raise


async def ask_cluster_id(host: str, port: int) -> str:
    """The id of the cluster whose controller has this address; waits until it answers."""
    backoff_s = _BACKOFF_S
    waits = False
    while True:
        try:
            peer = await Peer.connect(host, port, "broker", _ASK_SECONDS)
            try:
                async with asyncio.timeout(_ASK_SECONDS):
                    answer = await peer.ask(DescribeClusterRequest(endpoint_type=_CONTROLLERS))
            finally:
                peer.close()
        except (PeerLost, TimeoutError) as error:
            if not waits:
                _log.info("waiting for the controller error=%s", error)
            waits = True
        else:
            if not answer.error_code:
                return str(answer.cluster_id)
            raise UsageError(
                f"{format_address(host, port)} is not a controller: {answer.error_message}; name "
                "the controller's listener, not a broker's"
            )
        await asyncio.sleep(backoff_s)
        backoff_s = min(1.5 * backoff_s, _MAX_BACKOFF_S)
