"""Copies what is read from one topic to another one, and commits how far it has come.

    consumer.arrow ──────────────────────────────────────▶ producer.send_table
    consumer.poll, merge_split ─▶ only some records ─▶ table ──▲

A key that a producer has split or moved (docs/keys.md) keeps its records' headers where these keep
their partitions; but the offset in a header of a moved key is one of the source's, and is left out.
By key, its records are copied in their order to one partition, without the headers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from trimtab.cli.consume.reading import POLL_MS, Source, Span, Wanted
from trimtab.cli.copy.target import Topics
from trimtab.cli.style import say_note
from trimtab.cli.table import show_bytes
from trimtab.client.partitioner.split_records import (
    MOVED_HEADER,
    SPLIT_HEADER,
    read_moved,
    read_split,
    write_moved,
)
from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError
from trimtab.kafka.records import Header, Headers, Record, TopicPartition
from trimtab.threads.clock import monotonic_clock

if TYPE_CHECKING:
    from trimtab.cli.stopping import Stop
    from trimtab.client.accumulator.table import TableDelivery
    from trimtab.client.blocking.consumer import Consumer
    from trimtab.client.blocking.merged_records import MergedRecords
    from trimtab.client.blocking.producer import Producer

COMMIT_S: Final = 1.0
"""Offsets are committed so often; about so much is copied twice after a crash."""
PROGRESS_S: Final = 5.0

_TABLE_BYTES: Final = 4 * 1024 * 1024
_RECORDS: Final = 5000
_HEADERS: Final = pa.map_(pa.string(), pa.binary())
_COLUMNS: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": _HEADERS,
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.int64(),
}


class Job(NamedTuple):
    """What to copy, and how.

    Attributes:
        keeps_partitions: whether a record goes to the partition of the same number.
        is_wanted: whether to copy a record; None copies all.
        group: whose offsets are committed; None for no group.
        in_transactions: whether that is done in a transaction with the records.
        max_rate: bytes of keys and values per second; None for no limit.
    """

    topics: Topics
    keeps_partitions: bool
    is_wanted: Wanted | None = None
    group: str | None = None
    in_transactions: bool = False
    max_rate: int | None = None


class Copier:
    """
    Attributes:
        copied, copied_bytes: the records that are acknowledged; bytes of keys and values.
        left_out: records that were not wanted.
    """

    def __init__(
        self,
        job: Job,
        source: Source,
        consumer: Consumer,
        producer: Producer[Any, Any],
        merged: MergedRecords | None,
        stop: Stop,
    ) -> None:
        self._job, self._source, self._consumer = job, source, consumer
        self._producer, self._merged, self._stop = producer, merged, stop
        self._sent: deque[tuple[Any, int, TableDelivery]] = deque()
        """The tables that are not acknowledged, and the bytes of their keys and values."""
        self._is_open = False
        """Whether a transaction is."""
        self._is_ahead = False
        """Whether something was read since the last commit."""
        self._has_ended = False
        self._free_at = monotonic_clock()
        """When --max-rate allows more."""
        self._paused: set[TopicPartition] = set()
        self.copied = self.copied_bytes = self.left_out = 0

    def copy(self, span: Span) -> None:
        """Copy from where the span, or the group, begins, to the end of the source."""
        self._begin_reading(span)
        try:
            self._copy()
        finally:
            # After an error nothing must be committed, also not when the consumer is closed.
            self._has_ended = True

    def _begin_reading(self, span: Span) -> None:
        job, consumer, source = self._job, self._consumer, self._source

        def begin(partitions: Sequence[TopicPartition]) -> None:
            for partition, committed in consumer.committed(partitions).items():
                start = span.get(partition, (0, 0))[0]
                source.seek(partition, start if committed is None else committed)

        def end(partitions: Sequence[TopicPartition]) -> None:
            if not self._has_ended:
                self._commit()

        if job.in_transactions:
            self._producer.init_transactions()
        if job.group is not None:
            consumer.subscribe([job.topics.source], on_assigned=begin, on_revoked=end)
            return
        consumer.assign(span)
        for partition, (start, _) in span.items():
            source.seek(partition, start)

    def _copy(self) -> None:
        job, consumer = self._job, self._consumer
        committed_at = shown_at = monotonic_clock()
        while not self._stop.code and not self._source.is_over:
            self._read()
            self._settle()
            now = monotonic_clock()
            if job.group is not None and now - committed_at >= COMMIT_S:
                self._commit()
                committed_at = now
            if now - shown_at >= PROGRESS_S:
                left = sum(each or 0 for each in consumer.lag().values())
                so_far = f"{self.copied:,} records ({show_bytes(self.copied_bytes)})"
                say_note(f"copied {so_far}, {left:,} offsets to go")
                shown_at = now
        self._commit()

    def _read(self) -> None:
        """Read something, and send it; or wait for it, or until --max-rate allows more."""
        consumer, rate, timeout_ms = self._consumer, self._job.max_rate, POLL_MS
        wait = self._free_at - monotonic_clock()
        if wait > 0:
            # In polls: a member of a group must poll.
            timeout_ms = min(POLL_MS, int(wait * 1000) + 1)
            if paused := consumer.assignment() - consumer.paused():
                consumer.pause(*paused)
                self._paused |= paused
        elif self._paused:
            consumer.resume(*(self._paused & consumer.assignment()))
            self._paused = set()
        job = self._job
        if self._merged is None and job.is_wanted is None:
            size = min(_TABLE_BYTES, rate or _TABLE_BYTES)
            table = self._source.read(lambda: consumer.arrow(size, timeout_ms, _COLUMNS))
            if table:
                self._send(rewrite_moves(table))
            return
        count = min(_RECORDS, _RECORDS if rate is None else 1 + rate // 1024)
        records = self._source.poll(timeout_ms, count)
        self._is_ahead = self._is_ahead or bool(records)
        wanted = job.is_wanted
        chosen = records if wanted is None else [each for each in records if wanted(each)]
        self.left_out += len(records) - len(chosen)
        if chosen:
            self._send(make_table(chosen, job.keeps_partitions))

    def _send(self, table: Any) -> None:
        size = sum(pc.sum(pc.binary_length(table[name])).as_py() or 0 for name in ("key", "value"))
        self._begin(size)
        names = ("key", "value", "headers", "timestamp")
        columns = {name: name for name in (*names, "partition")[: 4 + self._job.keeps_partitions]}
        delivery = self._producer.send_table(self._job.topics.target, table, **columns)
        self._sent.append((table, size, delivery))

    def _begin(self, size: int) -> None:
        """Before so many bytes are sent."""
        self._is_ahead = True
        if self._job.max_rate is not None:
            # What was not used of the last second may be caught up on.
            since = max(self._free_at, monotonic_clock() - 1)
            self._free_at = since + size / self._job.max_rate
        if self._job.in_transactions and not self._is_open:
            self._producer.begin_transaction()
            self._is_open = True

    def _commit(self) -> None:
        """Wait for the acknowledgements of what was sent; then commit the offsets."""
        self._producer.flush()
        self._settle(waits=True)
        if self._job.group is None or not self._is_ahead:
            return
        if not self._job.in_transactions:
            (self._merged or self._consumer).commit()
        else:
            self._begin(0)  # if nothing that was read was wanted
            self._producer.send_offsets_to_transaction(
                self._positions(), self._consumer.group_metadata()
            )
            self._producer.commit_transaction()
            self._is_open = False
        self._is_ahead = False

    def _positions(self) -> dict[TopicPartition, Any]:
        if self._merged is not None:
            return dict(self._merged.offsets())
        consumer = self._consumer
        return {each: consumer.position(each) for each in consumer.assignment()}

    def _settle(self, waits: bool = False) -> None:
        """Count what is acknowledged.

        Raises:
            KafkaError: a record was not stored; names it, as it is in the source.
        """
        while self._sent and (waits or self._sent[0][2].done()):
            table, size, delivery = self._sent.popleft()
            error = delivery.exception()
            if error is not None:
                raise self._explain(table, error.__cause__, next(error.records())) from error
            self.copied += len(table)
            self.copied_bytes += size

    def _explain(self, table: Any, error: object, failed: Record) -> KafkaError:
        """The error of a record, which the producer knows without its place in the source."""
        topics = self._job.topics
        wanted = failed.key, failed.value, failed.timestamp
        columns = [table[name] for name in ("partition", "offset", "key", "value")]
        rows = zip(*(each.to_pylist() for each in [*columns, _times(table)]), strict=True)
        place = next(
            (f", {topics.source}-{row[0]} at {row[1]}," for row in rows if row[2:] == wanted), ""
        )
        code = error.code if isinstance(error, BrokerError) else None
        fix = ""
        if code is ErrorCode.MESSAGE_TOO_LARGE:
            size = len(failed.key or b"") + len(failed.value or b"")
            fix = f"; it has {size:,} bytes: raise max.message.bytes of {topics.target}"
        elif code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED):
            fix = (
                f"; another copy as group {self._job.group} may have begun: give each a "
                "transactional.id of its own (--to-property)"
            )
        return KafkaError(f"a record{place} was not copied: {error}{fix}")


def make_table(records: Sequence[Record], keeps_partitions: bool) -> Any:
    """A table of records, with the headers that they have in the target."""
    rows = [
        (
            each.key,
            each.value,
            carry_headers(each.headers, keeps_partitions) if each.headers else None,
            each.partition,
            each.offset,
            each.timestamp,
        )
        for each in records
    ]
    columns = zip(_COLUMNS.items(), zip(*rows, strict=True), strict=True)
    return pa.table({name: pa.array(column, kind) for (name, kind), column in columns})


def rewrite_moves(table: Any) -> Any:
    """The same table, if no record has the header of a moved key."""
    headers = table["headers"]
    if headers.null_count == len(headers):
        return table
    names = pc.struct_field(pc.list_flatten(headers), [0])
    if not pc.any(pc.equal(names, MOVED_HEADER)).as_py():
        return table
    pairs = (each and [(one["key"], one["value"]) for one in each] for each in headers.to_pylist())
    carried = [each and carry_headers(each, keeps_partitions=True) for each in pairs]
    at = table.schema.get_field_index("headers")
    return table.set_column(at, "headers", pa.array(carried, _HEADERS))


def carry_headers(headers: Headers, keeps_partitions: bool) -> list[Header]:
    """A record's headers in the target: see the module's docstring."""
    carried = []
    for name, content in headers:
        moved = read_moved(content) if name == MOVED_HEADER else None
        is_mark = moved is not None or (name == SPLIT_HEADER and read_split(content) is not None)
        if not is_mark or keeps_partitions:
            carried.append((name, content if moved is None else write_moved(moved.partition, -1)))
    return carried


def _times(table: Any) -> Any:
    return table["timestamp"].cast(pa.int64())
