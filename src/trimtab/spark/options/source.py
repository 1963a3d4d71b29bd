"""The options of `format("trimtab")`: those of Spark's own Kafka source, with the same names.

Options without effect here, such as `kafka.group.id`, are accepted; `warn_of_unused` lists them in
one warning.

Source: `KafkaSourceProvider` of spark-sql-kafka-0-10 (4.2).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.sentinels import EARLIEST, LATEST
from trimtab.spark.options.client import (
    PREFIX,
    SERVERS,
    read_client,
    read_rack,
    refuse_missing_servers,
    refuse_misspelled,
)
from trimtab.spark.options.names import SOURCE
from trimtab.spark.options.values import EVERY_PARTITION, WORDS, GivenOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timestamps:
    """The first offset at or after a time.

    Attributes:
        at: milliseconds since the epoch; one time for all partitions, or one for each.
        or_latest: whether to start at the end of a partition that has no record this late;
            otherwise that is an error. For an ending time, it is always the latest offset.
    """

    at: int | Mapping[TopicPartition, int]
    or_latest: bool


Offsets = Literal["earliest", "latest"] | Mapping[TopicPartition, int] | Timestamps
"""The starting or ending offsets: a word for all partitions, an offset for each, or by time."""


@dataclass(frozen=True)
class SourceOptions:
    """Checked options of a batch query. One of `topics`, `pattern` and `partitions` is set."""

    client: Mapping[str, str]
    """The consumer's options."""
    client_rack: str
    """The rack of the process that reads: a name, `env:VARIABLE`, or empty (`resolve_rack`)."""
    topics: tuple[str, ...]
    pattern: str
    partitions: tuple[TopicPartition, ...]
    starting: Offsets
    ending: Offsets
    min_partitions: int
    """Minimum number of Spark partitions, unless there are fewer offsets; 0: one per partition."""
    max_partitions: int | Literal["auto"]
    """Approximate maximum of Spark partitions, which small ranges then share; 0: none is shared."""
    max_records_per_partition: int
    """At most this many offsets in one Spark partition; 0: no limit."""
    fail_on_data_loss: bool
    poll_timeout_ms: int
    """How long a task may wait for data, milliseconds."""
    offset_attempts: int
    """How often the driver asks for offsets before the read fails."""
    offset_retry_s: float
    """The pause between these attempts, seconds."""
    include_headers: bool
    include_batches: bool
    pushes_filters: bool
    """Whether filters on partition, offset and timestamp narrow the offsets to read."""
    unused: tuple[str, ...]
    """Names of given options without effect."""


@dataclass(frozen=True)
class StreamOptions(SourceOptions):
    """The checked options of a stream, with limits of a micro-batch; 0: no limit."""

    max_offsets_per_trigger: int
    min_offsets_per_trigger: int
    max_trigger_delay_s: float
    """How long a batch may wait for its minimum, seconds."""
    max_bytes_per_trigger: int
    min_bytes_per_trigger: int
    max_bytes_per_partition: int
    """At most about this many bytes in one Spark partition."""
    size_source: Literal["auto", "probe"]
    commit_group: str
    """The consumer group to commit offsets to, for tools that show lag; empty: none."""


_CHOICES = ("subscribe", "subscribePattern", "assign")
_STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_STRATEGY = "startingOffsetsByTimestampStrategy"
_OF_A_STREAM = tuple(
    option._replace(default="latest") if option.name == "startingOffsets" else option
    for option in SOURCE
)
SOURCE_NAMES: Final = tuple(option.name.removeprefix(PREFIX) for option in SOURCE)

_DECIDED_HERE = {
    "auto.offset.reset": "startingOffsets says where to start",
    "key.deserializer": "keys are bytes: cast them in Spark, or use schema_registry.decode",
    "value.deserializer": "values are bytes: cast them in Spark, or use schema_registry.decode",
    "enable.auto.commit": "Spark's source commits no offsets",
    "interceptor.classes": "it may change what is read",
}

_NO_GROUPS_AND_NO_JVM = (
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "auto.include.jmx.reporter",
    "bootstrap.resolve.timeout.ms",
    "enable.metrics.push",
    "exclude.internal.topics",
    "group.",
    "heartbeat.interval.ms",
    "internal.",
    "max.poll.",
    "metadata.cluster.check.enable",
    "metric.reporters",
    "metrics.",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "share.",
)
"""Options of Java's consumer, or how they begin, that do not change which records are read."""

_WORDS: Final[Mapping[str, Literal["earliest", "latest"]]] = {
    "earliest": "earliest",
    "latest": "latest",
}
_OF_A_TABLE = ("provider", "location")
"""Options that Spark adds for CREATE TABLE."""


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """Check the options of `spark.read`.

    Args:
        options: by name in any case (Spark lower-cases the names).

    Raises:
        UsageError: a value out of range, a missing or a contradicting option, or a name that is
            probably misspelled.
    """
    given = GivenOptions(options, SOURCE)
    ending = _read_offsets(given, _ENDING, refused="earliest")
    starting = _read_offsets(given, _STARTING, refused="latest")
    _check_order(starting, ending)
    return SourceOptions(**_read_common(given, "batch"), starting=starting, ending=ending)


def read_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Check the options of `spark.readStream`; like `read_options`.

    Raises:
        UsageError: as `read_options`, or an option for ending offsets.
    """
    given = GivenOptions(options, _OF_A_STREAM)
    for name in _ENDING:
        if name in given:
            raise UsageError(f"option {name} is for batches: a stream has no end")
    size_source: Any = given.word("sizeSource")
    return StreamOptions(
        **_read_common(given, "stream"),
        starting=_read_offsets(given, _STARTING),
        ending="latest",
        max_offsets_per_trigger=given.number("maxOffsetsPerTrigger"),
        min_offsets_per_trigger=given.number("minOffsetsPerTrigger"),
        max_trigger_delay_s=given.seconds("maxTriggerDelay"),
        max_bytes_per_trigger=given.size("maxBytesPerTrigger"),
        min_bytes_per_trigger=given.size("minBytesPerTrigger"),
        max_bytes_per_partition=given.size("maxBytesPerPartition"),
        size_source=size_source,
        commit_group=given.text("commitGroup") or "",
    )


def read_columns(options: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether to read headers, and columns about record batches; for a batch or a stream.

    Spark calls this in a separate process, before it is known whether the query is a stream. So
    only missing options are checked, and the client is not imported.

    Raises:
        UsageError: no topics, no cluster, or the options of a table.
    """
    given = GivenOptions(options, SOURCE)
    _check_required(given)
    return given.flag("includeHeaders"), given.flag("includeBatches")


def is_selected(options: SourceOptions, partition: TopicPartition) -> bool:
    """Whether the options say to read this partition."""
    if options.pattern:
        return re.search(options.pattern, partition.topic) is not None
    return partition.topic in options.topics or partition in options.partitions


def warn_of_unused(options: SourceOptions) -> None:
    """List the given options without effect in one warning."""
    if options.unused:
        logger.warning("options without effect here: %s", ", ".join(options.unused))


def _read_common(given: GivenOptions, kind: Literal["batch", "stream"]) -> dict[str, Any]:
    """The arguments of `SourceOptions` for batches and streams, without start and end."""
    _check_required(given)
    _check_limits(given)
    client, unused = read_client(given, "consumer", _DECIDED_HERE, "here", _NO_GROUPS_AND_NO_JVM)
    unused += _names_without_effect(given, kind)
    client_rack = read_rack(given, client)
    return {
        "client": client,
        "client_rack": client_rack,
        "topics": given.topics("subscribe"),
        "pattern": given.pattern("subscribePattern"),
        "partitions": given.partitions("assign"),
        "min_partitions": given.number("minPartitions"),
        "max_partitions": _read_max_partitions(given),
        "max_records_per_partition": given.number("maxRecordsPerPartition"),
        "fail_on_data_loss": given.flag("failOnDataLoss"),
        "poll_timeout_ms": given.number("kafkaConsumer.pollTimeoutMs"),
        "offset_attempts": given.number("fetchOffset.numRetries"),
        "offset_retry_s": given.number("fetchOffset.retryIntervalMs") / 1000,
        "include_headers": given.flag("includeHeaders"),
        "include_batches": given.flag("includeBatches"),
        "pushes_filters": given.flag("pushdown"),
        "unused": tuple(unused),
    }


def _check_required(given: GivenOptions) -> None:
    """Refuse options that do not say what to read.

    Raises:
        UsageError: no cluster, not exactly one option that selects topics, or options of a table.
    """
    if not given.by_name or any(name in given for name in _OF_A_TABLE):
        raise UsageError(
            "format trimtab cannot be a table of a catalog: Spark passes no options to a Python "
            "data source when it reads such a table. Write CREATE TEMPORARY VIEW name USING "
            "trimtab OPTIONS (...), or spark.read.format('trimtab').options(...)"
        )
    chosen = [name for name in _CHOICES if name in given]
    if len(chosen) != 1:
        raise UsageError(
            f"give exactly one of the options {', '.join(_CHOICES)}, not "
            f"{' and '.join(chosen) or 'none'}"
        )
    if not any(given.text(each) for each in (SERVERS, PREFIX + SERVERS)):
        refuse_missing_servers(given)


def _check_limits(given: GivenOptions) -> None:
    """Refuse a minimum above its maximum; also for batches, as the connector does.

    Raises:
        UsageError: a minimum is above its maximum.
    """
    limits = {
        ("minOffsetsPerTrigger", "maxOffsetsPerTrigger"): given.number,
        ("minBytesPerTrigger", "maxBytesPerTrigger"): given.size,
    }
    for (least, most), read in limits.items():
        if least in given and most in given and read(least) > read(most):
            raise UsageError(
                f"option {least}={given.text(least)} is more than {most}={given.text(most)}"
            )


def _read_max_partitions(given: GivenOptions) -> int | Literal["auto"]:
    """The option `maxPartitions`: a number, "auto", or 0 for `unlimited`.

    Raises:
        UsageError: it is none of these, or less than `minPartitions`.
    """
    name = "maxPartitions"
    word = (given.text(name) or "").lower()
    if word == "auto" or name not in given:
        return "auto"
    if word == "unlimited":
        return 0
    if not word.isdigit():
        raise UsageError(
            f"option {name}={given.text(name)!r}: write auto, unlimited, or a whole number of at "
            "least 1"
        )
    most = given.number(name)
    if given.number("minPartitions") > most:
        raise UsageError(
            f"option minPartitions={given.text('minPartitions')} is more than {name}={most}"
        )
    return most


def _names_without_effect(given: GivenOptions, kind: str) -> list[str]:
    """The given names without the client's prefix that change nothing in a batch or a stream.

    Raises:
        UsageError: an unknown name is probably misspelled.
    """
    known = {name.lower() for name in SOURCE_NAMES}
    unused = []
    for name in given.by_name:
        if not name.startswith(PREFIX) and name not in known:
            refuse_misspelled(name, SOURCE_NAMES)
            unused.append(name)
    return unused + [
        option.name
        for option in SOURCE
        if option.name in given and not (option.honoured and option.applies in ("", kind))
    ]


def _read_offsets(
    given: GivenOptions,
    names: tuple[str, str, str],
    refused: Literal["earliest", "latest"] | None = None,
) -> Offsets:
    """The starting or ending offsets: one time, times by partition, or offsets, in this priority.

    Args:
        names: the names of the three options.
        refused: the word that would make a batch empty: start at the end, or end at the start.
    """
    one_time, times, offsets = names
    or_latest = given.word(_STRATEGY) == "latest"
    at = given.time(one_time)
    if at is not None:
        return Timestamps(at, or_latest)
    if times in given:
        return Timestamps(given.times(times), or_latest)
    text = given.text_or_default(offsets) or ""
    word = text.lower()
    if word == refused:
        raise UsageError(f"option {offsets}={text!r}: a batch would be empty")
    if word in _WORDS:
        return _WORDS[word]
    by_partition = given.offsets(offsets, EARLIEST if refused == "latest" else LATEST)
    nothing = {word: at for at, word in WORDS.items()}.get(refused or "")
    for partition, offset in by_partition.items():
        if offset == nothing:
            which = partition.topic if partition.partition == EVERY_PARTITION else partition
            raise UsageError(
                f"option {offsets}: {offset} ({refused}) for {which}: a batch would be empty"
            )
    return by_partition


def _check_order(starting: Offsets, ending: Offsets) -> None:
    """Refuse a start after its end, if the options alone show it.

    Raises:
        UsageError: with the partition and both values.
    """
    if isinstance(starting, Timestamps) and isinstance(ending, Timestamps):
        names = ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp")
        starts, ends = starting.at, ending.at
    elif isinstance(starting, Mapping) and isinstance(ending, Mapping):
        names = ("startingOffsets", "endingOffsets")
        starts, ends = starting, ending
    else:
        return
    if isinstance(starts, int) or isinstance(ends, int):
        return
    by_topic = {each.topic for each in (*starts, *ends) if each.partition == EVERY_PARTITION}
    starts = {each: at for each, at in starts.items() if each.topic not in by_topic}
    ends = {each: at for each, at in ends.items() if each.topic not in by_topic}
    if starts.keys() != ends.keys():
        only = ", ".join(map(str, sorted(starts.keys() ^ ends.keys())))
        raise UsageError(f"options {names[0]} and {names[1]} must name the same partitions: {only}")
    for partition, start in starts.items():
        if 0 <= ends[partition] < start:
            raise UsageError(
                f"{partition}: {names[0]} {start} is after {names[1]} {ends[partition]}"
            )
