"""Records of split and moved keys in order, from a consumer of all partitions: `merge_split`.

`Merge` does what both consumers have alike, on the thread that polls: it reads from the consumer,
and has `SplitMerger` decide. The fetcher looks up ends in the background.

Tests: test_merged_records.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import islice
from typing import Final

from trimtab.client.consumer import STEP, AsyncConsumer
from trimtab.client.fetcher.plan import Assignment
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.client.split_merger import SplitMerger
from trimtab.kafka.arguments import MAX_INT64, checked_integer, checked_seconds, checked_wait_ms
from trimtab.kafka.errors import KafkaError, UsageError
from trimtab.kafka.records import Record, TopicPartition

logger = logging.getLogger("trimtab.client")

MAX_BYTES: Final = 64 * 1024 * 1024
PATIENCE_S: Final = 150.0
"""More than the default of delivery.timeout.ms, 120 s."""

_CHECK_S: Final = 0.1
"""So often is looked whether records need not wait any more."""
_LOOKUP_S: Final = 10.0
_RETRY_S: Final = 1.0
_SHARE: Final = 9
"""Between two look-ups it is quiet for so many times what the last one took."""


class Merge:
    """A consumer's records, in order.

    Raises:
        UsageError: the consumer commits by itself, or a value is out of range.
    """

    def __init__(
        self,
        consumer: AsyncConsumer,
        max_bytes: int,
        patience: float,
        clock: Callable[[], float],
    ) -> None:
        if consumer._commits_by_itself:
            raise UsageError(
                "enable.auto.commit=true would commit records that merge_split still holds: set "
                "enable.auto.commit=false, and call commit() of what merge_split returns"
            )
        checked = checked_seconds("patience", patience)
        if checked is None:
            raise UsageError("patience=None: give seconds")
        self._limits = checked_integer("max_bytes", max_bytes, 1, MAX_INT64), checked
        self.merger = SplitMerger(*self._limits)
        self._consumer = consumer
        self.clock = clock
        self._paused: set[TopicPartition] = set()
        self._epochs: dict[TopicPartition, int] = {}
        self._seen: tuple[int, dict[TopicPartition, Assignment]] = -1, {}
        self._is_reading = False
        self._next_check = 0.0
        self._asked_at: float | None = None
        self._quiet_until = 0.0
        self._answers: deque[tuple[float, Mapping[TopicPartition, int] | KafkaError]] = deque()

    @property
    def max_records(self) -> int:
        return self._consumer._max_poll_records

    def limit(self, max_records: int | None) -> int:
        return self._consumer._limit(max_records)

    def wait(self, left: float) -> float:
        """How long to wait for records at once: what is held must be looked after."""
        return max(0.0, min(left, _CHECK_S) if self.merger.held else left)

    def read(self) -> deque[Record]:
        """The records to return; to be called in `AsyncConsumer._poll`, which calls it again when
        something was fetched."""
        if self._is_reading:
            self._start_over()
        self._is_reading = True
        try:
            self._read()
        except Exception:  # which come where nothing is half done
            self._is_reading = False
            raise
        self._is_reading = False
        return self.merger.ready

    def _read(self) -> None:
        consumer, merger = self._consumer, self.merger
        self._follow_assignment()
        while not merger.ready and (run := consumer._read_run()) is not None:
            self._follow_assignment()  # a topic may have been created again
            assert consumer._run is not None
            taken = merger.take(consumer._run.records, self.clock())
            # Now, and not before: after Ctrl-C at any line what was not taken is read again.
            deque(islice(run, taken), maxlen=0)
            consumer._end_run()
            self._pause()
            if merger.unsure is not None and not merger.ready:  # or an error hides what is ready
                merger.set_partitions(merger.unsure, self._count(merger.unsure))
        if (now := self.clock()) >= self._next_check and merger.topics():
            self._check(now)

    def _start_over(self) -> None:
        """After Ctrl-C at whatever line: what was not returned is read again, with what follows."""
        for partition, first in self.merger.first_offsets().items():
            if partition in self._consumer._assignments:
                self._consumer.seek(partition, first)
        self.merger = SplitMerger(*self._limits)
        self._follow_assignment()
        self._pause()

    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What may be committed."""
        self._follow_assignment()
        firsts = self.merger.first_offsets()
        return {
            partition: OffsetAndMetadata(firsts[partition]) if partition in firsts else at
            for partition, at in self._consumer._processed().items()
        }

    def _check(self, now: float) -> None:
        self._next_check = now + _CHECK_S
        merger, consumer = self.merger, self._consumer
        for topic, known in merger.topics().items():
            if known and known < self._partitions(topic):
                # A group assigns new partitions a while after they were made.
                is_ours = consumer._subscription is None
                count = self._count(topic) if is_ours else self._partitions(topic)
                merger.set_partitions(topic, count)
        while self._answers:
            asked_at, answer = self._answers.popleft()
            if asked_at == self._asked_at:
                self._take_answer(now, answer)
        if self._asked_at is not None and now - self._asked_at > 2 * _LOOKUP_S:
            self._take_answer(now, None)  # it was lost, such as with the process that forked
        merger.check(now, self._position)
        self._pause()
        if self._asked_at is None and now >= self._quiet_until and (wanted := merger.plan(now)):
            self._asked_at = now
            answers = self._answers
            consumer._call_fetcher(
                consumer._fetcher.find_ends,
                wanted,
                _LOOKUP_S,
                lambda answer: answers.append((now, answer)),
            )

    def _take_answer(
        self, now: float, answer: Mapping[TopicPartition, int] | KafkaError | None
    ) -> None:
        assert self._asked_at is not None
        took, self._asked_at = now - self._asked_at, None
        if answer is None or isinstance(answer, KafkaError):
            logger.info("the ends of partitions are looked up again: %s", answer)
            self.merger.found(None)
            self._quiet_until = now + max(_RETRY_S, took)
        else:
            self.merger.found(answer)
            self._quiet_until = now + _SHARE * took if took > _CHECK_S else now

    def _follow_assignment(self) -> None:
        """Drop what was taken of partitions that are read from elsewhere now, or no more."""
        consumer = self._consumer
        assignments = consumer._assignments
        if self._seen[0] == consumer._epoch and self._seen[1] is assignments:
            return
        for partition, epoch in self._epochs.items():
            now = assignments.get(partition)
            if now is None or now.epoch != epoch:
                self.merger.reset(partition, -1 if now is None else now.start)
        self._epochs = {partition: each.epoch for partition, each in assignments.items()}
        self._seen = consumer._epoch, assignments
        self._paused = {p for p in self._paused if p in assignments and assignments[p].is_paused}
        holding = {partition.topic for partition in self.merger.first_offsets()}
        for topic in self.merger.topics():
            self.merger.set_partitions(topic, 0)
            if topic in holding:
                self.merger.set_partitions(topic, self._count(topic))

    def _pause(self) -> None:
        """Pause the partitions that are full, and resume the others; leave alone what the user has
        paused."""
        full, consumer = self.merger.full, self._consumer
        if not full and not self._paused:
            return
        if resumed := self._paused - full:
            consumer.resume(*resumed)
        if paused := {p for p in full if not consumer._assignments[p].is_paused}:
            consumer.pause(*paused)
        self._paused = (self._paused & full) | paused

    def _partitions(self, topic: str) -> int:
        """How many partitions a topic has, as far as is known."""
        view = self._consumer._session.metadata.topic(topic)
        return 0 if view is None else view.partition_count

    def _count(self, topic: str) -> int:
        """How many partitions a topic has.

        Raises:
            UsageError: some are not assigned to the consumer.
        """
        assigned = {each.partition for each in self._consumer._assignments if each.topic == topic}
        count = max(self._partitions(topic), max(assigned, default=-1) + 1)
        missing = [str(index) for index in range(count) if index not in assigned]
        if missing:
            several = "partitions" if len(missing) > 1 else "partition"
            raise UsageError(
                f"topic {topic} has records of split or moved keys, which only a consumer of all "
                f"its partitions can put in order, and {several} {', '.join(missing)} of {count} "
                "are not assigned to this one: assign() all of them, or let it be the only member "
                "of its group"
            )
        return count

    def _position(self, partition: TopicPartition) -> int:
        consumer = self._consumer
        assignment = consumer._assignments.get(partition)
        if assignment is None:
            return -1
        known = consumer._known_position(partition)
        return consumer._fetcher.origin(partition, assignment.epoch) if known is None else known


class Counted:
    """What can be asked of merged records."""

    _merge: Merge

    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What `commit` stores, to look at or for `Producer.send_offsets_to_transaction`."""
        return self._merge.offsets()

    @property
    def held(self) -> int:
        """How many records wait for earlier ones."""
        return self._merge.merger.held

    @property
    def held_bytes(self) -> int:
        """About the memory of the records that wait for earlier ones."""
        return self._merge.merger.held_bytes

    @property
    def given_up(self) -> int:
        """How often a record was returned although an earlier one of its key may follow, because
        `max_bytes` were held and nothing else could be read."""
        return self._merge.merger.given_up

    @property
    def late(self) -> int:
        """Split records that were returned after later ones of their key: they were read again
        after a seek, or came after `patience`, or after others were given up."""
        return self._merge.merger.late


class AsyncMergedRecords(Counted):
    """What `merge_split` returns for an `AsyncConsumer`."""

    def __init__(self, consumer: AsyncConsumer, max_bytes: int, patience: float) -> None:
        self._consumer = consumer
        loop = asyncio.get_running_loop()
        self._merge = Merge(consumer, max_bytes, patience, loop.time)

    async def poll(self, timeout_ms: float = 500, max_records: int | None = None) -> list[Record]:
        """The next records that need not wait; an empty list after `timeout_ms`.

        Args:
            max_records: how many at most; `max.poll.records` if None.

        Raises:
            UsageError: a topic has split or moved keys, and not all its partitions are assigned.
            KafkaError: like `poll` of the consumer.
        """
        merge, limit = self._merge, self._merge.limit(max_records)
        deadline = merge.clock() + checked_wait_ms("timeout_ms", timeout_ms)
        while True:
            await self._consumer._next(merge.read, merge.wait(deadline - merge.clock()))
            ready = merge.merger.ready
            if ready or merge.clock() >= deadline:
                return [ready.popleft() for _ in range(min(limit, len(ready)))]

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Reads for ever, and raises, like `poll`."""
        merge = self._merge
        while True:
            await self._consumer._next(merge.read, merge.wait(STEP))
            for _ in range(merge.max_records):  # then the group must be looked after
                if not merge.merger.ready:
                    break
                yield merge.merger.ready.popleft()

    async def commit(self) -> None:
        """Store offsets as the group's: of each partition that of the first record that was not
        returned. In an iteration the present record counts as returned.

        Records behind it that were returned are read again by who begins there.
        """
        await self._consumer.commit(self.offsets())
