# C declarations of batch_cy.py, for the compiled modules that call it without Python objects:
#
#     from trimtab.kafka.wire.batch_cy import BatchBuilder
#     if cython.compiled:
#         from cython.cimports.trimtab.kafka.wire.batch_cy import BatchBuilder
#
# batch_cy.py explains the names.

from trimtab.kafka.wire.rows_cy cimport Rows

cdef class BufferPool:
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t kept
    cdef Py_ssize_t _limit
    cdef list _buffers

    cdef bytearray _take(self)
    cdef object _keep(self, bytearray buffer)

cdef class BatchBuilder:
    cdef readonly int count
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t capacity
    cdef readonly long long base_timestamp
    cdef readonly long long max_timestamp
    cdef long long _limit
    cdef int _codec
    cdef object _level
    cdef float _ratio
    cdef bint _is_built
    cdef BufferPool _pool
    cdef bytearray _data
    cdef unsigned char *_octets

    cpdef Py_ssize_t append(
        self, long long timestamp, object key, object value, object headers
    ) except -1
    cpdef Py_ssize_t append_row(self, Rows rows) except -1
    cpdef Py_ssize_t estimate(self) noexcept
    cdef Py_ssize_t _begin(
        self,
        long long timestamp,
        Py_ssize_t key_size,
        Py_ssize_t value_size,
        Py_ssize_t headers_size,
    ) except -1
    cdef Py_ssize_t _end(self, Py_ssize_t position) noexcept
    cdef object _grow(self, Py_ssize_t needed)
    cdef bint _is_sole_owner(self) noexcept
    cpdef object release(self)
