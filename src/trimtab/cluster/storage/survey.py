"""Reads a broker's data directory without changing it, while no node runs (`trimtab recover`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from trimtab.cluster.storage.batch_file import BatchFile
from trimtab.cluster.storage.leader_epochs import LeaderEpochs
from trimtab.cluster.storage.producer_snapshots import SNAPSHOT, ProducerSnapshots
from trimtab.cluster.storage.properties import decode_uuid, read_properties
from trimtab.cluster.storage.storage import Storage
from trimtab.kafka.errors import CorruptData, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_cy import BatchHeader

_META = "meta.properties"
_CONTROLLER_TOPIC = "__cluster_metadata"
_LOG_SUFFIX = ".log"
_FOREVER_MS = 2**63 - 1


class StoredLog(NamedTuple):
    """One replica on disk.

    Attributes:
        topic_id: 16 bytes; None if a crash happened before it was written.
        leader_epoch: the leader epoch of the last whole batch; -1 if there has been none.
        end_offset: the offset after the last whole batch.
        max_producer_id: the largest producer id found; -1 for none.
    """

    topic: str
    partition: int
    topic_id: bytes | None
    leader_epoch: int
    end_offset: int
    max_producer_id: int


class DirectorySurvey(NamedTuple):
    """One broker's directory.

    Attributes:
        logs: every partition that has a directory, sorted.
    """

    broker_id: int
    cluster_id: str
    logs: list[StoredLog]


def survey(storage: Storage) -> DirectorySurvey:
    """List the logs in a broker's data directory.

    Reads the last segment of each log and checks its CRCs. Batches that a crash has torn do not
    count, as the broker will truncate them.

    Raises:
        StorageError: the disk failed.
        UsageError: this is not the data directory of a broker.
    """
    meta = read_properties(storage.read_file(_META) or b"", "=")
    try:
        broker_id, cluster_id = int(meta["node.id"]), meta["cluster.id"]
    except (KeyError, ValueError):
        raise UsageError(
            f"{_META} names no node.id and cluster.id: this is not the data directory of a broker"
        ) from None
    keys = []
    for name in storage.list(""):
        topic, _, partition = name.rpartition("-")
        if topic and topic != _CONTROLLER_TOPIC and partition.isdecimal():
            keys.append(TopicPartition(topic, int(partition)))
    return DirectorySurvey(broker_id, cluster_id, [_read_log(storage, key) for key in sorted(keys)])


def _read_log(storage: Storage, key: TopicPartition) -> StoredLog:
    directory = str(key)
    content = storage.read_file(f"{directory}/partition.metadata") or b""
    topic_id = decode_uuid(read_properties(content, ": ").get("topic_id", ""))
    names = storage.list(directory)
    bases = sorted(_offsets(names, _LOG_SUFFIX), reverse=True)
    epochs = LeaderEpochs(storage, directory)
    epochs.load()
    end_offset = bases[0] if bases else 0
    leader_epoch = max_producer_id = -1
    for number, base in enumerate(bases):
        last = None
        for last in _batches(storage, directory, base):
            max_producer_id = max(max_producer_id, last.producer_id)
        if last is not None:
            leader_epoch = last.leader_epoch
            if number == 0:
                end_offset = last.next_offset
            break
    else:
        # No batch is left: use the file of leader epochs.
        began = [each.epoch for each in epochs.entries if each.start_offset < end_offset]
        leader_epoch = began[-1] if began else -1
    snapshots = ProducerSnapshots(storage, directory, _offsets(names, f".{SNAPSHOT}"))
    found = next(snapshots.load(end_offset, _FOREVER_MS, 0), None)
    if found is not None:
        remembered = [each.id for each in found[0].describe()]
        max_producer_id = max([max_producer_id, *remembered])
    return StoredLog(key.topic, key.partition, topic_id, leader_epoch, end_offset, max_producer_id)


def _offsets(names: Sequence[str], suffix: str) -> list[int]:
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return [int(stem) for stem in stems if stem.isdecimal()]


def _batches(storage: Storage, directory: str, base_offset: int) -> Iterator[BatchHeader]:
    """The headers of a segment's batches, up to the first that is torn or damaged."""
    file = BatchFile(storage, directory, base_offset, "", None)
    try:
        with suppress(CorruptData):
            for _, header in file.headers():
                yield header
    finally:
        file.close()
