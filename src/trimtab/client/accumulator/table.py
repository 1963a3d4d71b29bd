"""Tables to records: `Producer.send_table` takes Arrow's columns, and what becomes of them.

    table ─▶ slices of 65,536 rows ─▶ Rows (wire/rows_cy.py) ─▶ accumulator.append_rows ─▶ batches
                                                                                              │
    TableDelivery ◀──────── settle(share of a batch) ◀────────────────────────────── acknowledged

A row costs no Python object; a batch costs one call of `settle`. pyarrow is imported on first use.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeAlias

from trimtab.client.accumulator.accumulator_cy import Accumulator
from trimtab.client.accumulator.memory_wait import MemoryWait
from trimtab.client.optional import import_pyarrow
from trimtab.kafka.arguments import checked_callable, checked_seconds, refuse_copying
from trimtab.kafka.errors import KafkaError, UsageError
from trimtab.kafka.records import NO_OFFSET, Record, TopicPartition
from trimtab.kafka.wire.rows_cy import NO_TIME, BytesColumn, HeadersColumn, Rows

logger = logging.getLogger("trimtab.client")

SLICE_ROWS = 65_536
"""Rows handed to the accumulator at once: few calls, and what must be converted stays small."""

Column: TypeAlias = Any
"""A column's name in the table, or a pyarrow array of the table's length; None: there is none."""


class PartitionSummary(NamedTuple):
    """What one partition took of a table. Offsets are -1 with acks=0, when nobody says.

    Bytes are those of the record batches before compression. A batch that has other records too
    counts as if all of them were of the same size.
    """

    records: int
    first_offset: int
    last_offset: int
    bytes: int


class TableSummary(NamedTuple):
    """Where a table's rows were stored.

    Between a partition's first and last offset there may be records of other senders.
    """

    topic: str
    records: int
    partitions: Mapping[int, PartitionSummary]


class TableError(KafkaError):
    """Rows of a table that were not delivered. Its cause is the error of the first to fail.

    Attributes:
        failed: how many, for each partition that has some, the first to fail first.
        delivered: how many of the others each partition stored.
    """

    def __init__(
        self,
        error: Exception,
        failed: Mapping[int, int],
        delivered: TableSummary,
        shares: Iterable[BatchShare] = (),
    ) -> None:
        first = TopicPartition(delivered.topic, next(iter(failed)))
        lost = sum(failed.values())
        many = f"{len(failed)} partitions, the first of them " if len(failed) > 1 else ""
        super().__init__(
            f"{lost} of {lost + delivered.records} records of a table were not delivered, in"
            f" {many}{first}: {error}"
        )
        self.failed = failed
        self.delivered = delivered
        self._shares = tuple(shares)
        self.__cause__ = error

    def records(self) -> Iterator[Record]:
        """The records that failed, batch by batch, as `Delivery.record` gives one."""
        for share in self._shares:
            for index in range(share.first, share.last + 1):
                yield share.batch.failed_record(index)


class BatchShare(Protocol):
    """The rows of one table in one batch, as the accumulator counts them."""

    @property
    def batch(self) -> Any:
        """`accumulator_cy.Batch`."""

    @property
    def count(self) -> int: ...

    @property
    def first(self) -> int:
        """The first row's place in the batch."""

    @property
    def last(self) -> int: ...


class TableDelivery:
    """What becomes of one table. Wait with `.result()` or `await`, or be called back.

    Args:
        wait: as of `Accumulator`.
    """

    def __init__(
        self,
        topic: str,
        wait: Callable[[Future[Any], float | None], Any] = Future.result,
    ) -> None:
        self.topic = topic
        self._wait = wait
        self._sent = -1  # not known before the end
        self._settled = 0
        self._delivered: dict[int, PartitionSummary] = {}
        self._failed: dict[int, int] = {}
        self._error: Exception | None = None
        self._lost: list[BatchShare] = []
        self._future: Future[TableSummary] = Future()
        self._endings = count()

    __reduce_ex__ = refuse_copying

    def settle(self, share: BatchShare) -> None:
        """A batch that has rows of the table is done; on the client's thread only."""
        batch, records = share.batch, share.count
        partition = batch.queue.partition
        if batch.error is not None:
            self._error = self._error or batch.error
            self._failed[partition] = self._failed.get(partition, 0) + records
            self._lost.append(share)
        else:
            base = batch.base_offset
            first, last = (base + share.first, base + share.last) if base >= 0 else (NO_OFFSET,) * 2
            # From the size up to its end, so that the shares of a batch come to all of it.
            end, begin = share.last + 1, share.first
            octets = batch.size * end // batch.count - batch.size * begin // batch.count
            before = self._delivered.get(partition)
            if before is not None:
                records += before.records
                octets += before.bytes
                first, last = min(first, before.first_offset), max(last, before.last_offset)
            self._delivered[partition] = PartitionSummary(records, first, last, octets)
        self._settled += share.count
        self._end_if_complete()

    def end(self, records: int) -> None:
        """All rows are in batches; on the sender's thread."""
        self._sent = records
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        # Both threads may find it complete; next() is one step, so only one of them goes on.
        if self._settled != self._sent or next(self._endings) > 0:
            return
        if self._error is None:
            self._future.set_result(self._summary())
        else:
            self._future.set_exception(self._failure())

    def _summary(self) -> TableSummary:
        # Copied in one step: the client's thread may add a partition meanwhile.
        delivered = dict(sorted(self._delivered.copy().items()))
        return TableSummary(self.topic, sum(each.records for each in delivered.values()), delivered)

    def _failure(self) -> TableError:
        assert self._error is not None
        return TableError(self._error, self._failed.copy(), self._summary(), self._lost)

    @property
    def stored(self) -> int:
        """How many rows are acknowledged so far."""
        return self._summary().records

    def raise_failed(self) -> None:
        """Raise TableError if rows have failed so far, without waiting for the others."""
        if self._failed:
            raise self._failure()

    def done(self) -> bool:
        """Whether the outcome of every row is known."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> TableSummary:
        """Where the rows were stored, waiting for all of them.

        Args:
            timeout: seconds to wait at most; None waits as long as `delivery.timeout.ms` lets it.

        Raises:
            TableError: rows were not delivered; says how many and why.
            TimeoutError: not all outcomes are known within `timeout`.
            UsageError: as of `Delivery.result`.
        """
        stored: TableSummary = self._wait(self._future, checked_seconds("timeout", timeout))
        return stored

    def exception(self, timeout: float | None = None) -> TableError | None:
        """The error the table ended with, None if all of it is stored; waits like `result`."""
        try:
            self._wait(self._future, checked_seconds("timeout", timeout))
        except TableError as error:
            return error
        return None

    def add_done_callback(self, function: Callable[[TableDelivery], object]) -> None:
        """Have `function(delivery)` called once, on the client's thread, when all is known.

        If it is known already the call happens at once, on this thread. Keep it short: nothing is
        sent or received while it runs. An exception it raises is logged.
        """
        checked_callable("function", function)
        if self._future.done():
            self._call(function, Exception)
        else:
            # Of whatever kind it is that it raises: others wait behind it.
            self._future.add_done_callback(lambda _: self._call(function, BaseException))

    def _call(
        self, function: Callable[[TableDelivery], object], caught: type[BaseException]
    ) -> None:
        try:
            function(self)
        except caught as raised:
            logger.error("a delivery callback raised", exc_info=raised)

    def __await__(self) -> Generator[Any, None, TableSummary]:
        # Shielded: a caller that stops waiting must not end the wait of others.
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()


class TableSend:
    """One table on its way: appends rows to the accumulator, and waits for buffer memory."""

    def __init__(self, accumulator: Accumulator, topic: str, columns: Mapping[str, Column]) -> None:
        self._accumulator = accumulator
        self._columns = columns
        self._sent = 0
        self._is_whole = True
        self.delivery = TableDelivery(topic, accumulator.wait)
        self._settle = self.delivery.settle  # one object, however many parts: see `append_table`
        self.memory_wait = MemoryWait(accumulator)

    def append(self, data: object) -> Iterator[tuple[int, int | None]]:
        """Append every row of a part; yields as `append_table`."""
        self._check()
        self._is_whole = False
        self._sent += yield from append_table(
            self._append_rows, self.delivery.topic, self._settle, data, **self._columns
        )
        self._is_whole = True

    def end_table(self) -> TableDelivery:
        """No more rows follow."""
        self._check()
        self._is_whole = False
        self.delivery.end(self._sent)
        return self.delivery

    def _check(self) -> None:
        if not self._is_whole:
            raise UsageError(
                f"a table for topic {self.delivery.topic} has ended, or an error has interrupted"
                " it: open a new one for further rows"
            )

    def _append_rows(self, topic: str, rows: Rows, first: int) -> int:
        taken: int = self._accumulator.append_rows(topic, rows, first, self.memory_wait.request)
        self.memory_wait.end_wait()
        return taken


def columns_of(
    value: Column, key: Column, headers: Column, partition: Column, timestamp: Column
) -> dict[str, Column]:
    """The arguments of `send_table` that name columns."""
    return {
        "value": value,
        "key": key,
        "headers": headers,
        "partition": partition,
        "timestamp": timestamp,
    }


def append_table(
    append_rows: Callable[[str, Rows, int], int],
    topic: str,
    settle: Callable[[BatchShare], None],
    data: object,
    *,
    value: Column = "value",
    key: Column = None,
    headers: Column = None,
    partition: Column = None,
    timestamp: Column = None,
) -> Generator[tuple[int, int | None], None, int]:
    """Append every row; yields whenever the accumulator takes no more, and returns their number.

    What is yielded is what the next row needs: bytes that are free, and its partition, if it was
    given one.

    Args:
        append_rows: `Accumulator.append_rows`: takes rows from one on, returns the first not taken.
        settle: `TableDelivery.settle`. The accumulator compares this object by identity: rows that
            follow each other in a batch under the same one are settled together.
        data: a pyarrow Table, RecordBatch or RecordBatchReader; anything else that streams Arrow
            (`__arrow_c_stream__`: polars, DuckDB, pandas from 2.2 on) or is one Arrow batch
            (`__arrow_c_array__`); or an iterable of those.
        value: binary, string (both also large, as view, or in a dictionary) or fixed-size binary.
            None makes every value null: tombstones, which need keys.
        key: likewise; where it is null the partitioner chooses.
        headers: list<struct<key: string, value: binary>> or map<string, binary>; null for none.
        partition: any integer; where it is null, key or partitioner decide.
        timestamp: timestamp, date64, or int64 in milliseconds since the Unix epoch; finer ones are
            cut to milliseconds. Where it is null the record gets the time at which it is sent.

    Raises:
        UsageError: the table cannot be sent as it is; says which column and what to do. What came
            before the faulty batch is on its way.
    """
    arrow = import_pyarrow("send_table")
    given = {
        "value": value,
        "key": key,
        "headers": headers,
        "partition": partition,
        "timestamp": timestamp,
    }
    columns = {role: column for role, column in given.items() if column is not None}
    if value is None and key is None:
        raise UsageError(
            "a table without value and key makes empty records: name its value column, or with"
            " value=None the key column of its tombstones"
        )
    sent = 0
    try:
        for batch in _read_batches(arrow, data, columns):
            rows = _read_rows(arrow, batch, settle)
            first = 0
            while (first := append_rows(topic, rows, first)) < rows.length:
                rows.seek(first)
                yield rows.bound, rows.partition if rows.partition >= 0 else None
            sent += rows.length
    except UsageError as error:
        error.add_note(
            f"the table's first {sent} rows are on their way; a row's number counts from there"
        )
        raise
    return sent


def _read_batches(arrow: Any, data: Any, columns: Mapping[str, Column]) -> Iterator[Any]:
    """The table in slices: record batches of the asked columns, under their roles' names."""
    if isinstance(data, arrow.Table):
        yield from _slice(_select(arrow, data, columns))
    elif hasattr(data, "__arrow_c_stream__"):
        stream = arrow.RecordBatchReader.from_stream(data)
        if any(not isinstance(column, str) for column in columns.values()):
            yield from _slice(_select(arrow, stream.read_all(), columns))
            return
        _select(arrow, stream.schema.empty_table(), columns)  # a stream without rows is checked too
        for batch in stream:
            yield from _slice(_select(arrow, arrow.Table.from_batches([batch]), columns))
    elif hasattr(data, "__arrow_c_array__"):
        table = arrow.Table.from_batches([arrow.record_batch(data)])
        yield from _slice(_select(arrow, table, columns))
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping)):
        if any(not isinstance(column, str) for column in columns.values()):
            raise UsageError("columns given as arrays go with one table, and not with several")
        for each in data:
            yield from _read_batches(arrow, each, columns)
    else:
        raise UsageError(
            f"a table cannot be of type {type(data).__name__}: give a pyarrow Table, RecordBatch or"
            " RecordBatchReader, anything with __arrow_c_stream__, or several of those"
        )


def _select(arrow: Any, table: Any, columns: Mapping[str, Column]) -> Any:
    """A table of the asked columns alone, under their roles' names."""
    selected = []
    for role, column in columns.items():
        if not isinstance(column, str):
            if not isinstance(column, (arrow.Array, arrow.ChunkedArray)):
                raise UsageError(
                    f"{role} is of type {type(column).__name__}: give a column's name, a pyarrow"
                    " array, or None"
                )
            if len(column) != table.num_rows:
                raise UsageError(
                    f"the array given for {role} has {len(column)} rows, the table {table.num_rows}"
                )
            selected.append(column)
            continue
        found = table.schema.get_all_field_indices(column)
        if len(found) > 1:
            raise UsageError(f"the table has {len(found)} columns {column!r}: rename all but one")
        if not found:
            names = table.schema.names
            nearest = difflib.get_close_matches(column, names, n=1)
            has = (
                f"did you mean {nearest[0]!r}?"
                if nearest
                else f"it has {', '.join(names) or 'none'}"
            )
            raise UsageError(f"the table has no column {column!r} ({role}): {has}")
        selected.append(table.column(found[0]))
    return arrow.table(selected, names=list(columns))


def _slice(table: Any) -> Iterator[Any]:
    for batch in table.to_batches(max_chunksize=SLICE_ROWS):
        batch.validate()  # what came over the C interface may be anything
        yield batch


def _read_rows(arrow: Any, batch: Any, settle: Callable[[BatchShare], None]) -> Rows:
    def column(role: str) -> Any:
        """None where it is not there, or of the type that has only nulls."""
        if role not in batch.schema.names:
            return None
        array = batch.column(role)
        return None if arrow.types.is_null(array.type) else array

    key, value, headers = column("key"), column("value"), column("headers")
    partitions, timestamps = column("partition"), column("timestamp")
    return Rows(
        batch.num_rows,
        None if key is None else _read_bytes(arrow, "key", key),
        None if value is None else _read_bytes(arrow, "value", value),
        None if headers is None else _read_headers(arrow, headers),
        None if partitions is None else _read_partitions(arrow, partitions),
        None if timestamps is None else _read_timestamps(arrow, timestamps),
        settle,
    )


def _read_bytes(arrow: Any, role: str, array: Any) -> BytesColumn:
    types = arrow.types
    given = array.type
    if isinstance(array, arrow.ExtensionArray):
        array = array.storage
    indices = None
    if types.is_dictionary(array.type):
        indices, array = array.indices, array.dictionary
    if types.is_binary_view(array.type) or types.is_string_view(array.type):
        array = array.cast(arrow.large_binary())
    if indices is not None:
        array = array.take(indices)
    kind = array.type
    if types.is_fixed_size_binary(kind):
        validity, data = array.buffers()
        offsets, width = None, kind.byte_width
    elif types.is_binary(kind) or types.is_string(kind):
        (validity, offsets, data), width = array.buffers(), 4
    elif types.is_large_binary(kind) or types.is_large_string(kind):
        (validity, offsets, data), width = array.buffers(), 8
    else:
        fix = (
            "encode each row to bytes first, as JSON or Avro"
            if types.is_nested(kind)
            else "cast it to string or binary"
        )
        raise UsageError(
            f"the {role} column is of type {given}, and a record's {role} is bytes: {fix}"
        )
    if array.null_count == 0:
        validity = None
    return BytesColumn(len(array), array.offset, validity, offsets, width, data)


def _read_headers(arrow: Any, array: Any) -> HeadersColumn:
    types = arrow.types
    kind = array.type
    if types.is_map(kind):
        names, values = array.keys, array.items
    elif types.is_list(kind) and _is_pair(arrow, kind.value_type):
        pairs = array.values
        fields = dict(zip(pairs.type.names, pairs.flatten(), strict=True))
        names, values = fields["key"], fields["value"]
    else:
        raise UsageError(
            f"the headers column is of type {kind}:"
            " give list<struct<key: string, value: binary>> or map<string, binary>"
        )
    if not _is_text(arrow, names.type):
        raise UsageError(f"the names of the headers are of type {names.type}: cast them to string")
    begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    if names.slice(begin, end - begin).null_count > 0:
        raise UsageError("the headers column has a header whose name is null: give it a name")
    validity, offsets = array.buffers()[:2]
    if array.null_count == 0:
        validity = None
    return HeadersColumn(
        len(array),
        array.offset,
        validity,
        offsets,
        _read_bytes(arrow, "header's name", names),
        _read_bytes(arrow, "header's value", values),
    )


def _is_pair(arrow: Any, kind: Any) -> bool:
    return bool(arrow.types.is_struct(kind)) and sorted(kind.names) == ["key", "value"]


def _is_text(arrow: Any, kind: Any) -> bool:
    types = arrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _read_partitions(arrow: Any, array: Any) -> Any:
    if not arrow.types.is_integer(array.type):
        raise UsageError(f"the partition column is of type {array.type}: give integers")
    _check_range(arrow, "partition", array, 0, 2**31 - 1)
    return _numbers(array.cast(arrow.int32()).fill_null(-1), 4)


def _read_timestamps(arrow: Any, array: Any) -> Any:
    kind = array.type
    if arrow.types.is_timestamp(kind):
        # Finer units lose what they have more; a coarser one must not overflow.
        is_finer = kind.unit in ("us", "ns")
        try:
            array = array.cast(arrow.timestamp("ms", kind.tz), safe=not is_finer)
        except arrow.ArrowInvalid as error:
            raise UsageError(f"the timestamp column does not fit milliseconds: {error}") from None
    elif not arrow.types.is_date64(kind) and not arrow.types.is_int64(kind):
        raise UsageError(
            f"the timestamp column is of type {kind}: give a timestamp, date64,"
            " or milliseconds since the Unix epoch as int64"
        )
    array = array.cast(arrow.int64())
    _check_range(arrow, "timestamp", array, -1, 2**63 - 2)
    return _numbers(array.fill_null(NO_TIME), 8)


def _check_range(arrow: Any, role: str, array: Any, low: int, high: int) -> None:
    found = arrow.compute.min_max(array).as_py()
    for number in (found["min"], found["max"]):
        if number is not None and not low <= number <= high:
            raise UsageError(
                f"the {role} column holds {number}: it must be from {low} to {high}, or null"
            )


def _numbers(array: Any, width: int) -> Any:
    """The buffer of a column without nulls, from its first row on."""
    return array.buffers()[1].slice(array.offset * width, len(array) * width)
