"""`df.write.format("trimtab")` and `df.writeStream.format("trimtab")`: DataFrames into topics.

    df.selectExpr("to_json(struct(*)) AS value").write.format("trimtab").mode("append")
        .option("kafka.bootstrap.servers", "127.0.0.1:9092").option("topic", "flights").save()

Columns, option names and their meaning are those of Spark's own Kafka sink. Spark hands a task its
rows as Arrow, and the producer encodes them from there (`OpenTable`).

    driver    writer ── pickled ─▶ task    Guarantee.write(rows): TaskRows.send_to(producer)
       ▲                                     │
       └── Guarantee.commit(messages) ◀──────┘ a message per task

Raises, through Spark: UsageError for options and columns that cannot be, TableError for rows that
were not delivered, Unavailable and BrokerError where the cluster cannot be written to.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from trimtab.errors import UsageError
from trimtab.spark.options.sink import SinkOptions, check_columns, read_sink_options
from trimtab.spark.resident import Residents

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from trimtab.client.accumulator.table import TableDelivery
    from trimtab.client.producer import Producer

logger = logging.getLogger(__name__)


class Written(NamedTuple):
    """What a partition took of a task's rows."""

    records: int
    bytes: int
    """Of their record batches before compression."""


Counts: TypeAlias = dict[str, dict[int, Written]]
"""By topic and partition; only partitions that took some."""


class Guarantee(ABC):
    """How often a row is written if tasks or the driver fail: what both do for it.

    The driver makes one with each writer and pickles it; every attempt of a task has a copy. Of a
    stream Spark makes a writer for the tasks of a micro-batch and, in a process that may be
    another, one more for its `commit` or `abort`: only the tasks' messages go from here to there.
    What must be done on the driver before any task begins belongs into `__getstate__`, which is
    called for the tasks alone; but twice, so it must remember that it was done.
    """

    @abstractmethod
    def write(self, rows: TaskRows) -> WriterCommitMessage:
        """In an attempt of a task: send its rows, with whatever goes before and after.

        Once this has returned, every row is where it cannot be lost. If it raises, the attempt has
        failed, and nobody calls anything else for it: Spark repeats the task, or gives the job up.

        Args:
            rows: to be sent or passed over, once.

        Returns: what `commit` on the driver is to know.
        """

    @abstractmethod
    def commit(self, messages: Sequence[WriterCommitMessage], batch_id: int | None) -> None:
        """On the driver, when every task has succeeded: one message of each.

        Spark may call it twice for a micro-batch, with messages of different attempts: if the
        driver ends before Spark has noted the first call. If it raises, `abort` follows at once.

        Args:
            batch_id: of the micro-batch; None if it is no stream.
        """

    @abstractmethod
    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        """On the driver, when the job has failed; not if the driver itself has.

        Args:
            messages: None for each task without one.
            batch_id: as for `commit`.
        """


class TaskRows:
    """The rows of one attempt of a task, in their order.

    Args:
        batches: Spark's; they are read once.
        topic: of all rows; empty: their column `topic` says.
        columns: those to send, from `check_columns`.
    """

    def __init__(
        self, batches: Iterator[pa.RecordBatch], topic: str, columns: Sequence[str]
    ) -> None:
        self._batches: Iterator[pa.RecordBatch] = (each for each in batches if each.num_rows > 0)
        self._topic = topic
        self._roles: dict[str, Any] = {name: name for name in columns if name != "topic"}

    @property
    def is_empty(self) -> bool:
        """Whether there is none; asked before they are sent."""
        first = next(self._batches, None)
        if first is None:
            return True
        self._batches = chain((first,), self._batches)
        return False

    def pass_over(self) -> None:
        """Read them without sending any: Spark wants every row to be taken."""
        for _ in self._batches:
            pass

    def send_to(self, producer: Producer) -> Counts:
        """Send every row, and return when all are acknowledged.

        Raises:
            TableError: rows were not delivered; names the partition and the reason.
            UsageError, BrokerError, Unavailable: as `Producer.send_table`.
        """
        from trimtab.client.producer import OpenTable

        tables: dict[str, OpenTable] = {}
        for batch in self._batches:
            for topic, rows in self._divide(batch):
                try:
                    if topic not in tables:
                        tables[topic] = OpenTable(producer, topic, self._roles)
                    tables[topic].send(rows)
                except UsageError as error:
                    error.add_note("a producer's option NAME is Spark's option kafka.NAME")
                    raise
                tables[topic].raise_failed()
        deliveries = [table.end() for table in tables.values()]
        producer.flush()
        return {each.topic: _count(each) for each in deliveries}

    def _divide(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of each topic; their order within a topic stays."""
        if self._topic:
            yield self._topic, batch
            return
        encoded = batch.column("topic").dictionary_encode()
        if encoded.null_count > 0:
            first = encoded.is_null().index(True).as_py()
            raise UsageError(
                f"{encoded.null_count} rows have a null topic, the first in row {first} of an Arrow"
                " batch: fill the column topic, or give the option topic, which holds for all rows"
            )
        topics = encoded.dictionary.to_pylist()
        if len(topics) > 1:
            import pyarrow.compute as pc

            batch = batch.take(pc.sort_indices(encoded.indices))  # a stable sort
        ends = _ends(encoded.indices, len(topics))
        begin = 0
        for topic, end in zip(topics, ends, strict=True):
            yield topic, batch.slice(begin, end - begin)
            begin = end


@dataclass
class Acknowledged(WriterCommitMessage):
    """What a task wrote, all of it acknowledged."""

    counts: Counts


class AtLeastOnce(Guarantee):
    """A row is written once for every attempt that came to it, and one attempt has succeeded.

    As Spark's own Kafka sink: nothing is to be done when a job ends, and what a failed attempt has
    sent stays.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, rows: TaskRows) -> Acknowledged:
        if rows.is_empty:
            return Acknowledged({})
        from trimtab.client.producer import Producer

        client = self._options.client_here()
        with _producers.borrow(frozenset(client.items()), lambda: Producer(client)) as producer:
            return Acknowledged(rows.send_to(producer))

    def commit(self, messages: Sequence[WriterCommitMessage], batch_id: int | None) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        written = [
            each
            for message in messages
            if isinstance(message, Acknowledged)
            for partitions in message.counts.values()
            for each in partitions.values()
        ]
        logger.info(
            "%s%d records of %d bytes were written by %d tasks",
            "" if batch_id is None else f"batch {batch_id}: ",
            sum(each.records for each in written),
            sum(each.bytes for each in written),
            len(messages),
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        logger.warning(
            "%sthe write has failed; what its tasks have sent so far stays in the topics, and is"
            " there twice once it is repeated (delivery=at_least_once)",
            "" if batch_id is None else f"batch {batch_id}: ",
        )


class TopicWriter(DataSourceArrowWriter):
    """Writes a DataFrame; tasks have copies of it."""

    def __init__(self, guarantee: Guarantee, topic: str, columns: Sequence[str]) -> None:
        self._guarantee = guarantee
        self._topic = topic
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._guarantee.write(TaskRows(iterator, self._topic, self._columns))

    def commit(self, messages: Sequence[Any]) -> None:
        self._guarantee.commit(messages, None)

    def abort(self, messages: Sequence[Any]) -> None:
        self._guarantee.abort(messages, None)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream; tasks have copies of it."""

    def __init__(self, guarantee: Guarantee, topic: str, columns: Sequence[str]) -> None:
        self._guarantee = guarantee
        self._topic = topic
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._guarantee.write(TaskRows(iterator, self._topic, self._columns))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        self._guarantee.commit(messages, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        self._guarantee.abort(messages, batchId)


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicWriter:
    """The writer of `df.write`.

    Raises:
        UsageError: options or columns that cannot be; or `overwrite`.
    """
    if overwrite:
        raise UsageError(
            "mode('overwrite') cannot be: a write adds records to a topic and replaces none; use"
            " mode('append'), to a new topic if the old records are not to stay"
        )
    checked = read_sink_options(options)
    return TopicWriter(
        _guarantee(checked, is_stream=False), checked.topic, _columns(schema, checked)
    )


def make_stream_writer(options: Mapping[str, str], schema: StructType) -> TopicStreamWriter:
    """The writer of `df.writeStream`; in the output mode `complete` a micro-batch is the whole
    result, appended.

    Raises:
        UsageError: options or columns that cannot be.
    """
    checked = read_sink_options(options)
    return TopicStreamWriter(
        _guarantee(checked, is_stream=True), checked.topic, _columns(schema, checked)
    )


def _guarantee(options: SinkOptions, is_stream: bool) -> Guarantee:
    """What the option `delivery` asks for."""
    if options.delivery == "exactly_once":
        from trimtab.spark.write.exact_sink import ExactlyOnce

        return ExactlyOnce(options, is_stream)
    return AtLeastOnce(options)


def _columns(schema: StructType, options: SinkOptions) -> tuple[str, ...]:
    return check_columns(
        [(field.name, field.dataType.simpleString()) for field in schema.fields], options.topic
    )


def _ends(indices: pa.Array, count: int) -> list[int]:
    """Where the rows of each of `count` topics end, once they are sorted."""
    import pyarrow.compute as pc

    if count == 1:
        return [len(indices)]
    found = pc.value_counts(indices)
    rows = dict(
        zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True)
    )
    ends, end = [], 0
    for index in range(count):
        end += rows[index]
        ends.append(end)
    return ends


def _count(delivery: TableDelivery) -> dict[int, Written]:
    """What each partition took; raises the error of rows that were not delivered."""
    partitions = delivery.result().partitions
    return {number: Written(taken.records, taken.bytes) for number, taken in partitions.items()}


def _close(producer: Producer) -> None:
    """Close one that nobody uses, or that failed: then what it has not sent is not to be sent."""
    producer.close(0)


_producers: Residents[Producer] = Residents(_close)
