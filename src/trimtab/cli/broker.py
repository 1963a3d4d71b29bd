"""Run one broker of a cluster; `trimtab cluster up` runs a whole cluster.

The broker joins the cluster of the given controller, and waits if the controller does not run yet.
It needs the cluster's secret: the file cluster.secret of the controller's directory, or a copy. If
--cluster-secret-file names a file that is not there yet, the broker waits for it.
It prints `ready HOST:PORT` on standard output when it serves requests, and logs to standard error.
On SIGTERM or Ctrl-C it hands its leaderships over and ends; a second signal ends it at once.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from random import Random

from trimtab.cli.node import NodeProcess, add_node_options, read_node_options, run_node
from trimtab.cli.options import add_options
from trimtab.cluster.broker.broker import Broker
from trimtab.cluster.config.node import BROKER_ROLE, Address, NodeConfig
from trimtab.cluster.server.cluster_secret import CONTROLLER, ClusterSecret
from trimtab.cluster.server.peer import Peer, PeerLost, PeerRefused
from trimtab.cluster.server.secret_file import SECRET_FILE, is_made, read_secret
from trimtab.cluster.storage.identity import find_cluster_id
from trimtab.kafka.errors import UsageError
from trimtab.kafka.wire.messages.describe_cluster import DescribeClusterRequest
from trimtab.threads.clock import wall_clock_ms

EXAMPLES = """\
  trimtab broker --id 0 --controller 127.0.0.1:9093 --data ./broker-0 \\
      --cluster-secret-file ./controller/cluster.secret
  trimtab broker --id 1 --controller 127.0.0.1:9093 --port 9192 --rack b --data ./broker-1 \\
      --cluster-secret-file ./controller/cluster.secret
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
    options = {
        "--controller HOST:PORT": "the controller's address (controller.quorum.bootstrap.servers)",
        "--rack RACK": "the broker's rack (broker.rack; default: none)",
        "--slow MS=0.0": "delay each answer to a produce request by this many milliseconds "
        "(default: 0)",
    }
    add_options(parser, options, types={"--slow": float})


def run(arguments: argparse.Namespace) -> int:
    return run_node(arguments, read_node(arguments), _BrokerProcess)


def read_node(arguments: argparse.Namespace) -> NodeConfig:
    """The broker's settings, from the command line and the file.

    Raises:
        UsageError: an option is unknown, has an invalid value, or names a feature trimtab lacks.
    """
    flags = {
        "--controller controller.quorum.bootstrap.servers": arguments.controller,
        "--rack broker.rack": arguments.rack,
    }
    return read_node_options(arguments, BROKER_ROLE, flags)


class _BrokerProcess(NodeProcess[Broker]):
    """A broker that runs in a process of its own."""

    async def start(self) -> Address:
        node, arguments = self.node, self.arguments
        assert node.controller is not None
        if arguments.cluster_secret_file is not None:
            await await_secret(arguments.cluster_secret_file)
        secret = ClusterSecret(read_secret(self.secret_file))
        cluster_id = find_cluster_id(self.storage)
        if cluster_id is None:
            cluster_id = await ask_cluster_id(*node.controller, secret)
        broker = Broker(
            node.id,
            cluster_id,
            self.storage,
            node.controller,
            secret,
            node.options,
            wall_clock_ms,
            Random(),
        )
        broker.listener.faults.slow(arguments.slow)
        address = await self.listen(
            broker, broker.bind, lambda module: module.BrokerMetrics(broker)
        )
        await broker.start(*address)
        return address

    async def stop(self, served: Broker, hand_over: bool) -> None:
        try:
            await served.close(hand_over)
        except asyncio.CancelledError:
            served.abort()
            raise


async def await_secret(path: str) -> None:
    """Return once the controller has made this file, at its first start."""
    waits = False
    while not is_made(path):
        if not waits:
            _log.warning("waiting for the cluster's secret, which a controller makes file=%s", path)
        waits = True
        await asyncio.sleep(_MAX_BACKOFF_S)


async def ask_cluster_id(host: str, port: int, secret: ClusterSecret) -> str:
    """The id of the cluster whose controller has this address; waits until it answers.

    Raises:
        UsageError: it is no controller, or the controller of a cluster with another secret.
    """
    backoff_s = _BACKOFF_S
    waits = False
    while True:
        try:
            peer = await Peer.connect(
                *(host, port, "broker", _ASK_SECONDS), secret=secret, whom=CONTROLLER
            )
            try:
                async with asyncio.timeout(_ASK_SECONDS):
                    answer = await peer.ask(DescribeClusterRequest(endpoint_type=_CONTROLLERS))
            finally:
                peer.close()
        except PeerRefused as error:
            raise UsageError(
                f"{error}; name the controller's listener, not a broker's, and its "
                f"{SECRET_FILE} with --cluster-secret-file"
            ) from error
        except (PeerLost, TimeoutError) as error:
            if not waits:
                _log.info("waiting for the controller error=%s", error)
            waits = True
        else:
            return str(answer.cluster_id)
        await asyncio.sleep(backoff_s)
        backoff_s = min(1.5 * backoff_s, _MAX_BACKOFF_S)
