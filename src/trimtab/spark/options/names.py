"""Every option of `format("trimtab")` once: its name, default, range and meaning.

`source.py` and `sink.py` read the values. The names are those of Spark's own Kafka connector, if it
has the option. A default is written as a user would write it.
"""

from __future__ import annotations

from typing import Final

from trimtab.kafka.options import (
    NOT_NEGATIVE,
    POSITIVE,
    Option,
    boolean,
    int64,
    string,
    strings,
)


def _servers(client: str, example: str) -> Option:
    return strings(
        "kafka.bootstrap.servers",
        None,
        "Required. Where to reach the cluster first: `host:port,host:port`. `bootstrap.servers` is"
        f" accepted, too. Other names that begin with `kafka.` are options of the {client}, such as"
        f" `{example}`.",
    )


def _rack(meaning: str, effect: str = "") -> Option:
    return string(
        "clientRack",
        None,
        f"{meaning}: a name, or `env:NAME` for an environment variable of each executor.{effect}",
    )


SOURCE: Final = (
    _servers("consumer", "kafka.isolation.level"),
    strings(
        "subscribe",
        None,
        "The topics to read, with commas between them. Exactly one of `subscribe`,"
        " `subscribePattern` and `assign` is required.",
    ),
    string(
        "subscribePattern",
        None,
        "A regular expression of Python's that the topics' names match.",
    ),
    string("assign", None, 'The partitions to read, as `{"topicA":[0,1]}`.'),
    int64(
        "startingTimestamp",
        None,
        "Start at the first record at or after this time, in milliseconds since 1970. It takes"
        " precedence over the other options that say where to start.",
        NOT_NEGATIVE,
        unit="ms",
    ),
    string(
        "startingOffsetsByTimestamp",
        None,
        'The same for each partition, as `{"topicA":{"0":1767225600000}}`. It takes precedence over'
        " `startingOffsets`.",
    ),
    string(
        "startingOffsets",
        "earliest",
        'Where to start: a word, or `{"topicA":{"0":23,"1":-2},"topicB":"latest"}`, where -2 is'
        " earliest and -1 is latest. A stream begins at `latest` by default, and uses this option"
        " only for a new checkpoint.",
    ),
    string(
        "startingOffsetsByTimestampStrategy",
        "error",
        "If a partition has no record as late as the starting time: `error`, or start at `latest`.",
        ("error", "latest"),
    ),
    int64(
        "endingTimestamp",
        None,
        "End before the first record at or after this time, in milliseconds since 1970.",
        NOT_NEGATIVE,
        unit="ms",
        applies="batch",
    ),
    string(
        "endingOffsetsByTimestamp",
        None,
        "The same for each partition, as for the start.",
        applies="batch",
    ),
    string(
        "endingOffsets",
        "latest",
        'Where to end: `latest`, or `{"topicA":{"0":23,"1":-1},"topicB":"latest"}`.',
        applies="batch",
    ),
    int64(
        "minPartitions",
        None,
        "The read has at least about this many Spark partitions.",
        POSITIVE,
    ),
    string(
        "maxPartitions",
        "auto",
        "The read has at most about this many Spark partitions, because small ranges of offsets"
        " share tasks. `auto` lets them share if there are more than 64; `unlimited` gives each"
        " range its own.",
    ),
    int64(
        "maxRecordsPerPartition",
        None,
        "One Spark partition has at most this many offsets.",
        POSITIVE,
    ),
    boolean(
        "failOnDataLoss",
        True,
        "Whether missing offsets are an error. Otherwise they are skipped, with a warning.",
    ),
    int64(
        "kafkaConsumer.pollTimeoutMs",
        120_000,
        "How long a task waits for data, in milliseconds.",
        POSITIVE,
        unit="ms",
    ),
    int64("fetchOffset.numRetries", 3, "How often the driver asks for offsets.", POSITIVE),
    int64(
        "fetchOffset.retryIntervalMs",
        1000,
        "The time between these requests, in milliseconds.",
        NOT_NEGATIVE,
        unit="ms",
    ),
    boolean("includeHeaders", False, "A column `headers`, which is null if a record has none."),
    boolean(
        "includeBatches",
        False,
        "Columns `batchBaseOffset` and `batchBytes`: the record batch that contains the record.",
    ),
    _rack("The rack to fetch from (KIP-392)"),
    int64(
        "maxOffsetsPerTrigger",
        None,
        "A micro-batch has at most this many offsets, in proportion to each partition's lag.",
        POSITIVE,
        applies="stream",
    ),
    int64(
        "minOffsetsPerTrigger",
        None,
        "A micro-batch waits for this many offsets, up to `maxTriggerDelay`.",
        POSITIVE,
        applies="stream",
    ),
    string(
        "maxTriggerDelay",
        "15m",
        "How long a micro-batch waits for its minimum.",
        applies="stream",
    ),
    int64(
        "maxBytesPerTrigger",
        None,
        "A micro-batch has at most this many bytes of the log, such as `256m`.",
        POSITIVE,
        unit="bytes",
        applies="stream",
    ),
    int64(
        "minBytesPerTrigger",
        None,
        "A micro-batch waits for this many bytes of the log, up to `maxTriggerDelay`.",
        POSITIVE,
        unit="bytes",
        applies="stream",
    ),
    int64(
        "maxBytesPerPartition",
        None,
        "A task reads at most about this many bytes of the log.",
        POSITIVE,
        unit="bytes",
        applies="stream",
    ),
    string(
        "sizeSource",
        "auto",
        "How the driver learns the sizes of record batches: `auto` finds the exact ones, `probe`"
        " estimates them.",
        ("auto", "probe"),
        applies="stream",
    ),
    string(
        "commitGroup",
        None,
        "A consumer group whose offsets are set after each micro-batch, for tools that show lag.",
        applies="stream",
    ),
    boolean(
        "pushdown",
        False,
        "Filters on `topic`, `partition`, `offset`, and a lower bound of `timestamp` narrow the"
        " offsets that are read. Spark needs `spark.sql.python.filterPushdown.enabled=true`, too.",
        applies="batch",
    ),
    string(
        "groupIdPrefix",
        None,
        "The start of a consumer group's name. Reads have no consumer group.",
        honoured=False,
    ),
)

SINK: Final = (
    _servers("producer", "kafka.compression.type"),
    string("topic", None, "The topic of all rows. It overrides the column `topic`."),
    _rack(
        "The rack of the executors",
        " Rows without key and partition go to partitions whose leader is in that rack (KIP-1123),"
        " unless `kafka.partitioner.rack.aware` is false.",
    ),
    string(
        "delivery",
        "at_least_once",
        "`at_least_once` or `exactly_once`. The options below need `exactly_once`.",
        ("at_least_once", "exactly_once"),
    ),
    string(
        "sinkId",
        None,
        "The sink's name, which is unique and does not change. A stream derives it from"
        " `checkpointLocation`; a batch needs it.",
    ),
    string(
        "decisionTopic",
        None,
        "The topic with the decisions about batches, which only this sink uses. If none is given it"
        " is `trimtab-decisions-` and the sink's name. The sink creates it.",
    ),
    string(
        "recoverBatch",
        None,
        "How to go on if batch 17 is partly lost: `skip:17` or `rewrite:17`.",
    ),
    int64(
        "batchId",
        None,
        "The batch's number, for `df.write` and `foreachBatch`. A batch with the number of the"
        " sink's last one is not written again.",
        applies="batch",
    ),
)
