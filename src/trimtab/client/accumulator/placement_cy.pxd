# C declarations of placement_cy.py. placement_cy.py explains the names.

from trimtab.client.accumulator.memory_cy cimport BufferMemory, MemoryRequest
from trimtab.client.accumulator.outgoing_cy cimport OutgoingRecord
from trimtab.client.accumulator.queues_cy cimport Batch, BatchChain, Delivery, PartitionQueue, TopicQueues
from trimtab.wire.batch_cy cimport BatchBuilder, BufferPool
from trimtab.wire.rows_cy cimport Rows

cdef class Placement:
    cdef readonly BufferMemory memory
    cdef readonly BufferPool pool
    cdef readonly object now
    cdef readonly object wait
    cdef public object unavailable
    cdef readonly frozenset published
    cdef readonly bint closed
    cdef readonly bint is_abandoned
    cdef readonly long long records
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
    cdef object _make_partitioner
    cdef object _wall_clock
    cdef bint _is_machine_clock
    cdef object _wake
    cdef object _on_callback_error
    cdef object _acquire
    cdef object _release
    cdef object _is_owned

    cdef object add(
        self,
        object topic,
        object value,
        object key,
        object headers,
        object partition,
        object timestamp,
        object on_delivery,
        MemoryRequest memory_request,
    )
    cdef long long _wall_ms(self)
    cdef object _add_to_open(
        self,
        TopicQueues topic_queues,
        long long time,
        object key,
        object value,
        object partition,
        object on_delivery,
    )
    cdef PartitionQueue _choose(self, TopicQueues topic_queues, object partition)
    cdef Batch _place(self, TopicQueues topic_queues, PartitionQueue queue, OutgoingRecord record)
    cdef Batch _put_outside_turn(self, PartitionQueue queue, OutgoingRecord record)
    cdef Batch _place_in_turn(self, TopicQueues topic_queues, OutgoingRecord record)
    cdef Batch _place_by_partitioner(self, TopicQueues topic_queues, OutgoingRecord record)
    cdef PartitionQueue _ask_partitioner(self, TopicQueues topic_queues, OutgoingRecord record)
    cdef Batch _put_into(self, PartitionQueue queue, OutgoingRecord record, bint in_turn)
    cdef bint _put(self, PartitionQueue queue, OutgoingRecord record, bint in_turn)
    cdef Batch _begin_batch(self, PartitionQueue queue, OutgoingRecord record, bint in_turn)
    cdef long long _estimate(self, BatchBuilder builder) noexcept
    cdef void _count(self, Batch batch, long long grown) noexcept
    cdef void _count_memory(self, Batch batch) noexcept
    cdef Delivery _deliver(self, Batch batch, long long time, object on_delivery)
    cdef bint _is_full(self, Batch batch, TopicQueues topic_queues) noexcept
    cdef object _after_append(self, TopicQueues topic_queues, Batch batch, bint is_new)
    cdef object _complete_open(self, PartitionQueue queue)
    cdef object _notify_sender(self, PartitionQueue queue)
    cdef Py_ssize_t _append_some(
        self,
        TopicQueues topic_queues,
        OutgoingRecord record,
        Py_ssize_t first,
        Py_ssize_t end,
        bint is_granted,
    )
    cdef bint _are_all_in_turn(self, TopicQueues topic_queues, OutgoingRecord record) noexcept
    cdef Py_ssize_t _append_run(
        self,
        TopicQueues topic_queues,
        Rows rows,
        Batch batch,
        Py_ssize_t first,
        Py_ssize_t end,
    )
    cdef object _check(self)
    cdef object _refuse(self)
    cdef object _recover(self, object raised)
    cdef object _repair(self)
