# C declarations of keyed_placement_cy.py. keyed_placement_cy.py explains the names.

from trimtab.client.accumulator.batching_cy cimport Batching
from trimtab.client.accumulator.hot_keys_cy cimport TreatedKey, HotKeys
from trimtab.client.accumulator.outgoing_cy cimport OutgoingRecord
from trimtab.client.accumulator.queues_cy cimport Batch, PartitionQueue, TopicQueues
from trimtab.kafka.wire.batch_cy cimport BatchBuilder

cdef class KeyedPlacement(Batching):
    cdef object _count_key(
        self, TopicQueues topic_queues, long long key_hash, object key, object value
    )
    cdef object _watch(
        self, TopicQueues topic_queues, long long key_hash, object key, long long size
    )
    cdef TreatedKey _hot_key(self, TopicQueues topic_queues, long long key_hash)
    cdef Batch _place_by_key(
        self, TopicQueues topic_queues, long long key_hash, OutgoingRecord record
    )
    cdef Batch _place_hot(self, TopicQueues topic_queues, TreatedKey key, OutgoingRecord record)
    cdef Batch _hold(self, TopicQueues topic_queues, TreatedKey key, OutgoingRecord record)
    cdef object _check_marked(self, TopicQueues topic_queues, OutgoingRecord record)
    cdef Batch _put_outside_turn(self, PartitionQueue queue, OutgoingRecord record)

cdef int of_hash(long long key_hash, int partition_count) noexcept
