# mypy: allow-untyped-decorators, no-warn-return-any
"""Counts a column of keys: by partition, and the heaviest of them."""

import cython

from trimtab.balance.heavy_hitters_cy import HeavyHitters

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.trimtab.balance.heavy_hitters_cy import (  # type: ignore[no-redef]
        HeavyHitters,
    )


@cython.locals(
    hashes=cython.p_int,
    weights=cython.p_longlong,
    sums=cython.p_longlong,
    row=cython.Py_ssize_t,
    partition=cython.Py_ssize_t,
    positive=cython.int,
)
def count_by_partition(
    amounts: bytearray,
    partitions: cython.int,
    column: bytearray,
    weighing: bytearray,
    rows: cython.Py_ssize_t,
) -> None:
    """Add each row's weight to the amount of the partition that its hash decides.

    Args:
        amounts: an int64 for each partition; changed.
        column: the rows' hashes, int32, in native order; `(hash & 0x7fffffff) % partitions`.
        weighing: the rows' weights, int64.
    """
    if cython.compiled:
        sums = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(amounts))
        hashes = cython.cast(cython.p_int, PyByteArray_AS_STRING(column))
        weights = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(weighing))
        for row in range(rows):
            positive = hashes[row] & 0x7FFFFFFF
            partition = positive % partitions
            sums[partition] += weights[row]
    else:
        sums = memoryview(amounts).cast("q")
        hashes = memoryview(column).cast("i")
        weights = memoryview(weighing).cast("q")
        for row in range(rows):
            sums[(hashes[row] & 0x7FFFFFFF) % partitions] += weights[row]


@cython.locals(
    octets=cython.p_char,
    ends=cython.p_int,
    weights=cython.p_longlong,
    row=cython.Py_ssize_t,
    keyed=cython.Py_ssize_t,
    weight=cython.longlong,
    total=cython.longlong,
    squares=cython.double,
)
def count_heaviest(
    hitters: HeavyHitters,
    data: bytearray,
    offsets: bytearray,
    weighing: bytearray,
    rows: cython.Py_ssize_t,
) -> tuple[int, int, float]:
    """Count each key with its weight.

    Args:
        data, offsets: the keys, as `murmur2_column` takes them.
        weighing: the rows' weights, int64; a row of weight 0 is passed over.

    Returns:
        The rows that were counted, the sum of their weights, and of the squares of these.
    """
    if cython.compiled:
        octets = cython.cast(cython.p_char, PyByteArray_AS_STRING(data))
        ends = cython.cast(cython.p_int, PyByteArray_AS_STRING(offsets))
        weights = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(weighing))
    else:
        octets = bytes(data)
        ends = memoryview(offsets).cast("i")
        weights = memoryview(weighing).cast("q")
    keyed = 0
    total = 0
    squares = 0.0
    for row in range(rows):
        weight = weights[row]
        if weight:
            hitters.count_key(octets[ends[row] : ends[row + 1]], weight, 0, 0)
            keyed += 1
            total += weight
            squares += cython.cast(cython.double, weight) * weight
    return keyed, total, squares
