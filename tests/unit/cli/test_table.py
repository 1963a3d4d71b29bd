from __future__ import annotations

import pytest

from trimtab.cli.table import align, show_bytes, show_count, show_size


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1.5e9, "1.5 GB"), (2e18, "2000.0 PB")],
)
def test_bytes_have_a_unit(count: float, text: str) -> None:
    assert show_bytes(count) == text


def test_counts_have_a_noun() -> None:
    assert [show_count(count, "topic") for count in (0, 1, 2000)] == [
        "0 topics",
        "1 topic",
        "2,000 topics",
    ]
    assert [show_count(count, "batch", "batches") for count in (1, 2)] == ["1 batch", "2 batches"]


def test_columns_are_aligned_without_blanks_at_the_end() -> None:
    assert align([("a", "b", "c"), ("long", "10", "")], right=[1]) == ["a      b  c", "long  10"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 * 2**40, "5.0 TiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_sizes_are_in_units_of_1024(size: int, text: str) -> None:
    assert show_size(size) == text
