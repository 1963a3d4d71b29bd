"""Faults of several steps that random single faults would hardly ever produce in this order.

`lab.reliability.faults` has the rules for when a broker may end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random

from lab.reliability.losses import Losses
from trimtab.cluster.metadata.image import PartitionRegistration
from trimtab.cluster.storage.log import Log
from trimtab.kafka.wire.sentinels import NO_LEADER
from trimtab.sim.virtual_cluster import VirtualBroker, VirtualCluster, VirtualNode

_STEP_S = 0.1


class FaultChains:
    """Runs chains of faults.

    Args:
        losses: decides whether a broker may end, and whether it may lose writes.
        start_later: starts a broker that has just ended, after the given seconds.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        losses: Losses,
        random: Random,
        start_later: Callable[[VirtualNode, float], None],
    ) -> None:
        self._cluster = cluster
        self._losses = losses
        self._random = random
        self._start_later = start_later

    async def run_down(self) -> None:
        """Shrink a partition's ISR to two brokers. One of them loses power, restarts, and cannot
        catch up; then the other one is killed. No broker that lacks records may be elected."""
        found = self._pick_partition()
        if found is None:
            return
        topic, partition = found
        members = self._brokers(partition.isr)
        self._random.shuffle(members)
        crashed, last, *isolated = members
        with self.cut_off(isolated, self._cluster.nodes):
            isr = {crashed.id, last.id}
            if not await self._wait_for(lambda: set(self._isr_of(topic, partition.id)) == isr, 8):
                return
            await self._sleep(0.2, 1)
            if not self._losses.may_lose(crashed):
                return
            with self.cut_off([crashed], self._cluster.brokers):
                self._losses.note_loss(crashed)
                crashed.crash()
                self._start_later(crashed, 0.01)
                if not await self._wait_for(
                    lambda: crashed.is_serving and self._losses.may_end(last), 5
                ):
                    return
                await self._sleep(0.01, 0.5)
                if last.life is None:
                    return
                self._losses.note_end(last)
                last.kill()
                self._start_later(last, self._draw_s(2, 10))
                await self._sleep(0.5, 2)

    async def strand_leader(self) -> None:
        """Cut a leader off from all brokers and the controller, but not from its clients, until
        another leader is elected. The old leader then becomes a follower, truncates the records
        that only it has, appends new ones, and loses power."""
        found = self._pick_partition()
        if found is None:
            return
        topic, partition = found
        (node,) = self._brokers([partition.leader])
        with self.cut_off([node], self._cluster.nodes):
            if not await self._wait_for(
                lambda: self._leader_of(topic, partition.id) not in (NO_LEADER, node.id), 8
            ):
                return
            await self._sleep(0.5, 2)
            log = self._log_of(node, topic, partition.id)
            if log is None:
                return
            cuts, end = log.truncations, log.log_end_offset
        await self._wait_for(lambda: log.truncations > cuts and log.log_end_offset > end, 5)
        await self._sleep(0.2, 1, 5)
        if node.life is not None and self._losses.may_lose(node):
            self._losses.note_loss(node)
            node.crash()
            self._start_later(node, self._draw_s(0.05, 1))

    @contextmanager
    def cut_off(
        self, some: Sequence[VirtualBroker], others: Sequence[VirtualNode]
    ) -> Iterator[None]:
        """Cut the network between two groups of nodes during the block."""
        network = self._cluster.world.network
        pairs = [(each.host, other.host) for each in some for other in others if other is not each]
        for a, b in pairs:
            network.cut(a, b)
        try:
            yield
        finally:
            for a, b in pairs:
                network.heal(a, b)

    # The cluster's state

    def _pick_partition(self) -> tuple[str, PartitionRegistration] | None:
        """A random guarded partition with a leader and at least one other in-sync replica."""
        controller = self._cluster.controller.controller
        if controller is None:
            return None
        found = [
            each
            for each in self._losses.guarded_partitions(controller.image)
            if each[1].leader != NO_LEADER and len(each[1].isr) > 1
        ]
        return self._random.choice(found) if found else None

    def _find_partition(self, topic: str, index: int) -> PartitionRegistration | None:
        controller = self._cluster.controller.controller
        image = None if controller is None else controller.image.topics.get(topic)
        return None if image is None else image.partitions[index]

    def _isr_of(self, topic: str, index: int) -> tuple[int, ...]:
        partition = self._find_partition(topic, index)
        return () if partition is None else partition.isr

    def _leader_of(self, topic: str, index: int) -> int:
        partition = self._find_partition(topic, index)
        return NO_LEADER if partition is None else partition.leader

    def _log_of(self, node: VirtualBroker, topic: str, index: int) -> Log | None:
        partitions = {} if node.broker is None else node.broker.partitions
        partition = partitions.get((topic, index))
        return None if partition is None else partition.log

    def _brokers(self, ids: Sequence[int]) -> list[VirtualBroker]:
        return [self._cluster.brokers[each] for each in ids]

    # Time

    async def _wait_for(self, condition: Callable[[], bool], limit_s: float) -> bool:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + limit_s
        while not condition():
            if loop.time() > end_s:
                return False
            await asyncio.sleep(_STEP_S)
        return True

    def _draw_s(self, *scales: float) -> float:
        return self._random.choice(scales) * self._random.expovariate(1)

    async def _sleep(self, *scales: float) -> None:
        await asyncio.sleep(self._draw_s(*scales))
