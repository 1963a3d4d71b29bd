# mypy: allow-untyped-decorators, no-warn-return-any
"""Records whose key decides their partition: by its hash, or as `HotKeys` treats it.

A record of a key that moves is held back, in a batch that is in no queue yet, until the key's
earlier records are acknowledged. So nothing else waits for them.
"""

from typing import Any

import cython

from trimtab.client.accumulator.batching_cy import Batching
from trimtab.client.accumulator.hot_keys_cy import HotKeys, TreatedKey
from trimtab.client.accumulator.outgoing_cy import OutgoingRecord
from trimtab.client.accumulator.queues_cy import Batch, PartitionQueue, TopicQueues
from trimtab.kafka.errors import UsageError

# The largest header of a treated key, with its name and lengths.
_MARK_BYTES = cython.declare(cython.longlong, 64)


@cython.cclass
class KeyedPlacement(Batching):
    """Places records by their key. `Accumulator` has the arguments."""

    @cython.cfunc
    def _count_key(
        self, topic_queues: TopicQueues, key_hash: cython.longlong, key: Any, value: Any
    ) -> Any:
        """Count a record's key, after the record was appended without the lock."""
        try:
            self._acquire()
            self._watch(
                topic_queues, key_hash, key, len(key) + (0 if value is None else len(value))
            )
            self._release()
        except BaseException as raised:
            self._recover(raised)
            raise

    @cython.cfunc
    def _watch(
        self, topic_queues: TopicQueues, key_hash: cython.longlong, key: Any, size: cython.longlong
    ) -> Any:
        """Count a key; after many, choose the keys to treat."""
        partition = of_hash(key_hash, topic_queues._partition_count)
        topic_queues.keys.count_key(key_hash, key, size, partition)
        if topic_queues.hot is not None:
            hot = cython.cast(HotKeys, topic_queues.hot)
            if hot.is_due():
                hot.look()
        return None

    @cython.cfunc
    def _hot_key(self, topic_queues: TopicQueues, key_hash: cython.longlong) -> TreatedKey | None:
        """The treated key with this hash. Runs no Python code."""
        return cython.cast(HotKeys, topic_queues.hot).find(key_hash)

    @cython.cfunc
    @cython.locals(key=TreatedKey)
    def _place_by_key(
        self, topic_queues: TopicQueues, key_hash: cython.longlong, record: OutgoingRecord
    ) -> Batch:
        """Append a record whose key has this hash."""
        if topic_queues.keys.is_due():
            shown = bytes(record.key_bytes()) if topic_queues.keys.shows_keys else None
            self._watch(topic_queues, key_hash, shown, record.size())
        if topic_queues.hot is not None:
            key = self._hot_key(topic_queues, key_hash)
            if key is not None:
                return self._place_hot(topic_queues, key, record)
        partition = of_hash(key_hash, topic_queues._partition_count)
        return self._put_outside_turn(topic_queues.queues[partition], record)

    @cython.cfunc
    @cython.locals(queue=PartitionQueue, batch=Batch, before=cython.longlong)
    def _place_hot(
        self, topic_queues: TopicQueues, key: TreatedKey, record: OutgoingRecord
    ) -> Batch:
        """Append a record of a treated key."""
        hot = cython.cast(HotKeys, topic_queues.hot)
        is_split = not hot.moves
        try:
            if is_split:
                self._check_marked(topic_queues, record)
                queue = key.choose(hot.turn, topic_queues.unavailable())
                record.mark = key.split_mark()
            else:
                # What is held goes first, also if another thread is about to release it.
                if key.target >= 0 and (key.held or not key.is_quiet()):
                    return self._hold(topic_queues, key, record)
                record.mark = key.moved_mark()
                if record.mark is not None:
                    self._check_marked(topic_queues, record)
                queue = key.queues[key.target] if key.target >= 0 else key.place
            before = queue.given_bytes
            batch = self._put_outside_turn(queue, record)
            if is_split:
                key.count_split(batch, queue.given_bytes - before)
            else:
                if key.target >= 0:
                    key.arrive()
                key.count_moved(batch, queue.given_bytes - before, record.mark is not None)
            return batch
        finally:
            record.mark = None

    @cython.cfunc
    @cython.locals(queue=PartitionQueue, batch=Batch, grown=cython.longlong)
    def _hold(self, topic_queues: TopicQueues, key: TreatedKey, record: OutgoingRecord) -> Batch:
        """Append a record of a key that moves to a batch that waits."""
        queue = key.queues[key.target]
        if key.held:
            batch = key.held[len(key.held) - 1]
            grown = record.write(batch.builder)
            if grown > 0:
                batch.count += 1
                batch.size += grown
                self.records += 1
                queue.given_bytes += grown
                self._count_memory(batch)
                return batch
        else:
            self._check_marked(topic_queues, record)
            record.mark = key.moved_mark()
        batch = self._new_batch(queue, record)
        if record.mark is not None:
            key.hold_marked(batch)
        batch.held_for = key
        key.held.append(batch)
        return batch

    @cython.locals(queue=PartitionQueue, batch=Batch)
    def release_held(self, key: TreatedKey) -> None:
        """Queue what a moving key holds, if its earlier records are acknowledged, or have failed.
        Called after each of their batches."""
        self._acquire()
        try:
            if key.target < 0 or not key.is_quiet() or not key.held:
                return
            key.tell_end()
            queue = key.queues[key.target]
            if queue._open is not None:
                self._complete_open(queue)
            for batch in key.held:
                # As if its records came now: serials are in the order of a queue's batches.
                batch.serial = self.records
                self.records += batch.count
                self._settled += batch.count
                batch.held_for = None
                queue.batches.append(batch)
                queue._count(batch, 1)
            key.held.clear()
            key.arrive()
            self._notify_sender(queue)
        finally:
            self._release()

    @cython.cfunc
    @cython.locals(topic_queues=TopicQueues, batch=Batch)
    def _put_outside_turn(self, queue: PartitionQueue, record: OutgoingRecord) -> Batch:
        """Append a record whose partition was given or hashed from its key.

        Even so, KIP-480's partitioners are informed if a new batch is needed.

        Source: `KafkaProducer.doSend`, `StickyPartitionCache.nextPartition` (2.4 to 3.2).
        """
        batch = queue._open
        if batch is not None:
            if self._put(queue, record, False):
                return batch
            self._complete_open(queue)
        topic_queues = queue.topic_queues
        if topic_queues._is_notified_of_new_batches:
            topic_queues.partitioner.on_new_batch(topic_queues.view, queue.partition)
        elif topic_queues._turns_by_batch and (
            topic_queues.current < 0 or topic_queues.current == queue.partition
        ):
            topic_queues._turn()
        return self._begin_batch(queue, record, False)

    @cython.cfunc
    def _check_marked(self, topic_queues: TopicQueues, record: OutgoingRecord) -> Any:
        """Refuse a record that is too large with the header of a treated key."""
        size = record.bound() + _MARK_BYTES
        if size > self._max_request_size:
            error = self._too_large(topic_queues.view.name, size, "with the header of a hot key, ")
            self._error_before_change = error
            raise error
        return None

    def _too_large(self, topic: str, size: cython.longlong, which: str) -> UsageError:
        return UsageError(
            f"{which}a record for topic {topic} needs up to {size} bytes, max.request.size is"
            f" {self._max_request_size}; raise it together with the topic's max.message.bytes"
        )


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def of_hash(key_hash: cython.longlong, partition_count: cython.int) -> cython.int:
    """The partition of a key, leaderless ones included: `toPositive(murmur2(key)) % count`."""
    return cython.cast(cython.int, (key_hash & 0x7FFFFFFF) % partition_count)
