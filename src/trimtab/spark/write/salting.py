"""Splits hot keys over several partitions: `salt` before the sink, `unsalt` behind the source.

    rows ─▶ salt: partition, header trimtab.split ─▶ sink ═▶ topic ═▶ source ─▶ unsalt ─▶ rows

Rows look like those of a producer that splits keys (`trimtab.client.partitioner.split_records`).
Only keys and sizes go through Python; headers are built and taken apart in the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

from pyspark.sql import functions as f

from trimtab.client.partitioner.key_spread import MOST_PARTITIONS, show_key
from trimtab.client.partitioner.key_spread_cy import count_by_partition
from trimtab.client.partitioner.murmur2_cy import murmur2, murmur2_column
from trimtab.client.partitioner.split_records import (
    SPLIT_HEADER,
    candidates,
    choices,
    write_split,
)
from trimtab.kafka.arguments import checked_integer
from trimtab.kafka.errors import UsageError
from trimtab.spark.read.key_buffers import key_buffers, number_buffer
from trimtab.spark.versions import require_pyspark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

Shares: TypeAlias = "Mapping[str, float] | Mapping[bytes, float] | DataFrame"

_TASK: Final = "__trimtab_task"
_DEALT: Final = "__trimtab_dealt"

# As `read_split` checks it; Spark compares bytes as unsigned numbers.
_IS_MARK: Final = (
    f"coalesce(header.key = '{SPLIT_HEADER}' AND octet_length(header.value) = 20 AND concat("
    "X'00000000', substring(header.value, 17, 4)) <= substring(header.value, 9, 8), false)"
)
_MARK: Final = f"try_element_at(filter(headers, header -> {_IS_MARK}), -1).value"
_OTHERS: Final = f"filter(headers, header -> NOT {_IS_MARK})"


def salt(frame: DataFrame, partitions: int, shares: Shares) -> DataFrame:
    """Splits hot keys for the sink, as a producer with `partitioner.hot.keys` does; of a batch or
    a stream.

        salt(frame, 48, {"us": 0.6}).write.format("trimtab")…

    A row of a hot key goes to the least loaded of the key's candidates: its own partition, and
    others that its hash gives, `2 + ceil(4 x share x partitions)` at most. The load is that of the
    task's rows with keys, hot or not, in bytes of keys and values. All other rows are left to the
    sink.

    A task of Spark numbers its rows of a hot key from 0. Their header has the number and a sender,
    which stands for the key, the task's partition, and the stage of Spark's job:

    - Within a partition of Spark, `unsalt` restores the order of each key. Between two of them, and
      between two micro-batches, there is none, as without `salt`.
    - A sender's first row goes to the key's own partition.
    - A sender occurs in one micro-batch, or one write. A stream that starts again has new senders,
      also in a micro-batch that it repeats.
    - A repeated task has the senders and numbers of its first attempt. They are of the same rows
      only if Spark repeats their order, as from topics and files. Behind a shuffle it does not:
      there call `sortWithinPartitions` with columns that order all rows before `salt`, or a reader
      that drops repeated numbers may drop a row.
    - A salted frame that is cached, or shuffled and reused by Spark, and written twice, has the
      same senders twice.

    Args:
        frame: rows of one topic, as for the sink: key and value (string or binary), if need be
            headers; not yet a partition.
        partitions: of the topic, 1 to 1,000,000.
        shares: of hot keys: each key's share of the topic's bytes, above 0, 1 at most. Or the table
            of `trimtab.spark.load.key_skew` of one topic, whose hot keys are collected now; of
            several windows, the largest share counts.

    Returns:
        The frame with partition (int; null if the key is not hot) and headers; marks of an earlier
        split are replaced.

    Raises:
        UsageError: columns are missing or there are too many of them, a number is out of its range,
            `shares` is a stream, has several topics or hashes in place of keys, or this PySpark is
            older than 4.1.
    """
    require_pyspark("salt", "4.1")
    checked_integer("partitions", partitions, 1, MOST_PARTITIONS)
    _require("salt", frame, "key", "value")
    if "partition" in frame.columns:
        raise UsageError(
            "salt: the frame has a column partition, and the sink would put rows there: leave it "
            "out with frame.drop('partition')"
        )
    hot = {
        key: candidates(murmur2(key), partitions, choices(share, partitions))
        for key, share in _read_shares(shares).items()
    }
    size = "CAST(octet_length(key) + coalesce(octet_length(value), 0) AS bigint)"
    deal: Any = _in_tasks(partitions, hot)
    if "headers" not in frame.columns:
        none = f.lit(None).cast("array<struct<key:string,value:binary>>")
        frame = frame.withColumn("headers", none)
    # The number of the partition comes from below the function: inside it, tasks of coalesce() see
    # several partitions as one.
    dealt = frame.withColumn(_TASK, f.spark_partition_id()).withColumn(
        _DEALT, deal(f.col("key").cast("binary"), f.expr(size), f.col(_TASK))
    )
    others = f.expr(_OTHERS)
    mark = f.struct(f.lit(SPLIT_HEADER).alias("key"), f.col(_DEALT)["mark"].alias("value"))
    marked = f.concat(f.coalesce(others, f.array()), f.array(mark))
    return dealt.withColumns(
        {
            "headers": f.when(f.isnull(f.col(_DEALT)["mark"]), others).otherwise(marked),
            "partition": f.col(_DEALT)["partition"],
        }
    ).drop(_TASK, _DEALT)


def unsalt(frame: DataFrame) -> DataFrame:
    """Takes the marks of split keys from headers into columns; of a batch or a stream.

        rows = unsalt(reader.option("includeHeaders", True).load())
        order = Window.partitionBy("key", "split_sender").orderBy("split_number")

    For rows of producers that split keys, and of `salt`. Rows that were written twice (at least
    once) have the same sender and number.

    Args:
        frame: with a column headers.

    Returns:
        The frame without these headers (null if there are no others), with `split_sender` (8 bytes)
        and `split_number` (bigint, 0 for a sender's first row of the key); both are null if a row
        was not split.

    Raises:
        UsageError: there is no column headers.
    """
    _require("unsalt", frame, "headers")
    others = f.when(f.isnull(_DEALT), f.col("headers")).when(f.size("headers") > 1, f.expr(_OTHERS))
    number = f"try_cast(conv(hex(substring({_DEALT}, 9, 8)), 16, 10) AS bigint)"
    return (
        frame.withColumn(_DEALT, f.expr(_MARK))
        .withColumns(
            {
                "headers": f.nullif(others, f.array()),
                "split_sender": f.expr(f"substring({_DEALT}, 1, 8)"),
                "split_number": f.expr(number),
            }
        )
        .drop(_DEALT)
    )


class KeyDealer:
    """Deals the rows of hot keys in one task.

    Args:
        partitions: of the topic.
        hot: the candidates of each hot key, its own partition first.
        task: what the senders are made from, with the keys.
    """

    def __init__(self, partitions: int, hot: Mapping[bytes, Sequence[int]], task: bytes) -> None:
        import pyarrow as pa

        self._partitions = partitions
        self._names = pa.array(hot, pa.binary())
        self._candidates = list(hot.values())
        self._task = task
        self._loads = bytearray(8 * partitions)
        self._numbers = [0] * len(hot)
        self._senders: dict[int, int] = {}

    def deal_rows(self, keys: pa.Array, sizes: pa.Array) -> pa.StructArray:
        """The partition and the mark of each row, in the order of the rows; null if not hot.

        Args:
            keys: binary.
            sizes: bytes of each row, int64; null without a key.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pc.index_in(keys, value_set=self._names)
        is_hot = pc.is_valid(found)
        others = pc.if_else(pc.or_(is_hot, keys.is_null()), 0, sizes)
        data, offsets = key_buffers(pc.fill_null(keys, b""))
        hashes = murmur2_column(data, offsets, len(keys))
        weights = number_buffer(others, 8)
        count_by_partition(self._loads, self._partitions, hashes, weights, len(keys))
        rows: dict[int, list[int]] = {}
        for at, key in enumerate(found.drop_null().to_pylist()):
            rows.setdefault(key, []).append(at)
        hot_sizes = sizes.filter(is_hot).to_pylist()
        chosen = [0] * len(hot_sizes)
        marks = [b""] * len(hot_sizes)
        # Keys that have more candidates level out what those with few have made.
        for key in sorted(rows, key=lambda each: len(self._candidates[each])):
            self._deal_key(key, rows[key], hot_sizes, chosen, marks)
        return pa.StructArray.from_arrays(
            [
                pc.replace_with_mask(pa.nulls(len(keys), each.type), is_hot, each)
                for each in (pa.array(chosen, pa.int32()), pa.array(marks, pa.binary()))
            ],
            ["partition", "mark"],
        )

    def _deal_key(
        self, key: int, rows: list[int], sizes: list[int], chosen: list[int], marks: list[bytes]
    ) -> None:
        loads = memoryview(self._loads).cast("q")
        number = self._numbers[key]
        if not number:
            name = self._names[key].as_py()
            digest = blake2b(name, digest_size=8, key=self._task).digest()
            self._senders[key] = int.from_bytes(digest)
        sender = self._senders[key]
        own = self._candidates[key][0]
        if not number:  # goes to its own partition, whose load the others then see
            loads[own] += sizes[rows[0]]
        left = rows[1:] if not number else rows
        rooms = iter(_find_rooms(loads, self._candidates[key], sum(sizes[at] for at in left)))
        partition, room = next(rooms)
        for at in rows:
            size = sizes[at]
            if not number:
                chosen[at] = own
            else:
                while 2 * room < size and (following := next(rooms, None)) is not None:
                    partition, room = following[0], following[1] + min(room, 0)
                room -= size
                loads[partition] += size
                chosen[at] = partition
            marks[at] = write_split(sender, number, number)
            number += 1
        self._numbers[key] = number


def _find_rooms(
    loads: Sequence[int] | memoryview, numbers: Sequence[int], amount: int
) -> list[tuple[int, float]]:
    """How much of an amount each partition gets, so that the least loaded ones become equal; at
    least one of them, the least loaded first."""
    ranked = sorted(numbers, key=loads.__getitem__)
    taken, level = 0, 0.0
    filled = amount
    for number in ranked:
        if taken and loads[number] >= level:
            break
        filled += loads[number]
        taken += 1
        level = filled / taken
    return [(number, level - loads[number]) for number in ranked[:taken]]


def _in_tasks(partitions: int, hot: Mapping[bytes, Sequence[int]]) -> Callable[..., Column]:
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf

    run = uuid4().bytes

    def deal(columns: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        dealer: KeyDealer | None = None
        for keys, sizes, tasks in columns:
            if dealer is None:
                # Stages are numbered within an application, of which `run` is one's.
                task = b"%d %d" % (context.stageId(), tasks[0].as_py() if len(tasks) else 0)
                dealer = KeyDealer(partitions, hot, run + task)
            yield dealer.deal_rows(keys.cast(pa.binary()), sizes)

    # Spark reads types from here, and not from the texts that annotations are in this file.
    deal.__annotations__ = {
        "columns": Iterator[tuple[pa.Array, ...]],
        "return": Iterator[pa.Array],
    }
    make: Any = arrow_udf  # its overloads lack types that are structs
    made: Any = make(deal, "partition int, mark binary")
    applied: Callable[..., Column] = made.asNondeterministic()
    return applied


def _read_shares(shares: Shares) -> dict[bytes, float]:
    """Of each hot key, as bytes."""
    given: Any = shares.items() if isinstance(shares, Mapping) else _collect_hot(shares)
    read: dict[bytes, float] = {}
    for key, share in given:
        if not isinstance(key, (str, bytes, bytearray)):
            raise UsageError(f"salt(shares={{{key!r}: …}}): give keys as bytes or text")
        octets = key.encode() if isinstance(key, str) else bytes(key)
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise UsageError(
                f"salt: the share of key {show_key(octets)} is {share!r}: give its part of the "
                "topic's bytes, above 0, 1 at most"
            )
        read[octets] = max(share, read.get(octets, 0))
    return read


def _collect_hot(table: DataFrame) -> list[tuple[Any, float]]:
    if "keyHash" in table.columns:
        raise UsageError(
            "salt: shares has hashes in place of keys: compute key_skew from a frame with key"
        )
    _require("salt: shares", table, "key", "Share", "IsHot")
    if table.isStreaming:
        raise UsageError("salt: shares is a stream: write it, and give what was written")
    columns = ["key", "Share", *(["topic"] if "topic" in table.columns else [])]
    rows = table.filter("IsHot").select(*columns).collect()
    topics = sorted({row["topic"] for row in rows if "topic" in columns})
    if len(topics) > 1:
        raise UsageError(
            f"salt: shares has the topics {', '.join(topics)}: filter those of the one to write"
        )
    return [(row["key"], row["Share"]) for row in rows]


def _require(what: str, frame: DataFrame, *columns: str) -> None:
    for name in columns:
        if name not in frame.columns:
            fix = "read with option includeHeaders" if name == "headers" else "add or rename one"
            raise UsageError(f"{what} has no column {name}, but {', '.join(frame.columns)}: {fix}")
