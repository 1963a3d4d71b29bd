"""What must hold at every moment of a cluster's life, looked at from outside.

    after every moment:
        replicas   one leader per epoch; what is committed stays, in every log that says it has it
        leaders    have everything that was ever committed
    after every fault, and at the end:
        metadata   brokers and controller have the same image at the same offset
        processes  that have ended do nothing any more

The logs are read as they lie on the virtual disks. Nothing is asked of the nodes under test but
where their logs end, and what they call committed.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from trimtab.broker.broker import Broker
from trimtab.broker.partition import Partition
from trimtab.metadata.image import NO_LEADER, ClusterImage
from trimtab.sim.virtual_cluster import VirtualBroker, VirtualCluster, current_life
from trimtab.storage.log import Log

_LAST_SEEN = 300

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
                StoredBatch(header.base_offset, header.next_offset, header.leader_epoch, header.crc)
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

    def __init__(
        self, cluster: VirtualCluster, guarded: frozenset[str], keep_story: bool = False
    ) -> None:
        self._cluster = cluster
        self._guarded = guarded
        self._views: dict[Partition, ReplicaView] = {}
        self.histories: dict[PartitionKey, History] = {}
        self.looks = 0
        self.story: deque[tuple[float, str, tuple[Any, ...]]] = deque(
            maxlen=None if keep_story else _LAST_SEEN
        )
        self._failures: deque[logging.LogRecord] = deque(maxlen=5)
        self._tap = _LogTap(self._logged)
        self._failure: Violation | None = None
        self._image_offset = -1
        self._topic_ids: dict[str, bytes] = {}
        self._changed: dict[Partition, None] = {}
        self._replayed: dict[Broker, tuple[int, int]] = {}
        self._checked: dict[object, int] = {}
        self._registrations: dict[PartitionKey, Any] = {}

    def __enter__(self) -> Checkers:
        self._cluster.world.loop.observer = self.look
        self._tap.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.world.loop.observer = None
        self._tap.close()

    def _logged(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.levelno >= logging.ERROR:
            self._failures.append(record)
        self._tell(str(current_life() or self._cluster.world.network.host), (record,))

    def fail(self, what: str) -> NoReturn:
        """The end of the run, also if whoever called this goes on as if nothing were."""
        self._failure = error = Violation(what)
        error.add_note("\n".join(self.tell_story()))
        raise error

    def tell_story(self) -> list[str]:
        """What was seen last, a line each."""
        return [f"{at:.6f} {who} {' '.join(map(_describe, what))}" for at, who, what in self.story]

    # What partitions tell of: a `trimtab.broker.partition.Watcher`

    def appended(self, partition: Partition) -> None:
        self._changed[partition] = None

    def committed(self, partition: Partition) -> None:
        """Looked at on the spot: its broker may end within this moment, and has told clients."""
        self._look_at(self._views[partition])

    def changed(self, partition: Partition) -> None:
        self._changed[partition] = None

    # After every moment

    def look(self) -> None:
        """Look at everything that has changed since the last time."""
        if self._failure is not None:
            raise self._failure
        controller = self._cluster.controller.controller
        if controller is not None and controller.journal.next_offset != self._image_offset:
            self._image_offset = controller.journal.next_offset
            self._look_at_image(controller.image)
        for node in self._cluster.brokers:
            broker = node.broker
            if broker is not None:
                offset = broker.metadata.next_offset
                if self._replayed.get(broker) != (offset, len(broker.partitions)):
                    self._replayed[broker] = (offset, len(broker.partitions))
                    self._meet_partitions(node, broker)
        if self._changed:
            changed, self._changed = self._changed, {}
            for partition in changed:
                view = self._views[partition]
                node = view.broker
                if (
                    node.life is view.life
                    and node.broker is not None
                    and node.broker.partitions.get((partition.topic, partition.index)) is partition
                ):
                    self._look_at(view)

    def _meet_partitions(self, node: VirtualBroker, broker: Broker) -> None:
        for partition in broker.partitions.values():
            if partition not in self._views:
                self._views[partition] = ReplicaView(node, partition)
                partition.watchers[self] = None
            self._changed[partition] = None

    def _look_at_image(self, image: ClusterImage) -> None:
        for topic in image.topics.values():
            if topic.name in self._guarded:
                self._topic_ids[topic.name] = topic.id
            for partition in topic.partitions:
                key = (topic.id, partition.id)
                if self._registrations.get(key) != partition:
                    self._registrations[key] = partition
                    self._tell(
                        f"controller: {topic.name}-{partition.id}",
                        (
                            "leader",
                            partition.leader,
                            "epoch",
                            partition.leader_epoch,
                            partition.partition_epoch,
                            "isr",
                            partition.isr,
                            "elr",
                            partition.elr,
                            partition.last_known_elr,
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
                "epoch",
                view.partition.leader_epoch,
                "hw",
                view.partition.high_watermark,
                "end",
                view.partition.log.log_end_offset,
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
        if partition.log.high_watermark > view.end_offset and not partition.log.has_failed:
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
                self.fail(f"{view.name} has committed {batches[index]}, others {committed[index]}")
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
            broker = node.broker
            if broker is None or broker.metadata.next_offset != journal.end_offset:
                continue
            if self._checked.get(broker) == journal.end_offset:
                continue
            self._checked[broker] = journal.end_offset
            if expected is None:
                expected = _records(journal.image)
            if _records(broker.image) != expected:
                self.fail(f"{node.life} has another image than the controller at the same offset")

    def find_disagreement(self) -> str:
        """Which replica holds something else than the others, or is none: empty in the end, when
        all is well and nothing comes any more."""
        self.look()
        controller = self._cluster.controller.controller
        if controller is None:
            return "the controller is down"
        logs: dict[tuple[str, int], ReplicaView] = {}
        for node in self._cluster.brokers:
            if node.broker is None:
                return f"{node} is down"
            for (topic, index), partition in node.broker.partitions.items():
                view = self._views[partition]
                if node.id not in controller.image.topics[topic].partitions[index].replicas:
                    return f"{view.name} is no replica any more"
                other = logs.setdefault((topic, index), view)
                if view.batches != other.batches:
                    return f"{view.name} and {other.name} do not hold the same"
        return ""

    def acknowledged(self, topic: str, partition: int, offset: int, sender: str) -> None:
        """A sender was told that a record is kept, at this place."""
        self.look()
        topic_id = self._topic_ids.get(topic)
        if topic_id is None:
            return
        history = self.histories.get((topic_id, partition))
        if history is None or offset >= history.end_offset:
            end_offset = 0 if history is None else history.end_offset
            self.fail(
                f"{sender} was told that offset {offset} of {topic}-{partition} is kept, but only "
                f"what is before {end_offset} is committed"
            )

    def check_processes(self) -> None:
        """What has ended does nothing, and no handler has failed."""
        leftovers = self._cluster.leftovers()
        if leftovers:
            self.fail("ended processes go on: " + "; ".join(leftovers))
        listeners = [
            (node.life, node.broker.listener)
            for node in self._cluster.brokers
            if node.broker is not None
        ]
        if self._cluster.controller.node is not None:
            listeners.append(
                (self._cluster.controller.life, self._cluster.controller.node.listener)
            )
        for life, listener in listeners:
            if listener.counts.failed:
                self.fail(f"{life}: a handler has failed: {_describe(self._failures[-1])}")


class _LogTap(logging.Handler):
    """Everything that is logged by trimtab, instead of wherever it would go."""

    def __init__(self, logged: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._logged = logged
        self._logger = logging.getLogger("trimtab")
        self._before = (self._logger.level, self._logger.propagate)

    def open(self) -> None:
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False

    def close(self) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._before[0])
        self._logger.propagate = self._before[1]

    def emit(self, record: logging.LogRecord) -> None:
        self._logged(record)


def _describe(what: object) -> str:
    if not isinstance(what, logging.LogRecord):
        return str(what)
    text = f"logs {what.getMessage()}"
    if what.exc_info:
        text += "\n" + logging.Formatter().formatException(what.exc_info)
    return text


def _records(image: ClusterImage) -> list[Any]:
    return [repr(record) for record in image.records()]


def find_unrest(cluster: VirtualCluster) -> str:
    """What is missing until every replica is in sync; empty if nothing is."""
    for node in cluster.nodes:
        if not node.is_serving:
            return str(node)
    controller = cluster.controller.controller
    assert controller is not None
    for topic in controller.image.topics.values():
        for registration in topic.partitions:
            name = f"{topic.name}-{registration.id}"
            if registration.leader == NO_LEADER:
                return f"{name} has no leader: {registration}"
            if sorted(registration.isr) != sorted(registration.replicas):
                return f"{name} has replicas that are not in sync: {registration}"
            if registration.is_reassigning:
                return f"{name} is being reassigned: {registration}"
    for node in cluster.brokers:
        assert node.broker is not None
        if node.broker.metadata.next_offset != controller.journal.next_offset:
            return f"{node} has not replayed all metadata"
    return ""
