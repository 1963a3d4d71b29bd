"""A data directory with one damaged file opens: its logs are whole, truncated or set aside, with a
line in the log.

A damage changes a byte; replaces, zeroes, cuts off or adds a piece; or deletes the file. After it,
reads return the batches that were written, at their offsets, from the log's start to some end; or
raise CorruptData; or return a batch whose CRC shows clients that it is damaged. `DAMAGES`
(environment; default 300) is the number of damages; `pytest -s` prints their outcomes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from random import Random
from typing import NamedTuple

import pytest

from tests.steps import finish
from trimtab.cluster.controller.journal import DIRECTORY as JOURNAL
from trimtab.cluster.controller.journal import Journal
from trimtab.cluster.metadata.image import ClusterImage
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.log_directory import LogDirectory
from trimtab.cluster.storage.stored_records import StoredRecords
from trimtab.kafka.errors import CorruptData, KafkaError, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_cy import BatchBuilder, read_headers, verify
from trimtab.kafka.wire.compression import Compression
from trimtab.kafka.wire.messages.metadata_records import TopicRecord
from trimtab.sim.disk import VirtualDisk

DAMAGES = int(os.environ.get("DAMAGES", "300"))
SHARE_OF_JOURNALS = 10
"""One of this many damages is to the controller's files."""

NOW_MS = 1_700_000_000_000
NODE, CLUSTER = 1, "a-cluster-of-22-letters"
PLAIN = LogConfig(segment_bytes=4000, index_interval_bytes=200)
COMPACTED = LogConfig(
    segment_bytes=4000,
    index_interval_bytes=200,
    compacts=True,
    deletes=False,
    min_cleanable_dirty_ratio=0.0,
)
LOGS: Mapping[TopicPartition, LogConfig] = {
    TopicPartition("plain", 0): PLAIN,
    TopicPartition("packed", 1): PLAIN,
    TopicPartition("compacted", 2): COMPACTED,
    TopicPartition("short", 3): LogConfig(),
}
CODECS = {"packed": (Compression.GZIP, Compression.LZ4, Compression.SNAPPY, Compression.ZSTD)}
LARGEST_READ = 1 << 20

Files = dict[str, bytes]


class Written(NamedTuple):
    """A data directory, and for each log the bytes of its batches, by base offset."""

    files: Files
    batches: dict[TopicPartition, dict[int, bytes]]
    ends: dict[TopicPartition, int]
    recovery_points: dict[TopicPartition, int]


class BoundedDisk(VirtualDisk):
    """A disk that fails a read of more bytes than a file can have."""

    def open(self, path: str) -> object:  # type: ignore[override]
        file = super().open(path)
        read = file.read

        class Bounded:
            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

            def read(self, position: int, size: int) -> bytes:
                assert 0 <= size <= LARGEST_READ + 100, f"{path}: {size} bytes are asked for"
                assert position >= 0
                return read(position, size)

        return Bounded()


def topic_id(key: TopicPartition) -> bytes:
    return key.topic[:1].encode() * 16


def open_directory(disk: VirtualDisk) -> LogDirectory:
    return LogDirectory(
        disk, node_id=NODE, cluster_id=CLUSTER, now_ms=lambda: NOW_MS, random=Random(1)
    )


def write_directory(clean: bool) -> Written:
    disk = VirtualDisk()
    directory = open_directory(disk)
    directory.write_epoch(7)
    random = Random(1)
    batches: dict[TopicPartition, dict[int, bytes]] = {}
    for key, config in LOGS.items():
        log = directory.open_log(*key, topic_id(key), config)
        stored = batches[key] = {}
        number = 6 if key.topic == "short" else 90
        for index in range(number):
            if index == number * 2 // 3:
                log.high_watermark = log.log_end_offset
                asyncio.run(directory.checkpoint())
                directory.checkpoint_high_watermarks()
            data = build(random, index, CODECS.get(key.topic, (Compression.NONE,)))
            log.append(data, index // 30, read_headers(data))
            stored[read_headers(data)[0].base_offset] = bytes(data)
        log.high_watermark = log.log_end_offset
        if key.topic == "plain":
            log.delete_records_before(40)
        if config.compacts:
            asyncio.run(directory.compact())
            stored.update(
                (header.base_offset, bytes(as_bytes(log.read(header.base_offset, 1))))
                for header in log.headers(0)
            )
    directory.checkpoint_high_watermarks()
    ends = {key: log.log_end_offset for key, log in directory.logs.items()}
    recovery_points = {key: log.recovery_point for key, log in directory.logs.items()}
    if clean:
        directory.close(7)
    return Written(files_of(disk), batches, ends, ends if clean else recovery_points)


def build(random: Random, index: int, codecs: tuple[Compression, ...]) -> memoryview:
    builder = BatchBuilder(1 << 20, codecs[index % len(codecs)])
    count = random.randint(1, 4)
    for _ in range(count):
        value = random.randbytes(random.randint(0, 200))
        builder.append(NOW_MS + 10 * index, b"%d" % random.randrange(30), value, [("h", b"x")])
    if index % 2:
        return memoryview(builder.build())
    transaction = {"is_transactional": True} if index % 4 == 0 else {}
    return memoryview(
        builder.build(
            producer_id=9 + index % 4, producer_epoch=0, base_sequence=index, **transaction
        )
    )


def files_of(disk: VirtualDisk, directory: str = "") -> Files:
    found: Files = {}
    for name in disk.list(directory):
        path = f"{directory}/{name}".lstrip("/")
        try:
            found[path] = disk.read_file(path) or b""
        except KafkaError:  # a directory
            found |= files_of(disk, path)
    return found


def disk_with(files: Files) -> VirtualDisk:
    disk = BoundedDisk()
    for path, content in files.items():
        disk.write_file(path, content)
    return disk


def damage(content: bytes, random: Random) -> tuple[str, bytes | None]:
    """A random damage's name, and the content after it; None for a deleted file."""
    kinds = ("byte", "byte", "byte", "bit", "swap", "block swap", "zeros", "cut", "garbage", "gone")
    kind = random.choice((*kinds, "emptied"))
    if kind == "gone":
        return kind, None
    if kind == "emptied" or not content:
        return "emptied", b""
    changed = bytearray(content)
    size = len(content)
    at = random.randrange(size)
    if kind == "byte":
        changed[at] = random.randrange(256)
    elif kind == "bit":
        changed[at] ^= 1 << random.randrange(8)
    elif kind == "swap":
        other = random.randrange(size)
        changed[at], changed[other] = changed[other], changed[at]
    elif kind == "block swap":
        block = random.choice((8, 64, 512))
        one, other = (each // block * block for each in (at, random.randrange(size)))
        if one != other and max(one, other) + block <= size:
            changed[one : one + block], changed[other : other + block] = (
                content[other : other + block],
                content[one : one + block],
            )
    elif kind == "zeros":
        end = min(size, at + random.choice((1, 16, 512, 4096)))
        changed[at:end] = bytes(end - at)
    elif kind == "cut":
        del changed[at:]
    else:
        changed += random.choice((random.randbytes(random.randint(1, 200)), bytes(5000), content))
    return kind, bytes(changed)


def kind_of(path: str) -> str:
    name = path.rpartition("/")[2]
    return name.rpartition(".")[2] if name[:1].isdigit() else name


def damages(files: Files, count: int, seed: int) -> Iterator[tuple[str, str, Files]]:
    """Random damages, the same number to each kind of file."""
    random = Random(seed)
    kinds: dict[str, list[str]] = {}
    for path in sorted(files):
        kinds.setdefault(kind_of(path), []).append(path)
    names = sorted(kinds)
    for number in range(count):
        path = random.choice(kinds[names[number % len(names)]])
        how, content = damage(files[path], random)
        changed = dict(files)
        if content is None:
            del changed[path]
        else:
            changed[path] = content
        yield path, how, changed


def as_bytes(data: bytes | memoryview | StoredRecords) -> bytes:
    return data.read(0, len(data)) if isinstance(data, StoredRecords) else bytes(data)


def read_log(log: Log, written: Mapping[int, bytes], checked_from: int) -> str:
    """Read a log and compare it with the written batches; returns the outcome.

    Args:
        checked_from: from this offset on, the log must have detected wrong base offsets.
    """
    offset = log.log_start_offset
    try:
        while offset < log.log_end_offset:
            data = as_bytes(log.read(offset, 3000))
            if not data:
                assert log.config.compacts, f"nothing from offset {offset} on"
                break
            for header in read_headers(data):
                batch = data[: header.size]
                data = data[header.size :]
                if batch[16:] != written.get(header.base_offset, b"")[16:]:
                    try:
                        verify(batch)
                    except CorruptData:
                        return "damaged batch, as its CRC tells"
                    # No CRC covers the base offset:
                    (place,) = (at for at, each in written.items() if each[16:] == batch[16:])
                    assert place < checked_from, f"offset {place} is at {header.base_offset}"
                    return "at another offset"
                assert header.next_offset > offset, "reading does not get ahead"
                if offset >= checked_from and not log.config.compacts:
                    assert header.base_offset <= offset, f"nothing from offset {offset} on"
                offset = header.next_offset
        list(log.headers(log.log_start_offset))
    except CorruptData:
        return "CorruptData"
    return "whole"


def use(log: Log) -> None:
    """Use a log in the other ways of a broker; CorruptData is allowed."""
    for ask in (
        lambda: finish(log.offset_for_timestamp(NOW_MS + 300)),
        lambda: finish(log.offset_of_max_timestamp()),
        lambda: log.end_of_epoch(1),
        lambda: log.enforce_retention(log.high_watermark),
    ):
        try:
            ask()
        except CorruptData:
            continue


def look_at(path: str, files: Files, written: Written, clean: bool) -> str:
    """Open a damaged directory, and check its logs; returns the outcome."""
    disk = disk_with(files)
    try:
        directory = open_directory(disk)
    except UsageError as error:
        return f"refused: {str(error).partition(' says ')[0]} is another broker's"
    directories = set(disk.list(""))
    outcomes = set()
    for key, config in LOGS.items():
        is_damaged = path.startswith(f"{key}/")
        log = directory.open_log(*key, topic_id(key), config)
        # Flushed batches are not checked again, as in Kafka.
        is_log = is_damaged and path.endswith(".log")
        checked_from = written.recovery_points[key] if is_log else 0
        end = log.log_end_offset
        outcome = "whole"
        if is_damaged or "/" not in path:
            outcome = read_log(log, written.batches[key], checked_from)
            use(log)
            if end < written.ends[key]:
                assert directory.has_lost or not clean
                outcome += ", cut off"
            if log.log_start_offset and key.topic != "plain":
                outcome += ", begins later"
            outcomes.add(outcome)
        else:
            assert (outcome, end) == ("whole", written.ends[key]), f"{key} was not damaged"
        try:
            data = build(Random(2), 1, (Compression.NONE,))
            log.append(data, 9, read_headers(data))
        except CorruptData:
            outcomes.add("takes no append")
        else:
            assert as_bytes(log.read(end, 10_000)) == bytes(data)
    if any("-stray" in name for name in set(disk.list("")) - directories):
        outcomes.add("set aside")
    directory.close()
    # It must open a second time, too: otherwise the broker would crash at every start.
    again = open_directory(disk)
    for key, config in LOGS.items():
        if path.startswith(f"{key}/") or "/" not in path:
            use(again.open_log(*key, topic_id(key), config))
    return " | ".join(sorted(outcomes - {"whole"})) or "whole"


@pytest.mark.timeout(600 + DAMAGES // 5)
@pytest.mark.parametrize("clean", [True, False], ids=["closed cleanly", "killed"])
def test_a_directory_with_a_damaged_file_opens(
    clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    written = write_directory(clean)
    outcomes: Counter[str] = Counter()
    for number, (path, how, files) in enumerate(damages(written.files, DAMAGES // 2, int(clean))):
        try:
            outcome = look_at(path, files, written, clean)
        except Exception as error:
            error.add_note(f"damage {number}: {how} in {path}")
            raise
        outcomes[f"{kind_of(path)}: {outcome}"] += 1
    print()
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:6} {outcome}")


def test_every_loss_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """If a log is truncated, a line in the log has its name, the offset and the reason."""
    written = write_directory(clean=False)
    for path, how, files in damages(written.files, 60, 5):
        caplog.clear()
        try:
            directory = open_directory(disk_with(files))
        except UsageError:  # names another broker: no log is opened
            continue
        for key, config in LOGS.items():
            log = directory.open_log(*key, topic_id(key), config)
            if log.log_end_offset < written.ends[key]:
                assert str(key) in caplog.text, f"{how} in {path}"


async def write_journal() -> tuple[Files, list[int]]:
    """A journal of two snapshots and several files, and its end offset after each decision."""
    disk = VirtualDisk()
    journal = Journal(disk, 3000, lambda: NOW_MS, snapshot_bytes=2000)
    ends = [0]
    for number in range(60):
        topic = TopicRecord(name=f"t{number}", topic_id=number.to_bytes(16, "big"))
        await journal.reach(journal.append([topic]))
        ends.append(journal.end_offset)
        for _ in range(30):
            await asyncio.sleep(0)
    await journal.close()
    return files_of(disk), ends


@pytest.mark.timeout(600 + DAMAGES // 5)
def test_a_damaged_journal_is_refused_or_ends_where_a_crash_may_have_torn_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    files, ends = asyncio.run(write_journal())
    assert sum(path.endswith(".log") for path in files) > 1
    assert sum(path.endswith(".checkpoint") for path in files) == 2
    outcomes: Counter[str] = Counter()
    for path, how, damaged in damages(files, DAMAGES // SHARE_OF_JOURNALS, 3):
        try:
            outcome = look_at_journal(path, how, damaged, ends)
            assert outcome != "unclear"
        except Exception as error:
            error.add_note(f"{how} in {path}")
            raise
        outcomes[f"{kind_of(path)}: {outcome}"] += 1
    print()
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:6} {outcome}")


def look_at_journal(path: str, how: str, files: Files, ends: list[int]) -> str:
    disk = disk_with(files)
    try:
        journal = Journal(disk, 3000, lambda: NOW_MS, snapshot_bytes=2000)
    except CorruptData as error:
        return "refused" if {JOURNAL, "restore"} <= {*re.split("[/ :]", str(error))} else "unclear"
    assert journal.end_offset in ends
    expected = ClusterImage()
    for number in range(ends.index(journal.end_offset)):
        expected.replay(TopicRecord(name=f"t{number}", topic_id=number.to_bytes(16, "big")))
    assert journal.image.topics.keys() == expected.topics.keys()
    lost = len(ends) - 1 - ends.index(journal.end_offset)
    is_last = path == max(each for each in files | {path: b""} if each.endswith(".log"))
    if lost:
        # As the only copy, it is truncated only where the damage looks like a torn write.
        assert is_last
        assert lost == 1 or how in ("cut", "zeros", "emptied", "gone"), f"{lost} decisions"

    async def go_on() -> None:
        topic = TopicRecord(name="more", topic_id=b"m" * 16)
        await journal.reach(journal.append([topic]))
        await journal.close()

    asyncio.run(go_on())
    assert "more" in Journal(disk, 3000, lambda: NOW_MS, snapshot_bytes=2000).image.topics
    return f"{lost} decisions cut off" if lost else "whole"
