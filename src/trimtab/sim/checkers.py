"""What must hold at every moment of a cluster's life, looked at from outside.

    every turn of the loop:
        replicas   one leader per epoch; what is committed stays, in every log that says it has it
        leaders    have everything that was ever committed
    after every fault, and at the end:
        metadata   brokers and controller have the same image at the same offset
        processes  that have ended do nothing any more

The logs are read as they lie on the virtual disks. Nothing is asked of the nodes under test but
where their logs end, and what they call committed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Any, NamedTuple

from trimtab.broker.partition import Partition
from trimtab.metadata.image import NO_LEADER, ClusterImage
from trimtab.sim.virtual_cluster import VirtualBroker, VirtualCluster
from trimtab.storage.log import Log

PartitionKey = tuple[bytes, int]
"""Topic id and partition."""


class Violation(AssertionError):
    """What must hold does not."""


class StoredBatch(NamedTuple):
    """One batch in a log, by what makes it what it is."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int


class ReplicaView:
    """One replica in one life of its broker, as far as it was looked at.

    Attributes:
        batches: what its log holds.
        agreed: how many of them are those that are known to be committed.
    """

    def __init__(self, broker: VirtualBroker, partition: Partition) -> None:
        self.broker = broker
        self.life = broker.life
        self.partition = partition
        self.name = f"{partition} on {broker.life}"
        self.batches: list[StoredBatch] = []
        self.agreed = 0
        self.seen: tuple[Any, ...] = ()
        self.leadership: object = None
        self._cuts = partition.log.cuts
        self._start = partition.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else self._start

    def look(self) -> int:
        """Read what is new in the log. Returns how many of the batches that were agreed upon are
        gone."""
        log = self.partition.log
        gone = 0
        if log.cuts != self._cuts:
            self._cuts = log.cuts
            before, self.batches = self.batches, []
            self._start = log.log_start_offset
            self._read(log)
            kept = 0
            while (
                kept < self.agreed
                and kept < len(self.batches)
                and self.batches[kept] == before[kept]
            ):
                kept += 1
            gone = self.agreed - kept
            self.agreed = kept
        else:
            self._read(log)
        return gone

    def _read(self, log: Log) -> None:
        if log.log_end_offset <= self.end_offset:
            return
        disk = self.broker.disk
        fault, disk.fault = disk.fault, None
        try:
            self.batches += [
                StoredBatch(
                    header.base_offset, header.next_offset, header.leader_epoch, header.crc
                )
                for header in log.headers(self.end_offset)
            ]
        finally:
            disk.fault = fault


class History:
    """What is known to be committed of one partition: the longest that any leader ever said."""

    def __init__(self, name: str, is_guarded: bool) -> None:
        self.name = name
        self.is_guarded = is_guarded
        self.batches: list[StoredBatch] = []
        self.epochs: list[int] = []
        self.leaders: dict[int, object] = {}

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0


class Checkers:
    """Looks at a cluster after each turn of the loop.

    Args:
        guarded: whether a topic of this name keeps what it has acknowledged: it has
            `min.insync.replicas` of 2 or more, and no unclean elections.

    Attributes:
        looks: how often something had changed.
    """

    def __init__(self, cluster: VirtualCluster, guarded: frozenset[str]) -> None:
        self._cluster = cluster
        self._guarded = guarded
        self._views: dict[Partition, ReplicaView] = {}
        self._gone: dict[tuple[int, PartitionKey], ReplicaView] = {}
        self.histories: dict[PartitionKey, History] = {}
        self.looks = 0
        self.story: deque[tuple[float, str, tuple[Any, ...]]] = deque(maxlen=300)
        self._image_offset = -1
        self._registrations: dict[PartitionKey, Any] = {}

    def start(self) -> None:
        """Look from now on."""
        self._cluster.world.loop.observer = self.look

    def stop(self) -> None:
        self._cluster.world.loop.observer = None

    def fail(self, what: str) -> None:
        error = Violation(what)
        error.add_note("\n".join(self.tell_story()))
        raise error

    def tell_story(self) -> list[str]:
        """What was seen last, a line each."""
        return [
            f"{at:.6f} {who} {' '.join(map(str, what))}" for at, who, what in self.story
        ]

    # After every turn

    def look(self) -> None:
        controller = self._cluster.controller.controller
        if controller is not None and controller.journal.next_offset != self._image_offset:
            self._image_offset = controller.journal.next_offset
            self._look_at_image(controller.image)
        for node in self._cluster.brokers:
            broker = node.broker
            if broker is None:
                continue
            for partition in broker.partitions.values():
                log = partition.log
                view = self._views.get(partition)
                now = (
                    log.log_end_offset,
                    log._high_watermark,
                    log.cuts,
                    partition.registration.leader_epoch,
                    partition.leadership,
                )
                if view is None:
                    view = self._views[partition] = ReplicaView(node, partition)
                elif view.seen == now:
                    continue
                view.seen = now
                self._look_at(view)

    def _look_at_image(self, image: ClusterImage) -> None:
        for topic in image.topics.values():
            for partition in topic.partitions:
                key = (topic.id, partition.id)
                if self._registrations.get(key) != partition:
                    self._registrations[key] = partition
                    self._tell(
                        f"controller: {topic.name}-{partition.id}",
                        (
                            "leader", partition.leader, "epoch", partition.leader_epoch,
                            partition.partition_epoch, "isr", partition.isr,
                            "elr", partition.elr, partition.last_known_elr,
                        ),
                    )

    def _tell(self, who: str, what: tuple[Any, ...]) -> None:
        self.story.append((self._cluster.world.loop.time(), who, what))

    def history(self, partition: Partition) -> History:
        key = (partition.topic_id, partition.index)
        history = self.histories.get(key)
        if history is None:
            history = History(str(partition), partition.topic in self._guarded)
            self.histories[key] = history
        return history

    def _look_at(self, view: ReplicaView) -> None:
        self.looks += 1
        self._tell(
            view.name,
            (
                "leads" if view.partition.leadership else "follows",
                "epoch", view.seen[3], "hw", view.seen[1], "end", view.seen[0],
            ),
        )
        partition = view.partition
        history = self.history(partition)
        agreed = view.agreed
        gone = view.look()
        if gone and history.is_guarded:
            self.fail(
                f"{view.name} cut off committed records: {gone} batches from "
                f"{history.batches[agreed - gone]} on"
            )
        if partition.log.high_watermark > view.end_offset:
            self.fail(
                f"{view.name}: high watermark {partition.log.high_watermark} is beyond the log's "
                f"end {view.end_offset}"
            )
        if partition.leadership is not None and partition.leadership is not view.leadership:
            self._begins_to_lead(view, history)
        view.leadership = partition.leadership
        if history.is_guarded:
            self._compare(view, history, partition.log.high_watermark)

    def _begins_to_lead(self, view: ReplicaView, history: History) -> None:
        partition = view.partition
        epoch = partition.registration.leader_epoch
        leader = history.leaders.setdefault(epoch, partition)
        if leader is not partition:
            self.fail(
                f"two leaders in epoch {epoch}: {self._views[leader].name}, {view.name}"  # type: ignore[index]
            )
        if history.is_guarded:
            # One that hears of its epoch when others have led since need not have what they have.
            earlier = bisect_left(history.epochs, epoch)
            if earlier:
                end_offset = history.batches[earlier - 1].next_offset
                self._compare(view, history, end_offset)
                if view.agreed < earlier:
                    self.fail(
                        f"{view.name} leads in epoch {epoch} without committed records: its log "
                        f"ends at {view.end_offset}, {end_offset} is committed"
                    )

    def _compare(self, view: ReplicaView, history: History, high_watermark: int) -> None:
        batches, committed = view.batches, history.batches
        index = view.agreed
        while index < len(batches) and batches[index].next_offset <= high_watermark:
            if index == len(committed):
                committed.append(batches[index])
                epochs = history.epochs
                epoch = view.partition.registration.leader_epoch
                epochs.append(max(epoch, epochs[-1]) if epochs else epoch)
                self._check_isr(view, history, batches[index])
            elif batches[index] != committed[index]:
                self.fail(
                    f"{view.name} has committed {batches[index]}, others {committed[index]}"
                )
            index += 1
        view.agreed = index

    def _check_isr(self, view: ReplicaView, history: History, batch: StoredBatch) -> None:
        """What one replica calls committed is on all that may be elected."""
        partition = view.partition
        controller = self._cluster.controller.controller
        if controller is None or partition.leadership is None:
            return
        registration = controller.image.partition(partition.topic_id, partition.index)
        if registration is None or registration.leader_epoch != partition.leader_epoch:
            return
        for member in registration.isr:
            node = self._cluster.brokers[member]
            if node.broker is None or node.broker is view.broker.broker:
                continue
            other = node.broker.partitions.get((partition.topic, partition.index))
            if other is None or node.broker.epoch != controller.image.brokers[member].epoch:
                continue
            if other.log.log_end_offset < batch.next_offset:
                self.fail(
                    f"{view.name} has committed {batch}, but {node.life}, which is in the ISR "
                    f"{list(registration.isr)}, has only {other.log.log_end_offset}"
                )

    # After every fault, and at the end

    def check_metadata(self) -> None:
        """The image is the same wherever the log has been replayed to the same offset."""
        controller = self._cluster.controller.controller
        if controller is None:
            return
        journal = controller.journal
        if journal.end_offset != journal.next_offset:
            return
        expected: list[Any] | None = None
        for node in self._cluster.brokers:
            if node.broker is None or node.broker.metadata.next_offset != journal.end_offset:
                continue
            if expected is None:
                expected = _records(journal.image)
            if _records(node.broker.image) != expected:
                self.fail(f"{node.life} has another image than the controller at the same offset")

    def check_processes(self) -> None:
        """What has ended does nothing, and no handler has failed."""
        leftovers = self._cluster.leftovers()
        if leftovers:
            self.fail("ended processes go on: " + "; ".join(leftovers))
        for node in self._cluster.brokers:
            if node.broker is not None and node.broker.listener.counts.failed:
                self.fail(f"{node.life}: a handler has failed, see its log")
        if self._cluster.controller.node is not None:
            if self._cluster.controller.node.listener.counts.failed:
                self.fail(f"{self._cluster.controller.life}: a handler has failed, see its log")


def _records(image: ClusterImage) -> list[Any]:
    return [repr(record) for record in image.records()]


def is_converged(cluster: VirtualCluster) -> str:
    """What is missing until every replica is in sync; empty if nothing is."""
    controller = cluster.controller.controller
    if controller is None:
        return "the controller is down"
    for topic in controller.image.topics.values():
        for registration in topic.partitions:
            if registration.leader == NO_LEADER:
                return f"{topic.name}-{registration.id} has no leader"
            if set(registration.isr) != set(registration.replicas):
                return f"{topic.name}-{registration.id}: ISR {registration.isr} of {registration.replicas}"
    for node in cluster.brokers:
        if not node.is_serving:
            return f"{node} is down"
    return ""
