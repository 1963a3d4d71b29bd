"""`merge_split`, and what it returns for a consumer on one thread.

Tests: test_merged_records.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import overload

from trimtab.client.blocking.consumer import Consumer
from trimtab.client.blocking.face import like
from trimtab.client.consumer import STEP, AsyncConsumer
from trimtab.client.merged_records import MAX_BYTES, PATIENCE_S, AsyncMergedRecords, Counted, Merge
from trimtab.kafka.arguments import checked_wait_ms
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import Record
from trimtab.threads.clock import monotonic_clock


class MergedRecords(Counted):
    """What `merge_split` returns for a `Consumer`. Use it on one thread at a time."""

    def __init__(self, consumer: Consumer, max_bytes: int, patience: float) -> None:
        self._consumer = consumer
        self._merge = Merge(consumer._client, max_bytes, patience, monotonic_clock)

    @like(AsyncMergedRecords.poll)
    def poll(self, timeout_ms: float = 500, max_records: int | None = None) -> list[Record]:
        merge, limit = self._merge, self._merge.limit(max_records)
        deadline = merge.clock() + checked_wait_ms("timeout_ms", timeout_ms)
        while True:
            self._consumer._next(merge.read, merge.wait(deadline - merge.clock()))
            ready = merge.merger.ready
            if ready or merge.clock() >= deadline:
                return [ready.popleft() for _ in range(min(limit, len(ready)))]

    @like(AsyncMergedRecords.__aiter__)
    def __iter__(self) -> Iterator[Record]:
        merge = self._merge
        while True:
            self._consumer._next(merge.read, merge.wait(STEP))
            for _ in range(merge.max_records):
                if not merge.merger.ready:
                    break
                yield merge.merger.ready.popleft()

    @like(AsyncMergedRecords.commit)
    def commit(self) -> None:
        self._consumer.commit(self.offsets())


@overload
def merge_split(
    consumer: Consumer, max_bytes: int = MAX_BYTES, patience: float = PATIENCE_S
) -> MergedRecords: ...
@overload
def merge_split(
    consumer: AsyncConsumer, max_bytes: int = MAX_BYTES, patience: float = PATIENCE_S
) -> AsyncMergedRecords: ...
def merge_split(
    consumer: Consumer | AsyncConsumer, max_bytes: int = MAX_BYTES, patience: float = PATIENCE_S
) -> MergedRecords | AsyncMergedRecords:
    """The records of a consumer, with those of split and moved keys in order again.

        with Consumer(servers, group_id="billing", enable_auto_commit=False) as consumer:
            consumer.subscribe(["flights"])
            records = merge_split(consumer)
            for record in records:
                ...
                records.commit()

    Producers with `partitioner.hot.keys` write hot keys to several partitions, or move them to
    others. What is returned has the records of each key in the order in which one producer sent
    them; two producers of a key are in no order, nor are one's records before and after a restart.
    Other records, and the records of different keys, come in the order of their partitions.

    A record waits until all earlier ones of its key were returned or certainly do not come. For
    that the ends of all partitions of its topic are looked up, and read to, if a record is missing.
    So the consumer must have all partitions of such topics, and a partition without a leader, or
    with an open transaction, keeps the split keys waiting. So does, at first, a backlog if the
    consumer begins in the middle of it.

    The consumer must be read only through this. `pause` and `resume` are for what the user has
    paused himself. After a `seek` the partition is read again from there on: records that were
    already returned come as they are read, and count in `late`; what was held of the partition and
    is before the offset is still returned. When a partition is taken away, what was held of it is
    dropped; it was not committed. With more than 10,000 split keys of a topic the one that was idle
    longest is forgotten: its next record waits for the ends.

    With acks other than all a record may be settled, and not readable yet: then its place may be
    given up, and it comes late. Deserialized keys of moved records must be equal if their bytes
    are.

    Args:
        consumer: without `enable.auto.commit`, if it has a group.
        max_bytes: about how much memory the records that wait may take; one record of each
            partition may come on top. Then only partitions that hold nothing are read, and if
            nothing comes from these, order is given up for what has waited longest: it is counted
            in `given_up`, and logged once.
        patience: seconds after which a record that did not come is not waited for, if nothing says
            that it failed, such as after a crash of its producer; it may take twice as long. More
            than the producers' delivery.timeout.ms.

    Raises:
        UsageError: the consumer commits by itself; or it is no consumer, or a value is out of
            range. Iteration raises it if not all partitions are assigned.
    """
    if isinstance(consumer, Consumer):
        return MergedRecords(consumer, max_bytes, patience)
    if isinstance(consumer, AsyncConsumer):
        return AsyncMergedRecords(consumer, max_bytes, patience)
    raise UsageError(f"merge_split({consumer!r}): give a Consumer or an AsyncConsumer")
