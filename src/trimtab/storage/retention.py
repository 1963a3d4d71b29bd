"""Which segments of a log retention deletes (`retention.ms`, `retention.bytes`, DeleteRecords)."""

from __future__ import annotations

from trimtab.storage.log_config import LogConfig
from trimtab.storage.segment_list import SegmentList


def count_expired(
    segments: SegmentList,
    config: LogConfig,
    log_start_offset: int,
    log_end_offset: int,
    end_offset: int,
    now_ms: int,
) -> int:
    """How many of the oldest segments are to be deleted.

    Args:
        end_offset: no record at or after it is deleted.
        now_ms: wall clock.
    """
    active = segments.active
    rest = segments.size
    for index, segment in enumerate(segments):
        is_active = segment is active
        next_offset = log_end_offset if is_active else segments.end_of_sealed(segment)
        if next_offset > end_offset or (is_active and not segment.size):
            return index
        if not segment.size:
            continue
        newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
        rest -= segment.size
        if not (
            (next_offset <= log_start_offset and not is_active)
            or (config.deletes and 0 <= config.retention_ms < now_ms - newest)
            or (config.deletes and 0 <= config.retention_bytes <= rest)
        ):
            return index
    return len(segments)
