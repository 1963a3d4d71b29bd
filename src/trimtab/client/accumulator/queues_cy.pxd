# C declarations of queues_cy.py, for the accumulator. queues_cy.py explains the names.

from trimtab.client.partitioner.key_watch_cy cimport KeyWatch
from trimtab.kafka.wire.batch_cy cimport BatchBuilder

cdef class NodeLoad:
    cdef readonly int node_id
    cdef readonly long long queued_batches
    cdef readonly long long queued_bytes
    cdef public int requests
    cdef public double moved_at
    cdef public double alone
    cdef public double behind
    cdef public double drain_rate
    cdef public double not_ready_since

cdef class Batch:
    cdef readonly PartitionQueue queue
    cdef readonly BatchBuilder builder
    cdef public object held_for
    cdef readonly double created
    cdef readonly long long serial
    cdef public int attempts
    cdef public double not_before
    cdef public int base_sequence
    cdef readonly long long size
    cdef readonly long long memory
    cdef readonly int count
    cdef readonly bint is_done
    cdef readonly object error
    cdef object _failed_records
    cdef readonly long long base_offset
    cdef readonly long long log_append_time
    cdef int _first
    cdef list _parts
    cdef object _future
    cdef list _callbacks
    cdef RowRun _row_run
    cdef DeliveryRun _delivery_run
    cdef Batch _older
    cdef Batch _newer

    cdef list _settle(self, object error, long long base_offset, long long log_append_time)
    cdef list _replace(self, list parts)
    cdef object _recount(self)
    cdef bint _is_settled(self)
    cdef object _call_back(self, object function, object delivery)
    cdef object _call_back_for_last(self, object function, long long timestamp)

cdef class Delivery:
    cdef Batch _batch
    cdef int _index
    cdef long long _timestamp

    cdef Batch _current_batch(self)
    cdef Batch _wait(self, object timeout)
    cdef object _error(self, Batch batch)
    cdef object _metadata(self, Batch batch)

cdef class DeliveryRun:
    cdef Batch _batch
    cdef int _index
    cdef int _count
    cdef long long _timestamp
    cdef object _function

    cdef object _call(self, object on_error)
    cdef object _move_to_parts(self)

cdef class RowRun:
    cdef readonly Batch batch
    cdef readonly int count
    cdef int _index
    cdef object _settle

    cdef object _move_to_parts(self)

cdef class PartitionQueue:
    cdef readonly object accumulator
    cdef readonly TopicQueues topic_queues
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly object batches
    cdef readonly list in_flight
    cdef readonly NodeLoad node
    cdef readonly long long queued_bytes
    cdef readonly long long turns
    cdef readonly long long stored_bytes
    cdef readonly long long given_bytes
    cdef readonly long long stored_end
    cdef public object state
    cdef long long _chosen_bytes
    cdef long long _given_before
    cdef Batch _open
    cdef bint _is_reported

    cdef object _set_leader(self, NodeLoad node)
    cdef object _count(self, Batch batch, int sign)
    cdef object _repair(self)

cdef class TopicQueues:
    cdef readonly object view
    cdef readonly list queues
    cdef readonly object partitioner
    cdef public double compression_ratio
    cdef readonly long long switches
    cdef readonly int current
    cdef readonly KeyWatch keys
    cdef readonly object hot
    cdef object _accumulator
    cdef object _rack
    cdef long long _rack_bytes
    cdef set _resized
    cdef dict _used
    cdef PartitionQueue _unquestioned
    cdef bint _follows_load
    cdef long long _asked_at
    cdef bint _observes
    cdef long long _unsettled
    cdef double _last_used
    cdef readonly int _partition_count
    cdef bint _is_per_record
    cdef bint _is_notified_of_new_batches
    cdef bint _turns_by_batch
    cdef bint _ignores_keys
    cdef long long _quantum
    cdef long long _turn_bytes
    cdef long long _used_at_start

    cdef list _repair(self)
    cdef bint _is_over(self, PartitionQueue queue) noexcept
    cdef bint _may_stay(self)
    cdef PartitionQueue _turn(self)
    cdef object _end_turn(self)
    cdef bint _is_in_rack(self, Py_ssize_t partition)

cdef class BatchChain:
    cdef readonly Batch oldest
    cdef readonly Batch newest

    cdef object add_batch(self, Batch batch, Batch older)
    cdef object repair(self, list batches)
    cdef object remove_batch(self, Batch batch)
