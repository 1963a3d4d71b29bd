"""The keys with the most records: a sketch in each task, merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql import Window
from pyspark.sql import functions as f

from trimtab.balance.heavy_hitters_cy import HeavyHitters
from trimtab.kafka.errors import UsageError
from trimtab.spark.load.inputs import in_order, ratio, require, window_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_GROUPS: Final = 64
"""Number of topics and windows that a task counts at a time. If there are more, it outputs the
oldest sketch; if its topic and window occur again, a new one starts. All are merged at the end."""

_NUMBERS: Final = "Records long, Bytes long, Missed long, Partition int"


def key_sketches(
    records: DataFrame,
    counters: int = 1000,
    window: str | None = None,
    watermark: str = "10 minutes",
) -> DataFrame:
    """Counts of keys that may be hot, for `hot_keys`; of a batch or a stream.

    A task keeps at most `counters` keys for each topic and window in memory.

    Args:
        records: with the columns of `KEYS`, or with `keyHash` instead of `key`.
        counters: number of keys that a task keeps for each topic (and window). A key with more
            than 1 / `counters` of a task's records is always kept.
        window: as in `partition_load`. Required for a stream.
        watermark: how late a stream's records may arrive.

    Returns:
        [window,] topic, key (or keyHash), Records, Bytes (of keys and values; lower bounds),
        Missed, Partition (the highest with the key). A topic's row with a null key has the sums of
        all its records and bytes; its `Missed` is the maximum number of records of any key that
        were not counted. A key's own `Missed`, 0 or less, corrects that number for the key.

    Raises:
        UsageError: columns are missing, `counters` is below 1, or `window` is missing for a stream.
    """
    if counters < 1:
        raise UsageError(f"key_sketches(counters={counters}): it must be 1 or more")
    if records.isStreaming and window is None:
        raise UsageError('key_sketches of a stream needs a window, such as window="1 minute"')
    key = "key" if "key" in records.columns else "keyHash"
    require(records, "records", "topic", "partition", "timestamp", key, "keyBytes", "valueBytes")
    length = f.expr("cast(coalesce(keyBytes, 0) + coalesce(valueBytes, 0) as bigint)")
    if window is None:
        start = f.lit(None).cast("timestamp")
    else:
        start = f.window("timestamp", window)["start"]
    narrow = records.select(
        "topic", start.alias("start"), f.col(key), "partition", length.alias("bytes")
    )
    kind = records.schema[key].dataType.simpleString()
    sketched = _in_tasks(key, kind, counters)(narrow.asTable())
    if window is None:
        groups: list[Any] = ["topic", key]
    else:
        if records.isStreaming:
            sketched = sketched.withWatermark("start", watermark)
        groups = [f.window("start", window), "topic", key]
    return sketched.groupBy(*groups).agg(
        *(f.sum(name).alias(name) for name in ("Records", "Bytes", "Missed")),
        f.max("Partition").alias("Partition"),
    )


def hot_keys(sketches: DataFrame, top: int = 20) -> DataFrame:
    """The keys with the most records of each topic (and window).

    Args:
        sketches: what `key_sketches` returns; for a stream, the table that it has written.
        top: number of keys.

    Returns:
        [window,] topic, Rank (from 1), key (or keyHash), Partition, Records (lower bound),
        MostRecords (upper bound), Bytes (lower bound), ShareOfRecords (of the topic's, 0 to 1).
    """
    key = "key" if "key" in sketches.columns else "keyHash"
    require(sketches, "sketches", "topic", key, "Records", "Bytes", "Missed", "Partition")
    window = window_of(sketches)
    # Window functions instead of a join with the totals, which would read the topics twice.
    each = Window.partitionBy(*window, "topic")
    is_total = f.isnull(key)
    ranked = sketches.withColumns(
        {
            "all": f.max(f.when(is_total, f.col("Records"))).over(each),
            "floor": f.max(f.when(is_total, f.col("Missed"))).over(each),
            # The row with the totals has the last rank.
            "Rank": f.row_number().over(
                each.orderBy(is_total, f.desc("Records"), f.asc(key)),
            ),
        }
    )
    table = ranked.filter(f.isnotnull(key) & (f.col("Rank") <= top))
    return in_order(
        table.select(
            *window,
            "topic",
            "Rank",
            key,
            "Partition",
            "Records",
            (f.col("Records") + f.col("floor") + f.col("Missed")).alias("MostRecords"),
            "Bytes",
            ratio("Records", "all").alias("ShareOfRecords"),
        ),
        *window,
        "topic",
        "Rank",
    )


class KeySketcher:
    """Counts the keys of one task; its rows are those of `key_sketches` before they are merged.

    Its methods have the names of Spark's table functions.

    Args:
        key: the name of the column to count by.
        counters: keys kept of each topic and window.
    """

    def __init__(self, key: str, counters: int) -> None:
        self._key = key
        self._counters = counters
        self._sketches: dict[tuple[Any, ...], _Sketch] = {}
        self._schema: pa.Schema | None = None

    def eval(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Count records: topic, start, the key, partition and bytes.

        Yields the sketches for which there is no more room.
        """
        sketches = self._sketches
        self._schema = schema = self._schema or _sketch_schema(batch.schema, self._key)
        for topic, start, key, *counted in _count(batch, self._key):
            group = (topic, start)
            sketch = sketches.get(group)
            if sketch is None:
                if len(sketches) >= _GROUPS:
                    oldest = next(iter(sketches))
                    yield sketches.pop(oldest).finish(oldest, schema)
                sketch = sketches[group] = _Sketch(self._counters)
            sketch.count_key(key, *counted)

    def terminate(self) -> Iterator[pa.RecordBatch]:
        for group, sketch in self._sketches.items():
            assert self._schema is not None
            yield sketch.finish(group, self._schema)


def _in_tasks(key: str, kind: str, counters: int) -> Callable[..., DataFrame]:
    """A `KeySketcher` for each task. (`mapInArrow` would need pandas.)"""

    class Sketch(KeySketcher):
        def __init__(self) -> None:
            super().__init__(key, counters)

    schema = f"topic string, start timestamp, {key} {kind}, {_NUMBERS}"
    return cast("Callable[..., DataFrame]", f.arrow_udtf(Sketch, returnType=schema))


class _Sketch:
    """The counts of one topic's keys in one window, in one task."""

    def __init__(self, counters: int) -> None:
        self._hitters = HeavyHitters(counters)
        self._records = self._bytes = 0

    def count_key(self, key: Any, records: int, octets: int, partition: int) -> None:
        self._records += records
        self._bytes += octets
        if key is not None:
            self._hitters.count_key(key, records, octets, partition)

    def finish(self, group: tuple[Any, ...], schema: pa.Schema) -> pa.RecordBatch:
        import pyarrow as pa

        hitters = list(self._hitters)
        floor = self._hitters.floor
        rows: list[tuple[Any, ...]] = [
            (*group, key, hitter.amount, hitter.bytes, hitter.missed - floor, hitter.partition)
            for key, hitter in hitters
        ]
        rows.append((*group, None, self._records, self._bytes, floor, None))
        arrays = [
            pa.array(values, pa.int64()).cast(field.type)
            if field.name == "start"
            else pa.array(values, field.type)
            for values, field in zip(zip(*rows, strict=True), schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _count(batch: pa.RecordBatch, key: str) -> Iterator[tuple[Any, ...]]:
    """Topic, start, key, records, bytes and highest partition of each key of a batch."""
    import pyarrow as pa

    names = ["topic", "start", key]
    counted = (
        pa.Table.from_batches([batch])
        .group_by(names)
        .aggregate([("bytes", "count"), ("bytes", "sum"), ("partition", "max")])
    )
    # Timestamps as numbers: otherwise pyarrow would create a datetime for each.
    start = counted.column("start").cast(pa.int64())
    columns = [
        counted.column("topic"),
        start,
        *(counted.column(name) for name in (key, "bytes_count", "bytes_sum", "partition_max")),
    ]
    return zip(*(column.to_pylist() for column in columns), strict=True)


def _sketch_schema(given: pa.Schema, key: str) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            *(given.field(name) for name in ("topic", "start", key)),
            *(pa.field(name, pa.int64()) for name in ("Records", "Bytes", "Missed")),
            pa.field("Partition", pa.int32()),
        ]
    )
