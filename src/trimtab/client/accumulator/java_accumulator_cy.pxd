# C declarations of java_accumulator_cy.py.

from trimtab.client.accumulator.accumulator_cy cimport Accumulator
from trimtab.client.accumulator.outgoing_cy cimport OutgoingRecord
from trimtab.client.accumulator.queues_cy cimport Batch, PartitionQueue, TopicQueues
from trimtab.kafka.wire.batch_cy cimport BatchBuilder

cdef class JavaAccumulator(Accumulator):
    pass
