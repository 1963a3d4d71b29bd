# C declarations of hot_keys_cy.py, used as kafka/wire/batch_cy.pxd explains.

from trimtab.client.accumulator.queues_cy cimport Batch, PartitionQueue
from trimtab.kafka.wire.batch_cy cimport BatchBuilder

cdef class TreatedKey:
    cdef readonly long long hash
    cdef readonly list queues
    cdef public list placed
    cdef readonly list held
    cdef readonly int target
    cdef public int rest
    cdef bint _moves
    cdef Batch _marked
    cdef bint _is_lost
    cdef bint _in_transactions
    cdef PartitionQueue _left
    cdef Py_ssize_t _mark_end
    cdef object _sender
    cdef long long _number
    cdef bytes _template
    cdef int _at
    cdef long long _turn_left
    cdef long long _turn_bytes
    cdef int _next
    cdef bint _is_placing
    cdef object _window
    cdef Batch _oldest
    cdef long long _oldest_number
    cdef Batch _last

    cdef PartitionQueue turn(self)
    cdef bytes encoded_mark(self)
    cdef void go_on(self, long long grown) noexcept
    cdef PartitionQueue choose(self, long long turn, object unavailable)
    cdef object end_turn(self)
    cdef object split_mark(self)
    cdef object count_split(self, Batch batch, long long grown)
    cdef object begin_move(self, PartitionQueue target, object release)
    cdef bint is_quiet(self)
    cdef object count_moved(self, Batch batch, long long grown, bint is_marked)
    cdef object moved_mark(self)
    cdef object hold_marked(self, Batch batch)
    cdef object tell_end(self)
    cdef object arrive(self)
    cdef object _forget_settled(self)

cdef class HotKeys:
    cdef readonly bint moves
    cdef readonly dict treated
    cdef readonly long long turn
    cdef int _shards
    cdef object _topic_queues
    cdef object _random
    cdef object _release
    cdef bint _in_transactions
    cdef list _leaving
    cdef list _slots
    cdef long long _look_at
    cdef long long _next_look
    cdef long long _faded_at

    cdef TreatedKey find(self, long long key_hash)
    cdef bint is_due(self)
