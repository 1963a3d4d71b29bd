# C declarations of rows_cy.py, used as batch_cy.pxd explains.

cdef class _Column:
    cdef readonly Py_ssize_t length
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t size
    cdef Py_ssize_t _first
    cdef Py_ssize_t _width
    cdef Py_ssize_t _end
    cdef bint _has_nulls
    cdef bint _has_offsets
    cdef memoryview _validity_view
    cdef memoryview _offsets_view
    cdef const unsigned char *_validity
    cdef const int *_offsets4
    cdef const long long *_offsets8

    cdef void seek(self, Py_ssize_t row) noexcept

cdef class BytesColumn(_Column):
    cdef const unsigned char *octets
    cdef memoryview _data_view

cdef class HeadersColumn(_Column):
    cdef BytesColumn names
    cdef BytesColumn values

    cdef Py_ssize_t bound(self) noexcept

cdef class Rows:
    cdef readonly Py_ssize_t length
    cdef public long long now
    cdef readonly bint has_keys
    cdef readonly bint has_partitions
    cdef readonly int partition
    cdef readonly long long timestamp
    cdef readonly Py_ssize_t bound
    cdef readonly object settle
    cdef BytesColumn key
    cdef BytesColumn value
    cdef HeadersColumn headers
    cdef bint _has_values
    cdef bint _has_timestamps
    cdef memoryview _partitions_view
    cdef memoryview _timestamps_view
    cdef const int *_partitions
    cdef const long long *_timestamps

    cpdef void seek(self, Py_ssize_t row) noexcept
