"""Run a cluster's controller; `trimtab cluster up` runs a whole cluster.

The controller registers brokers, elects partition leaders, and creates and deletes topics. A
cluster has one controller, not a quorum: while it is down, brokers serve records, but topics and
leaders do not change. It prints `ready HOST:PORT` on standard output when it serves requests, and
logs to standard error. SIGTERM or Ctrl-C ends it cleanly, a second signal at once.
"""

from __future__ import annotations

import argparse
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from trimtab.cli.node import (
    add_node_options,
    listen,
    read_node_options,
    run_node,
    serve_metrics,
)
from trimtab.config.node import CONTROLLER_ROLE, Address, Node
from trimtab.controller.node import ControllerNode
from trimtab.storage.identity import identify_cluster
from trimtab.storage.storage import Storage
from trimtab.system.clock import wall_clock_ms

if TYPE_CHECKING:
    from trimtab.runtime.metrics_server import MetricsServer

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
    return run_node(arguments, node, partial(_ControllerProcess, arguments))


class _ControllerProcess:
    """A controller that runs in a process of its own."""

    def __init__(
        self, arguments: argparse.Namespace, node: Node, storage: Storage, connections: int
    ) -> None:
        self._arguments = arguments
        self._metrics: MetricsServer | None = None
        self._node = node
        self._storage = storage
        self._connections = connections
        self._controller: ControllerNode | None = None

    async def start(self) -> Address:
        node, storage, random = self._node, self._storage, Random()
        cluster_id = identify_cluster(storage, random)
        self._controller = controller = ControllerNode(
            node.id, cluster_id, storage, node.options, wall_clock_ms, random
        )
        controller.listener.capacity = self._connections
        self._metrics = await serve_metrics(
            lambda module: module.ControllerMetrics(controller), node, self._arguments
        )
        address = await listen(node, controller.listen)
        await controller.start(address)
        return address

    async def fail(self) -> None:
        assert self._controller is not None
        await self._controller.failed.wait()

    async def close(self, hand_over: bool) -> None:
        if self._metrics is not None:
            self._metrics.close()
        if self._controller is not None:
            await self._controller.close()
