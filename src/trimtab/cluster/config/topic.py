"""The options of a topic: Kafka's `TopicConfig`."""

from __future__ import annotations

from trimtab.kafka.options import (
    LONG_MAX,
    NOT_NEGATIVE,
    PERCENT,
    POSITIVE,
    Form,
    OptionTable,
    Range,
    boolean,
    compression_levels,
    double,
    int32,
    int64,
    string,
    strings,
)

_REPLICAS = Form(r"(\d+:\d+)?", "*", "* or a list of partition:broker")

TOPIC = OptionTable(
    "topic",
    (
        strings(
            "cleanup.policy",
            ("delete",),
            "Whether old segments are deleted by age and size, compacted by key, or both. "
            "With compact, records without a key are refused.",
            ("compact", "delete"),
            synonyms=("log.cleanup.policy",),
        ),
        *(
            level._replace(synonyms=(level.name,))
            for level in compression_levels("Level if the broker recompresses with {}")
        ),
        string(
            "compression.type",
            "producer",
            "Codec of the stored batches; the broker compresses those with another one again.",
            ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
            synonyms=("compression.type",),
        ),
        int64(
            "delete.retention.ms",
            86_400_000,
            "How long compaction keeps tombstones (records without value).",
            NOT_NEGATIVE,
            synonyms=("log.cleaner.delete.retention.ms",),
        ),
        int64(
            "file.delete.delay.ms",
            60_000,
            "Delay between dropping a segment and deleting its files. They are deleted at once.",
            NOT_NEGATIVE,
            synonyms=("log.segment.delete.delay.ms",),
            honoured=False,
        ),
        int64(
            "flush.messages",
            LONG_MAX,
            "Records after which the log is forced to disk (fsync).",
            POSITIVE,
            synonyms=("log.flush.interval.messages",),
        ),
        int64(
            "flush.ms",
            LONG_MAX,
            "Time after which the log is forced to disk (fsync).",
            NOT_NEGATIVE,
            synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        ),
        strings(
            "follower.replication.throttled.replicas",
            (),
            "Replicas throttled on the follower's side, to follower.replication.throttled.rate: "
            "partition:broker,… or *.",
            _REPLICAS,
            kip="KIP-73",
        ),
        int32(
            "index.interval.bytes",
            4096,
            "Bytes of log between two entries of the offset and time indexes.",
            NOT_NEGATIVE,
            synonyms=("log.index.interval.bytes",),
        ),
        strings(
            "leader.replication.throttled.replicas",
            (),
            "Replicas throttled on the leader's side, to leader.replication.throttled.rate: "
            "partition:broker,… or *.",
            _REPLICAS,
            kip="KIP-73",
        ),
        int64(
            "local.retention.bytes",
            -2,
            "With tiered storage: bytes kept locally; -2 is retention.bytes.",
            Range(-2),
            kip="KIP-405",
            synonyms=("log.local.retention.bytes",),
            honoured=False,
        ),
        int64(
            "local.retention.ms",
            -2,
            "With tiered storage: time kept locally; -2 is retention.ms.",
            Range(-2),
            kip="KIP-405",
            synonyms=("log.local.retention.ms",),
            honoured=False,
        ),
        int64(
            "max.compaction.lag.ms",
            LONG_MAX,
            "Longest time a record stays out of compaction.",
            POSITIVE,
            kip="KIP-354",
            synonyms=("log.cleaner.max.compaction.lag.ms",),
        ),
        int32(
            "max.message.bytes",
            1_048_588,
            "Largest record batch accepted, after compression, its 12 leading bytes included.",
            NOT_NEGATIVE,
            synonyms=("message.max.bytes",),
        ),
        int64(
            "message.timestamp.after.max.ms",
            3_600_000,
            "How far a batch's largest timestamp may lie ahead of the broker's clock.",
            NOT_NEGATIVE,
            kip="KIP-937",
            synonyms=("log.message.timestamp.after.max.ms",),
        ),
        int64(
            "message.timestamp.before.max.ms",
            LONG_MAX,
            "How far a batch's first timestamp may lie behind the broker's clock.",
            NOT_NEGATIVE,
            kip="KIP-937",
            synonyms=("log.message.timestamp.before.max.ms",),
        ),
        string(
            "message.timestamp.type",
            "CreateTime",
            "Whose clock stamps records: the producer's or the broker's at append.",
            ("CreateTime", "LogAppendTime"),
            kip="KIP-32",
            synonyms=("log.message.timestamp.type",),
        ),
        double(
            "min.cleanable.dirty.ratio",
            0.5,
            "Share of a log that must be uncompacted before compaction starts.",
            PERCENT,
            synonyms=("log.cleaner.min.cleanable.ratio",),
        ),
        int64(
            "min.compaction.lag.ms",
            0,
            "Shortest time a record stays out of compaction.",
            NOT_NEGATIVE,
            kip="KIP-58",
            synonyms=("log.cleaner.min.compaction.lag.ms",),
        ),
        int32(
            "min.insync.replicas",
            1,
            "Replicas that must be in sync for a write with acks=all; all of them, if there are "
            "fewer.",
            POSITIVE,
            synonyms=("min.insync.replicas",),
        ),
        boolean(
            "preallocate",
            False,
            "Whether segment files take their full size when created.",
            synonyms=("log.preallocate",),
            honoured=False,
        ),
        boolean(
            "remote.log.copy.disable",
            False,
            "With tiered storage: stop copying to it.",
            kip="KIP-950",
            honoured=False,
        ),
        boolean(
            "remote.log.delete.on.disable",
            False,
            "With tiered storage: delete there when it is switched off.",
            kip="KIP-950",
            honoured=False,
        ),
        boolean("remote.storage.enable", False, "Tiered storage.", kip="KIP-405", honoured=False),
        int64(
            "retention.bytes",
            -1,
            "Size of a partition beyond which its oldest segments are deleted; -1 is no limit.",
            synonyms=("log.retention.bytes",),
        ),
        int64(
            "retention.ms",
            604_800_000,
            "Age of a segment's newest record beyond which it is deleted; -1 is no limit.",
            Range(-1),
            synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        ),
        int32(
            "segment.bytes",
            1_073_741_824,
            "Size at which a new segment file is begun. Kafka 4 refuses less than 1048576 "
            "(KIP-1030); smaller values are allowed here, for tests.",
            Range(14),
            synonyms=("log.segment.bytes",),
        ),
        int32(
            "segment.index.bytes",
            10_485_760,
            "Size of an index at which a new segment is begun.",
            Range(4),
            synonyms=("log.index.size.max.bytes",),
        ),
        int64(
            "segment.jitter.ms",
            0,
            "Largest random time taken off segment.ms.",
            NOT_NEGATIVE,
            synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        ),
        int64(
            "segment.ms",
            604_800_000,
            "Age at which a new segment is begun even if the last one is not full.",
            POSITIVE,
            synonyms=("log.roll.ms", "log.roll.hours"),
        ),
        boolean(
            "unclean.leader.election.enable",
            False,
            "Whether a replica that is behind may become leader when no other is left; records may "
            "be lost.",
            synonyms=("unclean.leader.election.enable",),
        ),
    ),
)
