"""What one task makes of its records' keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import pyarrow as pa

from trimtab.spark.load import keys
from trimtab.spark.load.keys import KeySketcher

_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("start", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("partition", pa.int32()),
        ("bytes", pa.int64()),
    ]
)


def to_batch(rows: Iterable[tuple[str, int | None, bytes | None, int, int]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    arrays = [
        pa.array(values, pa.int64() if field.name == "start" else field.type).cast(field.type)
        for values, field in zip(columns, _SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def sketch(batches: list[pa.RecordBatch], counters: int = 10) -> list[dict[str, Any]]:
    sketcher = KeySketcher("key", counters)
    made = [part for batch in batches for part in sketcher.eval(batch)]
    made += sketcher.terminate()
    names = ["topic", "start", "key", "Records", "Bytes", "Missed", "Partition"]
    assert all(batch.schema.names == names for batch in made)
    return [row for batch in made for row in batch.to_pylist()]


def test_keys_are_counted_by_topic_and_window_with_a_row_for_all() -> None:
    minute = 60_000_000
    rows = sketch(
        [
            to_batch([("t", 0, b"a", 1, 10), ("t", 0, b"a", 2, 10), ("t", 0, None, 0, 5)]),
            to_batch([("t", 0, b"a", 1, 10), ("t", minute, b"a", 1, 1), ("u", 0, b"", 3, 2)]),
        ]
    )
    found = {
        (row["topic"], row["start"].minute, row["key"]): (
            row["Records"],
            row["Bytes"],
            row["Missed"],
            row["Partition"],
        )
        for row in rows
    }
    assert found == {
        ("t", 0, b"a"): (3, 30, 0, 2),
        ("t", 0, None): (4, 35, 0, None),
        ("t", 1, b"a"): (1, 1, 0, 1),
        ("t", 1, None): (1, 1, 0, None),
        ("u", 0, b""): (1, 2, 0, 3),
        ("u", 0, None): (1, 2, 0, None),
    }


def test_a_key_that_came_late_may_have_been_missed_and_what_is_kept_is_bounded() -> None:
    early = [("t", None, b"%d" % number, 0, 1) for number in range(50)]
    late = [("t", None, b"hot", 0, 1)] * 9
    rows = sketch([to_batch(early), to_batch(late)], counters=5)
    assert len(rows) == 5 + 1
    total = next(row for row in rows if row["key"] is None)
    hot = next(row for row in rows if row["key"] == b"hot")
    assert (total["Records"], total["Bytes"]) == (59, 59)
    assert total["Missed"] >= 1
    assert hot["Records"] == 9
    # At most: its own nine, and a fifth of all.
    assert 9 <= hot["Records"] + total["Missed"] + hot["Missed"] <= 9 + 59 / 5


def test_windows_that_come_and_go_are_handed_over_early(monkeypatch: Any) -> None:
    monkeypatch.setattr(keys, "_GROUPS", 3)
    batches = [to_batch([("t", start, b"k", 0, 1)]) for start in [0, 1, 2, 3, 0, 4, 5, 0]]
    rows = sketch(batches)
    totals: Counter[int] = Counter()
    for row in rows:
        if row["key"] == b"k":
            totals[row["start"].microsecond] += row["Records"]
    assert totals == {0: 3, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1}


def test_no_records_make_no_rows() -> None:
    assert sketch([]) == []


def test_the_top_twenty_of_a_zipf_distribution_are_found() -> None:
    random = Random(14)
    weights = [1 / rank for rank in range(1, 20_001)]
    drawn = random.choices([b"key %d" % rank for rank in range(20_000)], weights, k=60_000)
    batches = [
        to_batch(("t", None, key, 0, 1) for key in drawn[start : start + 10_000])
        for start in range(0, len(drawn), 10_000)
    ]
    rows = [row for row in sketch(batches, counters=1000) if row["key"] is not None]
    best = sorted(rows, key=lambda row: -row["Records"])[:20]
    true = Counter(drawn)
    least = sorted(true.values())[-20]
    assert all(true[row["key"]] >= least for row in best)
    assert len(rows) == 1000
