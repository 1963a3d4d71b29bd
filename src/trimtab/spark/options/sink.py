"""The options of `df.write.format("trimtab")` and `df.writeStream.format("trimtab")`, and the
columns of a record: those of Spark's own Kafka sink, with the same names.

Source: `KafkaSourceProvider.kafkaParamsForProducer` and `KafkaWriter` of spark-sql-kafka-0-10.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from trimtab.kafka.errors import UsageError
from trimtab.spark.options.client import PREFIX, read_client, read_rack, resolve_rack
from trimtab.spark.options.names import SINK
from trimtab.spark.options.source import SOURCE_NAMES
from trimtab.spark.options.values import GivenOptions

logger = logging.getLogger(__name__)

COLUMNS: Final = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""The columns that are written, each with its types in Spark SQL: those of Spark's Kafka sink, and
`timestamp`, which Spark 4.2's sink does not write."""

DEFAULTS: Final = {
    "client.id": "trimtab-spark",
    "batch.size": str(128 * 1024),
    "linger.ms": "1000",
}
"""The producer's defaults for tasks, which write many rows; `kafka.NAME` changes them.

A task ends with a flush, which sends every batch at once, so lingering delays no task. Spark hands
over 10,000 rows at a time, some 20 ms apart. If they go to 10,000 partitions, a partition gets one
row each time, and with a short `linger.ms` nearly every row would be a record batch of its own.
"""

_OF_EXACTLY_ONCE = ("sinkId", "decisionTopic", "recoverBatch", "batchId")
_NAMES = tuple(option.name.removeprefix(PREFIX) for option in SINK)

_OF_SPARK = (
    "checkpointLocation",
    "queryName",
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
)
"""Options that Spark reads itself and passes on."""

_COLUMNS_OF_THE_SOURCE = ("offset", "timestampType")
"""Columns of the source that the log sets: they are ignored without a warning."""

_DECIDED_HERE = {
    "key.serializer": "a key is bytes or text: cast it in Spark",
    "value.serializer": "a value is bytes or text: cast it in Spark",
    "transactional.id": "tasks that shared one would end each other's transactions: leave it out",
    "interceptor.classes": "it may change what is written: do that in Spark",
}

_WITHOUT_EFFECT = frozenset(
    {
        *("auto.include.jmx.reporter", "enable.metrics.push", "metric.reporters"),
        *("metrics.recording.level", "key.deserializer", "value.deserializer"),
    }
)
"""Options of Kafka's clients that do not affect the written records."""

_FIXES = {
    "headers": "build it as array(struct(name AS key, bytes AS value))",
    "partition": "CAST(partition AS INT)",
    "timestamp": "CAST(timestamp AS TIMESTAMP)",
    "topic": "CAST(topic AS STRING)",
}


@dataclass(frozen=True)
class SinkOptions:
    """The checked options of a write."""

    client: Mapping[str, str]
    """The producer's options, including defaults, without `client.rack`."""
    topic: str
    """The topic of all rows; empty: the column `topic` has each row's."""
    client_rack: str
    """The rack of all executors, or `env:NAME` for each executor's environment variable; may be
    empty."""
    delivery: str
    """`at_least_once` or `exactly_once`."""
    spark: Mapping[str, str]
    """Spark's own options of a stream, such as `checkpointlocation`, by lower-case name."""
    exact: Mapping[str, str] = field(default_factory=dict)
    """The given options of `delivery=exactly_once`, in their usual spelling."""

    def client_here(self) -> dict[str, str]:
        """The producer's options on this executor.

        Raises:
            UsageError: the variable that `clientRack` names is not set here.
        """
        if not self.client_rack:
            return dict(self.client)
        return {**self.client, "client.rack": resolve_rack(self.client_rack)}


def read_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check what a user gave `df.write.options` or `df.writeStream.options`.

    Args:
        options: by name in any case (Spark lower-cases the names).

    Raises:
        UsageError: an unknown name, a value out of range, a missing or a contradicting option.
    """
    given = GivenOptions(options, SINK)
    client, unused = read_client(given, "producer", _DECIDED_HERE, "for a write", _WITHOUT_EFFECT)
    unused += [name for each in given.by_name for name in _check_name(each)]
    client = DEFAULTS | client
    rack = read_rack(given, client)
    if rack:  # has no effect without this option
        client.setdefault("partitioner.rack.aware", "true")
    delivery = given.word("delivery")
    exact = {name: given.text(name) or "" for name in _OF_EXACTLY_ONCE if name in given}
    checked = {**client, "client.rack": rack} if rack else client
    if delivery == "exactly_once":
        checked = {**checked, "transactional.id": "each task's own"}
    elif exact:
        raise UsageError(
            f"option {next(iter(exact))} applies to exactly-once writes only: set"
            " delivery=exactly_once, or leave it out"
        )
    _check_client(checked)
    topic = given.text("topic")
    if topic == "":
        raise UsageError("option topic is empty: name the topic, or leave the option out")
    _warn_once(unused, "options without effect in a write: %s")
    return SinkOptions(
        client=client,
        topic=topic or "",
        client_rack=rack,
        delivery=delivery,
        spark={name.lower(): given.by_name[name.lower()] for name in _OF_SPARK if name in given},
        exact=exact,
    )


def check_columns(schema: Iterable[tuple[str, str]], topic: str) -> tuple[str, ...]:
    """The columns to write, in the order of `COLUMNS`; others are ignored, with a warning.

    Args:
        schema: the DataFrame's columns and their types in Spark SQL.
        topic: the option; if it is set, the column `topic` is ignored.

    Raises:
        UsageError: a column is missing, occurs twice, or has a wrong type.
    """
    types: dict[str, str] = {}
    for name, kind in schema:
        if name in types and name in COLUMNS:
            raise UsageError(f"there are two columns {name}: drop or rename one")
        types[name] = kind
    if topic:
        types.pop("topic", None)
    for name in COLUMNS:
        kind = types.get(name, "")
        if kind and kind not in COLUMNS[name]:
            raise UsageError(
                f"column {name} has type {kind}, but must be {' or '.join(COLUMNS[name])}: "
                f"{_fix(name, kind)}"
            )
    if "value" not in types:
        raise UsageError(
            f"the column value is missing{_nearest_column('value', types)}: name what to write, as"
            " in df.selectExpr('to_json(struct(*)) AS value')"
        )
    if not topic and "topic" not in types:
        raise UsageError(
            f"no topic: give the option topic, or a column topic{_nearest_column('topic', types)}"
        )
    others = [name for name in types if name not in COLUMNS and name not in _COLUMNS_OF_THE_SOURCE]
    _warn_once(
        others,
        "columns that are not part of a record are not written: %s; to write them, use"
        " to_json(struct(…)) AS value",
    )
    return tuple(name for name in COLUMNS if name in types)


def _fix(name: str, kind: str) -> str:
    if name in _FIXES:
        return _FIXES[name]
    if kind.startswith(("struct", "array", "map")):
        return f"to_json({name}) or to_avro({name})"
    return f"CAST({name} AS STRING)"


def _nearest_column(name: str, types: Mapping[str, str]) -> str:
    lowered = {each.lower(): each for each in types if each not in COLUMNS}
    nearest = difflib.get_close_matches(name, lowered, n=1)
    return f" (is it {lowered[nearest[0]]}? rename that)" if nearest else ""


def _check_name(name: str) -> list[str]:
    """A list with the option's name if a write ignores it, otherwise an empty list.

    Raises:
        UsageError: it is probably misspelled.
    """
    if name.startswith(PREFIX) or any(name == each.lower() for each in (*_NAMES, *_OF_SPARK)):
        return []
    for source_name in SOURCE_NAMES:  # a job may give its reads and writes the same options
        if name == source_name.lower():
            return [source_name]
    known = {each.lower(): each for each in (*_NAMES, *(PREFIX + each for each in _NAMES))}
    nearest = difflib.get_close_matches(name, known, n=1)
    if nearest:
        raise UsageError(f"unknown option {name} of a write: did you mean {known[nearest[0]]}?")
    return [name]


def _check_client(client: Mapping[str, str]) -> None:
    """Refuse on the driver the options that the producer would refuse in every task.

    Raises:
        UsageError: a value is out of range, or options contradict each other.
    """
    from trimtab.client.options import producer_options

    producer_options(client, {})


_warned: set[tuple[str, ...]] = set()
"""Warnings already logged: Spark creates a new writer for every micro-batch."""


def _warn_once(names: Sequence[str], text: str) -> None:
    if names and (text, *names) not in _warned:
        _warned.add((text, *names))
        logger.warning(text, ", ".join(names))
