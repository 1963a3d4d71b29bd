"""Copies what is read from one topic to another one, and commits how far it has come.

    consumer.arrow ─▶ producer.send_table          a table at a time, without an object for a record
    consumer.poll, merge_split ─▶ producer.send    records that are filtered, or go by their key

Without pyarrow all goes the second way.

A key that a producer has split or moved (docs/keys.md) keeps its records' headers where these keep
their partitions; but the offset in a header of a moved key is one of the source's, and is left out.
By key, its records are copied in their order to one partition, without the headers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Event
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from trimtab.cli.consume.reading import POLL_MS, Source, Span
from trimtab.cli.copy.target import Topics
from trimtab.cli.style import say_note
from trimtab.cli.table import show_bytes
from trimtab.client.optional import import_pyarrow
from trimtab.client.partitioner.split_records import (
    MOVED_HEADER,
    SPLIT_HEADER,
    read_moved,
    read_split,
    write_moved,
)
from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError, UsageError
from trimtab.kafka.records import Headers, Record, TimestampType, TopicPartition
from trimtab.threads.clock import monotonic_clock

if TYPE_CHECKING:
    from trimtab.cli.stopping import Stop
    from trimtab.client.accumulator.queues_cy import Delivery
    from trimtab.client.accumulator.table import TableDelivery
    from trimtab.client.blocking.consumer import Consumer
    from trimtab.client.blocking.merged_records import MergedRecords
    from trimtab.client.blocking.producer import Producer

COMMIT_S: Final = 1.0
"""Offsets are committed so often; about so much is copied twice after a crash."""
PROGRESS_S: Final = 5.0

_TABLE_BYTES: Final = 4 * 1024 * 1024
_COLUMNS: Final = ("key", "value", "headers", "partition", "offset", "timestamp")
_RECORDS: Final = 5000


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
    is_wanted: Callable[[Record], bool] | None = None
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
        self._sent: deque[Sent] = deque()
        self._is_open = False
        """Whether a transaction is."""
        self._is_ahead = False
        """Whether something was read since the last commit."""
        self._has_ended = False
        self._free_at = monotonic_clock()
        """When --max-rate allows more."""
        self._paused: set[TopicPartition] = set()
        self.copied = self.copied_bytes = self.left_out = 0
        try:
            import_pyarrow("copy")
            self._has_tables = merged is None and job.is_wanted is None
        except UsageError:
            self._has_tables = False

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
        if self._has_tables:
            size = min(_TABLE_BYTES, rate or _TABLE_BYTES)
            table = self._source.read(lambda: consumer.arrow(size, timeout_ms, _COLUMNS))
            if table and has_moves(table):
                self._send_records(read_table(table))
            elif table:
                self._send_table(table)
            return
        count = min(_RECORDS, _RECORDS if rate is None else 1 + rate // 1024)
        records = self._source.poll(timeout_ms, count)
        self._is_ahead = self._is_ahead or bool(records)
        wanted = self._job.is_wanted
        chosen = records if wanted is None else [each for each in records if wanted(each)]
        self.left_out += len(records) - len(chosen)
        if chosen:
            self._send_records(chosen)

    def _send_table(self, table: Any) -> None:
        size = sum(_sum_lengths(table.column(name)) for name in ("key", "value"))
        self._begin(size)
        columns = {name: name for name in ("key", "value", "headers", "partition", "timestamp")}
        delivery = self._producer.send_table(self._job.topics.target, table, **columns)
        self._sent.append(SentTable(table, size, delivery))

    def _send_records(self, records: Sequence[Record]) -> None:
        sent = SentRecords(records)
        self._begin(sent.size)
        self._sent.append(sent)
        send, target, keeps = (
            self._producer.send,
            self._job.topics.target,
            self._job.keeps_partitions,
        )
        for record in records:
            send(
                target,
                record.value,
                record.key,
                carry_headers(record.headers, keeps) if record.headers else None,
                record.partition if keeps else None,
                record.timestamp,
                sent.settle,
            )

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
        while self._sent:
            self._sent[0].wait()
            self._settle()
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

    def _settle(self) -> None:
        """Count what is acknowledged.

        Raises:
            KafkaError: a record was not stored; names it, as it is in the source.
        """
        while self._sent and self._sent[0].is_done:
            sent = self._sent.popleft()
            failure = sent.failure()
            if failure is not None:
                raise self._explain(sent, *failure)
            self.copied += sent.count
            self.copied_bytes += sent.size

    def _explain(self, sent: Sent, error: Exception, failed: Record) -> KafkaError:
        """The error of a record, which the producer knows without its place in the source."""
        topics = self._job.topics
        same = (failed.key, failed.value, failed.timestamp)
        found = next((each for each in sent.records if (each[5], each[6], each[3]) == same), None)
        where = "" if found is None else f", {topics.source}-{found.partition} at {found.offset},"
        code = error.code if isinstance(error, BrokerError) else None
        fix = ""
        if code is ErrorCode.MESSAGE_TOO_LARGE:
            size = _size(failed)
            fix = f"; it has {size:,} bytes: raise max.message.bytes of {topics.target}"
        elif code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED):
            fix = (
                f"; another copy as group {self._job.group} may have begun: give each a "
                "transactional.id of its own (--to-property)"
            )
        return KafkaError(f"a record{where} was not copied: {error}{fix}")


class Sent(Protocol):
    """What was sent together."""

    @property
    def records(self) -> Sequence[Record]: ...
    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int:
        """Bytes of keys and values."""

    @property
    def is_done(self) -> bool:
        """Whether every record is acknowledged, or has failed."""

    def wait(self) -> None:
        """Wait until it is done, after a flush: that comes just before the callbacks."""

    def failure(self) -> tuple[Exception, Record] | None:
        """The first error, and a record that it is about, without its offset."""


class SentRecords:
    """Records that were sent one by one."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.count = len(records)
        self.size = sum(map(_size, records))
        self._left = self.count
        self._done = Event()
        self._failed: Delivery | None = None

    def settle(self, delivery: Delivery) -> None:
        """A record's outcome is known; on the client's thread only."""
        if self._failed is None and delivery.exception() is not None:
            self._failed = delivery
        self._left -= 1
        if not self._left:
            self._done.set()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        self._done.wait()

    def failure(self) -> tuple[Exception, Record] | None:
        if self._failed is None:
            return None
        error, record = self._failed.exception(), self._failed.record
        return None if error is None or record is None else (error, record)


class SentTable:
    """The rows of a table."""

    def __init__(self, table: Any, size: int, delivery: TableDelivery) -> None:
        self._table, self._delivery = table, delivery
        self.count: int = table.num_rows
        self.size = size

    @property
    def records(self) -> Sequence[Record]:
        return read_table(self._table)

    @property
    def is_done(self) -> bool:
        return self._delivery.done()

    def wait(self) -> None:
        self._delivery.exception()

    def failure(self) -> tuple[Exception, Record] | None:
        error = self._delivery.exception()
        if error is None:
            return None
        assert isinstance(error.__cause__, Exception)
        return error.__cause__, next(error.records())


def carry_headers(headers: Headers, keeps_partitions: bool) -> Headers:
    """A record's headers in the target: see the module's docstring."""
    carried = []
    for name, content in headers:
        moved = read_moved(content) if name == MOVED_HEADER else None
        is_mark = moved is not None or (name == SPLIT_HEADER and read_split(content) is not None)
        if not is_mark or keeps_partitions:
            carried.append((name, content if moved is None else write_moved(moved.partition, -1)))
    return carried


def has_moves(table: Any) -> bool:
    """Whether a record of the table has the header of a moved key."""
    pc = import_pyarrow("copy").compute
    headers = table.column("headers")
    if headers.null_count == len(headers):
        return False
    names = pc.struct_field(pc.list_flatten(headers), [0])
    return bool(pc.any(pc.equal(names, MOVED_HEADER)).as_py())


def read_table(table: Any) -> list[Record]:
    """The rows of a table of `_COLUMNS` as records, without the topic."""
    at = table.schema.get_field_index("timestamp")
    rows = table.set_column(at, "timestamp", table.column("timestamp").cast("int64")).to_pylist()
    return [
        Record(
            "",
            row["partition"],
            row["offset"],
            row["timestamp"],
            TimestampType.CREATE_TIME,
            row["key"],
            row["value"],
            [(each["key"], each["value"]) for each in row["headers"] or ()],
        )
        for row in rows
    ]


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")


def _sum_lengths(column: Any) -> int:
    pc = import_pyarrow("copy").compute
    return pc.sum(pc.binary_length(column)).as_py() or 0
