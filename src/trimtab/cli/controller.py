"""Run a cluster's controller, by hand; `trimtab cluster up` runs a whole cluster.

It decides which brokers there are, who leads which partition, and which topics exist. There is one,
without a quorum: while it is away brokers go on serving, and nothing changes. It prints
`ready HOST:PORT` on standard output once it serves, and logs to standard error. SIGTERM or Ctrl-C
ends it cleanly, a second one at once.
"""

from __future__ import annotations

import argparse
from random import Random

from trimtab.cli.node import add_node_options, listen, read_node_options, run_node
from trimtab.config.node import CONTROLLER_ROLE, Address, Node
from trimtab.controller.node import ControllerNode
from trimtab.runtime.clock import wall_clock_ms
from trimtab.storage.identity import identify_cluster
from trimtab.storage.storage import Storage

EXAMPLES = """\
  trimtab controller --data ./controller
  trimtab controller --port 9193 --data ./controller --config default.replication.factor=3
  trimtab controller controller.properties
                                 a file of Kafka's: node.id, listeners, log.dirs, and so on
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_node_options(parser, 9093)


def run(arguments: argparse.Namespace) -> int:
    node = read_node_options(arguments, CONTROLLER_ROLE, {})
    return run_node(arguments, node, _ControllerProcess)


class _ControllerProcess:
    """A controller as a process runs it."""

    def __init__(self, node: Node, storage: Storage, connections: int) -> None:
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
        address = await listen(node, controller.listen)
        await controller.start(address)
        return address

    async def fail(self) -> None:
        assert self._controller is not None
        await self._controller.failed.wait()

    async def close(self, hand_over: bool) -> None:
        if self._controller is not None:
            await self._controller.close()
