"""The image of a cluster: the state that results from replaying the controller's records.

record ─▶ replay ─▶ topics, partitions, brokers, configs, next producer id

Replaying the same records always gives the same image. Reads return the image's own immutable
values, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from trimtab.balance.replica_counts import INTERNAL_TOPICS, ReplicaCounts
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.topic_name import collision_key
from trimtab.kafka.wire.messages.metadata_records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from trimtab.kafka.wire.sentinels import NO_BROKER, NO_EPOCH, NO_LEADER, NO_LEADER_CHANGE

RECOVERED = 0
RECOVERING = 1
"""Leader recovery states: an uncleanly elected leader is recovering until it reports otherwise."""

CONFIG_TOPIC = 2
CONFIG_BROKER = 4
CONFIG_CLIENT_METRICS = 16
CONFIG_GROUP = 32
"""Types of resources with configs, numbered as in `ConfigResource.Type`."""

UNFENCE = -1
FENCE = 1
"""Values of `fenced` in a broker's change record; 0 changes nothing."""

_NO_CHANGE_OF_STATE = -1
_shapes = count()
_LISTENER = "PLAINTEXT"


class BrokerRegistration(NamedTuple):
    """A registered broker, and its address for clients.

    Attributes:
        epoch: the offset of the record that registered it.
        incarnation_id: generated at every process start.
        fenced: it has lost contact with the controller, or is new: it must not lead, must not join
            an ISR, and is not in Metadata responses.
        in_controlled_shutdown: it is shutting down: the same, but it is in Metadata responses.
        log_dirs: ids of its log directories, if it has registered any.
    """

    id: int
    epoch: int
    incarnation_id: bytes
    host: str
    port: int
    rack: str | None
    fenced: bool = False
    in_controlled_shutdown: bool = False
    log_dirs: tuple[bytes, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether it may lead partitions and join ISRs."""
        return not self.fenced and not self.in_controlled_shutdown


class PartitionRegistration(NamedTuple):
    """A partition's leader and replicas, as the controller last decided.

    Attributes:
        leader: a broker id, or `NO_LEADER`.
        leader_epoch: incremented at every election, even if it elects the same leader.
        partition_epoch: incremented by every change.
        replicas: broker ids, the preferred leader first; includes `adding_replicas` and
            `removing_replicas` during a reassignment.
        isr: the in-sync replicas.
        adding_replicas: replicas that a reassignment adds.
        removing_replicas: replicas that a reassignment removes.
        elr: replicas out of the ISR that have every record up to the high watermark, and so may be
            elected (KIP-966).
        last_known_elr: the last leader, if ISR and ELR are empty.
        leader_recovery_state: `RECOVERED`, or `RECOVERING` after an unclean election.
    """

    id: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED

    @property
    def preferred_leader(self) -> int:
        """The first of the replicas."""
        return self.replicas[0] if self.replicas else NO_LEADER

    @property
    def final_replicas(self) -> tuple[int, ...]:
        """The replicas without those that a reassignment removes."""
        return tuple(broker for broker in self.replicas if broker not in self.removing_replicas)

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    def merge(self, record: PartitionChangeRecord) -> PartitionRegistration:
        """This partition after the change (Kafka's `PartitionRegistration.merge`)."""
        elects = record.leader != NO_LEADER_CHANGE
        state = record.leader_recovery_state
        return PartitionRegistration(
            self.id,
            record.leader if elects else self.leader,
            self.leader_epoch + 1 if elects else self.leader_epoch,
            self.partition_epoch + 1,
            _changed_or(record.replicas, self.replicas),
            _changed_or(record.isr, self.isr),
            _changed_or(record.adding_replicas, self.adding_replicas),
            _changed_or(record.removing_replicas, self.removing_replicas),
            _changed_or(record.eligible_leader_replicas, self.elr),
            _changed_or(record.last_known_elr, self.last_known_elr),
            self.leader_recovery_state if state == _NO_CHANGE_OF_STATE else state,
        )


class TopicImage(NamedTuple):
    """A topic; `partitions[i]` is partition i."""

    name: str
    id: bytes
    partitions: list[PartitionRegistration]


class ClusterImage:
    """The cluster's metadata, changed only by replaying records."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[bytes, TopicImage] = {}
        self.brokers: dict[int, BrokerRegistration] = {}
        self.features: dict[str, int] = {}
        self.next_producer_id = 0
        self.shape = next(_shapes)
        """Another number whenever a topic or a partition comes or goes."""
        self._counts: ReplicaCounts | None = None
        self._hidden: list[TopicImage] = []
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._names: dict[str, str] = {}

    def configs(self, kind: int, name: str) -> Mapping[str, str]:
        """The options set on one resource; `kind` is its type, such as `CONFIG_TOPIC`."""
        return self._configs.get((kind, name), _NOTHING)

    def configured(self, kind: int) -> list[str]:
        """The names of the resources of one type that have options set."""
        return [name for each, name in self._configs if each == kind]

    def colliding(self, name: str) -> str | None:
        """The topic whose name equals `name`, or differs only in '.' and '_'; None if there is
        none."""
        return self._names.get(collision_key(name))

    def value(self, kind: int, name: str, option: str) -> str | None:
        """The value set for one option of a resource; None if it is not set."""
        return self._configs.get((kind, name), _NOTHING).get(option)

    def partition(self, topic_id: bytes, index: int) -> PartitionRegistration | None:
        """One partition; None if topic or partition does not exist."""
        topic = self.topics_by_id.get(topic_id)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def partitions_with(self, broker_id: int) -> Iterator[tuple[TopicImage, PartitionRegistration]]:
        """Every partition that the broker leads, or in whose ISR or ELR it is.

        Scans all partitions: 5 ms for 30,000. An index would have to be updated by every change of
        an ISR.
        """
        for topic in self.topics.values():
            for partition in topic.partitions:
                if (
                    broker_id in partition.isr
                    or broker_id in partition.elr
                    or partition.leader == broker_id
                ):
                    yield topic, partition

    def partitions_without_leader(self) -> Iterator[tuple[TopicImage, PartitionRegistration]]:
        """Every partition without a leader. Scans all partitions."""
        for topic in self.topics.values():
            for partition in topic.partitions:
                if partition.leader == NO_LEADER:
                    yield topic, partition

    def replay(self, record: object) -> None:
        """Apply one record.

        Raises:
            CorruptData: the record's type is unknown, or it contradicts the image.
        """
        replay = _REPLAYS.get(type(record))
        if replay is None:
            raise CorruptData(f"metadata record {type(record).__name__} cannot be replayed here")
        replay(self, record)

    @property
    def counts(self) -> ReplicaCounts:
        """Replicas by broker. Computed at first use and updated from then on; only the controller
        uses it."""
        if self._counts is None:
            self._counts = ReplicaCounts()
            for topic in self.topics.values():
                if topic.name not in INTERNAL_TOPICS:
                    for partition in topic.partitions:
                        self._counts.add_replicas(partition.replicas)
        return self._counts

    def hide_topic(self, topic_id: bytes) -> None:
        """Remove a new topic from `topics` until `show_topics`: its partitions are incomplete."""
        self._hidden.append(self.topics.pop(self.topics_by_id[topic_id].name))

    def show_topics(self) -> None:
        """Add the hidden topics to `topics` again."""
        self.shape = next(_shapes)
        self.topics.update((topic.name, topic) for topic in self._hidden)
        self._hidden = []

    def copy(self) -> ClusterImage:
        """An independent copy: 1 ms for 30,000 partitions."""
        copied = ClusterImage()
        for topic in self.topics.values():
            twin = topic._replace(partitions=topic.partitions.copy())
            copied.topics[twin.name] = copied.topics_by_id[twin.id] = twin
        copied.brokers = self.brokers.copy()
        copied.features = self.features.copy()
        copied.next_producer_id = self.next_producer_id
        copied._counts = None if self._counts is None else self._counts.copy()
        copied._configs = {key: configs.copy() for key, configs in self._configs.items()}
        copied._names = self._names.copy()
        return copied

    def records(self) -> Iterator[Any]:
        """The records that rebuild this image: the contents of a snapshot."""
        for feature, level in self.features.items():
            yield FeatureLevelRecord(name=feature, feature_level=level)
        for broker in self.brokers.values():
            yield register_broker_record(broker)
        for topic in self.topics.values():
            yield TopicRecord(name=topic.name, topic_id=topic.id)
            for partition in topic.partitions:
                yield partition_record(topic.id, partition)
        for (kind, name), configs in self._configs.items():
            for key, value in configs.items():
                yield ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
        if self.next_producer_id:
            yield ProducerIdsRecord(
                broker_id=NO_BROKER, broker_epoch=NO_EPOCH, next_producer_id=self.next_producer_id
            )

    def _replay_topic(self, record: TopicRecord) -> None:
        names = (topic.name for topic in self._hidden)
        if (
            record.name in self.topics
            or record.topic_id in self.topics_by_id
            or record.name in names
        ):
            raise CorruptData(f"topic {record.name} is created twice")
        self.shape = next(_shapes)
        topic = TopicImage(record.name, record.topic_id, [])
        self.topics[topic.name] = topic
        self.topics_by_id[topic.id] = topic
        self._names[collision_key(topic.name)] = topic.name

    def _replay_partition(self, record: PartitionRecord) -> None:
        topic = self.topics_by_id.get(record.topic_id)
        if topic is None:
            raise CorruptData(f"partition {record.partition_id} of unknown topic id")
        partition = PartitionRegistration(
            record.partition_id,
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            _intern(record.replicas),
            _intern(record.isr),
            _intern(record.adding_replicas),
            _intern(record.removing_replicas),
            _intern(record.eligible_leader_replicas or ()),
            _intern(record.last_known_elr or ()),
            record.leader_recovery_state,
        )
        counts = None if topic.name in INTERNAL_TOPICS else self._counts
        if 0 <= partition.id < len(topic.partitions):
            if counts is not None:
                counts.remove_replicas(topic.partitions[partition.id].replicas)
            topic.partitions[partition.id] = partition
        elif partition.id == len(topic.partitions):
            self.shape = next(_shapes)
            topic.partitions.append(partition)
        else:
            raise CorruptData(
                f"partition {topic.name}-{partition.id} comes before "
                f"{topic.name}-{len(topic.partitions)}"
            )
        if counts is not None:
            counts.add_replicas(partition.replicas)

    def _replay_partition_change(self, record: PartitionChangeRecord) -> None:
        partition = self.partition(record.topic_id, record.partition_id)
        if partition is None:
            raise CorruptData(f"change of partition {record.partition_id}, which does not exist")
        topic = self.topics_by_id[record.topic_id]
        changed = topic.partitions[partition.id] = partition.merge(record)
        counts = None if topic.name in INTERNAL_TOPICS else self._counts
        if counts is not None and changed.replicas != partition.replicas:
            counts.remove_replicas(partition.replicas)
            counts.add_replicas(changed.replicas)

    def _replay_clear_elr(self, record: ClearElrRecord) -> None:
        if record.topic_name and record.topic_name not in self.topics:
            raise CorruptData(
                f"eligible leaders of topic {record.topic_name}, which does not exist"
            )
        names = [record.topic_name] if record.topic_name else list(self.topics)
        for name in names:
            partitions = self.topics[name].partitions
            for index, partition in enumerate(partitions):
                # Unlike in Kafka, a partition without leader keeps its ELR: nothing new is
                # committed that the ELR could lack, and no other replica could be elected.
                if partition.elr and partition.leader != NO_LEADER:
                    partitions[index] = partition._replace(
                        partition_epoch=partition.partition_epoch + 1, elr=()
                    )

    def _replay_nothing(self, record: NoOpRecord) -> None:
        """A no-op record changes nothing."""

    def _replay_remove_topic(self, record: RemoveTopicRecord) -> None:
        self.shape = next(_shapes)
        topic = self.topics_by_id.pop(record.topic_id, None)
        if topic is None:
            raise CorruptData("removal of an unknown topic id")
        if self._counts is not None and topic.name not in INTERNAL_TOPICS:
            for partition in topic.partitions:
                self._counts.remove_replicas(partition.replicas)
        del self.topics[topic.name]
        self._names.pop(collision_key(topic.name), None)
        self._configs.pop((CONFIG_TOPIC, topic.name), None)

    def _replay_register_broker(self, record: RegisterBrokerRecord) -> None:
        end_point = record.end_points[0]
        self.brokers[record.broker_id] = BrokerRegistration(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            end_point.host,
            end_point.port,
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
            tuple(record.log_dirs),
        )

    def _replay_broker_change(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._registered(record.broker_id, record.broker_epoch)
        if record.fenced:
            broker = broker._replace(fenced=record.fenced == FENCE)
        if record.in_controlled_shutdown:
            broker = broker._replace(in_controlled_shutdown=True)
        if record.log_dirs:
            broker = broker._replace(log_dirs=tuple(record.log_dirs))
        self.brokers[broker.id] = broker

    def _replay_unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        broker = self._registered(record.broker_id, record.broker_epoch)
        del self.brokers[broker.id]

    def _registered(self, broker_id: int, epoch: int) -> BrokerRegistration:
        broker = self.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise CorruptData(f"broker {broker_id} is not registered with epoch {epoch}")
        return broker

    def _replay_config(self, record: ConfigRecord) -> None:
        key = (record.resource_type, record.resource_name)
        configs = self._configs.setdefault(key, {})
        if record.value is None:
            configs.pop(record.name, None)
            if not configs:
                del self._configs[key]
        else:
            configs[record.name] = record.value

    def _replay_producer_ids(self, record: ProducerIdsRecord) -> None:
        if record.next_producer_id < self.next_producer_id:
            raise CorruptData(
                f"next producer id goes back from {self.next_producer_id} to "
                f"{record.next_producer_id}"
            )
        self.next_producer_id = record.next_producer_id

    def _replay_feature_level(self, record: FeatureLevelRecord) -> None:
        self.features[record.name] = record.feature_level


_NOTHING: Mapping[str, str] = {}

_REPLAYS: dict[type, Callable[[ClusterImage, Any], None]] = {
    TopicRecord: ClusterImage._replay_topic,
    PartitionRecord: ClusterImage._replay_partition,
    PartitionChangeRecord: ClusterImage._replay_partition_change,
    ClearElrRecord: ClusterImage._replay_clear_elr,
    RemoveTopicRecord: ClusterImage._replay_remove_topic,
    RegisterBrokerRecord: ClusterImage._replay_register_broker,
    BrokerRegistrationChangeRecord: ClusterImage._replay_broker_change,
    UnregisterBrokerRecord: ClusterImage._replay_unregister_broker,
    ConfigRecord: ClusterImage._replay_config,
    ProducerIdsRecord: ClusterImage._replay_producer_ids,
    FeatureLevelRecord: ClusterImage._replay_feature_level,
    NoOpRecord: ClusterImage._replay_nothing,
}


def register_broker_record(broker: BrokerRegistration) -> RegisterBrokerRecord:
    """The record that registers a broker with its current state."""
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            BrokerEndpoint(name=_LISTENER, host=broker.host, port=broker.port, security_protocol=0)
        ],
        features=[],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.log_dirs),
    )


def partition_record(topic_id: bytes, partition: PartitionRegistration) -> PartitionRecord:
    """The record that creates a partition with its current state."""
    return PartitionRecord(
        partition_id=partition.id,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=[],
        eligible_leader_replicas=list(partition.elr) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )


def partition_change_record(
    topic_id: bytes, before: PartitionRegistration, after: PartitionRegistration
) -> PartitionChangeRecord | None:
    """The record that turns `before` into `after`; None if they are the same.

    Replaying it increments the partition epoch. If `after` has another leader or leader epoch, it
    also increments the leader epoch, by one, whatever value `after` has.
    """
    elects = (after.leader, after.leader_epoch) != (before.leader, before.leader_epoch)
    state = after.leader_recovery_state
    if after._replace(partition_epoch=before.partition_epoch) == before:
        return None
    return PartitionChangeRecord(
        partition_id=before.id,
        topic_id=topic_id,
        isr=_if_changed(before.isr, after.isr),
        leader=after.leader if elects else NO_LEADER_CHANGE,
        replicas=_if_changed(before.replicas, after.replicas),
        removing_replicas=_if_changed(before.removing_replicas, after.removing_replicas),
        adding_replicas=_if_changed(before.adding_replicas, after.adding_replicas),
        leader_recovery_state=(
            _NO_CHANGE_OF_STATE if state == before.leader_recovery_state else state
        ),
        eligible_leader_replicas=_if_changed(before.elr, after.elr),
        last_known_elr=_if_changed(before.last_known_elr, after.last_known_elr),
    )


def _if_changed(before: tuple[int, ...], after: tuple[int, ...]) -> list[int] | None:
    return None if before == after else list(after)


def _changed_or(changed: list[int] | None, before: tuple[int, ...]) -> tuple[int, ...]:
    return before if changed is None else _intern(changed)


_tuples: dict[tuple[int, ...], tuple[int, ...]] = {}
_TUPLES_KEPT = 65_536


def _intern(brokers: Sequence[int]) -> tuple[int, ...]:
    """The shared tuple of these broker ids: thousands of partitions have the same few tuples."""
    if len(_tuples) >= _TUPLES_KEPT:
        _tuples.clear()
    made = tuple(brokers)
    return _tuples.setdefault(made, made)
