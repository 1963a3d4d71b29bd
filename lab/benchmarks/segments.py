"""Reading batch headers from log segments in the page cache: GB of log for a second of one core.

The cost is counted in CPU seconds of the process, user and system: what a core carries. Beside it
reading the same files to the end, the least that any reader of records must do.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from lab.benchmarks.report import progress, report
from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.kafka.wire.batch_header import restamp
from trimtab.spark.load.log_segments import SegmentFile, find_segments, read_headers

SEGMENT_BYTES = 256 * 1024 * 1024
BATCH_SIZES = (1024, 16 * 1024, 1024 * 1024)


def run(runs: int, records: int) -> None:
    del records
    for size in BATCH_SIZES:
        with tempfile.TemporaryDirectory() as directory:
            progress(f"segments: {SEGMENT_BYTES >> 20} MiB in batches of {size} bytes")
            count = _write(Path(directory), size)
            (segment,) = find_segments([directory])
            headers, whole = [], []
            for _ in range(runs):
                headers.append(_read_headers(segment, count))
                whole.append(_read_whole(segment))
        report(
            *("segments", f"headers of batches of {size} B", "GB/CPU-s"),
            *(headers, "reading the bytes", whole),
            more_is_better=True,
        )


def _write(directory: Path, size: int) -> int:
    """One segment; returns how many batches it has."""
    builder = BatchBuilder(size + 100)
    builder.append(1000, None, b"v" * (size - 100), ())
    batch = bytearray(builder.build())
    count = SEGMENT_BYTES // len(batch)
    (directory / "t-0").mkdir()
    with open(directory / "t-0" / f"{0:020d}.log", "wb") as file:
        for offset in range(count):
            restamp(batch, 0, offset, 0)
            file.write(batch)
    return count


def _read_headers(segment: SegmentFile, count: int) -> float:
    began = time.process_time()
    rows = sum(columns.rows for columns in read_headers(segment))
    spent = time.process_time() - began
    if rows != count:
        raise RuntimeError(f"{rows} headers were read of {count}")
    return segment.size / 1e9 / spent


def _read_whole(segment: SegmentFile) -> float:
    began = time.process_time()
    file = os.open(segment.path, os.O_RDONLY)
    buffer = bytearray(1024 * 1024)
    while os.readv(file, [buffer]):
        pass
    os.close(file)
    return segment.size / 1e9 / (time.process_time() - began)
