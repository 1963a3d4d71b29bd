"""Every option of `format("trimtab")` once: its name, default and meaning.

`source.py` and `sink.py` read and check the values. The names are those of Spark's own Kafka
connector, if it has the option.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class SparkOption(NamedTuple):
    """One option of the source or the sink.

    Attributes:
        default: as a user would write it; empty if there is none.
        applies: `batch` or `stream` if it has an effect on only one of them.
    """

    name: str
    default: str
    doc: str
    applies: str = ""


SOURCE: Final = (
    SparkOption(
        "kafka.bootstrap.servers",
        "",
        "Required. Where to reach the cluster first: `host:port,host:port`. `bootstrap.servers` is"
        " accepted, too. Other names that begin with `kafka.` are options of the consumer, such as"
        " `kafka.isolation.level`.",
    ),
    SparkOption(
        "subscribe",
        "",
        "The topics to read, with commas between them. Exactly one of `subscribe`,"
        " `subscribePattern` and `assign` is required.",
    ),
    SparkOption(
        "subscribePattern", "", "A regular expression of Python's that the topics' names match."
    ),
    SparkOption("assign", "", 'The partitions to read, as `{"topicA":[0,1]}`.'),
    SparkOption(
        "startingTimestamp",
        "",
        "Start at the first record at or after this time, in milliseconds since 1970. It takes"
        " precedence over the other options that say where to start.",
    ),
    SparkOption(
        "startingOffsetsByTimestamp",
        "",
        'The same for each partition, as `{"topicA":{"0":1767225600000}}`. It takes precedence over'
        " `startingOffsets`.",
    ),
    SparkOption(
        "startingOffsets",
        "earliest",
        'Where to start: a word, or `{"topicA":{"0":23,"1":-2}}`, where -2 is earliest and -1 is'
        " latest. A stream begins at `latest` by default, and uses this option only for a new"
        " checkpoint.",
    ),
    SparkOption(
        "startingOffsetsByTimestampStrategy",
        "error",
        "If a partition has no record as late as the starting time: `error`, or start at `latest`.",
    ),
    SparkOption(
        "endingTimestamp",
        "",
        "End before the first record at or after this time, in milliseconds since 1970.",
        "batch",
    ),
    SparkOption(
        "endingOffsetsByTimestamp", "", "The same for each partition, as for the start.", "batch"
    ),
    SparkOption(
        "endingOffsets",
        "latest",
        'Where to end: `latest`, or `{"topicA":{"0":23,"1":-1}}`.',
        "batch",
    ),
    SparkOption("minPartitions", "", "The read has at least about this many Spark partitions."),
    SparkOption(
        "maxPartitions",
        "auto",
        "The read has at most about this many Spark partitions, because small ranges of offsets"
        " share tasks. `auto` lets them share if there are more than 64; `unlimited` gives each"
        " range its own.",
    ),
    SparkOption("maxRecordsPerPartition", "", "One Spark partition has at most this many offsets."),
    SparkOption(
        "failOnDataLoss",
        "true",
        "Whether missing offsets are an error. Otherwise they are skipped, with a warning.",
    ),
    SparkOption(
        "kafkaConsumer.pollTimeoutMs", "120000", "How long a task waits for data, in milliseconds."
    ),
    SparkOption("fetchOffset.numRetries", "3", "How often the driver asks for offsets."),
    SparkOption(
        "fetchOffset.retryIntervalMs", "1000", "The time between these requests, in milliseconds."
    ),
    SparkOption(
        "includeHeaders", "false", "A column `headers`, which is null if a record has none."
    ),
    SparkOption(
        "includeBatches",
        "false",
        "Columns `batchBaseOffset` and `batchBytes`: the record batch that contains the record.",
    ),
    SparkOption(
        "clientRack",
        "",
        "The rack to fetch from (KIP-392): a name, or `env:NAME` for an environment variable of"
        " each executor.",
    ),
    SparkOption(
        "maxOffsetsPerTrigger",
        "",
        "A micro-batch has at most this many offsets, in proportion to each partition's lag.",
        "stream",
    ),
    SparkOption(
        "minOffsetsPerTrigger",
        "",
        "A micro-batch waits for this many offsets, up to `maxTriggerDelay`.",
        "stream",
    ),
    SparkOption(
        "maxTriggerDelay", "15m", "How long a micro-batch waits for its minimum.", "stream"
    ),
    SparkOption(
        "maxBytesPerTrigger",
        "",
        "A micro-batch has at most this many bytes of the log, such as `256m`.",
        "stream",
    ),
    SparkOption(
        "minBytesPerTrigger",
        "",
        "A micro-batch waits for this many bytes of the log, up to `maxTriggerDelay`.",
        "stream",
    ),
    SparkOption(
        "maxBytesPerPartition",
        "",
        "A task reads at most about this many bytes of the log.",
        "stream",
    ),
    SparkOption(
        "sizeSource",
        "auto",
        "How the driver learns the sizes of record batches: `auto` finds the exact ones, `probe`"
        " estimates them.",
        "stream",
    ),
    SparkOption(
        "commitGroup",
        "",
        "A consumer group whose offsets are set after each micro-batch, for tools that show lag.",
        "stream",
    ),
    SparkOption(
        "pushdown",
        "false",
        "Filters on `topic`, `partition`, `offset`, and a lower bound of `timestamp` narrow the"
        " offsets that are read. Spark needs `spark.sql.python.filterPushdown.enabled=true`, too.",
        "batch",
    ),
    SparkOption("groupIdPrefix", "", "Accepted without effect."),
)

SINK: Final = (
    SparkOption(
        "kafka.bootstrap.servers",
        "",
        "Required. Where to reach the cluster first: `host:port,host:port`. `bootstrap.servers` is"
        " accepted, too. Other names that begin with `kafka.` are options of the producer, such as"
        " `kafka.compression.type`.",
    ),
    SparkOption("topic", "", "The topic of all rows. It overrides the column `topic`."),
    SparkOption(
        "clientRack",
        "",
        "The rack of the executors: a name, or `env:NAME` for an environment variable of each"
        " executor. Rows without key and partition go to partitions whose leader is in that rack"
        " (KIP-1123), unless `kafka.partitioner.rack.aware` is false.",
    ),
    SparkOption(
        "delivery",
        "at_least_once",
        "`at_least_once` or `exactly_once`. The options below need `exactly_once`.",
    ),
    SparkOption(
        "sinkId",
        "",
        "The sink's name, which is unique and does not change. A stream derives it from"
        " `checkpointLocation`; a batch needs it.",
    ),
    SparkOption(
        "decisionTopic",
        "",
        "The topic with the decisions about batches, which only this sink uses. If none is given it"
        " is `trimtab-decisions-` and the sink's name. The sink creates it.",
    ),
    SparkOption(
        "recoverBatch",
        "",
        "How to go on if batch 17 is partly lost: `skip:17` or `rewrite:17`.",
    ),
    SparkOption(
        "batchId",
        "",
        "The batch's number, for `df.write` and `foreachBatch`. A batch with the number of the"
        " sink's last one is not written again.",
        "batch",
    ),
)
