"""Run a cluster's controller; `trimtab cluster up` runs a whole cluster.

The controller registers brokers, elects partition leaders, and creates and deletes topics. A
cluster has one controller, not a quorum: while it is down, brokers serve records, but topics and
leaders do not change. At its first start it makes the cluster's secret, cluster.secret in its
data directory, which each broker needs. It prints `ready HOST:PORT` on standard output when it
serves requests, and logs to standard error. SIGTERM or Ctrl-C ends it cleanly, a second signal at
once.
"""

from __future__ import annotations

import argparse
from random import Random

from trimtab.cli.node import NodeProcess, add_node_options, read_node_options, run_node
from trimtab.cluster.config.node import CONTROLLER_ROLE, Address
from trimtab.cluster.controller.node import ControllerNode
from trimtab.cluster.server.cluster_secret import ClusterSecret
from trimtab.cluster.server.secret_file import read_or_make_secret
from trimtab.cluster.storage.identity import identify_cluster
from trimtab.threads.clock import wall_clock_ms

EXAMPLES = """\
  trimtab controller --data ./controller
  trimtab controller --port 9193 --data ./controller --config default.replication.factor=3
  trimtab controller controller.properties
                                 a configuration file of Apache Kafka: node.id, listeners,
                                 log.dirs and others
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_node_options(parser, 9093)


def run(arguments: argparse.Namespace) -> int:
    node = read_node_options(arguments, CONTROLLER_ROLE, {})
    return run_node(arguments, node, _ControllerProcess)


class _ControllerProcess(NodeProcess[ControllerNode]):
    """A controller that runs in a process of its own."""

    async def start(self) -> Address:
        node, storage, random = self.node, self.storage, Random()
        cluster_id = identify_cluster(storage, random)
        secret = read_or_make_secret(self.secret_file, durable=not self.arguments.no_fsync)
        controller = ControllerNode(
            node.id, cluster_id, storage, ClusterSecret(secret), node.options, wall_clock_ms, random
        )
        address = await self.listen(
            controller, controller.listen, lambda module: module.ControllerMetrics(controller)
        )
        await controller.start(address)
        return address

    async def stop(self, served: ControllerNode, hand_over: bool) -> None:
        await served.close()
