# mypy: allow-untyped-decorators, no-warn-return-any
"""The accumulator of `partitioner.compat=java`: turns as in Apache Kafka's producer.

Two things differ from `Accumulator`. The partitioner draws the next partition when a turn ends, not
when the next record is sent. And a batch is full only at its own limit, which a first record above
`batch.size` raises.

Source: `BuiltInPartitioner.updatePartitionInfo`, `MemoryRecordsBuilder.isFull`.
"""

import cython

from trimtab.client.accumulator.accumulator_cy import Accumulator
from trimtab.client.accumulator.outgoing_cy import OutgoingRecord
from trimtab.client.accumulator.queues_cy import Batch, PartitionQueue, TopicQueues
from trimtab.kafka.wire.batch_cy import BatchBuilder


@cython.final
@cython.cclass
class JavaAccumulator(Accumulator):
    """`Accumulator` for `JavaPartitioner`, which never ends a turn early."""

    @cython.cfunc
    @cython.locals(queue=PartitionQueue, batch=Batch)
    def _place_in_turn(self, topic_queues: TopicQueues, record: OutgoingRecord) -> Batch:
        """Append a record to the partition of the current turn; end the turn if that is due."""
        if topic_queues.current < 0:
            queue = topic_queues._turn()
        else:
            queue = topic_queues.queues[topic_queues.current]
            if topic_queues._is_over(queue):  # its batch became complete outside the turn
                queue = topic_queues._turn()
        batch = queue._open
        if batch is None or not self._put(queue, record, True):
            if batch is not None:
                self._complete_open(queue)
            if topic_queues._is_over(queue):
                queue = topic_queues._turn()
            batch = self._put_into(queue, record, True)
        if self._is_full(batch.builder):
            self._complete_open(queue)
        if topic_queues._is_over(queue):
            topic_queues._turn()
        # The common case of `append` would not end a turn at once.
        topic_queues._unquestioned = None
        return batch

    @cython.cfunc
    @cython.exceptval(check=False)
    def _is_full(self, builder: BatchBuilder) -> cython.bint:
        return builder.estimate() >= builder._limit
