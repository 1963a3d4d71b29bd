# C declarations of batching_cy.py. batching_cy.py explains the names.

from trimtab.client.accumulator.memory_cy cimport BufferMemory
from trimtab.client.accumulator.outgoing_cy cimport OutgoingRecord
from trimtab.client.accumulator.queues_cy cimport Batch, BatchChain, NodeLoad, PartitionQueue, TopicQueues
from trimtab.kafka.wire.batch_cy cimport BatchBuilder, BufferPool

cdef class Batching:
    cdef readonly BufferMemory memory
    cdef readonly BufferPool pool
    cdef readonly object now
    cdef readonly object wait
    cdef public object unavailable
    cdef readonly frozenset published
    cdef readonly bint closed
    cdef readonly bint is_abandoned
    cdef readonly long long records
    cdef readonly long long load_changes
    cdef long long _settled
    cdef long long _unseen_bytes
    cdef object _refusal
    cdef object _error_before_change
    cdef BatchChain _chain
    cdef list _changed_queues
    cdef dict _topics
    cdef dict _forgotten
    cdef dict _nodes
    cdef bint _has_observers
    cdef long long _batch_size
    cdef long long _max_request_size
    cdef int _compression
    cdef bint _is_compressed
    cdef object _compression_level
    cdef bint _ignores_keys
    cdef object _rack
    cdef bint _shows_keys
    cdef object _make_partitioner
    cdef set _untreated
    cdef object _wall_clock
    cdef bint _is_machine_clock
    cdef object _wake
    cdef object _on_callback_error
    cdef object _acquire
    cdef object _release
    cdef object _is_owned

    cdef object _check(self)
    cdef object _refuse(self)
    cdef object _recover(self, object raised)
    cdef object _repair(self)
    cdef Batch _put_into(self, PartitionQueue queue, OutgoingRecord record, bint in_turn)
    cdef bint _put(self, PartitionQueue queue, OutgoingRecord record, bint in_turn)
    cdef Batch _begin_batch(self, PartitionQueue queue, OutgoingRecord record, bint in_turn)
    cdef Batch _new_batch(self, PartitionQueue queue, OutgoingRecord record)
    cdef long long _estimate(self, BatchBuilder builder) noexcept
    cdef void _count(self, Batch batch, int records, long long grown) noexcept
    cdef void _count_memory(self, Batch batch) noexcept
    cdef bint _is_full(self, BatchBuilder builder) noexcept
    cdef object _complete_open(self, PartitionQueue queue)
    cdef object _notify_sender(self, PartitionQueue queue)
