# C declarations of key_watch_cy.py, used as kafka/wire/batch_cy.pxd explains.

from trimtab.balance.heavy_hitters_cy cimport HeavyHitters

cdef class KeyWatch:
    cdef readonly bint shows_keys
    cdef readonly long long total
    cdef readonly long long samples
    cdef readonly long long counted
    cdef HeavyHitters _hitters
    cdef int _left
    cdef unsigned int _state
    cdef unsigned int _distances
    cdef object _now
    cdef double _faded

    cdef bint is_due(self) noexcept
    cpdef count_key(self, long long key_hash, object key, long long size, int partition)
