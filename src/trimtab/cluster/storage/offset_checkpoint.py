"""A checkpoint file with one offset per partition, in Kafka's format.

0                      version
2                      entries
flights 3 4711         topic, partition, offset
parcels 0 88
"""

from __future__ import annotations

import logging

from trimtab.cluster.storage.storage import Storage
from trimtab.kafka.records import TopicPartition

_log = logging.getLogger(__name__)


class OffsetCheckpoint:
    """One checkpoint file, and its offsets in memory.

    A partition that is not in the file has offset 0, and offsets of 0 are not written: ten thousand
    empty logs add nothing to the file.

    A damaged file counts as empty, as in Kafka's `LogManager`: logs are then checked from their
    start, and deleted records may appear again.

    Args:
        durable: whether `write` calls fsync.
    """

    def __init__(self, storage: Storage, path: str, durable: bool = True) -> None:
        self.path = path
        self._storage = storage
        self._durable = durable
        self._changed = False
        self._forgets = False
        self._offsets: dict[TopicPartition, int] = {}
        content = storage.read_file(path)
        if content is None:
            return
        try:
            self._offsets = _decode(content)
        except ValueError as error:
            _log.error("%s is damaged, and counts as empty: %s", path, error)

    def get(self, key: TopicPartition) -> int:
        return self._offsets.get(key, 0)

    def set(self, key: TopicPartition, offset: int) -> None:
        """Sets an offset in memory; `write` writes it to the file."""
        if self._offsets.get(key, 0) != offset:
            self._changed = True
            if offset:
                self._offsets[key] = offset
            else:
                del self._offsets[key]
                self._forgets = True

    def write(self) -> None:
        """Writes the file if anything has changed since the last time.

        Raises:
            StorageError: the file is unchanged; the next call tries again.
        """
        if self._changed:
            self._write(self._durable)

    def make_forgotten(self) -> None:
        """Writes the file with fsync if an offset was set to 0, so that the old offset does not
        appear again after a loss of power.

        Raises:
            StorageError: the file is unchanged; the next call tries again.
        """
        if self._forgets:
            self._write(durable=True)

    def _write(self, durable: bool) -> None:
        lines = [
            f"{topic} {partition} {offset}\n"
            for (topic, partition), offset in self._offsets.items()
        ]
        content = f"0\n{len(lines)}\n{''.join(lines)}".encode()
        self._storage.write_file(self.path, content, durable)
        self._changed = False
        if durable:
            self._forgets = False


def _decode(content: bytes) -> dict[TopicPartition, int]:
    version, count, *lines, end = content.decode("utf-8").split("\n")
    offsets = {}
    for line in lines:
        topic, partition, offset = line.split(" ")
        if not (0 <= int(partition) < 2**31 and 0 <= int(offset) < 2**63):
            raise ValueError(f"no partition has the offset {line!r}")
        offsets[TopicPartition(topic, int(partition))] = int(offset)
    if version != "0" or int(count) != len(offsets) or end:
        raise ValueError(f"version {version}, {count} entries announced, {len(offsets)} found")
    return offsets
