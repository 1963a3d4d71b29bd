"""The options of a broker, and of a controller: Kafka's `AbstractKafkaConfig`.

Options that are common in Apache Kafka's properties files but have no effect here are accepted,
described and ignored (`_unused`). Options whose effect a user relies on, such as TLS, are refused.

More than 600 lines, because it is one table.
"""

from __future__ import annotations

from trimtab.config.coordinators import COORDINATORS
from trimtab.config.options import (
    BOOLEAN,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    NOT_NEGATIVE,
    POSITIVE,
    STRING,
    Option,
    OptionTable,
    Range,
)
from trimtab.config.topic import TOPIC
from trimtab.config.unused import unused

_ONE_LOOP = "One event loop serves all connections; there is no thread pool."
_SELECTORS = "org.apache.kafka.common.replica."


def _broker_form(topic: str, broker: str) -> Option:
    """The broker option that a topic option inherits from: same type, range and meaning."""
    option = TOPIC[topic]
    return option._replace(
        name=broker,
        doc=f"Default of the topic option {topic}. {option.doc}",
        synonyms=(),
        dynamic=CLUSTER_WIDE,
    )


_NODE = (
    Option("advertised.listeners", LIST, None, "Addresses for clients: PLAINTEXT://host:port."),
    Option("broker.id", INT, -1, "This broker's id.", Range(-1)),
    Option("broker.rack", STRING, None, "This broker's rack or zone.", kip="KIP-36"),
    Option(
        "controller.listener.names",
        LIST,
        (),
        "Names of the controller's listeners; the first is the one that is used.",
        kip="KIP-631",
    ),
    Option(
        "controller.quorum.bootstrap.servers",
        LIST,
        (),
        "The controller's address: host:port. There is one controller, so the first is used.",
        kip="KIP-853",
    ),
    Option(
        "controller.quorum.voters",
        LIST,
        (),
        "The controller: id@host:port. There is one.",
        kip="KIP-595",
    ),
    Option(
        "inter.broker.listener.name",
        STRING,
        None,
        "Name of the listener to which other brokers connect.",
        kip="KIP-103",
    ),
    Option(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Protocol of each listener, name:protocol,… Only PLAINTEXT is supported.",
        kip="KIP-103",
    ),
    Option("listeners", LIST, ("PLAINTEXT://:9092",), "Addresses listened on."),
    Option("log.dirs", LIST, None, "Directories with the partitions' logs."),
    Option("node.id", INT, -1, "This broker's id.", Range(-1), kip="KIP-631"),
    Option(
        "process.roles",
        LIST,
        None,
        "The roles of this process: broker, controller, or both.",
        ("broker", "controller"),
        kip="KIP-631",
    ),
    unused("early.start.listeners", LIST, None, "All listeners start together."),
    unused("log.dir", LIST, ("/tmp/kafka-logs",), "Set log.dirs instead."),
    unused("metadata.log.dir", STRING, None, "The controller's log is in its data directory."),
    unused(
        "security.inter.broker.protocol",
        STRING,
        "PLAINTEXT",
        "All connections are plain text.",
        ("PLAINTEXT",),
    ),
)

_CONNECTIONS = (
    Option(
        "connections.max.idle.ms",
        LONG,
        600_000,
        "A connection on which no request came for this long is closed; -1 is never.",
        Range(-1),
        "ms",
    ),
    Option(
        "fetch.max.bytes",
        INT,
        57_671_680,
        "Largest sum of records in one fetch response, whatever limit the request has.",
        Range(1024),
        "bytes",
        "KIP-541",
    ),
    Option(
        "max.connections",
        INT,
        INT_MAX,
        "Connections open at once; further ones are closed at once. The hard limit on open files"
        " (ulimit -Hn) bounds them as well: a quarter of it is for log files, the rest but 64 for"
        " connections. A broker process raises its soft limit to the hard one when it starts.",
        NOT_NEGATIVE,
        kip="KIP-402",
        dynamic=CLUSTER_WIDE,
    ),
    Option(
        "max.connections.per.ip",
        INT,
        INT_MAX,
        "Connections open at once from one address; further ones are closed at once.",
        NOT_NEGATIVE,
        dynamic=CLUSTER_WIDE,
    ),
    Option(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        "Fetch sessions that are kept.",
        NOT_NEGATIVE,
        kip="KIP-227",
    ),
    Option(
        "socket.listen.backlog.size",
        INT,
        50,
        "Connections the operating system queues until they are accepted.",
        POSITIVE,
        kip="KIP-764",
    ),
    Option(
        "socket.request.max.bytes",
        INT,
        104_857_600,
        "Largest request; a longer one closes its connection.",
        POSITIVE,
        "bytes",
    ),
    unused("background.threads", INT, 10, _ONE_LOOP, POSITIVE, dynamic=CLUSTER_WIDE),
    unused(
        "max.connection.creation.rate",
        INT,
        INT_MAX,
        "Connections are accepted without a limit on their rate.",
        NOT_NEGATIVE,
        dynamic=CLUSTER_WIDE,
    ),
    unused(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        "max.connections.per.ip applies to every address.",
        dynamic=CLUSTER_WIDE,
    ),
    unused("num.io.threads", INT, 8, _ONE_LOOP, POSITIVE, dynamic=CLUSTER_WIDE),
    unused("num.network.threads", INT, 3, _ONE_LOOP, POSITIVE, dynamic=CLUSTER_WIDE),
    unused("num.recovery.threads.per.data.dir", INT, 2, _ONE_LOOP, POSITIVE, dynamic=CLUSTER_WIDE),
    unused(
        "queued.max.request.bytes",
        LONG,
        -1,
        "A connection is not read while one of its requests is unanswered.",
        unit="bytes",
    ),
    unused(
        "queued.max.requests", INT, 500, "Each connection has one request in progress.", POSITIVE
    ),
    unused(
        "request.timeout.ms", INT, 30_000, "Each kind of request has its own timeout.", unit="ms"
    ),
    *(
        unused(
            f"{name}.buffer.bytes",
            INT,
            default,
            "The operating system chooses the size of socket buffers.",
            Range(-1),
            "bytes",
        )
        for name, default in (
            ("socket.send", 102_400),
            ("socket.receive", 102_400),
            ("replica.socket.receive", 65_536),
        )
    ),
    *(
        unused(
            f"{name}.purgatory.purge.interval.requests",
            INT,
            default,
            "A waiting request is removed as soon as its wait ends.",
        )
        for name, default in (("delete.records", 1), ("fetch", 1000), ("producer", 1000))
    ),
)

_REPLICATION = (
    Option(
        "broker.heartbeat.interval.ms",
        INT,
        2000,
        "Time between two heartbeats of a broker to the controller.",
        POSITIVE,
        "ms",
        "KIP-631",
    ),
    Option(
        "broker.session.timeout.ms",
        INT,
        9000,
        "Time without a heartbeat after which the controller fences a broker.",
        POSITIVE,
        "ms",
        "KIP-631",
    ),
    Option(
        "controlled.shutdown.enable",
        BOOLEAN,
        True,
        "Whether a broker hands over leadership of its partitions before it stops.",
    ),
    unused(
        "num.replica.fetchers",
        INT,
        1,
        "A broker uses one connection to fetch from another, which already uses a whole core.",
        POSITIVE,
        dynamic=CLUSTER_WIDE,
    ),
    Option(
        "replica.fetch.backoff.ms",
        INT,
        1000,
        "Wait before a follower fetches a partition again after an error.",
        NOT_NEGATIVE,
        "ms",
    ),
    Option(
        "replica.fetch.max.bytes",
        INT,
        1_048_576,
        "Bytes that a follower fetches per partition; a larger batch is returned whole.",
        NOT_NEGATIVE,
        "bytes",
    ),
    Option(
        "replica.fetch.min.bytes",
        INT,
        1,
        "Bytes that a leader waits for before it answers a follower.",
        unit="bytes",
    ),
    Option(
        "replica.fetch.response.max.bytes",
        INT,
        10_485_760,
        "Bytes that a follower fetches in one request; a larger batch is returned whole.",
        NOT_NEGATIVE,
        "bytes",
        "KIP-74",
    ),
    Option(
        "replica.fetch.wait.max.ms",
        INT,
        500,
        "How long a leader waits for replica.fetch.min.bytes; less than replica.lag.time.max.ms.",
        unit="ms",
    ),
    Option(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5000,
        "Time between two checkpoints of the high watermarks.",
        POSITIVE,
        "ms",
    ),
    Option(
        "replica.lag.time.max.ms",
        LONG,
        30_000,
        "A follower that has not caught up with its leader for this long leaves the ISR.",
        POSITIVE,
        "ms",
    ),
    Option(
        "replica.selector.class",
        STRING,
        None,
        "Which replicas consumers may read from: leaders only, or a replica in their rack.",
        (f"{_SELECTORS}RackAwareReplicaSelector", f"{_SELECTORS}LeaderSelector", ""),
        kip="KIP-392",
    ),
    Option(
        "replica.socket.timeout.ms",
        INT,
        30_000,
        "How long a follower waits for a response; at least replica.fetch.wait.max.ms.",
        POSITIVE,
        "ms",
    ),
    *(
        Option(
            f"{side}.replication.throttled.rate",
            LONG,
            LONG_MAX,
            f"Bytes per second {what} throttled replicas ({side}.replication.throttled.replicas).",
            NOT_NEGATIVE,
            "bytes/s",
            "KIP-73",
            dynamic=CLUSTER_WIDE,
        )
        for side, what in (("leader", "that leaders send to"), ("follower", "that are fetched for"))
    ),
    unused(
        "initial.broker.registration.timeout.ms",
        INT,
        60_000,
        "A broker waits for the controller without a limit.",
        unit="ms",
    ),
    unused(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG,
        LONG_MAX,
        "Replicas are not moved between directories.",
        NOT_NEGATIVE,
        "bytes/s",
        CLUSTER_WIDE,
    ),
)

_CONTROLLER = (
    Option(
        "auto.create.topics.enable",
        BOOLEAN,
        True,
        "Whether a Metadata request that allows it creates the topics it names.",
    ),
    Option(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        True,
        "Whether the controller moves leadership back to preferred replicas by itself.",
    ),
    Option(
        "default.replication.factor",
        INT,
        1,
        "Replicas of topics that are created without a replication factor.",
        Range(1, 32767),
    ),
    Option("delete.topic.enable", BOOLEAN, True, "Whether topics can be deleted."),
    Option(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        "Time between two checks for leaders that are not the preferred replicas.",
        POSITIVE,
        "s",
    ),
    Option(
        "metadata.log.max.record.bytes.between.snapshots",
        LONG,
        20_971_520,
        "Bytes of records after which the controller takes a snapshot.",
        POSITIVE,
        "bytes",
        "KIP-630",
    ),
    Option(
        "num.partitions",
        INT,
        1,
        "Partitions of topics that are created without a partition count.",
        POSITIVE,
    ),
    Option(
        "max.broker.partitions",
        LONG,
        LONG_MAX,
        "The most partition replicas that may be assigned to a broker, not counting the cluster's "
        "own topics. Existing replicas stay. Set it for all brokers; a value for one node has an "
        "effect only if that is the controller.",
        NOT_NEGATIVE,
        kip="KIP-578",
        dynamic=CLUSTER_WIDE,
    ),
    Option(
        "max.partitions",
        LONG,
        LONG_MAX,
        "The most partition replicas that may be assigned to all brokers together, not counting "
        "the cluster's own topics. Existing replicas stay.",
        NOT_NEGATIVE,
        kip="KIP-578",
        dynamic=CLUSTER_WIDE,
    ),
    Option(
        "unclean.leader.election.interval.ms",
        LONG,
        300_000,
        "Time between two checks for partitions without leader that may elect an unclean one.",
        POSITIVE,
        "ms",
    ),
    unused(
        "metadata.log.max.snapshot.interval.ms",
        LONG,
        3_600_000,
        "Snapshots are taken by size only.",
        NOT_NEGATIVE,
        "ms",
    ),
    unused(
        "metadata.log.segment.bytes",
        INT,
        1_073_741_824,
        "The controller begins a new log with each snapshot.",
        Range(8_388_608),
        "bytes",
    ),
    unused(
        "metadata.log.segment.ms",
        LONG,
        604_800_000,
        "The controller begins a new log with each snapshot.",
        unit="ms",
    ),
    unused(
        "metadata.max.idle.interval.ms",
        INT,
        500,
        "The controller writes no records while nothing changes.",
        NOT_NEGATIVE,
        "ms",
    ),
    *(
        unused(
            f"metadata.max.retention.{unit}",
            LONG,
            default,
            "Records before the last snapshot are deleted at once.",
            unit=unit,
        )
        for unit, default in (("bytes", 104_857_600), ("ms", 604_800_000))
    ),
    *(
        unused(
            f"controller.quorum.{name}.ms",
            INT,
            default,
            "There is one controller.",
            NOT_NEGATIVE,
            "ms",
        )
        for name, default in (
            ("append.linger", 25),
            ("election.backoff.max", 1000),
            ("election.timeout", 1000),
            ("fetch.timeout", 2000),
            ("request.timeout", 2000),
            ("retry.backoff", 20),
        )
    ),
)

_LOGS = (
    Option(
        "log.retention.check.interval.ms",
        LONG,
        300_000,
        "Time between two checks for segments to delete.",
        POSITIVE,
        "ms",
    ),
    Option(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        60_000,
        "Time between two checkpoints of the offsets up to which each log is on disk.",
        NOT_NEGATIVE,
        "ms",
    ),
    Option(
        "producer.id.expiration.ms",
        INT,
        86_400_000,
        "How long a partition remembers an idempotent producer after its last append.",
        POSITIVE,
        "ms",
        "KIP-854",
        dynamic=CLUSTER_WIDE,
    ),
    Option(
        "log.retention.hours",
        INT,
        168,
        "Default of the topic option retention.ms, in hours.",
        unit="hours",
    ),
    Option(
        "log.retention.minutes",
        INT,
        None,
        "Default of the topic option retention.ms, in minutes; overrides hours.",
        unit="minutes",
    ),
    Option(
        "log.retention.ms",
        LONG,
        None,
        "Default of the topic option retention.ms; overrides minutes.",
        unit="ms",
        dynamic=CLUSTER_WIDE,
    ),
    Option(
        "log.roll.hours",
        INT,
        168,
        "Default of the topic option segment.ms, in hours.",
        POSITIVE,
        "hours",
    ),
    Option(
        "log.roll.ms",
        LONG,
        None,
        "Default of the topic option segment.ms; overrides hours.",
        unit="ms",
        dynamic=CLUSTER_WIDE,
    ),
    Option(
        "log.roll.jitter.hours",
        INT,
        0,
        "Default of the topic option segment.jitter.ms, in hours.",
        NOT_NEGATIVE,
        "hours",
    ),
    Option(
        "log.roll.jitter.ms",
        LONG,
        None,
        "Default of the topic option segment.jitter.ms; overrides hours.",
        unit="ms",
        dynamic=CLUSTER_WIDE,
    ),
    Option(
        "log.flush.interval.ms",
        LONG,
        None,
        "Default of the topic option flush.ms.",
        unit="ms",
        dynamic=CLUSTER_WIDE,
    ),
    Option(
        "log.flush.scheduler.interval.ms",
        LONG,
        LONG_MAX,
        "Time between two checks for logs to force to disk; default of flush.ms.",
        unit="ms",
    ),
    *(
        _broker_form(topic.name, synonym)
        for topic in TOPIC
        for synonym in topic.synonyms[:1]
        if topic.name not in ("retention.ms", "segment.ms", "segment.jitter.ms", "flush.ms")
    ),
    Option("log.cleaner.enable", BOOLEAN, True, "Whether this broker compacts logs."),
    Option(
        "log.cleaner.backoff.ms",
        LONG,
        15_000,
        "Time until the next check for logs to compact if there was none.",
        NOT_NEGATIVE,
        "ms",
        dynamic=CLUSTER_WIDE,
    ),
    Option(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        134_217_728,
        "Memory for the keys of the log that is being compacted.",
        POSITIVE,
        "bytes",
        dynamic=CLUSTER_WIDE,
    ),
    unused(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        0.9,
        "The table of keys grows as needed.",
        dynamic=CLUSTER_WIDE,
    ),
    unused(
        "log.cleaner.io.buffer.size",
        INT,
        524_288,
        "Batches are read and written one by one.",
        NOT_NEGATIVE,
        "bytes",
        CLUSTER_WIDE,
    ),
    unused(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        1.7976931348623157e308,
        "Compaction yields to requests by itself.",
        unit="bytes/s",
        dynamic=CLUSTER_WIDE,
    ),
    unused(
        "log.cleaner.threads",
        INT,
        1,
        "One log is compacted at a time.",
        NOT_NEGATIVE,
        dynamic=CLUSTER_WIDE,
    ),
    unused("log.dir.failure.timeout.ms", LONG, 30_000, "There is one directory.", POSITIVE, "ms"),
    unused(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        60_000,
        "Log start offsets are written together with recovery points.",
        NOT_NEGATIVE,
        "ms",
    ),
)

_PLAIN = "brokers accept plain-text connections only; run them in a trusted network"

BROKER = OptionTable(
    "broker",
    (*_NODE, *_CONNECTIONS, *_REPLICATION, *_CONTROLLER, *_LOGS, *COORDINATORS),
    {
        "authorizer.class.name": (
            "there is no authorization: every client may do everything; run it in a trusted network"
        ),
        "listener.name.": "all listeners have the same options; set it without the listener's name",
        "remote.log.": "there is no tiered storage",
        "sasl.": _PLAIN,
        "ssl.": _PLAIN,
        "zookeeper.": "there is no ZooKeeper; name the controller with controller.quorum.voters",
    },
)
