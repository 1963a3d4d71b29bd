# C declarations of placement_cy.py. placement_cy.py explains the names.

from trimtab.client.accumulator.hot_keys_cy cimport TreatedKey
from trimtab.client.accumulator.keyed_placement_cy cimport KeyedPlacement
from trimtab.client.accumulator.memory_cy cimport MemoryRequest
from trimtab.client.accumulator.outgoing_cy cimport OutgoingRecord
from trimtab.client.accumulator.queues_cy cimport Batch, Delivery, PartitionQueue, RowRun, TopicQueues
from trimtab.kafka.wire.batch_cy cimport BatchBuilder
from trimtab.kafka.wire.rows_cy cimport Rows

cdef class Placement(KeyedPlacement):
    cdef object append_record(
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
    cdef Batch _place_in_turn(self, TopicQueues topic_queues, OutgoingRecord record)
    cdef Batch _place_by_partitioner(self, TopicQueues topic_queues, OutgoingRecord record)
    cdef PartitionQueue _ask_partitioner(self, TopicQueues topic_queues, OutgoingRecord record)
    cdef Delivery _deliver(self, Batch batch, long long time, object on_delivery)
    cdef object _after_append(self, Batch batch, bint is_new)
    cdef Py_ssize_t _append_some(
        self,
        TopicQueues topic_queues,
        OutgoingRecord record,
        Py_ssize_t first,
        Py_ssize_t end,
        bint is_granted,
    )
    cdef bint _must_ask(self, TopicQueues topic_queues) noexcept
    cdef bint _are_all_in_turn(self, TopicQueues topic_queues, OutgoingRecord record) noexcept
    cdef Py_ssize_t _append_run(
        self,
        TopicQueues topic_queues,
        Rows rows,
        Batch batch,
        Py_ssize_t first,
        Py_ssize_t end,
    )
