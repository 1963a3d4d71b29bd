# mypy: allow-untyped-decorators, no-warn-return-any
"""Murmur2 as Kafka's Java client computes it: the hash that decides where a key lives.

Source: `org.apache.kafka.common.utils.Utils.murmur2` (32 bits, seed 0x9747b28c).
"""

import cython

_SEED = 0x9747B28C
_M = 0x5BD1E995


@cython.ccall
@cython.locals(
    data="const unsigned char *",
    length=cython.Py_ssize_t,
    position=cython.Py_ssize_t,
    tail=cython.Py_ssize_t,
    h=cython.uint,
    k=cython.uint,
)
def murmur2(key: bytes) -> cython.uint:
    """The hash of a key, as an unsigned 32-bit number; Java shows the same bits as a signed one."""
    length = len(key)
    data = key
    h = (_SEED ^ length) & 0xFFFFFFFF
    position = 0
    while position + 4 <= length:
        k = (
            data[position]
            | data[position + 1] << 8
            | data[position + 2] << 16
            | cython.cast(cython.uint, data[position + 3]) << 24
        )
        k = (k * _M) & 0xFFFFFFFF
        k ^= k >> 24
        k = (k * _M) & 0xFFFFFFFF
        h = (h * _M) & 0xFFFFFFFF
        h ^= k
        position += 4
    tail = length - position
    if tail == 3:
        h ^= data[position + 2] << 16
    if tail >= 2:
        h ^= data[position + 1] << 8
    if tail >= 1:
        h ^= data[position]
        h = (h * _M) & 0xFFFFFFFF
    h ^= h >> 13
    h = (h * _M) & 0xFFFFFFFF
    h ^= h >> 15
    return h


@cython.ccall
def partition_for_key(key: bytes, partition_count: cython.int) -> cython.int:
    """The partition of a key, leaderless ones included: `toPositive(murmur2(key)) % count`."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
