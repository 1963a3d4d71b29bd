"""Which segments retention deletes; `test_log` deletes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.cluster.storage.logs import SMALL
from trimtab.cluster.storage.log import Log


@pytest.mark.parametrize(
    ("options", "now_ms", "start", "end", "expired"),
    [
        ({}, 2000, 0, 10, 0),
        ({"retention_ms": 999}, 2000, 0, 10, 3),
        ({"retention_ms": 1000}, 2000, 0, 10, 0),
        ({"retention_ms": 999}, 2000, 0, 9, 2),
        ({"retention_ms": 999}, 2000, 0, 3, 0),
        ({"retention_ms": 999, "deletes": False}, 2000, 0, 10, 0),
        ({"retention_ms": -1}, 10**15, 0, 10, 0),
        ({"retention_bytes": 0}, 2000, 0, 10, 3),
        ({"retention_bytes": 1}, 2000, 0, 10, 2),
        ({"deletes": False}, 2000, 8, 10, 2),
        ({"deletes": False}, 2000, 10, 10, 2),
    ],
)
def test_the_oldest_segments_expire(
    rolled: Log, options: dict[str, int], now_ms: int, start: int, end: int, expired: int
) -> None:
    """Segments 0, 4 and 8, whose records have the time 1000."""
    rolled.config = replace(SMALL, **options)  # type: ignore[arg-type]
    rolled.log_start_offset, rolled._now_ms = start, lambda: now_ms
    assert rolled.log_end_offset == 10
    assert rolled._count_expired(end) == expired
