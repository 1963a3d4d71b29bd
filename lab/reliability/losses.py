"""Tracks ends of brokers that the controller may not know of, and decides who may end next."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from trimtab.cluster.metadata.image import ClusterImage, PartitionRegistration
from trimtab.sim.virtual_cluster import VirtualBroker, VirtualCluster


class Losses:
    """Brokers that have ended, and those that may have lost writes, until the controller knows.

    Args:
        guarded: topics whose committed records must not be lost.

    Attributes:
        elr_changes: requests that clear the ELR and have no answer yet.
    """

    def __init__(self, cluster: VirtualCluster, guarded: Collection[str]) -> None:
        self._cluster = cluster
        self._guarded = guarded
        self._ends: dict[int, int] = {}
        self._losses: dict[int, int] = {}
        self.elr_changes = 0

    def note_end(self, node: VirtualBroker) -> None:
        """The broker ends now, and loses nothing."""
        self._ends[node.id] = node.lives

    def note_loss(self, node: VirtualBroker) -> None:
        """The broker ends now or later, and may lose writes."""
        self._ends[node.id] = self._losses[node.id] = node.lives

    def note_healed(self, node: VirtualBroker) -> None:
        """The broker's disk works again. If the broker has not ended, it has lost nothing."""
        if self._ends.get(node.id) == node.lives and node.life:
            self._ends.pop(node.id)
            self._losses.pop(node.id, None)

    def may_end(self, node: VirtualBroker) -> bool:
        """Whether the controller knows of all losses of the other brokers, so this one may end."""
        self._forget_known()
        return not any(broker_id != node.id for broker_id in self._losses)

    def may_clear_elr(self) -> bool:
        """Whether the controller knows of all losses, so the replicas in the ELR are not needed."""
        self._forget_known()
        return not self._losses

    def may_lose(self, node: VirtualBroker) -> bool:
        """Whether the broker may end and lose writes; `lab.reliability.faults` has the rules."""
        if self.elr_changes or not self.may_end(node):
            return False
        controller = self._cluster.controller.controller
        if controller is None or any(broker_id != node.id for broker_id in self._ends):
            return False
        if controller.journal.end_offset < controller.journal.next_offset:
            return False  # if it ends, it may lose the latest ISR changes
        others = [other for other in self._cluster.brokers if other is not node]
        if any(other.disk.rotten for other in others):
            return False  # the ISR may shrink to these two
        running = [other.id for other in others if other.is_serving]
        return all(
            any(member in running for member in partition.isr)
            for _, partition in self.guarded_partitions(controller.image)
            if node.id in partition.replicas
        )

    def guarded_partitions(
        self, image: ClusterImage
    ) -> Iterator[tuple[str, PartitionRegistration]]:
        """The partitions of guarded topics, each with its topic."""
        for topic in image.topics.values():
            if topic.name in self._guarded:
                for partition in topic.partitions:
                    yield topic.name, partition

    def _forget_known(self) -> None:
        controller = self._cluster.controller.controller
        if controller is None:
            return
        image = controller.image
        on_disk = controller.journal.end_offset
        last_leaders = [
            broker_id
            for _, partition in self.guarded_partitions(image)
            for broker_id in partition.last_known_elr
        ]
        for broker_id, lives in list(self._ends.items()):
            node, registered = self._cluster.brokers[broker_id], image.brokers.get(broker_id)
            if (
                registered is not None
                and node.disk.fault is None
                and node.lives > lives
                and registered.incarnation_id == node.incarnation_id
                and registered.epoch < on_disk
            ):
                del self._ends[broker_id]
        for broker_id in list(self._losses):
            if broker_id not in self._ends and broker_id not in last_leaders:
                del self._losses[broker_id]
