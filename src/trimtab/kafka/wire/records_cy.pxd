# C declarations of records_cy.py, used as batch_cy.pxd explains.

cdef extern from "Python.h":
    object PyType_GenericAlloc(void *kind, Py_ssize_t items)
    void PyObject_GC_UnTrack(object)

cdef class RecordReader:
    cdef memoryview view
    cdef unsigned char *octets
    cdef Py_ssize_t position
    cdef Py_ssize_t limit
    cdef Py_ssize_t end
    # The batch.
    cdef long long base_offset
    cdef long long last_delta
    cdef long long base_timestamp
    cdef bint is_append_time
    # The record at the cursor; a size below zero means null.
    cdef long long offset
    cdef long long timestamp
    cdef long long timestamp_delta
    cdef long long offset_delta
    cdef Py_ssize_t key_start
    cdef Py_ssize_t key_size
    cdef Py_ssize_t value_start
    cdef Py_ssize_t value_size
    cdef Py_ssize_t header_count
    # The current header of that record.
    cdef Py_ssize_t header_name_start
    cdef Py_ssize_t header_name_size
    cdef Py_ssize_t header_value_start
    cdef Py_ssize_t header_value_size

    # They raise errors, but need the interpreter only for that.
    cdef long long read_varint(self) nogil
    cdef long long read_long_varint(self) nogil
    cdef Py_ssize_t read_size(self) except? -2 nogil
    cdef int read_record(self) except -1 nogil
    cdef int read_placed_record(self) except -1 nogil
    cdef int read_header(self) except -1 nogil
    cdef int pass_headers(self) except -1 nogil
    cdef int end_record(self) except -1 nogil
    cdef int refuse_size(self, long long size) except -1 with gil
    cdef object end_batch(self)
    cdef object bytes_at(self, Py_ssize_t start, Py_ssize_t size)
    cdef str header_name(self)
    cdef object read_headers(self)

cpdef RecordReader open_records(
    memoryview view, Py_ssize_t position, object header, object limit
)
