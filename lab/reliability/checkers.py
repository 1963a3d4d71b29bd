"""Checks the invariants of a cluster during a simulation, from outside.

    after every moment of virtual time:
        replicas    one leader per epoch; no replica loses or changes a committed batch; records
                    are deleted only from the front, and only if retention or a request allows it
        leaders     have every committed record, and none that was deleted
        controller  no reassignment removes in-sync replicas before the new ones are in sync
    every second, and at the end:
        metadata    brokers and controller have the same image at the same offset
        processes   a process that has ended does nothing

A topic's guarantees are its `TopicKind`. Logs are read from the virtual disks. Of the nodes under
test only their log start offsets, log end offsets and high watermarks are used.

Long because the checks of replicas, leaders and the controller compare the same views and
histories.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from lab.reliability.histories import (
    Damaged,
    History,
    ReplicaView,
    StoredBatch,
    find_unclean_epoch,
)
from lab.reliability.topic_kinds import NEVER_MS, TRANSIENT, TopicKind
from trimtab.cluster.broker.broker import Broker
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.metadata.image import RECOVERING, ClusterImage, PartitionRegistration
from trimtab.cluster.storage.transaction_index import AbortedBatches
from trimtab.kafka.wire.batch_cy import read_records
from trimtab.kafka.wire.sentinels import NO_LEADER
from trimtab.sim.virtual_cluster import VirtualBroker, VirtualCluster, current_life

_EVENTS_KEPT = 300

PartitionKey = tuple[bytes, int]
"""Topic id and partition."""


class Violation(AssertionError):
    """An invariant does not hold."""


class Checkers:
    """Checks a cluster after each moment of virtual time.

    Args:
        kinds: the topics' guarantees, by name.
        keep_events: keep all events, not only the last 300.

    Attributes:
        checks: how often a changed replica was checked.
        events: time, subject and description of what the checkers have seen.
    """

    def __init__(
        self, cluster: VirtualCluster, kinds: Mapping[str, TopicKind], keep_events: bool = False
    ) -> None:
        self._cluster = cluster
        self._kinds = kinds
        self._views: dict[Partition, ReplicaView] = {}
        self.histories: dict[PartitionKey, History] = {}
        self.checks = 0
        self.events: deque[tuple[float, str, tuple[Any, ...]]] = deque(
            maxlen=None if keep_events else _EVENTS_KEPT
        )
        self._failures: deque[logging.LogRecord] = deque(maxlen=5)
        self._log_capture = _LogCapture(self._logged)
        self._failure: Violation | None = None
        self._image_offset = -1
        self._topic_ids: dict[str, bytes] = {}
        self._changed: dict[Partition, None] = {}
        self._replayed: dict[Broker, tuple[int, int]] = {}
        self._checked: dict[object, int] = {}
        self._registrations: dict[PartitionKey, Any] = {}

    def __enter__(self) -> Checkers:
        self._cluster.world.loop.observer = self.check_changes
        self._log_capture.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.world.loop.observer = None
        self._log_capture.close()

    def _logged(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.levelno >= logging.ERROR:
            self._failures.append(record)
        self._note_event(str(current_life() or self._cluster.world.network.host), (record,))

    def fail(self, what: str) -> NoReturn:
        """Raise a `Violation`; if the caller swallows it, the next check raises it again."""
        self._failure = error = Violation(what)
        error.add_note("\n".join(self.describe_events()))
        raise error

    def describe_events(self) -> list[str]:
        """The last events, a line each."""
        return [f"{at:.6f} {who} {' '.join(map(_describe, what))}" for at, who, what in self.events]

    # Called by partitions, as a `trimtab.cluster.broker.partition.Watcher`

    def appended(self, partition: Partition) -> None:
        self._changed[partition] = None

    def committed(self, partition: Partition) -> None:
        """Check at once: the broker may acknowledge the records and end within this moment."""
        self._check_replica(self._views[partition])

    def changed(self, partition: Partition) -> None:
        self._changed[partition] = None

    # After every moment

    def check_changes(self) -> None:
        """Check everything that has changed since the last call."""
        if self._failure is not None:
            raise self._failure
        controller = self._cluster.controller.controller
        if controller is not None and controller.journal.next_offset != self._image_offset:
            self._image_offset = controller.journal.next_offset
            self._check_image(controller.image)
        for node in self._cluster.brokers:
            broker = node.broker
            if broker is not None:
                offset = broker.metadata.next_offset
                if self._replayed.get(broker) != (offset, len(broker.partitions)):
                    self._replayed[broker] = (offset, len(broker.partitions))
                    self._watch_partitions(node, broker)
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
                    self._check_replica(view)

    def _watch_partitions(self, node: VirtualBroker, broker: Broker) -> None:
        for partition in broker.partitions.values():
            if partition not in self._views:
                kind = self._kinds.get(partition.topic, TRANSIENT)
                self._views[partition] = ReplicaView(node, partition, kind)
                partition.watchers[self] = None
            self._changed[partition] = None

    def _check_image(self, image: ClusterImage) -> None:
        for topic in image.topics.values():
            kind = self._kinds.get(topic.name, TRANSIENT)
            self._topic_ids[topic.name] = topic.id
            for partition in topic.partitions:
                key = (topic.id, partition.id)
                before = self._registrations.get(key)
                if before != partition:
                    self._registrations[key] = partition
                    if before is not None:
                        self._check_election(key, kind, before, partition)
                        self._check_move(f"{topic.name}-{partition.id}", before, partition)
                        self._check_join(image, key, kind, before, partition)
                    self._note_event(
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

    def _note_event(self, who: str, what: tuple[Any, ...]) -> None:
        self.events.append((self._cluster.world.loop.time(), who, what))

    def history(self, partition: Partition) -> History:
        key = (partition.topic_id, partition.index)
        history = self.histories.get(key)
        if history is None:
            history = History(str(partition), self._kinds.get(partition.topic, TRANSIENT))
            self.histories[key] = history
        return history

    def find_history(self, topic: str, index: int) -> History | None:
        """The committed batches of a partition; None if no replica of it was seen yet."""
        return self.histories.get((self._topic_ids.get(topic, b""), index))

    def has_elected_uncleanly(self, topic: str) -> bool:
        """Whether an unclean election may have lost records of a topic."""
        topic_id = self._topic_ids.get(topic)
        return any(
            history.unclean_epoch >= 0
            for key, history in self.histories.items()
            if key[0] == topic_id
        )

    # Decisions of the controller

    def _check_election(
        self,
        key: PartitionKey,
        kind: TopicKind,
        before: PartitionRegistration,
        now: PartitionRegistration,
    ) -> None:
        """Note an unclean election."""
        history = self.histories.get(key)
        if history is not None:
            for broker_id in [*history.deleted_before]:
                if broker_id not in now.replicas:
                    del history.deleted_before[broker_id]
        if kind.keeps or history is None:
            return
        epoch = find_unclean_epoch(before, now)
        if epoch is not None:
            history.elect_uncleanly(epoch)

    def _check_move(
        self, name: str, before: PartitionRegistration, now: PartitionRegistration
    ) -> None:
        """A reassignment starts, ends and is cancelled without removing in-sync replicas."""
        if (
            now.partition_epoch != before.partition_epoch + 1
            or now.replicas == before.replicas
            or now.leader_recovery_state == RECOVERING
        ):
            return
        lost = [each for each in before.isr if each in now.replicas and each not in now.isr]
        if lost:
            self.fail(f"a reassignment of {name} removed {lost} from the ISR: {before}, {now}")
        replicas = set(before.replicas)
        added = set(before.adding_replicas)
        target = replicas - set(before.removing_replicas)
        is_done = before.is_reassigning and not now.is_reassigning
        if is_done and set(now.replicas) == target and target != replicas - added:
            needed = target if len(added) < len(before.removing_replicas) else added
            if not needed <= set(now.isr):
                self.fail(
                    f"a reassignment of {name} ended before {sorted(needed)} are in sync: "
                    f"{before}, {now}"
                )

    def _check_join(
        self,
        image: ClusterImage,
        key: PartitionKey,
        kind: TopicKind,
        before: PartitionRegistration,
        now: PartitionRegistration,
    ) -> None:
        """A replica that joins the ISR of a leader has all committed records."""
        history = self.histories.get(key)
        if (
            not kind.keeps
            or history is None
            or now.leader_epoch != before.leader_epoch
            or now.partition_epoch <= before.partition_epoch
        ):
            return
        for member in set(now.isr).difference(before.isr):
            node = self._cluster.brokers[member]
            if node.broker is None or node.broker.epoch != image.brokers[member].epoch:
                continue
            topic = image.topics_by_id[key[0]].name
            replica = node.broker.partitions.get((topic, key[1]))
            if replica is None or replica.log.has_failed:
                continue
            if replica.log.log_end_offset < history.end_offset:
                self.fail(
                    f"{node.life} joins the ISR of {topic}-{key[1]} with log end offset "
                    f"{replica.log.log_end_offset}, but offsets up to {history.end_offset} are "
                    f"committed: {now}"
                )

    # Replicas

    def _check_replica(self, view: ReplicaView) -> None:
        self.checks += 1
        partition = view.partition
        log = partition.log
        self._note_event(
            view.name,
            (
                "leads" if partition.leadership else "follows",
                "epoch",
                partition.leader_epoch,
                "hw",
                partition.high_watermark,
                "from",
                log.log_start_offset,
                "to",
                log.log_end_offset,
            ),
        )
        history = self.history(partition)
        start = view.start
        try:
            gone = view.read_new()
        except Damaged as error:
            self.fail(str(error))
        if gone is not None:
            self.fail(f"{view.name} truncated committed records, from {gone} on")
        self._check_start(view, history, start)
        if log.high_watermark > log.log_end_offset and not log.has_failed:
            self.fail(
                f"{view.name}: high watermark {log.high_watermark} is above the log end offset "
                f"{log.log_end_offset}"
            )
        if partition.leadership is not None and partition.leadership is not view.leadership:
            self._check_new_leader(view, history)
        view.leadership = partition.leadership
        if self._is_comparable(view, history):
            self._compare(view, history, log.high_watermark)
        elif partition.leadership is not None and partition.leader_epoch < history.unclean_epoch:
            history.commit_late(log.high_watermark)

    def _check_start(self, view: ReplicaView, history: History, before: int) -> None:
        """Records are deleted from the front, and only if retention or a request allows it."""
        start = view.start = view.partition.log.log_start_offset
        kind = view.kind
        if kind is TRANSIENT:
            return
        if start < before:
            self.fail(f"{view.name}: log start offset fell from {before} to {start}")
        known = history.start
        if view.partition.leadership is not None:
            history.start = max(known, start)
        if start == before:
            return
        if not kind.shortens:
            self.fail(f"{view.name}: log start offset {start}, but no records may be deleted")
        if start > view.partition.high_watermark:
            self.fail(f"{view.name}: log start offset {start} is not committed")
        if start <= max(history.delete_requested_before, known):
            return
        now_ms = self._cluster.world.now_ms()
        rest = sum(batch.size for batch in view.batches[view.index_of(start) :])
        for batch in view.batches[: view.index_of(start)]:
            is_old = batch.max_timestamp < now_ms - kind.retention_ms
            if not is_old and rest < kind.retention_bytes:
                self.fail(
                    f"{view.name} deleted {batch}, which neither retention.ms nor "
                    "retention.bytes allows"
                )

    def _is_comparable(self, view: ReplicaView, history: History) -> bool:
        """Whether a replica must agree with the committed batches. After an unclean election that
        holds for the new leader, and for other replicas once they are in sync."""
        if view.kind is TRANSIENT or not history.is_unclean_election_over:
            return False
        partition = view.partition
        if history.unclean_epoch < 0 or partition.leadership is not None:
            return partition.leader_epoch >= history.unclean_epoch
        registration = self._registrations.get((partition.topic_id, partition.index))
        return (
            registration is not None
            and partition.leader_epoch == registration.leader_epoch >= history.unclean_epoch
            and view.broker.id in registration.isr
        )

    def _check_new_leader(self, view: ReplicaView, history: History) -> None:
        partition = view.partition
        epoch = partition.registration.leader_epoch
        leader = history.leaders.setdefault(epoch, partition)
        if leader is not partition:
            self.fail(f"two leaders in epoch {epoch}: {self._views[leader].name}, {view.name}")
        if view.kind is TRANSIENT:
            return
        deleted_before = history.deleted_before.get(view.broker.id, 0)
        if view.start < deleted_before:
            self.fail(
                f"{view.name} leads in epoch {epoch} from offset {view.start} on, but it had "
                f"deleted the records before {deleted_before}"
            )
        if not history.is_unclean_election_over and epoch >= history.unclean_epoch:
            end_offset = history.cut_to(view)
            for other in self._views.values():
                if self.history(other.partition) is history:
                    other.agreed = min(other.agreed, end_offset)
            return
        if not self._is_comparable(view, history):
            return
        # A broker may learn of its epoch only after later leaders; it need not have their records.
        end_offset = history.end_before(epoch)
        self._compare(view, history, end_offset)
        has_all = view.agreed >= end_offset or (
            view.kind.compacts and partition.log.log_end_offset >= end_offset
        )
        if not has_all:
            self.fail(
                f"{view.name} leads in epoch {epoch} without all committed records: it agrees up "
                f"to offset {view.agreed}, but offsets up to {end_offset} are committed"
            )

    def _compare(self, view: ReplicaView, history: History, high_watermark: int) -> None:
        batches = view.batches
        view.agreed = max(view.agreed, view.start)
        index = view.index_of(view.agreed)
        if index and batches[index - 1].next_offset > view.agreed:
            index -= 1  # the log begins within a batch
        while index < len(batches) and batches[index].next_offset <= high_watermark:
            batch = batches[index]
            if batch.base_offset >= history.end_offset:
                if batch.base_offset > history.end_offset and not view.kind.compacts:
                    self.fail(
                        f"{view.name} committed {batch}, but no batch at {history.end_offset}"
                    )
                history.commit(batch, view.partition.registration.leader_epoch)
                self._check_isr(view, batch)
            else:
                known = history.find(batch.base_offset)
                if known is None or not batch.is_same_batch(known, view.kind):
                    self.fail(f"{view.name} committed {batch}, other replicas {known}")
            view.agreed = batch.next_offset
            index += 1

    def _check_isr(self, view: ReplicaView, batch: StoredBatch) -> None:
        """A batch that a leader calls committed is on all members of the ISR."""
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
                    f"{view.name} committed {batch}, but {node.life}, which is in the ISR "
                    f"{list(registration.isr)}, has log end offset {other.log.log_end_offset}"
                )

    # Every second, and at the end

    def check_metadata(self) -> None:
        """Brokers that have replayed all metadata have the same image as the controller."""
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
                self.fail(f"{node.life} has a different image from the controller's at its offset")

    def find_disagreement(self) -> str:
        """Describe a replica that differs from the others, or that should not exist; empty if there
        is none. Meaningful only when the cluster has recovered and nothing is being sent."""
        self.check_changes()
        controller = self._cluster.controller.controller
        if controller is None:
            return "the controller is down"
        held: dict[tuple[str, int], tuple[ReplicaView, object]] = {}
        leaders: dict[tuple[str, int], tuple[ReplicaView, dict[bytes, object]]] = {}
        followers: list[tuple[tuple[str, int], ReplicaView, dict[bytes, object]]] = []
        for node in self._cluster.brokers:
            if node.broker is None:
                return f"{node} is down"
            for (topic, index), partition in node.broker.partitions.items():
                view = self._views[partition]
                if node.id not in controller.image.topics[topic].partitions[index].replicas:
                    return f"{view.name} is not a replica any more"
                if view.kind.compacts:
                    if partition.leadership is None:
                        followers.append(((topic, index), view, _latest_records(view)))
                    else:
                        leaders[topic, index] = view, _latest_records(view)
                    continue
                holds = view.batches[view.index_of(self.history(partition).start) :]
                other = held.setdefault((topic, index), (view, holds))
                if holds != other[1]:
                    return f"{view.name} and {other[0].name} hold different records"
        for key, view, latest in followers:
            if key not in leaders:
                return f"{view.name} has no leader"
            leader, expected = leaders[key]
            if view.kind.delete_retention_ms != NEVER_MS:
                # A replica that was away for longer has missed tombstones, and keeps what they
                # deleted, as in Apache Kafka.
                latest = {each: record for each, record in latest.items() if each in expected}
                expected = {each: record for each, record in expected.items() if each in latest}
            if latest != expected:
                return f"{view.name} and {leader.name} hold different records"
        return ""

    def acknowledged(self, topic: str, partition: int, offset: int, sender: str) -> None:
        """A sender received an acknowledgement: the record must be committed."""
        self.check_changes()
        history = self.find_history(topic, partition)
        if history is not None and history.unclean_epoch >= 0:
            return  # an unclean election may have lost it since
        if history is None or offset >= history.end_offset:
            end_offset = 0 if history is None else history.end_offset
            self.fail(
                f"offset {offset} of {topic}-{partition} was acknowledged to {sender}, but only "
                f"offsets before {end_offset} are committed"
            )

    def deleted(self, topic: str, index: int, offset: int) -> None:
        """A DeleteRecords request was answered: replicas that have deleted the records before
        `offset` must not serve them again."""
        history = self.find_history(topic, index)
        assert history is not None
        for node in self._cluster.brokers:
            if node.broker is not None:
                partition = node.broker.partitions.get((topic, index))
                if partition is not None and partition.log.log_start_offset >= offset:
                    before = history.deleted_before.get(node.id, 0)
                    history.deleted_before[node.id] = max(before, offset)

    def disk_replaced(self, broker_id: int) -> None:
        """A broker has a new, empty disk, so what it had deleted no longer counts."""
        for history in self.histories.values():
            history.deleted_before.pop(broker_id, None)

    def check_processes(self) -> None:
        """Ended processes do nothing, and no request handler has failed."""
        leftovers = self._cluster.leftovers()
        if leftovers:
            self.fail("ended processes are still active: " + "; ".join(leftovers))
        listeners = [
            (node.life, node.broker.listener)
            for node in self._cluster.brokers
            if node.broker is not None
        ]
        if self._cluster.controller.process is not None:
            listeners.append(
                (self._cluster.controller.life, self._cluster.controller.process.listener)
            )
        for life, listener in listeners:
            if listener.counts.failed:
                self.fail(f"{life}: a handler has failed: {_describe(self._failures[-1])}")


class _LogCapture(logging.Handler):
    """Captures all log records of trimtab, so that they are not printed."""

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


def _latest_records(view: ReplicaView) -> dict[bytes, object]:
    """By key, offset and value of a replica's last record; without tombstones, and without records
    of aborted transactions."""
    latest: dict[bytes, tuple[int, bytes | None]] = {}
    log = view.partition.log
    aborted = AbortedBatches(log.aborted_between(log.first_base_offset, log.log_end_offset))
    for segment in log._segments:
        position = 0
        while position < segment.size:
            data, headers = segment.batches(position, segment.size, segment.base_offset)
            for header in headers:
                if header not in aborted:
                    for record in read_records("", 0, data[: header.size], 0):
                        latest[record.key or b""] = record.offset, record.value
                data = data[header.size :]
                position += header.size
    return {key: (at, value) for key, (at, value) in latest.items() if value is not None}


def _describe(what: object) -> str:
    if not isinstance(what, logging.LogRecord):
        return str(what)
    text = f"logs {what.getMessage()}"
    if what.exc_info:
        text += "\n" + logging.Formatter().formatException(what.exc_info)
    return text


def _records(image: ClusterImage) -> list[Any]:
    return [repr(record) for record in image.records()]


def find_unsettled(cluster: VirtualCluster) -> str:
    """Describe why the cluster has not recovered; empty if every replica is in sync."""
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
