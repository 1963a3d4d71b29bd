# C declarations of outgoing_cy.py. outgoing_cy.py explains the names.

from trimtab.kafka.wire.batch_cy cimport BatchBuilder
from trimtab.kafka.wire.rows_cy cimport Rows

cdef class OutgoingRecord:
    cdef object key
    cdef object value
    cdef object headers
    cdef long long timestamp
    cdef Rows rows
    cdef object mark
    cdef bint may_have_key

    cdef long long write(self, BatchBuilder builder)
    cdef long long _write_marked(self, BatchBuilder builder)
    cdef object key_bytes(self)
    cdef object value_bytes(self)
    cdef long long key_hash(self)
    cdef long long bound(self)
    cdef long long size(self)

cpdef long long bound(object value, object key, object headers)
