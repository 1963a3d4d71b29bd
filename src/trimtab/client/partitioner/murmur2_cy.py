# mypy: allow-untyped-decorators, no-warn-return-any
"""Murmur2 as Kafka's Java client computes it: the hash that decides a key's partition.

Source: `org.apache.kafka.common.utils.Utils.murmur2` (32 bits, seed 0x9747b28c).
"""

from struct import Struct

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING

_NATIVE_INT32 = Struct("=i")
_SEED = cython.declare(cython.uint, 0x9747B28C)
_M = cython.declare(cython.uint, 0x5BD1E995)
# Interpreted, numbers do not overflow. Declared, because a literal this large is a Python int.
_32_BITS = cython.declare(cython.uint, 0xFFFFFFFF)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.locals(
    position=cython.Py_ssize_t,
    tail=cython.Py_ssize_t,
    h=cython.uint,
    k=cython.uint,
)
def _murmur2(
    data: cython.p_const_uchar, start: cython.Py_ssize_t, length: cython.Py_ssize_t
) -> cython.uint:
    h = (_SEED ^ length) & _32_BITS
    position = start
    tail = length
    while tail >= 4:
        k = (
            data[position]
            | data[position + 1] << 8
            | data[position + 2] << 16
            | cython.cast(cython.uint, data[position + 3]) << 24
        )
        k = (k * _M) & _32_BITS
        k ^= k >> 24
        k = (k * _M) & _32_BITS
        h = (h * _M) & _32_BITS
        h ^= k
        position += 4
        tail -= 4
    if tail == 3:
        h ^= data[position + 2] << 16
    if tail >= 2:
        h ^= data[position + 1] << 8
    if tail >= 1:
        h ^= data[position]
        h = (h * _M) & _32_BITS
    h ^= h >> 13
    h = (h * _M) & _32_BITS
    h ^= h >> 15
    return h


def murmur2(key: bytes) -> int:
    """The hash of a key, as an unsigned 32-bit number; Java shows the same bits as a signed one."""
    return _murmur2(key, 0, len(key))


def partition_for_key(key: bytes, partition_count: cython.int) -> int:
    """The partition of a key, leaderless ones included: `toPositive(murmur2(key)) % count`."""
    return (_murmur2(key, 0, len(key)) & 0x7FFFFFFF) % partition_count


def murmur2_of_octets(
    octets: cython.p_const_uchar, start: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> int:
    """The hash of `size` bytes at `start`, for compiled modules: creates no object."""
    return _murmur2(octets, start, size)


@cython.locals(octets=cython.p_uchar, bounds=cython.p_int, made=cython.p_uint)
def murmur2_column(data: bytearray, offsets: bytearray, rows: cython.Py_ssize_t) -> bytearray:
    """The hash of every key of a column: 32 bits each in native order, signed as in Java.

    Args:
        data: the keys one after the other, as Arrow lays out a binary column.
        offsets: `rows` + 1 int32 into `data`; a null key has no bytes, and the hash of the empty
            key.
    """
    hashes = bytearray(4 * rows)
    row: cython.Py_ssize_t
    if cython.compiled:
        octets = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(data))
        bounds = cython.cast(cython.p_int, PyByteArray_AS_STRING(offsets))
        made = cython.cast(cython.p_uint, PyByteArray_AS_STRING(hashes))
        for row in range(rows):
            made[row] = _murmur2(octets, bounds[row], bounds[row + 1] - bounds[row])
    else:
        ends = memoryview(offsets).cast("i")
        for row in range(rows):
            unsigned = _murmur2(data, ends[row], ends[row + 1] - ends[row])
            _NATIVE_INT32.pack_into(hashes, 4 * row, unsigned - (unsigned >> 31 << 32))
    return hashes
