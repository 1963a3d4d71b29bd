"""`read`: the records of a topic between two bounds, for Polars, DuckDB, pandas and all else that
reads Arrow.

    scan = read("flights", "127.0.0.1:9092", start="-1h", columns=["key", "value"])
    frame = polars.DataFrame(scan)

`read` looks up offsets once (`bounds.py`); each stream of the scan reads them with a consumer of
its own (`range_reader.py`). `frames.py` passes the filters of a query on to the scan.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack, cast

from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.bounds import Bound, checked_bounds, find_ranges
from trimtab.client.blocking.consumer import Consumer
from trimtab.client.blocking.range_reader import ReadRules, read_ranges
from trimtab.client.fetcher.ranges import DELETED, Limits, OffsetRange, narrow
from trimtab.client.network.option_types import ConsumerOptions
from trimtab.client.network.options import Options
from trimtab.client.optional import import_pyarrow
from trimtab.client.options import ADMIN, CONSUMER, gather_options
from trimtab.kafka.arguments import checked_flag, checked_integer, checked_topic, shown
from trimtab.kafka.errors import DataLoss, UsageError
from trimtab.kafka.notebook import to_table
from trimtab.kafka.records import TopicPartition
from trimtab.threads.clock import wall_clock_ms

if TYPE_CHECKING:
    import duckdb
    import polars

logger = logging.getLogger("trimtab.client")

_REFUSED: Final = {
    "auto.offset.reset": "start= and end= say what is read",
    "enable.auto.commit": "a scan commits nothing",
    "group.id": "a scan belongs to no group",
    "key.deserializer": "decode the column key, which has bytes",
    "value.deserializer": "decode the column value, which has bytes",
}
_FIXED: Final = {"auto.offset.reset": "none", "enable.auto.commit": "false"}
_TIMEOUT: Final = "default.api.timeout.ms"

_NO_LIMITS: Final = Limits()


def read(
    topic: str,
    bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None = None,
    *,
    start: Bound = "earliest",
    end: Bound = "latest",
    columns: Iterable[str] | None = None,
    partitions: Iterable[int] | None = None,
    fail_on_data_loss: bool = True,
    **options: Unpack[ConsumerOptions],
) -> TopicScan:
    """The records of a topic between two bounds, which are looked up now. Nothing is read yet.

        scan = read("flights", "127.0.0.1:9092", start="-1h")
        frame = scan.to_polars().filter(polars.col("partition") == 3).head(100).collect()

    Args:
        bootstrap_servers, options: as for `Consumer`. With `isolation_level="read_committed"` the
            latest offset is that of the first open transaction, and aborted records are left out.
        start: the first offset of each partition; a negative one counts from its end, as in a
            slice; "earliest"; "latest"; or a time, which means the first record at or after it: a
            datetime (UTC if it has no time zone), ISO 8601 text, or a time before now: "-500ms",
            "-90s", "-30m", "-1h", "-7d", "-2w". Or a dictionary that has one of these for the
            number of each partition that is read.
        end: likewise; it is not read itself. Beyond the latest offset it means "latest".
        columns: names, in the scan's order; only what they need is decoded. All if None: key and
            value (binary), topic (string), partition (int32), offset (int64), timestamp
            (milliseconds, UTC), timestamp_type (int32: 0 create time, 1 log append time), headers
            (list of key and value; null if there are none).
        partitions: the numbers of those to read; all if None.
        fail_on_data_loss: whether it is an error if offsets that are asked for are not in the log,
            now or when they are read. Otherwise what is left is read, with a warning.

    Raises:
        UsageError: a bound, column, partition or option that does not exist, a start after its end,
            or pyarrow is not installed (`pip install 'trimtab[arrow]'`).
        DataLoss: a start is not in the log.
        BrokerError: the topic does not exist, or may not be read.
        Unavailable: no answer within `default.api.timeout.ms`.
    """
    import_pyarrow("read()")
    from trimtab.client.fetcher.arrow import checked_columns

    checked_topic(topic)
    names = checked_columns(columns)
    bounds = checked_bounds(start, end, wall_clock_ms())
    report_loss = _LossReport(checked_flag("fail_on_data_loss", fail_on_data_loss))
    client = _client_options(bootstrap_servers, options)
    isolation = cast(
        Literal["read_uncommitted", "read_committed"],
        Options(CONSUMER, client).text("isolation.level"),
    )
    with Admin({name: value for name, value in client.items() if name in ADMIN}) as admin:
        view = admin.describe_topics([topic])[topic]
        wanted = _checked_partitions(topic, partitions, view.partition_count)

        def find(
            at: int | Literal["earliest", "latest"], asked: Iterable[TopicPartition]
        ) -> dict[TopicPartition, int]:
            found = admin.list_offsets(asked, at, isolation)
            return {partition: each.offset for partition, each in found.items()}

        earliest, latest = find("earliest", wanted), find("latest", wanted)
        log = {each: (earliest[each], max(earliest[each], latest[each])) for each in wanted}
        ranges = find_ranges(bounds, log, find, report_loss)
    return TopicScan(topic, view.topic_id, ranges, names, client, report_loss)


class TopicScan:
    """Some of a topic's records; made by `trimtab.read`.

    The offsets are fixed: each stream reads the same records again, with a consumer of its own, a
    few megabytes at a time. The rows of a partition are in the order of their offsets; partitions
    alternate as brokers answer. Any thread may use a scan, also in another process, to which it can
    be sent. A stream that is left before its end is closed when nothing refers to it any more.

    Polars, DuckDB, pandas, pyarrow and others read a scan wherever they take Arrow data:
    `polars.DataFrame(scan)`, `pyarrow.table(scan)`, `pandas.DataFrame.from_arrow(scan)`. They raise
    errors of their own, with the message of trimtab's; `batches` raises DataLoss if records were
    deleted since, BrokerError and CorruptData if a partition cannot be read, and Unavailable if no
    data came within `default.api.timeout.ms`.

    Attributes:
        topic: the topic's name.
        columns: the names of the columns.
        bounds: the offsets by partition: the first one, and the one after the last.
        size: how many offsets; fewer may have records.
    """

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        ranges: Sequence[OffsetRange],
        columns: tuple[str, ...],
        client: Mapping[str, object],
        report_loss: _LossReport,
    ) -> None:
        self.topic = topic
        self.columns = columns
        self.bounds = {each.partition: (each.start, each.end) for each in ranges}
        self.size = sum(each.size for each in ranges)
        self._ids = {topic: topic_id}
        self._ranges = ranges
        self._client = client
        self._report_loss = report_loss

    @property
    def schema(self) -> Any:
        """The `pyarrow.Schema` of the columns."""
        from trimtab.client.fetcher.arrow import table_schema

        return table_schema(self.columns)

    def batches(self) -> Iterator[Any]:
        """The records as `pyarrow.RecordBatch`es of a few megabytes."""
        return (batch for batch in self._stream(self.columns) if batch.num_rows)

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """A new stream of the records, in Arrow's C interface for Python (PyCapsule)."""
        pa = import_pyarrow("a scan")
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def to_polars(self) -> polars.LazyFrame:
        """The scan as a LazyFrame, which reads when it is collected.

        Only the columns that the query needs are decoded. Only the partitions and offsets are
        fetched that its filters on `partition` and `offset` leave, from the first record on that
        is not older than a filter on `timestamp` asks for. Without a filter, `head(n)` fetches
        about n records; with one, Polars' streaming engine (the default from Polars 2 on) stops
        the stream when it has enough.

        Raises:
            UsageError: polars is not installed, or too old.
        """
        from trimtab.client.blocking.frames import lazy_frame

        return lazy_frame(self)

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> Any:
        """The scan as a relation of DuckDB, which reads when the relation is used.

            flights = scan.to_duckdb(connection)
            connection.sql("SELECT count(*) FROM flights WHERE partition = 3").fetchall()

        Columns and filters are passed on to the scan, as by `to_polars`. A query that needs no
        more rows stops the stream.

        Args:
            connection: DuckDB's default connection if None.

        Raises:
            UsageError: duckdb is not installed.
        """
        from trimtab.client.blocking.frames import relation

        return relation(self, connection)

    def _stream(
        self, columns: Sequence[str], limits: Limits = _NO_LIMITS, count: int | None = None
    ) -> Iterator[Any]:
        """Batches of these columns: all records within the limits, but no more than `count`.

        One without rows comes after each second without data, so that Polars can end the reading.
        """
        from trimtab.client.fetcher.arrow import scan_columns, table_schema

        if count == 0 or not self.size:
            return
        consumer = Consumer({**self._client, **_FIXED})
        consumer._thread.warns = False

        def find_times(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
            found = consumer.offsets_for_times(times)
            return {each: None if at is None else at.offset for each, at in found.items()}

        try:
            timeout_ms = consumer._client.options.integer(_TIMEOUT)
            rules = ReadRules(timeout_ms, _TIMEOUT, self._report_loss, has_pulse=True)
            ranges = narrow(self._ranges, limits, find_times)
            schema, left = table_schema(columns), count
            for part in _parts(ranges, count):
                records = read_ranges(consumer, part, self._ids, rules)
                for batch in scan_columns(records, schema, columns, is_eager=True):
                    if left is not None:
                        batch = batch.slice(0, left)
                        left -= batch.num_rows
                    yield batch
                    if left == 0:
                        break
                if left == 0:
                    break
        except BaseException:
            # A stream that is left ends on any thread, at any time: nobody can wait.
            consumer._thread.close_soon()
            raise
        consumer.close()

    def __repr__(self) -> str:
        return (
            f"<TopicScan of {self.topic}: {self.size:,} offsets of {len(self.bounds)} partitions,"
            f" columns {', '.join(self.columns)}>"
        )

    def _repr_html_(self) -> str:
        """The bounds, in a notebook."""
        heads = ("partition", "start", "end", "offsets")
        rows = [
            (number, f"{start:,}", f"{end:,}", f"{end - start:,}")
            for number, (start, end) in self.bounds.items()
        ]
        return to_table(repr(self).strip("<>"), heads, rows)


class _LossReport:
    """Raises or warns if records are gone. A class, so that scans can be sent to processes."""

    def __init__(self, fails: bool) -> None:
        self._fails = fails

    def __call__(self, detail: str, cause: str = DELETED) -> None:
        text = f"{detail}. {cause}"
        if self._fails:
            raise DataLoss(f"{text}; fail_on_data_loss=False reads what is left")
        logger.warning("%s; reading what is left (fail_on_data_loss=False)", text)


def _client_options(bootstrap_servers: Any, options: Mapping[str, object]) -> dict[str, object]:
    """A consumer's options by their dotted names."""
    given = gather_options("consumer", bootstrap_servers, options)
    client = {name.replace("_", "."): value for name, value in given.items()}
    for name, why in _REFUSED.items():
        if client.get(name) is not None:
            raise UsageError(f"option {name}={shown(client[name])} has no use for read(): {why}")
    return client


def _checked_partitions(topic: str, given: object, count: int) -> list[TopicPartition]:
    if given is None:
        return [TopicPartition(topic, number) for number in range(count)]
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(f"partitions={shown(given)}: give a list of numbers, as in [0, 3]")
    numbers = sorted({checked_integer("partition", number) for number in given})
    if not numbers or numbers[-1] >= count:
        raise UsageError(
            f"partitions={shown(numbers)}: topic {topic} has partitions 0 to {count - 1}; name some"
        )
    return [TopicPartition(topic, number) for number in numbers]


def _parts(ranges: Sequence[OffsetRange], count: int | None) -> Iterator[list[OffsetRange]]:
    """The ranges in the order in which they are read, all at once without a count. With one: the
    first ones that have so many offsets; then, as there may be fewer records, twice as many."""
    if count is None:
        yield list(ranges)
        return
    rest = deque(ranges)
    while rest:
        part, room = [], count
        while rest and room:
            each = rest.popleft()
            stop = min(each.end, each.start + room)
            part.append(each._replace(end=stop))
            room -= stop - each.start
            if stop < each.end:
                rest.appendleft(each._replace(start=stop))
        yield part
        count *= 2
