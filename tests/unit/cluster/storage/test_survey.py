"""Reading a broker's directory without changing it (`trimtab.cluster.storage.survey`)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.unit.cluster.storage.logs import SMALL, append, batch, producer_batch
from trimtab.cluster.disk.files import DirectoryStorage
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_directory import LogDirectory
from trimtab.cluster.storage.survey import StoredLog, survey
from trimtab.kafka.errors import UsageError

TOPIC_ID = bytes(range(16))
LAST = f"{8:020d}.log"


def open_directory(path: Path) -> LogDirectory:
    return LogDirectory(
        DirectoryStorage(path), node_id=2, cluster_id="level", now_ms=lambda: 0, random=Random(1)
    )


def write(path: Path, batches: int = 10, epoch: int = 3) -> None:
    """A log of segments of four batches, of one record each."""
    directory = open_directory(path)
    log = directory.open_log("flights", 3, TOPIC_ID, SMALL)
    for _ in range(batches):
        append(log, batch(), epoch)
    directory.close()


def look(path: Path) -> StoredLog:
    storage = DirectoryStorage(path)
    found = survey(storage)
    assert storage.open_files == 0
    storage.close()
    assert (found.broker_id, found.cluster_id) == (2, "level")
    (log,) = found.logs
    return log


def contents(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_a_log_is_found_with_its_topic_epoch_and_end(tmp_path: Path) -> None:
    write(tmp_path)
    before = contents(tmp_path)
    assert look(tmp_path) == ("flights", 3, TOPIC_ID, 3, 10, -1)
    assert contents(tmp_path) == before


def test_a_torn_tail_is_not_counted_and_left(tmp_path: Path) -> None:
    write(tmp_path)
    last = tmp_path / "flights-3" / LAST
    last.write_bytes(last.read_bytes()[:-1])
    before = contents(tmp_path)
    assert look(tmp_path).end_offset == 9
    assert contents(tmp_path) == before


@pytest.mark.parametrize("at", [0, 3, 16, 30, 80])
def test_batches_after_a_damaged_one_are_not_counted(tmp_path: Path, at: int) -> None:
    write(tmp_path)
    last = tmp_path / "flights-3" / LAST
    damaged = bytearray(last.read_bytes())
    damaged[len(damaged) // 2 + at] ^= 0x41
    last.write_bytes(damaged)
    assert look(tmp_path).end_offset == 9


def test_the_epoch_of_an_empty_last_segment_is_that_of_the_one_before(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "flights-3" / LAST).write_bytes(b"")
    (tmp_path / "flights-3" / "leader-epoch-checkpoint").unlink()
    assert look(tmp_path) == ("flights", 3, TOPIC_ID, 3, 8, -1)


def test_a_log_whose_records_are_all_deleted_keeps_its_end(tmp_path: Path) -> None:
    write(tmp_path, batches=0)
    (tmp_path / "flights-3").mkdir()
    (tmp_path / "flights-3" / LAST).write_bytes(b"")
    assert look(tmp_path) == ("flights", 3, None, -1, 8, -1)


def test_the_largest_producer_id_is_found_in_batches_and_snapshots(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log = directory.open_log("flights", 3, TOPIC_ID, SMALL)
    append(log, producer_batch(0))
    assert look(tmp_path).max_producer_id == 9
    for _ in range(9):  # which are in later segments: a snapshot tells of the producer
        append(log, batch())
    directory.close()
    assert look(tmp_path).max_producer_id == 9


def test_a_batch_larger_than_one_read_is_counted(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log: Log = directory.open_log("flights", 3, TOPIC_ID, SMALL)
    append(log, batch(2, size=3_000_000))
    append(log, batch())
    directory.close()
    (tmp_path / "flights-3" / f"{2:020d}.log").unlink()
    assert look(tmp_path).end_offset == 2


def test_other_directories_are_no_logs(tmp_path: Path) -> None:
    write(tmp_path)
    for name in ("__cluster_metadata-0", f"old-1.{'a' * 32}-stray", f"old-1.{'b' * 32}-delete"):
        (tmp_path / name).mkdir()
    assert look(tmp_path).topic == "flights"


@pytest.mark.parametrize("meta", [None, "", "cluster.id=x", "node.id=x\ncluster.id=y", "node.id=1"])
def test_a_directory_of_no_broker_is_refused(tmp_path: Path, meta: str | None) -> None:
    if meta is not None:
        (tmp_path / "meta.properties").write_text(meta)
    with pytest.raises(UsageError, match="not the data directory of a broker"):
        survey(DirectoryStorage(tmp_path))
