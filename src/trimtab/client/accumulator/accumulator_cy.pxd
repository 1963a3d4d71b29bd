# C declarations of accumulator_cy.py, for java_accumulator_cy.py.

from trimtab.client.accumulator.placement_cy cimport Placement
from trimtab.client.accumulator.queues_cy cimport Batch

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
