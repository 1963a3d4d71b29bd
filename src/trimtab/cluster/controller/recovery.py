"""Rebuilds a cluster's metadata from the brokers' data directories (`trimtab recover`).

The directories show the topics that have records, with their ids; and for each log its broker, its
last leader epoch and its end offset. They do not show topics and last partitions without records,
preferred leaders, and options. An old copy of the controller's journal has these as they were when
the copy was made; where it contradicts the directories, the directories win.

Committed records are in the log of every in-sync replica. So they are also in the log with the
highest leader epoch and, among several, the highest end offset. The replicas whose logs have that
epoch and end offset become the ISR, and the controller elects a leader once one of them is up. The
other replicas follow, and truncate what the leader does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from trimtab.cluster.controller.journal import DIRECTORY
from trimtab.cluster.metadata.batches import SnapshotId, write_snapshot
from trimtab.cluster.metadata.image import (
    CONFIG_BROKER,
    CONFIG_CLIENT_METRICS,
    CONFIG_GROUP,
    CONFIG_TOPIC,
    ClusterImage,
    PartitionRegistration,
    partition_record,
)
from trimtab.cluster.storage.properties import encode_uuid
from trimtab.cluster.storage.storage import Storage
from trimtab.cluster.storage.survey import DirectorySurvey, StoredLog
from trimtab.kafka.errors import UsageError
from trimtab.kafka.wire.messages.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from trimtab.kafka.wire.sentinels import NO_BROKER, NO_EPOCH, NO_LEADER, NO_PRODUCER_ID

_EPOCHS_BEYOND = 100
"""Added to leader epochs: epochs without a record are in no log, but clients may know them."""

_PRODUCER_IDS_BEYOND = 1_000_000
"""Added to the next producer id: producers may have ids, but no records that still exist."""


class RecoveredPartition(NamedTuple):
    """A rebuilt partition, for a report.

    Attributes:
        ends: by broker id, the last leader epoch and end offset of each replica that has a log.
    """

    topic: str
    registration: PartitionRegistration
    ends: Mapping[int, tuple[int, int]]


class Recovered(NamedTuple):
    """Rebuilt metadata.

    Attributes:
        notes: sentences for the user, about assumptions and losses.
    """

    image: ClusterImage
    partitions: list[RecoveredPartition]
    notes: list[str]


def recover(
    surveys: Sequence[DirectorySurvey],
    old: ClusterImage | None,
    counts: Mapping[str, int],
    make_topic_id: Callable[[], bytes],
) -> Recovered:
    """Rebuild the metadata from the brokers' directories.

    Args:
        surveys: one of each broker of the cluster.
        old: the image from an old copy of the journal; None if there is none.
        counts: by topic, its number of partitions, for topics whose last partitions are empty.
        make_topic_id: returns a new topic id.

    Raises:
        UsageError: the directories contradict each other, or a broker's is missing.
    """
    _check(surveys, old)
    return _Recovery(surveys, old or ClusterImage(), counts, make_topic_id).run()


def write_journal(
    storage: Storage, image: ClusterImage, end_offset: int, epoch: int, now_ms: int
) -> None:
    """Write metadata as a new journal: one snapshot, after which the log begins.

    Args:
        storage: the directory of a controller, new.
        end_offset: higher than all offsets that brokers have replayed, so that they accept it.
        epoch: higher than the epochs of all controllers before.

    Raises:
        StorageError: the disk failed.
    """
    snapshot = SnapshotId(end_offset, epoch)
    content = b"".join(write_snapshot(image.records(), snapshot, now_ms, now_ms))
    storage.write_file(f"{DIRECTORY}/{snapshot.name}", content)


def _check(surveys: Sequence[DirectorySurvey], old: ClusterImage | None) -> None:
    if not surveys:
        raise UsageError("no broker's data directory is given; name those of all brokers")
    clusters = {each.cluster_id for each in surveys}
    if len(clusters) > 1:
        named = ", ".join(f"broker {each.broker_id}: {each.cluster_id}" for each in surveys)
        raise UsageError(f"the directories belong to several clusters ({named}); name those of one")
    times = Counter(each.broker_id for each in surveys)
    for broker_id, number in times.items():
        if number > 1:
            raise UsageError(
                f"{number} directories belong to broker {broker_id}; name the one that counts"
            )
    missing = sorted(set(old.brokers if old else ()) - set(times))
    if missing:
        raise UsageError(
            f"the old copy knows broker {', '.join(map(str, missing))}, whose directory is not "
            "given; name it too, or move the old copy away if that broker is gone for good"
        )


class _Recovery:
    def __init__(
        self,
        surveys: Sequence[DirectorySurvey],
        old: ClusterImage,
        counts: Mapping[str, int],
        make_topic_id: Callable[[], bytes],
    ) -> None:
        self._brokers = sorted(each.broker_id for each in surveys)
        self._old = old
        self._counts = counts
        self._make_topic_id = make_topic_id
        self._leads: Counter[int] = Counter()
        self._logs: dict[str, dict[int, dict[int, StoredLog]]] = {}
        self._max_producer_id = NO_PRODUCER_ID
        self._image = ClusterImage()
        self._partitions: list[RecoveredPartition] = []
        self._notes: list[str] = []
        for survey in surveys:
            for log in survey.logs:
                found = self._logs.setdefault(log.topic, {}).setdefault(log.partition, {})
                found[survey.broker_id] = log
                self._max_producer_id = max(self._max_producer_id, log.max_producer_id)

    def run(self) -> Recovered:
        old, replay = self._old, self._image.replay
        for name in self._counts:
            if name not in self._logs and name not in old.topics:
                raise UsageError(
                    f"topic {name} is in no broker's directory and in no old copy; create it when "
                    "the cluster is up"
                )
        for feature, level in old.features.items():
            replay(FeatureLevelRecord(name=feature, feature_level=level))
        for name in sorted({*self._logs, *old.topics}):
            self._recover_topic(name)
        for broker in ("", *map(str, self._brokers)):
            self._take_options(CONFIG_BROKER, broker)
        for kind in (CONFIG_CLIENT_METRICS, CONFIG_GROUP):
            for name in old.configured(kind):
                self._take_options(kind, name)
        next_producer_id = max(old.next_producer_id, self._max_producer_id + 1)
        replay(
            ProducerIdsRecord(
                broker_id=NO_BROKER,
                broker_epoch=NO_EPOCH,
                next_producer_id=next_producer_id + _PRODUCER_IDS_BEYOND,
            )
        )
        return Recovered(self._image, self._partitions, self._notes)

    def _recover_topic(self, name: str) -> None:
        logs = self._logs.get(name, {})
        old = self._old.topics.get(name)
        topic_id = self._find_id(name, logs)
        is_known = old is not None and topic_id in (None, old.id)
        if topic_id is None:
            topic_id = self._make_topic_id() if old is None else old.id
        known: Sequence[PartitionRegistration] = ()
        if old is not None and is_known:
            known = old.partitions
            if not logs:
                self._notes.append(
                    f"topic {name} is in the old copy, and no broker has a record of it: it is "
                    "kept as an empty topic; delete it if it was deleted"
                )
        elif old is not None:
            self._notes.append(
                f"topic {name} was created again after the old copy was made: its options "
                "are not known"
            )
        highest = max(logs, default=-1) + 1
        count = max(highest, len(known), self._counts.get(name, 0))
        if not known and name not in self._counts:
            self._notes.append(
                f"topic {name}: {count} partitions left a trace; if it had more, which were empty, "
                f"say so now (--partitions {name}=N), as keys go by their number"
            )
        self._image.replay(TopicRecord(name=name, topic_id=topic_id))
        factor = max(map(len, logs.values()), default=1)
        if known:
            factor = len(known[0].replicas) - len(known[0].removing_replicas)
        for index in range(count):
            before = known[index] if index < len(known) else None
            recovered = self._recover_partition(name, index, logs.get(index, {}), before, factor)
            self._partitions.append(recovered)
            self._image.replay(partition_record(topic_id, recovered.registration))
        if is_known:
            self._take_options(CONFIG_TOPIC, name)

    def _find_id(self, name: str, logs: Mapping[int, Mapping[int, StoredLog]]) -> bytes | None:
        """The topic's id in the brokers' directories; None if they have none."""
        found: dict[bytes, list[str]] = {}
        for index, replicas in sorted(logs.items()):
            for broker, log in sorted(replicas.items()):
                if log.topic_id is not None:
                    where = f"broker {broker}: {name}-{index}"
                    found.setdefault(log.topic_id, []).append(where)
        if len(found) > 1:
            named = "; ".join(
                f"{encode_uuid(topic_id)} ({where[0]}, {len(where)} in all)"
                for topic_id, where in found.items()
            )
            raise UsageError(
                f"the directories of topic {name} are those of different topics: {named}. One was "
                "deleted while a broker was away: move its directories elsewhere, and try again"
            )
        return next(iter(found), None)

    def _recover_partition(
        self,
        topic: str,
        index: int,
        logs: Mapping[int, StoredLog],
        before: PartitionRegistration | None,
        factor: int,
    ) -> RecoveredPartition:
        ends = {broker: (log.leader_epoch, log.end_offset) for broker, log in logs.items()}
        furthest = max(ends.values(), default=(-1, 0))
        in_sync = sorted(broker for broker, end in ends.items() if end == furthest)
        order = list(before.replicas) if before is not None else []
        if not order:
            # The preferred leader is unknown: take the in-sync replica that leads least so far.
            order = sorted(in_sync, key=lambda broker: (self._leads[broker], broker))
        replicas = [broker for broker in order if broker in ends or not ends]
        replicas += sorted(broker for broker in ends if broker not in replicas)
        # Replicas without records have no directory: fill up with other brokers.
        turn = index % len(self._brokers)
        for broker in [*order, *self._brokers[turn:], *self._brokers[:turn]]:
            if len(replicas) < factor and broker not in replicas:
                replicas.append(broker)
        isr = [broker for broker in replicas if broker in in_sync or not ends]
        self._leads[isr[0]] += 1
        epoch = max(furthest[0], -1 if before is None else before.leader_epoch)
        registration = PartitionRegistration(
            index,
            NO_LEADER,
            max(0, epoch) + _EPOCHS_BEYOND,
            0,
            tuple(replicas),
            tuple(isr),
        )
        return RecoveredPartition(topic, registration, ends)

    def _take_options(self, kind: int, name: str) -> None:
        for option, value in self._old.configs(kind, name).items():
            self._image.replay(
                ConfigRecord(resource_type=kind, resource_name=name, name=option, value=value)
            )
