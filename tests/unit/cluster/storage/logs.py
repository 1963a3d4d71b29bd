"""Helpers that write batches to a log and read them back."""

from typing import Any

from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_appending import Appended
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.stored_records import StoredRecords
from trimtab.kafka.wire.batch_cy import (
    BatchBuilder,
    BatchHeader,
    read_headers,
    restamp,
)
from trimtab.sim.disk import VirtualDisk

DIRECTORY = "flights-3"
HOUR_MS = 3_600_000


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def batch(records: int = 1, timestamp: int = 1000, size: int = 50, **producer: Any) -> memoryview:
    builder = BatchBuilder(1 << 24)
    for _ in range(records):
        builder.append(timestamp, None, b"v" * size, [])
    return memoryview(bytearray(builder.build(**producer)))


def append(log: Log, data: memoryview, leader_epoch: int = 0) -> Appended:
    return log.append(data, leader_epoch, read_headers(data))


def fill(log: Log, batches: int, **kind: int) -> None:
    for _ in range(batches):
        append(log, batch(**kind))


def sent(*places: tuple[int, int], records: int = 1, **kind: int) -> memoryview:
    """Batches as a leader sends them: base offset and leader epoch of each."""
    data = bytearray()
    for base_offset, leader_epoch in places:
        data += batch(records, **kind)
        restamp(data, len(data) - len(batch(records, **kind)), base_offset, leader_epoch)
    return memoryview(data)


def replicate(log: Log, data: memoryview) -> None:
    log.append_replicated(data, read_headers(data))


def in_memory(data: bytes | memoryview | StoredRecords) -> bytes | memoryview:
    assert not isinstance(data, StoredRecords)
    return data


def offsets(data: bytes | memoryview | StoredRecords) -> list[tuple[int, int]]:
    return [(header.base_offset, header.last_offset) for header in read_headers(in_memory(data))]


def note_paths(disk: VirtualDisk, wanted: str) -> list[str]:
    """Keeps the path of each such action from now on."""
    paths: list[str] = []

    def note(action: str, path: str) -> int:
        if action == wanted:
            paths.append(path)
        return 0

    disk.fault = note
    return paths


def producer_batch(sequence: int, records: int = 1) -> memoryview:
    return batch(records, producer_id=9, producer_epoch=0, base_sequence=sequence)


def header_of(data: memoryview) -> BatchHeader:
    return read_headers(data)[0]


ONE = len(batch())
SMALL = LogConfig(segment_bytes=4 * ONE)
"""Four batches of one record fill a segment."""
