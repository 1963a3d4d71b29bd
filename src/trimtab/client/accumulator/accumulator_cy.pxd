# C declarations of accumulator_cy.py. accumulator_cy.py explains the names.

from trimtab.client.accumulator.memory_cy cimport MemoryRequest
from trimtab.client.accumulator.placement_cy cimport Placement
from trimtab.client.accumulator.queues_cy cimport (
    Batch,
    Delivery,
    DeliveryRun,
    NodeLoad,
    PartitionQueue,
    RowRun,
    TopicQueues,
)
from trimtab.kafka.wire.batch_cy cimport BatchBuilder

cdef class Accumulator(Placement):
    cdef object _insert(self, Batch batch)
    cdef object _finish(
        self,
        Batch batch,
        object error,
        long long base_offset,
        long long log_append_time,
    )
    cdef object _call(self, list callbacks)
