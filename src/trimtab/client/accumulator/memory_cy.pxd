# C declarations of memory_cy.py. memory_cy.py explains the names.

cdef class MemoryRequest:
    cdef readonly long long size
    cdef readonly object granted

cdef class BufferMemory:
    cdef readonly long long size
    cdef readonly long long used
    cdef long long room
    cdef long long _reserved
    cdef bint _is_shut
    cdef object _queue
    cdef set _granted

    cdef bint has_room(self, long long size)
    cdef object shut(self, bint is_shut)
    cdef object release(self, long long size)
    cdef object enqueue(self, MemoryRequest request)
    cdef object remove(self, MemoryRequest request)
    cdef object fail_waiting(self, object error)
    cdef object _grant(self)
    cdef object repair(self, long long used)
