"""How evenly keys spread records over partitions: `trimtab.key_skew` for frames and streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from sys import byteorder
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from pyspark.sql import functions as f

from trimtab.balance.evenness import Evenness, judge_evenness
from trimtab.balance.heavy_hitters_cy import HeavyHitters
from trimtab.client.partitioner.key_spread import MOST_PARTITIONS
from trimtab.client.partitioner.key_spread_cy import count_by_partition, count_heaviest
from trimtab.client.partitioner.murmur2_cy import murmur2_column, partition_for_key
from trimtab.kafka.arguments import checked_integer
from trimtab.kafka.errors import UsageError
from trimtab.spark.load.inputs import in_order, require
from trimtab.spark.read.key_buffers import key_buffers, number_buffer
from trimtab.spark.versions import require_pyspark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_COUNTERS: Final = 1000
_GROUPS: Final = 64
"""Topics and windows that a task counts at a time, as in `key_sketches`."""
_SMALLEST: Final = 0.05
"""Of the mean of all partitions: a key with less is not worth splitting."""
_ROOM: Final = 0.97
"""Of the mean: a partition with no more than this beside hot keys can still get its share."""

_SUMS: Final = ("records", "amount", "squares", "keyless")
_JUDGED: Final = (
    "Rank int, key {}, Share double, TimesMean double, Partition int, IsHot boolean, "
    "Evenness string, Records bigint, NullKeyRecords bigint, Enough bigint"
)


def key_skew(
    records: DataFrame,
    partitions: int,
    worst: float = 1.3,
    weight: str | None = None,
    top: int = 10,
    window: str | None = None,
    watermark: str = "10 minutes",
    confidence: float = 0.995,
) -> DataFrame:
    """How evenly keys would spread records over a topic's partitions; of a batch or a stream.

    The numbers are those of `trimtab.key_skew`. A task keeps the heaviest keys, 1,000 or four for
    each partition, and what each partition would have.

    Args:
        records: with key (string or binary) or keyHash (int, murmur2); if there is a column topic,
            each topic has rows of its own; with a window also timestamp. The records must be a
            random sample of the topic's, or all.
        partitions: of each topic, 1 to 1,000,000.
        worst: the largest share that a partition may have, as a multiple of the mean; above 1.
        weight: to judge by bytes: an expression in SQL, such as "octet_length(value)"; by default
            each record counts 1.
        top: number of keys, of each topic (and window); hot keys are in the table in any case.
        window: as in `partition_load`. Required for a stream, whose table gets a window's rows
            when the watermark has passed its end (output mode append).
        watermark: how late a stream's records may arrive.
        confidence: how sure "even" and "uneven" must be, 0.5 to 1.

    Returns:
        [window,] [topic,] Rank, key (or keyHash), Share (of all keyed records or bytes, 0 to 1; a
        key's is a lower bound), TimesMean (Share x partitions), Partition (where Java's producer
        puts it), IsHot, and about the whole Evenness (even, uneven, unclear), Records (with keys),
        NullKeyRecords, Enough (about how many records decide it). Rank 0 has no key: it is the
        largest partition. Keys are ranked from 1, the heaviest first.

        Hot are, if the topic is uneven, a partition's heaviest keys until the rest of it is within
        97 % of the mean, down to keys of 5 % of it: `trimtab.spark.write.salting.salt` splits them.
        A topic (and window) without keys has no rows.

    Raises:
        UsageError: columns are missing, a number is out of its range, a stream has no window, or
            this PySpark is older than 4.1.
    """
    require_pyspark("load.key_skew", "4.1")
    checked_integer("partitions", partitions, 1, MOST_PARTITIONS)
    checked_integer("top", top)
    if not worst > 1:
        raise UsageError(f"key_skew(worst={worst}): the largest has at least the mean: give 1.3")
    if not 0.5 < confidence < 1:
        raise UsageError(f"key_skew(confidence={confidence}): give a number between 0.5 and 1")
    if records.isStreaming and window is None:
        raise UsageError('key_skew of a stream needs a window, such as window="1 minute"')
    key = "key" if "key" in records.columns else "keyHash"
    require(records, "records", key, *(["timestamp"] if window else []))
    given = records.schema[key].dataType.simpleString()
    if given not in (("string", "binary") if key == "key" else ("int",)):
        raise UsageError(
            f"key_skew: column {key} has type {given}: cast it as your producer's serializer does"
        )
    by_topic = ["topic"] if "topic" in records.columns else []
    kind = "binary" if key == "key" else "int"
    start = f.window("timestamp", window)["start"] if window else f.timestamp_micros(f.lit(0))
    narrow = records.select(
        (f.col("topic") if by_topic else f.lit("")).alias("topic"),
        start.alias("start"),
        f.col(key).cast(kind).alias("key"),
        (f.lit(1) if weight is None else f.expr(weight)).cast("bigint").alias("weight"),
    )
    counted = _in_tasks(kind, partitions)(narrow.asTable())
    if records.isStreaming:
        counted = counted.withWatermark("start", watermark)
    windows: list[Any] = [f.window("start", window)] if window else []
    merged = counted.groupBy(*windows, "topic", "key", "partition").agg(
        *(f.sum(name).alias(name) for name in _SUMS)
    )
    # Two steps, so that what waits for a window's end does not grow with tasks and micro-batches.
    lists = merged.groupBy(*(["window"] if window else []), "topic").agg(
        f.collect_list(f.struct("key", "partition", *_SUMS)).alias("parts")
    )
    judge = _in_column(Judge(partitions, worst, confidence, weight is None, top), kind)
    names = [*(["window"] if window else []), *by_topic]
    table = lists.withColumn("judged", judge("parts")).select(*names, f.inline("judged"))
    typed = table.withColumn("key", f.col("key").cast(given)).withColumnRenamed("key", key)
    return in_order(typed, *names, "Rank")


class SkewCounter:
    """Counts the keys of one task, by topic and window. Its methods have the names of Spark's table
    functions."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._counts: dict[tuple[Any, ...], _Counts] = {}
        self._schema: pa.Schema | None = None

    def eval(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Count records: topic, start, key and weight. Yields the counts for which there is no more
        room.

        Raises:
            UsageError: a weight is negative.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        self._schema = batch.schema
        table = pa.Table.from_batches([batch])
        # Timestamps as numbers: otherwise pyarrow would create a datetime for each.
        table = table.set_column(1, "start", table["start"].cast(pa.int64()))
        groups = table.group_by(["topic", "start"]).aggregate([]).to_pylist()
        for topic, start in (each.values() for each in groups):
            rows = table
            if len(groups) > 1:
                is_of = pc.and_(pc.equal(table["topic"], topic), pc.equal(table["start"], start))
                rows = table.filter(is_of)
            group = (topic, start)
            if group not in self._counts:
                if len(self._counts) >= _GROUPS:
                    oldest = next(iter(self._counts))
                    yield self._counts.pop(oldest).finish(oldest, self._schema)
                self._counts[group] = _Counts(self._partitions)
            keys, weights = rows["key"].combine_chunks(), rows["weight"].combine_chunks()
            self._counts[group].count_keys(keys, pc.fill_null(weights, 0))

    def terminate(self) -> Iterator[pa.RecordBatch]:
        for group, counts in self._counts.items():
            assert self._schema is not None
            yield counts.finish(group, self._schema)


class _Counts:
    """The counts of one topic in one window, in one task."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._amounts = bytearray(8 * partitions)
        self._hitters = HeavyHitters(max(_COUNTERS, 4 * partitions))
        self._records = self._amount = self._keyless = 0
        self._squares = 0.0

    def count_keys(self, keys: pa.Array, weights: pa.Array) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if len(weights) and pc.min(weights).as_py() < 0:
            raise UsageError(f"key_skew: a weight is {pc.min(weights)}: give 0 or more")
        self._keyless += keys.null_count
        weights = pc.if_else(keys.is_null(), 0, weights)
        data, offsets = key_buffers(pc.fill_null(keys, 0 if keys.type == pa.int32() else b""))
        hashes = data if keys.type == pa.int32() else murmur2_column(data, offsets, len(keys))
        weighing = number_buffer(weights, 8)
        count_by_partition(self._amounts, self._partitions, hashes, weighing, len(keys))
        keyed, amount, squares = count_heaviest(self._hitters, data, offsets, weighing, len(keys))
        self._records += keyed
        self._amount += amount
        self._squares += squares

    def finish(self, group: tuple[Any, ...], schema: pa.Schema) -> pa.RecordBatch:
        """A row of the sums, without key and partition; a row for each partition; one for each key
        that is not lighter than what may have been missed of others."""
        import pyarrow as pa

        hitters = list(self._hitters)
        heavy = [(key, each.amount) for key, each in hitters if each.amount >= self._hitters.floor]
        amounts = memoryview(self._amounts).cast("q")
        rows: list[tuple[Any, ...]] = [
            (None, None, self._records, self._amount, self._squares, self._keyless),
            *((None, at, 0, each, 0.0, 0) for at, each in enumerate(amounts) if each),
        ]
        is_hash = schema.field("key").type == pa.int32()
        for key, amount in heavy:
            name = int.from_bytes(key, byteorder, signed=True) if is_hash else key
            rows.append((name, None, 0, amount, 0.0, 0))
        topic, start = (
            pa.repeat(pa.scalar(value, kind), len(rows))
            for value, kind in zip(group, (schema.field("topic").type, pa.int64()), strict=True)
        )
        numbers = (pa.int32(), pa.int64(), pa.int64(), pa.float64(), pa.int64())
        arrays = [topic, start.cast(schema.field("start").type)]
        for values, kind in zip(
            zip(*rows, strict=True), (schema.field("key").type, *numbers), strict=True
        ):
            arrays.append(pa.array(values, kind))
        names = ["topic", "start", "key", "partition", *_SUMS]
        return pa.RecordBatch.from_arrays(arrays, names=names)


class Judge(NamedTuple):
    """From sums to the table's rows; see `key_skew`.

    Attributes:
        is_counted: whether each record counts 1.
    """

    partitions: int
    worst: float
    confidence: float
    is_counted: bool
    top: int

    def judge(self, parts: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        """The rows of one topic (and window).

        Args:
            parts: rows of `_Counts`, added up.
        """
        amounts = [0] * self.partitions
        records = total = keyless = 0
        squares = 0.0
        heavy: list[tuple[int, Any]] = []
        for part in parts:
            if part["key"] is not None:
                heavy.append((part["amount"], part["key"]))
            elif part["partition"] is not None:
                amounts[part["partition"]] = part["amount"]
            else:
                records, total = part["records"], part["amount"]
                squares, keyless = part["squares"], part["keyless"]
        if not total:
            return []
        heavy.sort(key=lambda each: (-each[0], each[1]))
        largest = max(amounts)
        count = records if self.is_counted else total * total / squares
        evenness, enough = judge_evenness(
            largest / total * count, count, self.partitions, self.worst, self.confidence
        )
        if evenness is Evenness.UNCLEAR:  # in records, of which some weigh more than others
            enough = ceil(enough / count * records)
        placed = [self._partition_of(key) for _, key in heavy]
        hot = find_hot(amounts, heavy, placed) if evenness is Evenness.UNEVEN else set()
        whole = (str(evenness), records, keyless, max(records, enough))
        rows = [(0, None, largest, amounts.index(largest), False)]
        for at, (amount, key) in enumerate(heavy):
            if at < self.top or at in hot:
                rows.append((at + 1, key, amount, placed[at], at in hot))
        return [
            (rank, key, amount / total, amount * self.partitions / total, partition, is_hot, *whole)
            for rank, key, amount, partition, is_hot in rows
        ]

    def _partition_of(self, key: Any) -> int:
        if isinstance(key, int):
            return (key & 0x7FFFFFFF) % self.partitions
        return partition_for_key(key, self.partitions)


def find_hot(
    amounts: Sequence[int], heavy: Sequence[tuple[int, Any]], placed: Sequence[int]
) -> set[int]:
    """Which keys to split, by their places in `heavy`: the heaviest of each partition, until the
    rest of it leaves room in the mean, or its keys are light.

    Args:
        amounts: of the partitions.
        heavy: amounts and names of keys, the heaviest first.
        placed: their partitions.
    """
    mean = sum(amounts) / len(amounts)
    rest = list(amounts)
    hot: set[int] = set()
    for at, (amount, _) in enumerate(heavy):
        if amount < _SMALLEST * mean:
            break
        if rest[placed[at]] > _ROOM * mean:
            rest[placed[at]] -= amount
            hot.add(at)
    return hot


def _in_tasks(kind: str, partitions: int) -> Callable[..., DataFrame]:
    """A `SkewCounter` for each task."""

    class Counter(SkewCounter):
        def __init__(self) -> None:
            super().__init__(partitions)

    schema = (
        f"topic string, start timestamp, key {kind}, partition int, records long, amount long, "
        "squares double, keyless long"
    )
    return cast("Callable[..., DataFrame]", f.arrow_udtf(Counter, returnType=schema))


def _in_column(judge: Judge, kind: str) -> Callable[..., Column]:
    """A function of a column with the rows of `_Counts`."""
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import DataType

    made = DataType.fromDDL(f"array<struct<{_JUDGED.format(kind)}>>")
    arrow = to_arrow_type(made)
    names = [field.name for field in arrow.value_type]

    def judge_array(parts: pa.Array) -> pa.Array:
        judged = [judge.judge(each) for each in parts.to_pylist()]
        return pa.array(
            [[dict(zip(names, row, strict=True)) for row in rows] for rows in judged], arrow
        )

    judge_array.__annotations__ = {"parts": pa.Array, "return": pa.Array}
    make: Any = arrow_udf  # its overloads lack types that are structs
    return cast("Callable[..., Column]", make(judge_array, made))
