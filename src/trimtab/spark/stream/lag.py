"""How far a stream is behind: in records, bytes and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.records import TopicPartition
from trimtab.spark.stream.sizes import Sizes


@dataclass(frozen=True)
class Lag:
    """The size of a batch, and of the records left after it.

    Attributes:
        records: offsets between the batch's end and the partitions' ends; after compaction there
            may be fewer records.
        bytes: bytes of these records in the log; None if no option counts bytes.
        is_estimate: whether `bytes` is partly estimated from the average of known sizes.
        seconds: age of the oldest of these records, by its timestamp; None if unknown.
        batch_records: offsets of the batch.
        batch_bytes: its bytes in the log; None if no option counts bytes.
        batch_error: possible error of `batch_bytes`, in bytes, if it is estimated.
        size_source: the kind of source of the sizes; empty if no option counts bytes.
        driver_bytes: bytes that the driver has read so far to find sizes.
    """

    records: int
    bytes: int | None
    is_estimate: bool
    seconds: float | None
    batch_records: int
    batch_bytes: int | None
    batch_error: int
    size_source: str
    driver_bytes: int

    def to_json(self) -> dict[str, Any]:
        """The entry for `sources[…].latestOffset` of `StreamingQueryProgress`."""
        written: dict[str, Any] = {
            "batchRecords": self.batch_records,
            "batchBytes": self.batch_bytes,
            "batchBytesError": self.batch_error or None,
            "lagRecords": self.records,
            "lagBytes": self.bytes,
            "lagBytesIsEstimate": self.is_estimate,
            "lagSeconds": None if self.seconds is None else round(self.seconds, 3),
            "sizeSource": self.size_source,
            "driverBytes": self.driver_bytes,
        }
        return {name: value for name, value in written.items() if value not in (None, "")}


def measure_lag(
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    sizes: Sizes | None,
    now_s: float,
) -> Lag:
    """The lag after a batch from `begins` to `ends`.

    Args:
        now_s: wall time, seconds since the epoch.
    """
    records = sum(latest[p] - at for p, at in ends.items())
    batch_records = sum(at - begins[p] for p, at in ends.items())
    if sizes is None:
        seconds = None if records else 0.0
        return Lag(records, None, False, seconds, batch_records, None, 0, "", 0)
    known = sizes.pieces(latest)
    batch_bytes = batch_error = ahead_bytes = known_records = 0
    oldest: int | None = None
    is_counted = True
    for partition, pieces in known.items():
        end = ends[partition]
        known_records += (pieces[-1].next_offset if pieces else begins[partition]) - begins[
            partition
        ]
        is_counted &= (pieces[-1].next_offset if pieces else begins[partition]) >= end
        is_first = True
        for piece in pieces:
            if piece.next_offset <= end:
                batch_bytes += piece.size
                batch_error += piece.error
                continue
            ahead_bytes += piece.size
            if is_first and piece.time >= 0:
                oldest = piece.time if oldest is None else min(oldest, piece.time)
            is_first = False
    unknown = max(records + batch_records - known_records, 0)
    rest = sizes.rest()
    is_estimate = rest is None
    if rest is None:
        rest = unknown * (batch_bytes + ahead_bytes) // known_records if known_records else 0
    seconds = 0.0 if not records else None if oldest is None else max(now_s - oldest / 1000, 0.0)
    return Lag(
        records,
        ahead_bytes + rest,
        is_estimate,
        seconds,
        batch_records,
        batch_bytes if is_counted else None,
        batch_error,
        sizes.source_name,
        sizes.bytes_read,
    )
