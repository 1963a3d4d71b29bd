"""Whether `format("trimtab")` reads what Spark's own Kafka connector reads: options by topics.

    python -m lab.benchmarks.parity

Each case is read by both, in one Spark session, from Apache Kafka and from our cluster, and the
rows, schema and Spark partitions compared, or that both fail. One JSON line a case. Cases that are
known to differ say how; `docs/spark.md` lists them. Ends with 1 if any other differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from lab.benchmarks.apache_kafka import ApacheKafka, run_java
from lab.benchmarks.jars import CONNECTOR_VERSION, RivalMissing, connector_jars
from lab.benchmarks.report import progress
from lab.processes import Broker, Trimtab
from trimtab import Admin, Consumer, Producer
from trimtab.spark.session import start_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Outcome = Literal["same", "both fail", "differs"]

CODECS = ("gzip", "snappy", "lz4", "zstd")
BEGAN = 1_700_000_000_000
"""The timestamp of the first record of each partition of `plain`; each next one is 1 s later."""
PLAIN = 12
"""Records in each of the three partitions of `plain`."""
LARGE = 9_000_000
_KEPT = {"retention.ms": -1}
"""Records of the year 2023 would be deleted at once."""


@dataclass(frozen=True)
class Case:
    """One read.

    Attributes:
        says: what is in the error of ours, where it must fail.
        listed_as: the row of the table in `docs/spark.md`, where they differ on purpose.
        on_kafka_only: it does not depend on the cluster.
    """

    name: str
    options: Mapping[str, str]
    expected: Outcome = "same"
    says: str = ""
    listed_as: str = ""
    on_kafka_only: bool = False


@dataclass
class Read:
    """What one reader made of a case."""

    rows: list[Any] = field(default_factory=list)
    schema: str = ""
    splits: list[Any] = field(default_factory=list)
    """First and last offset read of each topic-partition, by Spark partition; without empty ones:
    the connector has a task for each of those."""
    error: str = ""


class QuickCleaning(ApacheKafka):
    """Apache Kafka that compacts within moments."""

    def settings(self) -> dict[str, str]:
        return {**super().settings(), "log.cleaner.backoff.ms": "100"}


def cases(group: str) -> list[Case]:
    """Args:
    group: a consumer group, another one for each cluster: the connector keys by it.
    """
    everything = {"subscribePattern": "^p-", "includeHeaders": "true"}
    committed = {"kafka.isolation.level": "read_committed"}
    plain = {"subscribe": "p-plain"}

    def offsets(topic: str, *by_partition: int) -> str:
        return json.dumps({topic: dict(enumerate(by_partition))})

    times = offsets("p-plain", BEGAN + 3000, BEGAN, BEGAN + 11_000)
    partly_late = offsets("p-plain", BEGAN, BEGAN, BEGAN + 99_000)
    quick = {"kafkaConsumer.pollTimeoutMs": "3000"}
    return [
        Case("every topic, headers", everything),
        Case("every topic, read_committed", {**everything, **committed}),
        Case(
            "a compressed slice, every codec",
            {
                "subscribe": "p-codecs",
                "startingOffsets": offsets("p-codecs", 5, 6, 7, 8),
                "endingOffsets": offsets("p-codecs", 15, -1, 17, 8),
            },
        ),
        Case(
            "minPartitions", {"subscribe": "p-plain,p-compacted,p-truncated", "minPartitions": "11"}
        ),
        Case("minPartitions on skew", {"subscribe": "p-growing", "minPartitions": "6"}),
        Case(
            "maxRecordsPerPartition",
            {
                **plain,
                "maxRecordsPerPartition": "5",
                "minPartitions": "4",
            },
        ),
        Case(
            "offsets as JSON",
            {
                **plain,
                "startingOffsets": offsets("p-plain", -2, 4, 12),
                "endingOffsets": offsets("p-plain", 9, -1, -1),
            },
        ),
        Case(
            "one start and end by time",
            {
                **plain,
                "startingTimestamp": str(BEGAN + 2500),
                "endingTimestamp": str(BEGAN + 7000),
            },
        ),
        Case(
            "start and end by time, each partition",
            {
                **plain,
                "startingOffsetsByTimestamp": times,
                "endingOffsetsByTimestamp": offsets("p-plain", BEGAN + 9000, BEGAN, BEGAN + 99_000),
            },
        ),
        Case(
            "a time that no record reaches, strategy latest",
            {
                **plain,
                "startingOffsetsByTimestamp": partly_late,
                "startingOffsetsByTimestampStrategy": "LATEST",
            },
        ),
        Case(
            "one time before times before offsets",
            {
                **plain,
                "startingTimestamp": str(BEGAN + 5000),
                "startingOffsetsByTimestamp": partly_late,
                "startingOffsets": "latest",
            },
        ),
        Case("assign", {"assign": json.dumps({"p-plain": [2, 0], "p-large": [0]})}),
        Case(
            "a large record, small fetches",
            {
                "subscribe": "p-large",
                "kafka.max.partition.fetch.bytes": "1000",
            },
        ),
        Case(
            "deleted offsets, failOnDataLoss=false",
            {
                "subscribe": "p-truncated",
                "startingOffsets": offsets("p-truncated", 2),
                "failOnDataLoss": "false",
            },
        ),
        Case(
            "a topic that was created again",
            {
                "subscribe": "p-recreated",
                "startingOffsets": offsets("p-recreated", 0),
                "endingOffsets": offsets("p-recreated", 2),
            },
        ),
        Case(
            "options without effect",
            {
                **plain,
                "groupIdPrefix": "mine",
                "kafka.group.id": group,
                "kafka.session.timeout.ms": "30000",
                "kafka.max.poll.records": "1000",
                "kafka.metric.reporters": "org.apache.kafka.common.metrics.JmxReporter",
                "kafka.some.vendors.option": "x",
                "maxOffsetsPerTrigger": "1",
                "maxTriggerDelay": "1m",
                "fetchOffset.numRetries": "2",
                "fetchOffset.retryIntervalMs": "10",
            },
        ),
        Case(
            "end past what is there, failOnDataLoss=false",
            {
                **plain,
                **quick,
                "endingOffsets": offsets("p-plain", 5, 5, 50),
                "failOnDataLoss": "false",
            },
        ),
        Case("no topic matches", {"subscribePattern": "^nothing"}),
        *(
            Case(name, {**plain, **quick, **options}, "both fail", says)
            for name, (says, options) in {
                "a time that no record reaches": (
                    "p-plain-2: no record has timestamp",
                    {"startingOffsetsByTimestamp": partly_late},
                ),
                "start past the end": (
                    "p-plain-2: the start, offset 50, is after the end, offset 12",
                    {"startingOffsets": offsets("p-plain", 0, 0, 50)},
                ),
                "start past the end, failOnDataLoss=false": (
                    "p-plain-2: the start, offset 50, is after the end, offset 12",
                    {
                        "startingOffsets": offsets("p-plain", 0, 0, 50),
                        "failOnDataLoss": "false",
                    },
                ),
                "start after end": (
                    "p-plain-2: startingOffsets 6 is after endingOffsets 5",
                    {
                        "startingOffsets": offsets("p-plain", 0, 0, 6),
                        "endingOffsets": offsets("p-plain", 5, 5, 5),
                    },
                ),
                "end past what is there": (
                    "p-plain-2: offsets 12 to 50 were asked for",
                    {"endingOffsets": offsets("p-plain", 5, 5, 50)},
                ),
                "not every partition": (
                    "startingOffsets must give an offset",
                    {"startingOffsets": offsets("p-plain", 0, 0)},
                ),
                "not every partition, by time": (
                    "startingOffsetsByTimestamp must give a time",
                    {"startingOffsetsByTimestamp": offsets("p-plain", BEGAN, BEGAN)},
                ),
            }.items()
        ),
        *(
            Case(name, {**plain, **options}, "both fail", says, on_kafka_only=True)
            for name, (says, options) in {
                "start at latest": ("a batch would be empty", {"startingOffsets": "latest"}),
                "end at earliest": ("a batch would be empty", {"endingOffsets": "earliest"}),
                "minOffsetsPerTrigger above its maximum": (
                    "minOffsetsPerTrigger=2 is more than",
                    {
                        "minOffsetsPerTrigger": "2",
                        "maxOffsetsPerTrigger": "1",
                    },
                ),
                "a key deserializer": (
                    "kafka.key.deserializer cannot be set here",
                    {"kafka.key.deserializer": "x"},
                ),
            }.items()
        ),
        Case(
            "deleted offsets",
            {
                "subscribe": "p-truncated",
                "startingOffsets": offsets("p-truncated", 2),
            },
            "both fail",
            "p-truncated-0: offsets 2 to 10 are gone",
        ),
        Case(
            "an unknown topic",
            {"subscribe": "nowhere"},
            "both fail",
            "topic nowhere: UNKNOWN_TOPIC_OR_PARTITION",
        ),
        Case(
            "a timestamp beyond Spark's",
            {"subscribe": "far-timestamp"},
            "both fail",
            "far-timestamp-0: the record at offset 0 has timestamp",
        ),
        Case(
            "read_committed past an open transaction",
            {
                "subscribe": "p-transactions",
                "endingOffsets": offsets("p-transactions", 17),
                **committed,
                **quick,
            },
            "both fail",
            "part of an open transaction",
        ),
        # Known to differ.
        Case(
            "a partition that does not exist",
            {"assign": json.dumps({"p-plain": [0, 9]})},
            "differs",
            says="p-plain-9: UNKNOWN_TOPIC_OR_PARTITION",
            listed_as="a partition in `assign` that does not exist",
        ),
        Case(
            "maxRecordsPerPartition alone",
            {**plain, "maxRecordsPerPartition": "5"},
            "differs",
            listed_as="`maxRecordsPerPartition` where start or end is earliest or latest",
        ),
        Case(
            "a regular expression of Java's",
            {"subscribePattern": r"p-\p{Alpha}lain"},
            "differs",
            says="not a valid Python regular expression",
            listed_as="`subscribePattern`",
            on_kafka_only=True,
        ),
        Case(
            "a slip of the pen in an option",
            {**plain, "kafka.fetch.max.byte": "1"},
            "differs",
            says="did you mean kafka.fetch.max.bytes",
            listed_as="an option misspelled by a letter or two",
            on_kafka_only=True,
        ),
        Case(
            "an internal topic",
            {"subscribe": "__transaction_state"},
            "differs",
            listed_as="an internal topic (`__consumer_offsets`)",
        ),
    ]


@contextmanager
def topics(servers: str) -> Iterator[None]:
    """Topics to read. An open transaction stays open for the block."""
    with Admin(servers) as admin, ExitStack() as stack:
        _write_plain(admin, servers)
        _write_codecs(admin, servers)
        for name, partitions, config in (
            ("p-appended", 1, {"message.timestamp.type": "LogAppendTime"}),
            ("p-large", 1, {"max.message.bytes": LARGE + 1000}),
            ("p-recreated", 1, {}),
            ("p-growing", 1, {}),
            ("p-empty", 2, {}),
            ("p-truncated", 1, {}),
            ("far-timestamp", 1, {"message.timestamp.after.max.ms": 2**63 - 1}),
        ):
            admin.create_topic(name, partitions, config={**_KEPT, **config})
        with Producer(servers, max_request_size=LARGE + 1000) as producer:
            for number in range(5):
                producer.send("p-appended", b"%d" % number)
                producer.send("p-recreated", b"old %d" % number)
            for number in range(40):
                producer.send("p-growing", b"%d" % number, timestamp=BEGAN)
                producer.send("p-truncated", b"%d" % number, timestamp=BEGAN)
            producer.send("p-large", bytes(LARGE), timestamp=BEGAN)
            producer.send("p-large", b"small", timestamp=BEGAN)
            producer.send("far-timestamp", b"nanoseconds", timestamp=BEGAN * 1_000_000)
        admin.delete_topic("p-recreated")
        admin.create_topic("p-recreated", partitions=1, config=_KEPT)
        admin.create_partitions("p-growing", 3)
        with Producer(servers) as producer:
            for number in range(2):
                producer.send("p-recreated", b"new %d" % number, timestamp=BEGAN)
                producer.send("p-growing", b"late", partition=2, timestamp=BEGAN)
        _truncate(servers, "p-truncated", 10)
        _write_compacted(admin, servers)
        _write_transactions(admin, servers, stack)
        yield


def _write_plain(admin: Admin, servers: str) -> None:
    keys = (None, b"", b"key")
    values = (b"", b"value", None, b"\x00\xff" * 9)
    headers = (
        None,
        [("h", b"1")],
        [("h", None), ("h", b"")],
        [("", b"empty"), ("schlüssel", b"x")],
    )
    admin.create_topic("p-plain", partitions=3, config=_KEPT)
    with Producer(servers) as producer:
        for number in range(PLAIN):
            for partition in range(3):
                producer.send(
                    "p-plain",
                    values[number % len(values)],
                    keys[number % len(keys)],
                    headers[(number + partition) % len(headers)],
                    partition=partition,
                    timestamp=BEGAN + 1000 * number,
                )


def _write_codecs(admin: Admin, servers: str) -> None:
    admin.create_topic("p-codecs", partitions=len(CODECS), config=_KEPT)
    for partition, codec in enumerate(CODECS):
        with Producer(
            {"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 1000}
        ) as producer:
            for number in range(20):
                value = b"%d" % number * 50
                producer.send("p-codecs", value, partition=partition, timestamp=BEGAN)


def _truncate(servers: str, topic: str, offset: int) -> None:
    wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": offset}], "version": 1}
    with TemporaryDirectory() as directory:
        path = Path(directory) / "offsets.json"
        path.write_text(json.dumps(wanted), encoding="utf-8")
        run_java(
            "org.apache.kafka.tools.DeleteRecordsCommand",
            *("--bootstrap-server", servers, "--offset-json-file", str(path)),
        )


def _write_compacted(admin: Admin, servers: str) -> None:
    """A topic with gaps: written until the broker has compacted some of it away."""
    config = {
        "cleanup.policy": "compact",
        "segment.ms": 100,
        "min.cleanable.dirty.ratio": 0.01,
        "min.compaction.lag.ms": 0,
    }
    admin.create_topic("p-compacted", partitions=1, config=config)
    with (
        Producer(servers) as producer,
        Consumer(servers, auto_offset_reset="earliest") as consumer,
    ):
        while True:
            for number in range(10):
                producer.send("p-compacted", b"%d" % number, b"%d" % (number % 3)).result(60)
            consumer.assign([])
            consumer.assign([("p-compacted", 0)])
            consumer.seek_to_beginning()
            (end,) = consumer.end_offsets([("p-compacted", 0)]).values()
            seen = 0
            offset = -1
            while offset < end - 1:
                records = consumer.poll(1000)
                seen += len(records)
                offset = records[-1].offset if records else offset
            if seen < end:
                return


def _write_transactions(admin: Admin, servers: str, stack: ExitStack) -> None:
    """Committed, aborted, and one that stays open for as long as `stack` does."""
    admin.create_topic("p-transactions", partitions=1, config=_KEPT)
    with Producer(servers, transactional_id="parity") as producer:
        producer.init_transactions()
        for number in range(3):
            producer.begin_transaction()
            for part in range(4):
                producer.send("p-transactions", b"%d %d" % (number, part), timestamp=BEGAN)
            producer.flush()
            if number == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    left_open = stack.enter_context(
        Producer(servers, transactional_id="left open", transaction_timeout_ms=900_000)
    )
    left_open.init_transactions()
    left_open.begin_transaction()
    for part in range(3):
        left_open.send("p-transactions", b"open %d" % part, timestamp=BEGAN)
    left_open.flush()


def read(spark: SparkSession, name: str, servers: str, options: Mapping[str, str]) -> Read:
    """What the format `name` makes of a case."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    reader = spark.read.format(name).option("kafka.bootstrap.servers", servers).options(**options)
    try:
        frame = reader.load()
        found = Read(schema=frame.schema.simpleString())
        rows = _comparable(frame).collect()
    except (PySparkException, Py4JJavaError) as error:
        return Read(error=_innermost(str(error)))
    found.rows = sorted(tuple(row[1:]) for row in rows)
    spans: dict[Any, list[int]] = {}
    for row in rows:
        spans.setdefault((row.spark, row.topic, row.partition), []).append(row.offset)
    found.splits = sorted(
        (topic, partition, min(offsets), max(offsets))
        for (_, topic, partition), offsets in spans.items()
    )
    return found


def _comparable(frame: DataFrame) -> DataFrame:
    """Rows small enough to collect, that differ where the originals do."""
    columns = [
        "spark_partition_id() AS spark",
        "topic",
        "partition",
        "offset",
        "coalesce(hex(key), 'null') AS key",
        "coalesce(sha2(value, 256), 'null') AS value",
        "coalesce(length(value), -1) AS size",
        "unix_micros(timestamp) AS at",
        "timestampType",
    ]
    if "headers" in frame.columns:
        columns.append(
            "coalesce(to_json(transform(headers, h -> struct(h.key, hex(h.value)))), 'null') AS h"
        )
    return frame.selectExpr(*columns)


def _innermost(text: str) -> str:
    """The line of a Spark error that says what was wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = ("trimtab.", "Caused by:", "org.apache.kafka", "java.lang.", "[KAFKA")
    said = [line for line in lines if line.startswith(telling)]
    return (said[-1] if said else " ".join(lines[:2]))[:400]


def compare(ours: Read, theirs: Read) -> tuple[Outcome, str]:
    """The outcome, and what differs."""
    if ours.error and theirs.error:
        return "both fail", ""
    if ours.error or theirs.error:
        return "differs", "only one of them fails"
    for what in ("schema", "rows", "splits"):
        if getattr(ours, what) != getattr(theirs, what):
            return "differs", what
    return "same", ""


def run_cases(only: str) -> int:
    """Print a line for each case on each cluster; how many came out unexpectedly.

    Args:
        only: cases whose names have this in them.
    """
    jars = ",".join(sorted(map(str, connector_jars().glob("*.jar"))))
    unexpected = 0
    spark = start_session("parity", cores=2, config={"spark.jars": jars})
    try:
        for made in (QuickCleaning(), Trimtab(config=["log.cleaner.backoff.ms=100"])):
            is_kafka = isinstance(made, ApacheKafka)
            with made as broker:
                progress(f"parity: writing to {broker.name}")
                with topics(broker.address):
                    for case in cases(f"group of {broker.name}"):
                        if only in case.name and (is_kafka or not case.on_kafka_only):
                            unexpected += not _run_case(spark, broker, case)
    finally:
        stop_session(spark)
    return unexpected


def _run_case(spark: SparkSession, broker: Broker, case: Case) -> bool:
    """Print the outcome; whether it is the expected one."""
    ours = read(spark, "trimtab", broker.address, case.options)
    theirs = read(spark, "kafka", broker.address, case.options)
    outcome, what = compare(ours, theirs)
    line: dict[str, object] = {
        "cluster": broker.name,
        "case": case.name,
        "outcome": outcome,
        "rows": len(ours.rows),
        "partitions": len(ours.splits),
    }
    if what:
        line |= {"differs_in": what, "listed_as": case.listed_as}
    if ours.error or theirs.error:
        line |= {"ours": ours.error, "theirs": theirs.error}
    is_expected = outcome == case.expected and case.says in ours.error
    if not is_expected:
        line |= {"unexpected": True, "their_rows": len(theirs.rows)}
    print(json.dumps(line), flush=True)
    return is_expected


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks.parity", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose names have this in them")
    arguments = parser.parse_args()
    try:
        unexpected = run_cases(arguments.only)
    except RivalMissing as missing:
        print(f"the connector {CONNECTOR_VERSION} cannot be had: {missing}", file=sys.stderr)
        return 2
    return min(unexpected, 1)


if __name__ == "__main__":
    sys.exit(main())
