"""`df.write.format("trimtab")`: DataFrames into topics; `stream_sink` has the same for streams.

    df.selectExpr("to_json(struct(*)) AS value").write.format("trimtab").mode("append")
        .option("kafka.bootstrap.servers", "127.0.0.1:9092").option("topic", "flights").save()

Columns, option names and their meaning are those of Spark's own Kafka sink. Spark hands a task its
rows as Arrow, and the producer encodes them from there (`OpenTable`).

    driver    writer ── pickled ─▶ task    Guarantee.write(rows): TaskRows.send_to(producer)
       ▲                                     │
       └── Guarantee.commit(messages) ◀──────┘ a message per task

Raises, through Spark: UsageError for invalid options and columns, TableError for rows that were not
delivered, Unavailable and BrokerError if the cluster cannot be written to.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from trimtab.kafka.errors import KafkaError, UsageError
from trimtab.spark.options.sink import SinkOptions, check_columns, read_sink_options
from trimtab.spark.resident import Residents

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from trimtab.client.accumulator.table import TableDelivery
    from trimtab.client.blocking.producer import OpenTable, Producer

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 2.0
"""How long a task waits for a partition that its topic lacks: it may have been added just now, but
Spark repeats the task."""


class Written(NamedTuple):
    """A task's rows that one partition stored."""

    records: int
    bytes: int
    """Bytes of their record batches before compression."""


Counts: TypeAlias = dict[str, dict[int, Written]]
"""By topic and partition; without partitions that stored no rows."""


class Guarantee(ABC):
    """A delivery guarantee: the tasks' and the driver's side of it.

    The driver creates one with each writer and pickles it; every attempt of a task has a copy. For
    a stream Spark creates one writer for the tasks of a micro-batch and one, possibly in another
    process, for its `commit` or `abort`: only the tasks' messages pass from one to the other. Work
    that the driver must do before any task begins belongs in `__getstate__`, which is called only
    for tasks; but Spark calls it twice, so it must not repeat the work.
    """

    @abstractmethod
    def write(self, rows: TaskRows) -> WriterCommitMessage:
        """Send a task's rows; called in each attempt of the task.

        When this returns, no row can be lost any more. If it raises, the attempt has failed, and no
        other method is called for it: Spark repeats the task, or fails the job.

        Args:
            rows: must be sent or skipped once.

        Returns: the task's message to `commit` on the driver.
        """

    @abstractmethod
    def commit(self, messages: Sequence[WriterCommitMessage], batch_id: int | None) -> None:
        """Called on the driver when every task has succeeded, with a message from each.

        Spark calls it twice for a micro-batch, with messages of different attempts, if the driver
        ends before Spark has recorded the first call. If it raises, `abort` follows at once.

        Args:
            batch_id: the number of the micro-batch; None if the write is not a stream.
        """

    @abstractmethod
    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        """Called on the driver when the job has failed, but not if the driver has ended.

        Args:
            messages: None for each task that has sent none.
            batch_id: as for `commit`.
        """


class TaskRows:
    """The rows of one attempt of a task, in their order.

    Args:
        batches: Spark's Arrow batches; can be read only once.
        topic: the topic of all rows; if empty, the column `topic` has each row's.
        columns: the columns to send, from `check_columns`.
    """

    def __init__(
        self, batches: Iterator[pa.RecordBatch], topic: str, columns: Sequence[str]
    ) -> None:
        self._batches: Iterator[pa.RecordBatch] = (each for each in batches if each.num_rows > 0)
        self._topic = topic
        self._roles: dict[str, Any] = {name: name for name in columns if name != "topic"}
        self._tables: dict[str, OpenTable] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows; valid until they are sent."""
        first = next(self._batches, None)
        if first is None:
            return True
        self._batches = chain((first,), self._batches)
        return False

    def skip(self) -> None:
        """Read all rows without sending any: Spark expects a task to read every row."""
        for _ in self._batches:
            pass

    def send_to(self, producer: Producer) -> Counts:
        """Send every row; returns when all are acknowledged.

        Raises:
            TableError: rows were not delivered; names the partition and the reason.
            UsageError, BrokerError, Unavailable: as `Producer.send_table`.
        """
        from trimtab.client.blocking.producer import OpenTable

        tables = self._tables
        for batch in self._batches:
            for topic, rows in self._divide(batch):
                try:
                    if topic not in tables:
                        tables[topic] = OpenTable(producer, topic, self._roles, _PATIENCE_SECONDS)
                    tables[topic].send(rows)
                except UsageError as error:
                    error.add_note("in Spark, the producer's option NAME is called kafka.NAME")
                    raise
                tables[topic].raise_failed()
        deliveries = [table.end_table() for table in tables.values()]
        producer.flush()
        return {each.topic: _count(each) for each in deliveries}

    @property
    def stored(self) -> int:
        """How many rows are acknowledged so far."""
        return sum(each.stored for each in self._tables.values())

    def _divide(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Each topic with its rows, which keep their order."""
        if self._topic:
            yield self._topic, batch
            return
        encoded = batch.column("topic").dictionary_encode()
        if encoded.null_count > 0:
            first = encoded.is_null().index(True).as_py()
            raise UsageError(
                f"{encoded.null_count} rows have a null topic, the first in row {first} of an Arrow"
                " batch: fill the column topic, or set the option topic, which applies to all rows"
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
    """A task's message to the driver: the acknowledged rows."""

    counts: Counts


class AtLeastOnce(Guarantee):
    """Writes a row again in each attempt of its task, until one attempt has succeeded.

    Like Spark's own Kafka sink: rows that a failed attempt has sent stay in the topic, and there is
    nothing to do when a job ends.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, rows: TaskRows) -> Acknowledged:
        if rows.is_empty:
            return Acknowledged({})
        from trimtab.client.blocking.producer import Producer

        client = self._options.client_here()
        with _producers.borrow(client, Producer) as producer:
            try:
                return Acknowledged(rows.send_to(producer))
            except KafkaError as error:
                if stored := rows.stored:
                    error.add_note(
                        f"{stored} rows of this task are stored: if Spark repeats it, they are"
                        " written again (delivery=at_least_once)"
                    )
                raise

    def commit(self, messages: Sequence[WriterCommitMessage], batch_id: int | None) -> None:
        if logger.isEnabledFor(logging.INFO):
            written = _add_up(messages)
            logger.info(
                "%s%d records of %d bytes were written by %d tasks",
                "" if batch_id is None else f"batch {batch_id}: ",
                *written,
                len(messages),
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        written = _add_up(messages)
        if written.records:  # a failed task's error says what that task has stored
            logger.warning(
                "%sthe write has failed; the %d records of tasks that succeeded stay in the topics,"
                " and a repeat of the write duplicates them (delivery=at_least_once)",
                "" if batch_id is None else f"batch {batch_id}: ",
                written.records,
            )


class TaskWriter:
    """What both writers do in a task, which has a copy of them.

    Raises:
        UsageError: invalid options or columns.
    """

    is_stream = False

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        checked = read_sink_options(options)
        self._guarantee: Guarantee = AtLeastOnce(checked)
        if checked.delivery == "exactly_once":
            from trimtab.spark.write.exact_sink import ExactlyOnce

            self._guarantee = ExactlyOnce(checked, self.is_stream)
        self._topic = checked.topic
        types = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        self._columns = check_columns(types, checked.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._guarantee.write(TaskRows(iterator, self._topic, self._columns))


class TopicWriter(TaskWriter, DataSourceArrowWriter):
    """Writes a DataFrame."""

    def commit(self, messages: Sequence[Any]) -> None:
        self._guarantee.commit(messages, None)

    def abort(self, messages: Sequence[Any]) -> None:
        self._guarantee.abort(messages, None)


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicWriter:
    """The writer of `df.write`.

    Raises:
        UsageError: invalid options or columns; or `overwrite`.
    """
    if overwrite:
        raise UsageError(
            "mode('overwrite') is not supported, because a write adds records to a topic and"
            " replaces none: use mode('append'), with a new topic to leave out the old records"
        )
    return TopicWriter(options, schema)


def _ends(indices: pa.Array, count: int) -> list[int]:
    """The end index of each topic's rows among the rows sorted by topic."""
    import pyarrow.compute as pc

    if count == 1:
        return [len(indices)]
    found = pc.value_counts(indices)
    rows = dict(
        zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True)
    )
    return list(accumulate(rows[index] for index in range(count)))


def _count(delivery: TableDelivery) -> dict[int, Written]:
    """The rows that each partition stored; raises the error of rows that were not delivered."""
    partitions = delivery.result().partitions
    return {number: Written(taken.records, taken.bytes) for number, taken in partitions.items()}


def _add_up(messages: Sequence[WriterCommitMessage | None]) -> Written:
    """What all tasks have written that sent a message."""
    written = [
        each
        for message in messages
        if isinstance(message, Acknowledged)
        for partitions in message.counts.values()
        for each in partitions.values()
    ]
    return Written(sum(each.records for each in written), sum(each.bytes for each in written))


def _close(producer: Producer) -> None:
    """Close an idle producer, or one that failed, whose unsent records are dropped."""
    producer.close(0)


_producers: Residents[Producer] = Residents(_close)
