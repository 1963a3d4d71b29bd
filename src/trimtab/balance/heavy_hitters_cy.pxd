# C declarations of heavy_hitters_cy.py, used as kafka/wire/batch_cy.pxd explains.

cdef class Hitter:
    cdef public long long amount, bytes, missed
    cdef public int partition

cdef class HeavyHitters:
    cdef public long long floor
    cdef Py_ssize_t _capacity
    cdef dict _kept

    cpdef count_key(self, object key, long long amount, long long octets, int partition)
