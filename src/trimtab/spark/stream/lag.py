"""How far a stream is behind: in records, bytes and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.kafka.records import TopicPartition
from trimtab.spark.stream.sizes import Sizes


def measure_lag(
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    sizes: Sizes | None,
    now_s: float,
) -> dict[str, Any]:
    """The size of the batch from `begins` to `ends`, and of the records left after it.

    Args:
        now_s: wall time, seconds since the epoch.

    Returns:
        The entry for `sources[…].latestOffset` of `StreamingQueryProgress`, without what is
        unknown; bytes are only known if an option counts bytes. The last three names are those of
        the metrics of Spark's own Kafka source.

        - batchRecords: offsets of the batch
        - batchBytes: its bytes in the log
        - batchBytesError: possible error of `batchBytes`, in bytes, if it is estimated
        - lagRecords: offsets between the batch's end and the partitions' ends; after compaction
          there may be fewer records
        - lagBytes: bytes of these records in the log
        - lagBytesIsEstimate: whether that is partly estimated from the average of known sizes
        - lagSeconds: age of the oldest of these records, by its timestamp
        - sizeSource: the kind of source of the sizes
        - driverBytes: bytes that the driver has read so far to find sizes
        - minOffsetsBehindLatest, maxOffsetsBehindLatest, avgOffsetsBehindLatest: `lagRecords` by
          partition
    """
    behind = [latest[p] - at for p, at in ends.items()]
    records = sum(behind)
    batch_records = sum(at - begins[p] for p, at in ends.items())
    batch_bytes = lag_bytes = oldest_ms = None
    batch_error, is_estimate = 0, False
    if sizes is not None:
        known = sizes.pieces(latest)
        batch_bytes = lag_bytes = known_records = 0
        is_counted = True
        for partition, pieces in known.items():
            end = ends[partition]
            known_to = pieces[-1].next_offset if pieces else begins[partition]
            known_records += known_to - begins[partition]
            is_counted &= known_to >= end
            is_first = True
            for piece in pieces:
                if piece.next_offset <= end:
                    batch_bytes += piece.size
                    batch_error += piece.error
                    continue
                lag_bytes += piece.size
                if is_first and piece.time >= 0:
                    oldest_ms = piece.time if oldest_ms is None else min(oldest_ms, piece.time)
                is_first = False
        unknown = max(records + batch_records - known_records, 0)
        is_estimate = unknown > 0
        if known_records:
            lag_bytes += unknown * (batch_bytes + lag_bytes) // known_records
        if not is_counted:
            batch_bytes = None
    seconds = None if oldest_ms is None else round(max(now_s - oldest_ms / 1000, 0.0), 3)
    lag: dict[str, Any] = {
        "batchRecords": batch_records,
        "batchBytes": batch_bytes,
        "batchBytesError": batch_error or None,
        "lagRecords": records,
        "lagBytes": lag_bytes,
        "lagBytesIsEstimate": is_estimate,
        "lagSeconds": seconds if records else 0.0,
        "sizeSource": sizes.source_name if sizes else None,
        "driverBytes": sizes.bytes_read if sizes else 0,
        "minOffsetsBehindLatest": min(behind, default=None),
        "maxOffsetsBehindLatest": max(behind, default=None),
        "avgOffsetsBehindLatest": records / len(behind) if behind else None,
    }
    return {name: value for name, value in lag.items() if value not in (None, "")}
