"""`StoredRecords`: a large read stays on disk until it is sent."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.cluster.storage.logs import in_memory
from trimtab.cluster.storage import segment as segment_module
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.stored_records import StoredRecords
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import BatchBuilder, read_headers
from trimtab.sim.disk import VirtualDisk


@pytest.fixture
def log() -> Log:
    """Batches of one to ten records of different sizes, with an index entry every 300 bytes."""
    random = Random(7)
    log = Log(VirtualDisk(), "t-0", LogConfig(index_interval_bytes=300), lambda: 0)
    for _ in range(60):
        builder = BatchBuilder(1 << 20)
        for _ in range(random.randint(1, 10)):
            builder.append(0, None, random.randbytes(random.randint(0, 200)), ())
        batch = memoryview(builder.build())
        log.append(batch, 0, read_headers(batch))
    return log


def content(records: object) -> bytes:
    if isinstance(records, StoredRecords):
        pieces = [records.read(at, 100) for at in range(0, len(records), 100)]
        return b"".join(pieces)
    return bytes(records)  # type: ignore[call-overload, no-any-return]


def test_holds_the_same_batches_as_bytes_would(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(1)
    for _ in range(500):
        offset = random.randrange(log.log_end_offset)
        limit = random.choice([0, 1, 50, 500, 5_000, 100_000])
        end_offset = random.randint(offset, log.log_end_offset)
        min_one = random.random() < 0.5
        monkeypatch.setattr(segment_module, "LARGE_READ_BYTES", 1 << 20)
        expected = content(log.read(offset, limit, min_one, end_offset))
        monkeypatch.setattr(segment_module, "LARGE_READ_BYTES", -1)
        assert content(log.read(offset, limit, min_one, end_offset)) == expected


def test_of_a_log_truncated_meanwhile_cannot_be_read(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "LARGE_READ_BYTES", 1000)
    records = log.read(0, 10_000)
    assert isinstance(records, StoredRecords)
    log.truncate(log.log_end_offset - 1)
    with pytest.raises(CorruptData, match="truncated while it was being sent"):
        records.read(0, 100)


def test_of_a_log_that_is_closed_meanwhile_cannot_be_read(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "LARGE_READ_BYTES", 1000)
    records = log.read(0, 10_000)
    assert isinstance(records, StoredRecords)
    log.abandon()
    with pytest.raises(CorruptData, match="truncated"):
        records.read(0, 100)


def test_of_a_segment_that_is_deleted_meanwhile_are_kept(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bytes(in_memory(log.read(0, 10_000)))
    monkeypatch.setattr(segment_module, "LARGE_READ_BYTES", 1000)
    records = log.read(0, 10_000)
    assert isinstance(records, StoredRecords)
    half = records.read(0, 1234)
    log.restart_at(0)
    assert half + records.read(1234, 10_000) == expected


def test_of_a_deleted_segment_a_limited_size_is_kept(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "LARGE_READ_BYTES", 1000)
    monkeypatch.setattr(segment_module, "_KEPT_BYTES", 12_000)
    asked = [log.read(0, limit) for limit in (9_000, 3_000, 5_000)]
    log.restart_at(0)
    for records, is_kept in zip(asked, (False, True, True), strict=True):
        assert isinstance(records, StoredRecords)
        if is_kept:
            assert len(records.read(0, 10_000)) == len(records)
        else:
            with pytest.raises(CorruptData):
                records.read(0, 100)
