from __future__ import annotations

from trimtab.cli.table import format_table


def test_tables_align_first_left_and_others_right() -> None:
    assert format_table("T", ["way", "ms"], [["a", "1.5"], ["longer", "10"]]) == (
        "T\nway      ms\n------  ---\na       1.5\nlonger   10"
    )
