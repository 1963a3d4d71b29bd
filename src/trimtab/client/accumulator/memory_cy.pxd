# C declarations of memory_cy.py. memory_cy.py explains the names.

cdef class Place:
    cdef readonly long long size
    cdef readonly object served

cdef class BufferMemory:
    cdef readonly long long size
    cdef readonly long long used
    cdef long long room
    cdef long long _set_aside
    cdef bint _is_shut
    cdef object _line
    cdef set _served

    cdef bint has_room(self, long long size)
    cdef object shut(self, bint is_shut)
    cdef object give_back(self, long long size)
    cdef object stand(self, Place place)
    cdef object leave(self, Place place)
    cdef object send_away(self, object error)
    cdef object _serve(self)
    cdef object mend(self, long long used)
