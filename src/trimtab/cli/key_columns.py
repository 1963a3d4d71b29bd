"""Keys of a file or a topic, a batch of columns at a time, for `trimtab skew`."""

from __future__ import annotations

import argparse
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from trimtab.cli.options import read_client_options
from trimtab.cli.reach import report_unreachable
from trimtab.cli.selection import choose_partitions, connect
from trimtab.client.optional import import_pyarrow
from trimtab.client.partitioner.key_spread import KeySpread
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

_ROWS_AT_ONCE: Final = 131_072
FORMATS: Final = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_BETWEEN: Final = "|"
"""Between the texts of the columns of a key."""
_PATIENCE_MS: Final = 10_000


def read_file(path: Path, texts: Sequence[str]) -> Any:
    """The columns of a file, or of a directory of Parquet files such as a table of Spark: a
    `pyarrow.dataset.Dataset`.

    Args:
        texts: columns whose values are taken as they are written, such as 007 and times.

    Raises:
        UsageError: it cannot be read, or pyarrow is not installed.
    """
    pyarrow = import_pyarrow("trimtab skew")
    from pyarrow import csv, dataset

    form = "parquet" if path.is_dir() else FORMATS.get(path.suffix.lower())
    if form is None:
        raise UsageError(f"{path}: name it {', '.join('*' + each for each in FORMATS)}")
    kind: Any = form
    if form == "csv":
        types = dict.fromkeys(texts, pyarrow.string())
        kind = dataset.CsvFileFormat(convert_options=csv.ConvertOptions(column_types=types))
    try:
        read = dataset.dataset(path, format=kind, partitioning="hive")
        if form == "json":
            read = dataset.dataset(path, format=form, schema=_keep_times(read.schema, texts))
    except (OSError, pyarrow.ArrowException) as error:
        raise UsageError(f"{path}: cannot be read as {form}: {error}") from error
    return read


def _keep_times(schema: Any, texts: Sequence[str]) -> Any:
    """The schema in which texts that look like times are texts."""
    pyarrow = import_pyarrow("trimtab skew")
    return pyarrow.schema(
        [
            each.with_type(pyarrow.string())
            if each.name in texts and pyarrow.types.is_timestamp(each.type)
            else each
            for each in schema
        ]
    )


def scan(dataset: Any, columns: Sequence[str], path: Path) -> Iterator[Any]:
    """The record batches of a file. Memory is bounded.

    Raises:
        UsageError: it lacks a column, or is damaged.
    """
    pyarrow = import_pyarrow("trimtab skew")
    for name in columns:
        if name not in dataset.schema.names:
            raise UsageError(f"{path}: no column {name}; it has {', '.join(dataset.schema.names)}")
    try:
        yield from dataset.to_batches(
            columns=list(columns),
            batch_size=_ROWS_AT_ONCE,
            batch_readahead=2,
            fragment_readahead=1,
        )
    except (OSError, pyarrow.ArrowException) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error


def read_topic(arguments: argparse.Namespace, most: int) -> tuple[int, Iterator[Any]]:
    """A topic's number of partitions, and its newest records: key, value and size in bytes.

    Args:
        most: records at most, of each partition the same newest part.
    """
    pyarrow = import_pyarrow("trimtab skew")
    from trimtab.client.blocking.consumer import Consumer

    topic = arguments.source
    with connect(arguments) as admin:
        partitions = choose_partitions(admin, topic, None)
        ends = {at: each.offset for at, each in admin.list_offsets(partitions).items()}
        starts = {
            at: each.offset for at, each in admin.list_offsets(partitions, at="earliest").items()
        }
    held = sum(ends[each] - starts[each] for each in partitions)
    share = min(1.0, most / held) if held else 0.0
    wanted = {
        each: (ends[each] - round((ends[each] - starts[each]) * share), ends[each])
        for each in partitions
        if ends[each] > starts[each]
    }

    def batches() -> Iterator[Any]:
        options = read_client_options(arguments, "consumer")
        options.pop("group.id", None)
        with report_unreachable(options), Consumer(**options) as consumer:
            consumer.assign(list(wanted))
            for partition, (start, _) in wanted.items():
                consumer.seek(partition, start)
            open_ones = {each for each, (start, end) in wanted.items() if start < end}
            while open_ones:
                table = consumer.arrow(
                    timeout_ms=_PATIENCE_MS, columns=["key", "value", "partition", "offset"]
                )
                behind = {each for each in open_ones if consumer.position(each) < wanted[each][1]}
                if not table.num_rows and behind == open_ones:
                    raise UsageError(
                        f"{topic}: nothing arrived for {_PATIENCE_MS // 1000} s, but "
                        f"{len(behind)} of its partitions have more records; see trimtab topics "
                        "--describe --unavailable-partitions"
                    )
                for each in open_ones - behind:
                    consumer.pause(each)
                open_ones = behind
                yield from _cut(table, wanted, topic, pyarrow)

    return len(partitions), batches()


def _cut(table: Any, wanted: dict[TopicPartition, tuple[int, int]], topic: str, pa: Any) -> Any:
    """Keys, values and sizes of the records before the wanted ends."""
    compute = pa.compute
    ends = [0] * (max(each.partition for each in wanted) + 1)
    for each, (_, end) in wanted.items():
        ends[each.partition] = end
    table = table.filter(
        compute.less(table["offset"], pa.array(ends, pa.int64()).take(table["partition"]))
    )
    sizes = [compute.fill_null(compute.binary_length(table[name]), 0) for name in ("key", "value")]
    table = table.select(["key", "value"]).append_column(
        "bytes", compute.add(sizes[0], sizes[1]).cast(pa.int64())
    )
    return table.to_batches()


def parse_values(batch: Any, names: Sequence[str], fields: set[str], topic: str) -> Any:
    """A batch of a topic with fields of its values, which are JSON objects, as columns; null where
    a value lacks a field.

    Args:
        fields: those of the values are added.

    Raises:
        UsageError: the values are no JSON objects.
    """
    pyarrow = import_pyarrow("trimtab skew")
    wanted = [name for name in names if name not in batch.schema.names]
    if not wanted or not batch.num_rows:
        return batch
    read = _read_json(batch, wanted)
    if read is None:
        raise UsageError(
            f"{topic}: there is no column {wanted[0]}: values are not JSON objects, each on a line "
            f"of its own; a topic has {', '.join(batch.schema.names)}"
        )
    fields.update(read.schema.names)
    for name in wanted:
        if name in read.schema.names:
            column = read[name].combine_chunks()
        else:
            column = pyarrow.nulls(batch.num_rows, pyarrow.string())
        batch = batch.append_column(name, column)
    return batch


def add_fields(batch: Any) -> Any:
    """A batch of a topic with all fields of its values, if these are JSON objects."""
    read = _read_json(batch, ())
    for name in [] if read is None else read.schema.names:
        if name not in batch.schema.names:
            batch = batch.append_column(name, read[name].combine_chunks())
    return batch


def _read_json(batch: Any, texts: Sequence[str]) -> Any:
    """The fields of values; None if they are not JSON objects, each on one line."""
    pyarrow = import_pyarrow("trimtab skew")
    from pyarrow import json

    lines = b"\n".join(each.as_py() or b"{}" for each in batch["value"])
    options = json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    try:
        read = json.read_json(pyarrow.BufferReader(lines), read_options=options)
        if (kept := _keep_times(read.schema, texts)) != read.schema:
            parsed = json.ParseOptions(explicit_schema=kept)
            read = json.read_json(pyarrow.BufferReader(lines), options, parsed)
    except pyarrow.ArrowInvalid:
        return None
    return read if read.num_rows == batch.num_rows else None


def is_key(kind: Any) -> bool:
    """Whether values of this type are tried as keys."""
    types = import_pyarrow("trimtab skew").types
    return any(
        check(kind)
        for check in (
            types.is_integer,
            types.is_string,
            types.is_large_string,
            types.is_date,
        )
    )


def count_batch(
    spread: KeySpread, batch: Any, key: Sequence[str], form: str, weight: str | None
) -> None:
    """Count the keys of a batch.

    Args:
        key: the columns that make the key; of several the texts with | between them.
        form: "text", "int" or "long": how a number becomes bytes.
        weight: the column with the records' weights; None for 1 each.

    Raises:
        UsageError: a column has a type that cannot be a key or a weight.
    """
    pa = import_pyarrow("trimtab skew")
    keys = _make_keys([batch[name] for name in key], key, form)
    if weight is None:
        weights = pa.repeat(pa.scalar(1, pa.int64()), len(keys))
    else:
        weights = _cast(batch[weight], pa.int64(), weight, "a weight")
        weights = pa.compute.fill_null(weights, 0)
        if len(weights) and pa.compute.min(weights).as_py() < 0:
            raise UsageError(f"column {weight} has negative weights: give sizes")
    without = keys.null_count
    if without:
        weights = pa.compute.if_else(keys.is_null(), 0, weights)
        keys = pa.compute.fill_null(keys, b"")
    data, offsets = _buffers(keys)
    spread.count_column(data, offsets, _octets(weights, 8), without)


def _make_keys(columns: Sequence[Any], names: Sequence[str], form: str) -> Any:
    """The keys as bytes."""
    pa = import_pyarrow("trimtab skew")
    kinds = {"int": (pa.int32(), "i"), "long": (pa.int64(), "q")}
    if form in kinds:
        kind, code = kinds[form]
        column = _cast(columns[0], kind, names[0], f"a key of --key-format {form}")
        numbers = array(code, column.fill_null(0).to_pylist())
        numbers.byteswap()  # Kafka's serializers write the highest byte first
        size = numbers.itemsize
        ends = array("i", range(0, size * (len(numbers) + 1), size))
        made = pa.Array.from_buffers(
            pa.binary(), len(numbers), [None, pa.py_buffer(ends), pa.py_buffer(numbers)]
        )
        return pa.compute.if_else(column.is_null(), None, made) if column.null_count else made
    if len(columns) == 1 and (
        pa.types.is_binary(columns[0].type) or pa.types.is_large_binary(columns[0].type)
    ):
        return columns[0].cast(pa.binary())
    texts = [
        _cast(each, pa.string(), name, "a key") for each, name in zip(columns, names, strict=True)
    ]
    if len(texts) > 1:
        return pa.compute.binary_join_element_wise(*texts, _BETWEEN).cast(pa.binary())
    return texts[0].cast(pa.binary())


def _cast(column: Any, kind: Any, name: str, what: str) -> Any:
    pa = import_pyarrow("trimtab skew")
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise UsageError(
            f"column {name} has type {column.type}, and cannot be {what}: {error}"
        ) from error


def _buffers(keys: Any) -> tuple[bytearray, bytearray]:
    """The bytes of the keys, and int32 where each begins and the last one ends."""
    pa = import_pyarrow("trimtab skew")
    _, bounds, octets = keys.buffers()
    if not len(keys):
        return bytearray(), bytearray(4)
    offsets = pa.Array.from_buffers(pa.int32(), len(keys) + 1, [None, bounds], offset=keys.offset)
    first, last = offsets[0].as_py(), offsets[len(keys)].as_py()
    data = bytearray(memoryview(octets)[first:last]) if octets is not None else bytearray()
    return data, _octets(pa.compute.subtract(offsets, pa.scalar(first, pa.int32())), 4)


def _octets(numbers: Any, width: int) -> bytearray:
    """The memory of a column of numbers without nulls."""
    start = numbers.offset * width
    return bytearray(memoryview(numbers.buffers()[1])[start : start + len(numbers) * width])
