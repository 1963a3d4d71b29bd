"""A checkpoint file: an offset for each of many partitions, in Kafka's format.

0                      version
2                      entries
flights 3 4711         topic, partition, offset
parcels 0 88
"""

from __future__ import annotations

import logging

from trimtab.records import TopicPartition
from trimtab.storage.storage import Storage

_log = logging.getLogger(__name__)


class OffsetCheckpoint:
    """One checkpoint file, and what it says.

    An offset of 0 is what a partition has that is not in the file, and is not written: a broker
    with ten thousand empty logs writes none of them.

    A damaged file counts as empty, as in Kafka's `LogManager`: logs are then checked from their
    start, and records that were deleted may be there again.

    Args:
        durable: whether `write` waits for the disk.
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
        """Notes an offset; `write` writes it."""
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
            StorageError: the file is as it was; the next call tries again.
        """
        if self._changed:
            self._write(self._durable)

    def make_forgotten(self) -> None:
        """Sees that what was set to 0 will not be there again, not even after a power loss.

        Raises:
            StorageError: the file is as it was; the next call tries again.
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
