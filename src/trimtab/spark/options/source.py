"""The options of `format("trimtab")`: those of Spark's own Kafka source, with the same names.

Options without effect here, such as `kafka.group.id`, are accepted; `warn_of_unused` lists them in
one warning.

Source: `KafkaSourceProvider` of spark-sql-kafka-0-10 (4.2).
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from trimtab.errors import UsageError
from trimtab.records import TopicPartition
from trimtab.spark.options.names import SOURCE
from trimtab.spark.options.values import GivenOptions
from trimtab.wire.sentinels import EARLIEST, LATEST

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


_PREFIX = "kafka."
_BOOTSTRAP_SERVERS = "bootstrap.servers"
_CHOICES = ("subscribe", "subscribePattern", "assign")
_STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_STRATEGY = "startingOffsetsByTimestampStrategy"
_STREAM_ONLY = tuple(option.name for option in SOURCE if option.applies == "stream")
_BATCH_ONLY = ("pushdown",)
_NO_EFFECT = ("groupIdPrefix",)
SOURCE_NAMES: Final = tuple(option.name.removeprefix(_PREFIX) for option in SOURCE)

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
_SECURITY = ("sasl.", "security.", "ssl.")
_SLIP = 0.85
"""Minimum similarity (difflib) of an unknown name to a known one to count as misspelled."""


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """Check the options of `spark.read`.

    Args:
        options: by name in any case (Spark lower-cases the names).

    Raises:
        UsageError: a value out of range, a missing or a contradicting option, or a name that is
            probably misspelled.
    """
    given = GivenOptions(options)
    ending = _read_offsets(given, _ENDING, "latest", refused="earliest")
    starting = _read_offsets(given, _STARTING, "earliest", refused="latest")
    _check_order(starting, ending)
    return SourceOptions(
        **_read_common(given, without_effect=_STREAM_ONLY), starting=starting, ending=ending
    )


def read_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Check the options of `spark.readStream`; like `read_options`.

    Raises:
        UsageError: as `read_options`, or an option for ending offsets.
    """
    given = GivenOptions(options)
    for name in _ENDING:
        if name in given:
            raise UsageError(f"option {name} is for batches: a stream has no end")
    size_source: Any = given.word("sizeSource", ("auto", "probe"))
    return StreamOptions(
        **_read_common(given, without_effect=_BATCH_ONLY),
        starting=_read_offsets(given, _STARTING, "latest"),
        ending="latest",
        max_offsets_per_trigger=given.number("maxOffsetsPerTrigger", 0),
        min_offsets_per_trigger=given.number("minOffsetsPerTrigger", 0),
        max_trigger_delay_s=given.seconds("maxTriggerDelay", 15 * 60.0),
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
    given = GivenOptions(options)
    _check_required(given)
    return (
        given.flag("includeHeaders", default=False),
        given.flag("includeBatches", default=False),
    )


def warn_of_unused(options: SourceOptions) -> None:
    """List the given options without effect in one warning."""
    if options.unused:
        logger.warning("options without effect here: %s", ", ".join(options.unused))


def resolve_rack(client_rack: str) -> str:
    """The rack that the option `clientRack` gives for this process.

    Args:
        client_rack: a rack, or `env:NAME` for the value of an environment variable.

    Raises:
        UsageError: the variable is not set.
    """
    if not client_rack.startswith("env:"):
        return client_rack
    name = client_rack.removeprefix("env:")
    rack = os.environ.get(name, "").strip()
    if not rack:
        raise UsageError(
            f"option clientRack={client_rack!r}: this process has no environment variable {name};"
            f" set it for executors, for instance as spark.executorEnv.{name}"
        )
    return rack


def _read_common(given: GivenOptions, without_effect: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of `SourceOptions` for batches and streams, without start and end."""
    _check_required(given)
    _check_limits(given)
    client, unused = _read_client(given)
    client_rack = given.text("clientRack") or ""
    if client_rack and client.get("client.rack", client_rack) != client_rack:
        raise UsageError(
            f"options clientRack={client_rack!r} and kafka.client.rack="
            f"{client['client.rack']!r} contradict each other: give one of them"
        )
    if client_rack == "env:":
        raise UsageError("option clientRack='env:' names no environment variable: write env:NAME")
    client_rack = client_rack or client.pop("client.rack", "")
    client.pop("client.rack", None)
    unused += [name for name in (*without_effect, *_NO_EFFECT) if name in given]
    return {
        "client": client,
        "client_rack": client_rack,
        "topics": given.topics("subscribe"),
        "pattern": given.pattern("subscribePattern"),
        "partitions": given.partitions("assign"),
        "min_partitions": given.number("minPartitions", 0),
        "max_partitions": _read_max_partitions(given),
        "max_records_per_partition": given.number("maxRecordsPerPartition", 0),
        "fail_on_data_loss": given.flag("failOnDataLoss", default=True),
        "poll_timeout_ms": given.number("kafkaConsumer.pollTimeoutMs", 120_000),
        "offset_attempts": given.number("fetchOffset.numRetries", 3),
        "offset_retry_s": given.number("fetchOffset.retryIntervalMs", 1000, least=0) / 1000,
        "include_headers": given.flag("includeHeaders", default=False),
        "include_batches": given.flag("includeBatches", default=False),
        "pushes_filters": given.flag("pushdown", default=False),
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
    if not any(
        (given.text(each) or "") for each in (_BOOTSTRAP_SERVERS, _PREFIX + _BOOTSTRAP_SERVERS)
    ):
        raise UsageError(
            "option kafka.bootstrap.servers is missing: give the cluster's addresses, HOST:PORT,…"
        )


def _check_limits(given: GivenOptions) -> None:
    """Refuse a minimum above its maximum; also for batches, as the connector does.

    Raises:
        UsageError: a minimum is above its maximum.
    """
    limits = {
        ("minOffsetsPerTrigger", "maxOffsetsPerTrigger"): lambda name: given.number(name, 0),
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
    most = given.number(name, 0)
    if given.number("minPartitions", 0) > most:
        raise UsageError(
            f"option minPartitions={given.text('minPartitions')} is more than {name}={most}"
        )
    return most


def _read_client(given: GivenOptions) -> tuple[dict[str, str], list[str]]:
    """The consumer's options, and the names of given options without effect."""
    known = {name.lower(): name for name in SOURCE_NAMES}
    client: dict[str, str] = {}
    unused: list[str] = []
    for name, value in given.by_name.items():
        if name.startswith(_PREFIX):
            short = name.removeprefix(_PREFIX)
            if short in _DECIDED_HERE:
                raise UsageError(f"option {name} cannot be set here: {_DECIDED_HERE[short]}")
            if _is_unused_by_consumer(short):
                unused.append(name)
            else:
                client[short] = value
        elif name not in known:
            _refuse_misspelled(name, known)
            unused.append(name)
    servers = given.text(_BOOTSTRAP_SERVERS)
    if servers is not None and client.setdefault(_BOOTSTRAP_SERVERS, servers) != servers:
        raise UsageError(
            f"options {_BOOTSTRAP_SERVERS}={servers!r} and kafka.{_BOOTSTRAP_SERVERS}="
            f"{client[_BOOTSTRAP_SERVERS]!r} contradict each other: give one of them"
        )
    return client, unused


def _is_unused_by_consumer(name: str) -> bool:
    """Whether a client option, without its prefix, has no effect on reading offset ranges.

    Options that the consumer itself refuses, such as Java's trust stores, are left to it.
    """
    from trimtab.client.network.refused_options import FOREIGN
    from trimtab.client.options import ADMIN, CONSUMER, PRODUCER

    for each in _NO_GROUPS_AND_NO_JVM:
        if name == each or (each.endswith(".") and name.startswith(each)):
            return True
    if CONSUMER.knows(name) or name.startswith(_SECURITY) or name in FOREIGN:
        return False
    if not PRODUCER.knows(name) and not ADMIN.knows(name):
        _refuse_misspelled(_PREFIX + name, {_PREFIX + option.name: "" for option in CONSUMER})
    return True


def _refuse_misspelled(name: str, known: Mapping[str, str]) -> None:
    """Refuse an unknown name that resembles a known one.

    Raises:
        UsageError: with the known name that was probably meant.
    """
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=_SLIP)
    if nearest:
        meant = known[nearest[0]] or nearest[0]
        raise UsageError(f"unknown option {name}: did you mean {meant}?")


def _read_offsets(
    given: GivenOptions,
    names: tuple[str, str, str],
    default: Literal["earliest", "latest"],
    refused: Literal["earliest", "latest"] | None = None,
) -> Offsets:
    """The starting or ending offsets: one time, times by partition, or offsets, in this priority.

    Args:
        names: the names of the three options.
        refused: the word that would make a batch empty: start at the end, or end at the start.
    """
    one_time, times, offsets = names
    or_latest = given.word(_STRATEGY, ("error", "latest")) == "latest"
    at = given.time(one_time)
    if at is not None:
        return Timestamps(at, or_latest)
    if times in given:
        return Timestamps(given.times(times), or_latest)
    text = given.text(offsets)
    if text is None:
        return default
    word = text.lower()
    if word == refused:
        raise UsageError(f"option {offsets}={text!r}: a batch would be empty")
    if word in _WORDS:
        return _WORDS[word]
    by_partition = given.offsets(offsets, EARLIEST if default == "earliest" else LATEST)
    nothing = {"earliest": EARLIEST, "latest": LATEST}.get(refused or "")
    for partition, offset in by_partition.items():
        if offset == nothing:
            raise UsageError(
                f"option {offsets}: {offset} ({refused}) for {partition}: a batch would be empty"
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
    if starts.keys() != ends.keys():
        only = ", ".join(map(str, sorted(starts.keys() ^ ends.keys())))
        raise UsageError(f"options {names[0]} and {names[1]} must name the same partitions: {only}")
    for partition, start in starts.items():
        if 0 <= ends[partition] < start:
            raise UsageError(
                f"{partition}: {names[0]} {start} is after {names[1]} {ends[partition]}"
            )
