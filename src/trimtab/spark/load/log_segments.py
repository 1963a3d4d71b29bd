"""Log segments on disk as record batches: what a broker stores, without asking the broker.

    batches = read_segments(spark, ["/var/lib/kafka/data"])
    load.partition_load(batches)

Of each batch its header of 61 bytes is read, never a record: gigabytes a second. Works on the
directories of trimtab's brokers and of Apache Kafka's (from 0.11 on), of a broker that runs or one
that does not. They must lie where the tasks run: on one machine, or on a file system that all
executors share.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from trimtab.kafka.errors import CorruptData, UsageError
from trimtab.kafka.wire.headers_cy import HeaderColumns, HeaderScanner

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

TASK_BYTES: Final = 256 * 1024 * 1024
"""A task reads one segment, or several small ones of together at most this many bytes."""

_TASK_SEGMENTS: Final = 1000
_PIECE: Final = 16 * 1024
"""Bytes read at once: many small batches, or the beginning of a large one."""

_CONTROLLER_TOPIC: Final = "__cluster_metadata"
_SUFFIX: Final = ".log"
_DELETE_HORIZON: Final = 0x40
"""The attribute of a batch whose base timestamp is not its first record's (KIP-534)."""
_HEADERS: Final = (
    "directory string, topic string, partition int, segment long, baseOffset long, "
    "lastOffset long, baseTimestamp long, maxTimestamp long, producerId long, batchBytes int, "
    "leaderEpoch int, attributes int, records int"
)


class SegmentFile(NamedTuple):
    """The file of one segment.

    Attributes:
        directory: the broker's log directory, as given.
        base_offset: the offset in the file's name.
        size: bytes, when it was listed.
    """

    directory: str
    topic: str
    partition: int
    base_offset: int
    size: int

    @property
    def path(self) -> str:
        name = f"{self.base_offset:020d}{_SUFFIX}"
        return os.path.join(self.directory, f"{self.topic}-{self.partition}", name)


def find_segments(
    directories: Iterable[str], topics: Iterable[str] | None = None
) -> list[SegmentFile]:
    """The segments in brokers' log directories, the largest first.

    Skips partitions that are being deleted, are stray, or are being copied (`-delete`, `-stray`,
    `-future`), and the log of the controllers.

    Raises:
        UsageError: a directory cannot be listed.
    """
    wanted = None if topics is None else set(topics)
    found: list[SegmentFile] = []
    for directory in directories:
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError as error:
            raise UsageError(f"cannot list the log directory {directory}: {error}") from error
        for entry in entries:
            topic, _, number = entry.name.rpartition("-")
            if not topic or not number.isdecimal() or topic == _CONTROLLER_TOPIC:
                continue
            if wanted is None or topic in wanted:
                found += _list_segments(directory, topic, int(number))
    return sorted(found, key=lambda segment: -segment.size)


def read_segments(
    session: SparkSession,
    directories: Iterable[str],
    topics: Iterable[str] | None = None,
    task_bytes: int = TASK_BYTES,
) -> DataFrame:
    """The batches in brokers' log directories, as a DataFrame.

    Each replica has rows of its own: give the directories of one broker, or group by `directory`.

    Args:
        directories: as in `log.dirs`: each contains directories named topic-partition.
        topics: the topics to read; None: all.
        task_bytes: a task reads one segment, or small ones of together at most this size.

    Returns:
        The columns of `load.BATCHES` (topic, partition, baseOffset, lastOffset, timestamp of the
        first record, batchBytes, records, isControl), and directory, segment (its first offset),
        maxTimestamp, codec ("none", "gzip", "snappy", "lz4", "zstd"), producerId (-1 for none),
        leaderEpoch, isTransactional. All rows of a segment come from one task.

    Raises:
        UsageError: a directory cannot be listed.
        CorruptData: in a task: an invalid header, with path and position. An incomplete batch at
            the end of a segment is skipped: the broker is writing it, or will truncate it.
    """
    from pyspark.sql import functions as f

    parts = divide_segments(find_segments(directories, topics), task_bytes)
    # One row for each task: its number. The function contains the segments of every task.
    numbers = session.range(0, len(parts), 1, max(len(parts), 1))
    headers = _in_tasks(parts)(numbers.asTable())
    # The first record's time; the batch's if a broker set it, or compaction replaced the former.
    first = f.when(
        f.col("attributes").bitwiseAND(_DELETE_HORIZON | 8) == 0, f.col("baseTimestamp")
    ).otherwise(f.col("maxTimestamp"))
    codecs = f.array(*map(f.lit, ("none", "gzip", "snappy", "lz4", "zstd")))
    return headers.select(
        "topic",
        "partition",
        "baseOffset",
        "lastOffset",
        f.timestamp_millis(first).alias("timestamp"),
        "batchBytes",
        "records",
        (f.col("attributes").bitwiseAND(32) != 0).alias("isControl"),
        "directory",
        "segment",
        f.timestamp_millis("maxTimestamp").alias("maxTimestamp"),
        f.get(codecs, f.col("attributes").bitwiseAND(7)).alias("codec"),
        "producerId",
        "leaderEpoch",
        (f.col("attributes").bitwiseAND(16) != 0).alias("isTransactional"),
    )


def divide_segments(segments: Sequence[SegmentFile], task_bytes: int) -> list[list[SegmentFile]]:
    """The segments of each task: large ones alone, small ones together."""
    parts: list[list[SegmentFile]] = []
    size = 0
    for segment in segments:
        if not parts or size + segment.size > task_bytes or len(parts[-1]) >= _TASK_SEGMENTS:
            parts.append([])
            size = 0
        parts[-1].append(segment)
        size += segment.size
    return parts


def read_headers(segment: SegmentFile) -> Iterator[HeaderColumns]:
    """The headers of a segment's batches, tens of thousands at a time.

    A segment that was deleted since it was listed has none.

    Raises:
        CorruptData: an invalid header.
    """
    try:
        file = os.open(segment.path, os.O_RDONLY)
    except FileNotFoundError:
        logger.warning("%s is gone: it was deleted after it was listed", segment.path)
        return
    try:
        yield from _scan(file, segment.path)
    finally:
        os.close(file)


def _scan(file: int, path: str) -> Iterator[HeaderColumns]:
    scanner = HeaderScanner()
    piece = bytearray(_PIECE)
    position, end = 0, os.fstat(file).st_size
    while position < end:
        # Not mapped into memory, because the broker may truncate the file meanwhile.
        size = os.preadv(file, [piece], position)
        try:
            passed = scanner.scan(piece, size, end - position)
        except CorruptData as error:
            raise CorruptData(f"{path}, in the {_PIECE} bytes from {position}: {error}") from error
        position += passed
        if scanner.full:
            yield scanner.take()
        elif not passed:
            break
    if scanner.rows:
        yield scanner.take()


def _in_tasks(parts: Sequence[Sequence[SegmentFile]]) -> Callable[..., DataFrame]:
    """A function that reads the segments of the given tasks. (`mapInArrow` would need pandas.)"""
    from pyspark.sql import functions as f

    class ReadSegments:
        def eval(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
            for number in batch.column(0).to_pylist():
                for segment in parts[number]:
                    for columns in read_headers(segment):
                        yield _to_arrow(segment, columns)

    schema = _HEADERS
    return cast("Callable[..., DataFrame]", f.arrow_udtf(ReadSegments, returnType=schema))


def _to_arrow(segment: SegmentFile, columns: HeaderColumns) -> pa.RecordBatch:
    import pyarrow as pa

    rows = columns.rows

    def repeat(value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), rows)

    long, int32 = pa.int64(), pa.int32()
    arrays = {
        "directory": repeat(segment.directory, pa.string()),
        "topic": repeat(segment.topic, pa.string()),
        "partition": repeat(segment.partition, int32),
        "segment": repeat(segment.base_offset, long),
    }
    for name, kind, octets in (
        ("baseOffset", long, columns.base_offset),
        ("lastOffset", long, columns.last_offset),
        ("baseTimestamp", long, columns.base_timestamp),
        ("maxTimestamp", long, columns.max_timestamp),
        ("producerId", long, columns.producer_id),
        ("batchBytes", int32, columns.size),
        ("leaderEpoch", int32, columns.leader_epoch),
        ("attributes", int32, columns.attributes),
        ("records", int32, columns.record_count),
    ):
        arrays[name] = pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(octets)])
    return pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))


def _list_segments(directory: str, topic: str, partition: int) -> Iterator[SegmentFile]:
    path = os.path.join(directory, f"{topic}-{partition}")
    try:
        entries = list(os.scandir(path))
    except (FileNotFoundError, NotADirectoryError):  # deleted meanwhile
        return
    for entry in entries:
        stem = entry.name.removesuffix(_SUFFIX)
        if stem != entry.name and stem.isdecimal():
            try:
                size = entry.stat().st_size
            except FileNotFoundError:
                continue
            yield SegmentFile(directory, topic, partition, int(stem), size)
