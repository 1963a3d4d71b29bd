"""What must hold at every moment of a cluster's life, looked at from outside.

    after every moment:
        replicas    one leader per epoch; what is committed stays, in every log that says it has it;
                    records go from the front alone, and only as they may; no byte is another
        leaders     have everything that was ever committed, and nothing that was deleted
        controller  no move of a partition costs it replicas in sync
    after every fault, and at the end:
        metadata    brokers and controller have the same image at the same offset
        processes   that have ended do nothing any more

What each topic promises is its `TopicKind`'s. The logs are read as they lie on the virtual disks.
Nothing is asked of the nodes under test but where their logs begin and end, and what they call
committed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from trimtab.broker.broker import Broker
from trimtab.broker.partition import Partition
from trimtab.metadata.image import NO_LEADER, RECOVERING, ClusterImage, PartitionRegistration
from trimtab.sim.histories import Damaged, History, ReplicaView, StoredBatch
from trimtab.sim.topic_kinds import PASSING, TopicKind
from trimtab.sim.virtual_cluster import VirtualBroker, VirtualCluster, current_life
from trimtab.wire.batch_cy import read_records

_LAST_SEEN = 300

PartitionKey = tuple[bytes, int]
"""Topic id and partition."""


class Violation(AssertionError):
    """What must hold does not."""


class Checkers:
    """Looks at a cluster after each turn of the loop.

    Args:
        kinds: what topics promise, by name.

    Attributes:
        looks: how often something had changed.
    """

    def __init__(
        self, cluster: VirtualCluster, kinds: Mapping[str, TopicKind], keep_story: bool = False
    ) -> None:
        self._cluster = cluster
        self._kinds = kinds
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
                kind = self._kinds.get(partition.topic, PASSING)
                self._views[partition] = ReplicaView(node, partition, kind)
                partition.watchers[self] = None
            self._changed[partition] = None

    def _look_at_image(self, image: ClusterImage) -> None:
        for topic in image.topics.values():
            kind = self._kinds.get(topic.name, PASSING)
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
            history = History(str(partition), self._kinds.get(partition.topic, PASSING))
            self.histories[key] = history
        return history

    def find_history(self, topic: str, index: int) -> History | None:
        """What is known of a partition; None if no replica of it was seen yet."""
        return self.histories.get((self._topic_ids.get(topic, b""), index))

    def has_elected_uncleanly(self, topic: str) -> bool:
        """Whether records of a topic may have been lost in an election."""
        topic_id = self._topic_ids.get(topic)
        return any(
            history.lossy_epoch >= 0
            for key, history in self.histories.items()
            if key[0] == topic_id
        )

    # What the controller decides

    def _check_election(
        self,
        key: PartitionKey,
        kind: TopicKind,
        before: PartitionRegistration,
        now: PartitionRegistration,
    ) -> None:
        """Notes an election of one who was neither in sync nor eligible."""
        history = self.histories.get(key)
        if history is not None:
            for broker_id in [*history.deleted_before]:
                if broker_id not in now.replicas:
                    del history.deleted_before[broker_id]
        if kind.keeps or history is None or now.leader_epoch == before.leader_epoch:
            return
        if now.leader == NO_LEADER:
            return
        if now.leader not in (*before.isr, *before.elr) or now.leader_recovery_state == RECOVERING:
            history.elect_uncleanly(now.leader_epoch)

    def _check_move(
        self, name: str, before: PartitionRegistration, now: PartitionRegistration
    ) -> None:
        """A move begins, ends and is given up without a loss of replicas in sync."""
        if (
            now.partition_epoch != before.partition_epoch + 1
            or now.replicas == before.replicas
            or now.leader_recovery_state == RECOVERING
        ):
            return
        lost = [each for each in before.isr if each in now.replicas and each not in now.isr]
        if lost:
            self.fail(f"a move of {name} took {lost} out of the ISR: {before}, {now}")
        replicas = set(before.replicas)
        added = set(before.adding_replicas)
        target = replicas - set(before.removing_replicas)
        is_done = before.is_reassigning and not now.is_reassigning
        if is_done and set(now.replicas) == target and target != replicas - added:
            needed = target if len(added) < len(before.removing_replicas) else added
            if not needed <= set(now.isr):
                self.fail(
                    f"a move of {name} is over before {sorted(needed)} are in sync: {before}, {now}"
                )

    def _check_join(
        self,
        image: ClusterImage,
        key: PartitionKey,
        kind: TopicKind,
        before: PartitionRegistration,
        now: PartitionRegistration,
    ) -> None:
        """Who joins the ISR of a leader has all that is committed."""
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
                    f"{node.life} joins the ISR of {topic}-{key[1]} with "
                    f"{replica.log.log_end_offset}, and {history.end_offset} are committed: {now}"
                )

    # What replicas have

    def _look_at(self, view: ReplicaView) -> None:
        self.looks += 1
        partition = view.partition
        log = partition.log
        self._tell(
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
            gone = view.look()
        except Damaged as error:
            self.fail(str(error))
        if gone is not None:
            self.fail(f"{view.name} cut off committed records, from {gone} on")
        self._check_start(view, history, start)
        if log.high_watermark > log.log_end_offset and not log.has_failed:
            self.fail(
                f"{view.name}: high watermark {log.high_watermark} is beyond the log's end "
                f"{log.log_end_offset}"
            )
        if partition.leadership is not None and partition.leadership is not view.leadership:
            self._begins_to_lead(view, history)
        view.leadership = partition.leadership
        if self._is_comparable(view, history):
            self._compare(view, history, log.high_watermark)
        elif partition.leadership is not None and partition.leader_epoch < history.lossy_epoch:
            history.commit_late(log.high_watermark)

    def _check_start(self, view: ReplicaView, history: History, before: int) -> None:
        """Records go from the front, and only those that may."""
        start = view.start = view.partition.log.log_start_offset
        kind = view.kind
        if kind is PASSING:
            return
        if start < before:
            self.fail(f"{view.name} begins at {start}, after it had begun at {before}")
        known = history.start
        if view.partition.leadership is not None:
            history.start = max(known, start)
        if start == before:
            return
        if not kind.shortens:
            self.fail(f"{view.name} begins at {start}, but nobody deletes records there")
        if start > view.partition.high_watermark:
            self.fail(f"{view.name} begins at {start}, which is not committed")
        if start <= max(history.asked_to_delete_before, known):
            return
        now_ms = self._cluster.world.now_ms()
        rest = sum(batch.size for batch in view.batches[view.index_of(start) :])
        for batch in view.batches[: view.index_of(start)]:
            is_old = batch.max_timestamp < now_ms - kind.retention_ms
            if not is_old and rest < kind.retention_bytes:
                self.fail(f"{view.name} has deleted {batch}, which is neither old nor too much")

    def _is_comparable(self, view: ReplicaView, history: History) -> bool:
        """Whether what a replica has must agree with what is committed. After an unclean election
        that holds for its winner, and for the others once they are in sync with it."""
        if view.kind is PASSING or not history.is_lossy_election_over:
            return False
        partition = view.partition
        if history.lossy_epoch < 0 or partition.leadership is not None:
            return partition.leader_epoch >= history.lossy_epoch
        registration = self._registrations.get((partition.topic_id, partition.index))
        return (
            registration is not None
            and partition.leader_epoch == registration.leader_epoch >= history.lossy_epoch
            and view.broker.id in registration.isr
        )

    def _begins_to_lead(self, view: ReplicaView, history: History) -> None:
        partition = view.partition
        epoch = partition.registration.leader_epoch
        leader = history.leaders.setdefault(epoch, partition)
        if leader is not partition:
            self.fail(f"two leaders in epoch {epoch}: {self._views[leader].name}, {view.name}")
        if view.kind is PASSING:
            return
        deleted_before = history.deleted_before.get(view.broker.id, 0)
        if view.start < deleted_before:
            self.fail(
                f"{view.name} leads in epoch {epoch} from offset {view.start} on, but has deleted "
                f"what is before {deleted_before}"
            )
        if not history.is_lossy_election_over and epoch >= history.lossy_epoch:
            end_offset = history.cut_to(view)
            for other in self._views.values():
                if self.history(other.partition) is history:
                    other.agreed = min(other.agreed, end_offset)
            return
        if not self._is_comparable(view, history):
            return
        # One that hears of its epoch when others have led since need not have what they have.
        end_offset = history.end_before(epoch)
        self._compare(view, history, end_offset)
        has_all = view.agreed >= end_offset or (
            view.kind.compacts and partition.log.log_end_offset >= end_offset
        )
        if not has_all:
            self.fail(
                f"{view.name} leads in epoch {epoch} without committed records: it has those "
                f"before {view.agreed}, but those before {end_offset} are committed"
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
                        f"{view.name} has committed {batch}, but nothing from "
                        f"{history.end_offset} on"
                    )
                history.commit(batch, view.partition.registration.leader_epoch)
                self._check_isr(view, batch)
            else:
                known = history.find(batch.base_offset)
                if known is None or not batch.is_what(known, view.kind):
                    self.fail(f"{view.name} has committed {batch}, others {known}")
            view.agreed = batch.next_offset
            index += 1

    def _check_isr(self, view: ReplicaView, batch: StoredBatch) -> None:
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
        held: dict[tuple[str, int], tuple[ReplicaView, object]] = {}
        for node in self._cluster.brokers:
            if node.broker is None:
                return f"{node} is down"
            for (topic, index), partition in node.broker.partitions.items():
                view = self._views[partition]
                if node.id not in controller.image.topics[topic].partitions[index].replicas:
                    return f"{view.name} is no replica any more"
                history = self.history(partition)
                holds = (
                    _latest_records(view)
                    if view.kind.compacts
                    else view.batches[view.index_of(history.start) :]
                )
                other = held.setdefault((topic, index), (view, holds))
                if holds != other[1]:
                    return f"{view.name} and {other[0].name} do not hold the same"
        return ""

    def acknowledged(self, topic: str, partition: int, offset: int, sender: str) -> None:
        """A sender was told that a record is kept, at this place."""
        self.look()
        history = self.find_history(topic, partition)
        if history is not None and history.lossy_epoch >= 0:
            return  # it may be cut off since
        if history is None or offset >= history.end_offset:
            end_offset = 0 if history is None else history.end_offset
            self.fail(
                f"{sender} was told that offset {offset} of {topic}-{partition} is kept, but only "
                f"what is before {end_offset} is committed"
            )

    def deleted(self, topic: str, index: int, offset: int) -> None:
        """An operator was told that what is before `offset` is gone from all living replicas. Those
        that have done so do not serve it again."""
        history = self.find_history(topic, index)
        assert history is not None
        for node in self._cluster.brokers:
            if node.broker is not None:
                partition = node.broker.partitions.get((topic, index))
                if partition is not None and partition.log.log_start_offset >= offset:
                    before = history.deleted_before.get(node.id, 0)
                    history.deleted_before[node.id] = max(before, offset)

    def disk_replaced(self, broker_id: int) -> None:
        """A broker begins with nothing."""
        for history in self.histories.values():
            history.deleted_before.pop(broker_id, None)

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


def _latest_records(view: ReplicaView) -> dict[bytes, tuple[int, bytes]]:
    """Of each key the last record that a replica holds, if it has a value."""
    latest: dict[bytes, tuple[int, bytes | None]] = {}
    for segment in view.partition.log._segments:
        position = 0
        while position < segment.size:
            data, headers = segment.batches(position, segment.size)
            for header in headers:
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
