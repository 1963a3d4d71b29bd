"""Arrow columns as the memory that compiled functions take."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def key_buffers(keys: pa.Array) -> tuple[bytearray, bytearray]:
    """The bytes of keys, and int32 where each begins and the last one ends.

    Args:
        keys: binary, or int32, whose four bytes are then the key; without nulls.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = len(keys)
    if keys.type == pa.int32():
        return number_buffer(keys, 4), bytearray(array("i", range(0, 4 * rows + 1, 4)))
    if not rows:
        return bytearray(), bytearray(4)
    _, bounds, data = keys.buffers()
    offsets = pa.Array.from_buffers(pa.int32(), rows + 1, [None, bounds], offset=keys.offset)
    first, last = offsets[0].as_py(), offsets[rows].as_py()
    octets = bytearray(memoryview(data)[first:last]) if data is not None else bytearray()
    return octets, number_buffer(pc.subtract(offsets, pa.scalar(first, pa.int32())), 4)


def number_buffer(numbers: pa.Array, width: int) -> bytearray:
    """The memory of a column of numbers of `width` bytes without nulls."""
    if not len(numbers):
        return bytearray()
    start = numbers.offset * width
    return bytearray(memoryview(numbers.buffers()[1])[start : start + len(numbers) * width])
