"""Say whether keys spread records evenly over a topic's partitions.

Reads the keys of a file: Parquet, CSV, JSON lines, or a directory of Parquet files, such as a table
of Spark. If there is no such file, it reads the newest records of a topic; there, --key is "key" or
a field of values that are JSON.

The exit code is 0 if the keys are even, 1 if they are uneven, and 3 if there are too few records to
tell. If they are uneven, the other columns are tried as keys, alone and together with the key.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from trimtab.balance.evenness import Evenness
from trimtab.cli.key_columns import (
    FORMATS,
    add_fields,
    count_batch,
    is_key,
    parse_values,
    read_file,
    read_topic,
    scan,
)
from trimtab.cli.options import add_client_options, add_options, positive
from trimtab.cli.results import print_result
from trimtab.client.partitioner.key_spread import (
    MOST_PARTITIONS,
    HeavyKey,
    KeyPartitioner,
    KeySkew,
    KeySpread,
    key_text,
)
from trimtab.kafka.errors import UsageError

EXAMPLES = """\
  trimtab skew orders.parquet --key country --partitions 48
  trimtab skew orders.csv --key user --partitions 48 --worst 1.3 --weight bytes
  trimtab skew orders --bootstrap-server kafka:9092
  trimtab skew orders --key user --partitions 96 --json
"""

UNCLEAR: Final = 3
_CODES: Final = {Evenness.EVEN: 0, Evenness.UNEVEN: 1, Evenness.UNCLEAR: UNCLEAR}
_OTHERS: Final = 8
"""Other columns that are tried as keys, at most."""
_OTHER_ROWS: Final = 1_000_000
_OTHER_BYTES: Final = 64 * 1024 * 1024
"""What is kept of a topic for them."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FILE|TOPIC", help="where the keys are")
    options = {
        "--key COLUMN,…": "the column that is the key; several are joined with | as text "
        "(default for a topic: key)",
        "--partitions N>0": "of the topic (default for a topic: its own number)",
        "--worst RATIO=1.3": "what the largest partition may have, as a multiple of the mean",
        "--weight COLUMN": "weigh records by this column; bytes is the size of a topic's record "
        "(default: each record counts 1)",
        "--partitioner NAME=murmur2": "murmur2 (Java, trimtab), consistent (librdkafka's default), "
        "or a function of yours: module:function, which gets key and partitions",
        "--key-format {text,int,long}=text": "how a number becomes a key: as text, or as Kafka's "
        "IntegerSerializer or LongSerializer writes it",
        "--also N>0 *": "show another number of partitions, too; may be repeated (default: a "
        "quarter, half, two and four times --partitions)",
        "--confidence SHARE=0.995": "how sure the answer must be, 0.5 to 1",
        "--max-records N>0=1000000": "of a topic, read this many of the newest records at most",
        "--json": "print one JSON object",
    }
    numbers = {"--worst": float, "--confidence": float}
    add_options(parser, options, types={**numbers, "--also": positive})
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    source = KeySource(arguments)
    partitions = arguments.partitions or source.partitions
    if partitions is None:
        raise UsageError("--partitions is missing: how many has the topic?")
    if not source.key:
        raise UsageError(f"--key is missing: which column? There are {', '.join(source.names)}")
    if len(source.key) > 1 and arguments.key_format != "text":
        raise UsageError(f"--key-format {arguments.key_format} is for a key of one column")
    usual = (partitions // 4, partitions // 2, 2 * partitions, 4 * partitions)
    tried = arguments.also or [each for each in usual if 1 <= each <= MOST_PARTITIONS]
    partitioner = read_partitioner(arguments.partitioner)
    spread = KeySpread(partitions, tried, partitioner, arguments.weight is None)
    for batch in source.read([*source.key, *source.weight]):
        count_batch(spread, batch, source.key, arguments.key_format, arguments.weight)
    skew = spread.judge(arguments.worst, arguments.confidence)
    others: dict[str, float] = {}
    if skew.evenness is Evenness.UNEVEN:
        others = _try_others(source, partitions, partitioner, arguments)
    print_result(arguments, describe(skew, others), write_text(skew, others))
    return _CODES[skew.evenness]


class KeySource:
    """A file, or a topic.

    Attributes:
        key, weight: the columns to read.
        names: all columns.
        never: those that are not tried as keys.
        partitions: of the topic; None for a file.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._path = Path(arguments.source)
        self._topic: Iterator[Any] | None = None
        self._kept: list[Any] = []
        self.partitions: int | None = None
        self.never: Sequence[str] = ()
        self.key = [] if arguments.key is None else arguments.key.split(",")
        self.weight = [] if arguments.weight is None else [arguments.weight]
        if self._path.exists():
            texts = self.key if arguments.key_format == "text" else []
            self._dataset = read_file(self._path, texts)
            self.names: Sequence[str] = self._dataset.schema.names
        elif self._path.suffix.lower() in FORMATS or "/" in arguments.source:
            raise UsageError(f"{arguments.source}: there is no such file")
        else:
            self.partitions, self._topic = read_topic(arguments, arguments.max_records)
            self.names = ("key", "value", "bytes")
            self.never = ("value", "bytes")
            self.key = self.key or ["key"]

    def read(self, columns: Sequence[str]) -> Iterator[Any]:
        """The batches with these columns."""
        if self._topic is None:
            yield from scan(self._dataset, [*dict.fromkeys(columns)], self._path)
            return
        topic, fields = str(self._path), set(self.names)
        for batch in self._topic:
            if sum(each.nbytes for each in self._kept) < _OTHER_BYTES:
                self._kept.append(batch)
            yield parse_values(batch, columns, fields, topic)
        for name in columns:
            if self._kept and name not in fields:
                found = ", ".join(sorted(fields.difference(self.names)))
                raise UsageError(f"{topic}: values have no field {name}; they have {found}")

    def read_others(self) -> Iterator[Any]:
        """The first rows once more, with all columns."""
        if self._topic is None:
            batches = scan(self._dataset, self.names, self._path)
        else:
            batches = iter([add_fields(batch) for batch in self._kept])
        left = _OTHER_ROWS
        for batch in batches:
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return


def read_partitioner(name: str) -> str | KeyPartitioner:
    """One that trimtab knows, or a function that `module:function` names.

    Raises:
        UsageError: there is no such function.
    """
    module, colon, function = name.partition(":")
    if not colon:
        return name
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"--partitioner {name}: {error}; PYTHONPATH=. finds modules of this directory"
        ) from error
    if not callable(found):
        raise UsageError(f"--partitioner {name}: it is no function of a key and partitions")
    partitioner: KeyPartitioner = found
    return partitioner


def _try_others(
    source: KeySource,
    partitions: int,
    partitioner: str | KeyPartitioner,
    arguments: argparse.Namespace,
) -> dict[str, float]:
    """The largest partition's multiple of the mean with other keys, the best first."""
    spreads: dict[tuple[str, ...], KeySpread] = {}
    for batch in source.read_others():
        if not spreads:
            columns = [
                field.name
                for field in batch.schema
                if is_key(field.type)
                and field.name not in (*source.key, *source.weight, *source.never)
            ][:_OTHERS]
            keys = [(name,) for name in columns] + [(*source.key, name) for name in columns]
            spreads = {key: KeySpread(partitions, (), partitioner) for key in keys}
        for key in list(spreads):
            if not set(key).issubset(batch.schema.names):  # fields that these values lack
                continue
            try:
                count_batch(spreads[key], batch, key, "text", None)
            except UsageError:  # a key of bytes cannot be joined as text
                del spreads[key]
    ratios = {
        ",".join(key): spread.judge(arguments.worst, arguments.confidence).ratio
        for key, spread in spreads.items()
        if spread.records
    }
    return dict(sorted(ratios.items(), key=lambda item: item[1]))


def describe(skew: KeySkew, others: dict[str, float]) -> dict[str, Any]:
    """What is found, for JSON. Keys that are no text are hexadecimal, with 0x before them."""

    def show(keys: Sequence[HeavyKey]) -> list[dict[str, Any]]:
        return [{**asdict(each), "key": key_text(each.key)} for each in keys]

    return {
        **asdict(skew),
        "heaviest": show(skew.heaviest),
        "blamed": show(skew.blamed),
        "most_partitions": skew.most_partitions,
        "other_keys": others,
    }


def write_text(skew: KeySkew, others: dict[str, float]) -> str:
    """What is found, for people."""
    lines = [str(skew)]
    if others:
        lines.append("with other keys, of the first records:")
        lines += [f"  {key}: {ratio:.2f}" for key, ratio in others.items()]
    return "\n".join(lines)
