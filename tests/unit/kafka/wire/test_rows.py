"""Rows of Arrow buffers encoded into batches, byte for byte as `append` encodes the same records.

Every test runs on the compiled and on the interpreted form.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

NOW = 1_700_000_000_000


class Forms(NamedTuple):
    """Both modules in one form: an interpreted builder reads interpreted rows only."""

    batch: ModuleType
    rows: ModuleType


@pytest.fixture(scope="session")
def forms(in_form: Callable[[str], ModuleType]) -> Forms:
    return Forms(in_form("trimtab.kafka.wire.batch_cy"), in_form("trimtab.kafka.wire.rows_cy"))


def bits(flags: Sequence[bool]) -> bytes:
    packed = bytearray((len(flags) + 7) // 8)
    for place, flag in enumerate(flags):
        packed[place // 8] |= flag << place % 8
    return bytes(packed)


def bytes_column(
    rows: ModuleType, values: Sequence[bytes | None], width: int = 4, before: int = 0
) -> Any:
    """Arrow's buffers for these values, as a slice that begins after `before` others."""
    whole = [b"before"] * before + list(values)
    ends = [0]
    for value in whole:
        ends.append(ends[-1] + len(value or b""))
    return rows.BytesColumn(
        len(values),
        before,
        bits([value is not None for value in whole]) if None in values else None,
        struct.pack(f"={len(ends)}{'i' if width == 4 else 'q'}", *ends),
        width,
        b"".join(value or b"" for value in whole),
    )


def headers_column(
    rows: ModuleType, headers: Sequence[list[tuple[str, bytes | None]] | None], before: int = 0
) -> Any:
    whole = [[("before", b"")]] * before + list(headers)
    ends = [0]
    for each in whole:
        ends.append(ends[-1] + len(each or ()))
    pairs = [pair for each in whole for pair in each or ()]
    return rows.HeadersColumn(
        len(headers),
        before,
        bits([each is not None for each in whole]) if None in headers else None,
        struct.pack(f"={len(ends)}i", *ends),
        bytes_column(rows, [name.encode() for name, _ in pairs]),
        bytes_column(rows, [value for _, value in pairs]),
    )


def ignore(share: object) -> None:
    """The settled batches."""


def make_rows(
    rows: ModuleType,
    length: int,
    key: Any = None,
    value: Any = None,
    headers: Any = None,
    partitions: bytes | None = None,
    timestamps: bytes | None = None,
) -> Any:
    made = rows.Rows(length, key, value, headers, partitions, timestamps, ignore)
    made.now = NOW
    return made


def encode(forms: Forms, rows: Any) -> tuple[bytes, list[int]]:
    """The batch of all rows, and by how much each made it grow."""
    builder = forms.batch.BatchBuilder(1 << 30)
    grown = []
    for row in range(rows.length):
        rows.seek(row)
        before = builder.size
        grown.append(builder.append_row(rows))
        assert builder.size - before == grown[-1]
        assert forms.batch.HEADER_BYTES + grown[-1] <= rows.bound
    return bytes(builder.build()), grown


def append_all(forms: Forms, records: Sequence[tuple[Any, ...]]) -> tuple[bytes, list[int]]:
    builder = forms.batch.BatchBuilder(1 << 30)
    grown = [builder.append(*record) for record in records]
    return bytes(builder.build()), grown


nullable = st.none() | st.binary(max_size=200)
tables = st.lists(
    st.tuples(
        st.none() | st.integers(-1, 2**63 - 2) | st.integers(NOW, NOW + 100_000),
        nullable,
        nullable,
        st.none() | st.lists(st.tuples(st.text(max_size=9), nullable), max_size=3),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=150)
@given(table=tables, width=st.sampled_from([4, 8]), before=st.integers(0, 9))
def test_rows_are_encoded_as_the_same_records_are(
    forms: Forms, table: list[Any], width: int, before: int
) -> None:
    times, keys, values, headers = zip(*table, strict=True)
    no_time = forms.rows.NO_TIME
    rows = make_rows(
        forms.rows,
        len(table),
        bytes_column(forms.rows, keys, width, before),
        bytes_column(forms.rows, values, 12 - width, 2 * before),
        headers_column(forms.rows, headers, before),
        timestamps=struct.pack(f"={len(table)}q", *(no_time if t is None else t for t in times)),
    )
    records = [(NOW if time is None else time, *rest) for time, *rest in table]
    assert encode(forms, rows) == append_all(forms, records)


def test_columns_that_are_not_there_are_null(forms: Forms) -> None:
    rows = make_rows(forms.rows, 2)
    assert not rows.has_keys
    assert not rows.has_partitions
    assert encode(forms, rows) == append_all(forms, [(NOW, None, None, None)] * 2)
    assert rows.partition == -1


def test_values_of_one_width_have_no_offsets(forms: Forms) -> None:
    rows = forms.rows
    column = rows.BytesColumn(3, 1, bits([True, True, False, True]), None, 2, b"..aa??cc")
    expected = append_all(forms, [(NOW, None, value, None) for value in (b"aa", None, b"cc")])
    assert encode(forms, make_rows(rows, 3, value=column)) == expected
    empty = rows.BytesColumn(2, 0, None, None, 0, None)
    expected = append_all(forms, [(NOW, None, b"", None)] * 2)
    assert encode(forms, make_rows(rows, 2, value=empty)) == expected


def test_partitions_and_timestamps_are_those_of_the_row(forms: Forms) -> None:
    rows = make_rows(
        forms.rows,
        3,
        partitions=struct.pack("=3i", 7, -1, 0),
        timestamps=struct.pack("=3q", 5, forms.rows.NO_TIME, -1),
    )
    assert rows.has_partitions
    found = []
    for row in (2, 0, 1):
        rows.seek(row)
        found.append((rows.partition, rows.timestamp))
    assert found == [(0, -1), (7, 5), (-1, NOW)]


def test_a_row_that_does_not_fit_leaves_the_batch_as_it_was(forms: Forms) -> None:
    rows = make_rows(forms.rows, 2, value=bytes_column(forms.rows, [b"x" * 60, b"y" * 60]))
    builder = forms.batch.BatchBuilder(150)
    rows.seek(0)
    assert builder.append_row(rows) == 68
    rows.seek(1)
    assert builder.append_row(rows) == 0
    assert (builder.count, builder.size) == (1, 61 + 68)


def test_the_order_of_rows_is_free(forms: Forms) -> None:
    values = [b"a", None, b"ccc"]
    rows = make_rows(forms.rows, 3, value=bytes_column(forms.rows, values))
    builder = forms.batch.BatchBuilder(1 << 20)
    for row in (2, 1, 0, 2):
        rows.seek(row)
        builder.append_row(rows)
    assert [record.value for record in builder.records()] == [b"ccc", None, b"a", b"ccc"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((9, 0, b"\xff", bytes(40), 4, b""), "validity of 1 bytes where 2 are needed"),
        ((9, 1, None, bytes(40), 4, b""), "offsets of 40 bytes where 44 are needed"),
        ((2, 0, None, struct.pack("=3i", 0, 1, 4), 4, b"abc"), "values of 3 bytes where 4"),
        ((2, 0, None, struct.pack("=3q", 0, 1, 4), 8, b"abc"), "values of 3 bytes where 4"),
        ((2, 1, None, None, 5, bytes(14)), "values of 14 bytes where 15"),
    ],
)
def test_buffers_too_short_are_refused(
    forms: Forms, arguments: tuple[Any, ...], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        forms.rows.BytesColumn(*arguments)


def test_numbers_too_short_are_refused(forms: Forms) -> None:
    with pytest.raises(ValueError, match="partitions of 4 bytes where 8"):
        make_rows(forms.rows, 2, partitions=bytes(4))
    with pytest.raises(ValueError, match="timestamps of 8 bytes where 16"):
        make_rows(forms.rows, 2, timestamps=bytes(8))
    names = bytes_column(forms.rows, [b"a"])
    with pytest.raises(ValueError, match="2 headers, 1 names, 1 values"):
        forms.rows.HeadersColumn(1, 0, None, struct.pack("=2i", 0, 2), names, names)
