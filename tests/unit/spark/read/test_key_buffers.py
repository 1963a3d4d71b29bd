"""Arrow columns as memory."""

from __future__ import annotations

from array import array

import pytest

pa = pytest.importorskip("pyarrow")

from trimtab.spark.read.key_buffers import key_buffers, number_buffer  # noqa: E402


def test_keys_of_a_slice_begin_at_its_first_one() -> None:
    keys = pa.array([b"zero", b"one", b"", b"three", b"four"])
    data, offsets = key_buffers(keys.slice(1, 3))
    assert (bytes(data), array("i", bytes(offsets)).tolist()) == (b"onethree", [0, 3, 3, 8])
    empty = key_buffers(keys.slice(2, 0))
    assert (bytes(empty[0]), array("i", bytes(empty[1])).tolist()) == (b"", [0])
    assert bytes(key_buffers(pa.array([b"", b""]))[0]) == b""


def test_a_hash_is_a_key_of_four_bytes() -> None:
    data, offsets = key_buffers(pa.array([7, -1, 5], pa.int32()).slice(1))
    assert array("i", bytes(data)).tolist() == [-1, 5]
    assert array("i", bytes(offsets)).tolist() == [0, 4, 8]


def test_numbers_of_a_slice_are_its_own() -> None:
    numbers = pa.array([1, 2, 3], pa.int64())
    assert array("q", bytes(number_buffer(numbers.slice(1), 8))).tolist() == [2, 3]
    assert number_buffer(numbers.slice(3), 8) == b""
