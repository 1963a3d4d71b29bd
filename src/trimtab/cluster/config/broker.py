"""The options of a broker, and of a controller: Kafka's `AbstractKafkaConfig`.

Options that are common in Apache Kafka's properties files but have no effect here are accepted,
described and ignored (`honoured=False`). Options whose effect a user relies on, such as TLS, are
refused.

Long because it is one table.
"""

from __future__ import annotations

from trimtab.balance.placement import GOAL, PlacementGoal
from trimtab.cluster.config.coordinators import COORDINATORS
from trimtab.cluster.config.topic import TOPIC
from trimtab.kafka.options import (
    CLUSTER_WIDE,
    INT_MAX,
    LONG_MAX,
    NOT_NEGATIVE,
    PER_BROKER,
    POSITIVE,
    Option,
    OptionTable,
    Range,
    boolean,
    double,
    int32,
    int64,
    string,
    strings,
)

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
    strings("advertised.listeners", None, "Addresses for clients: PLAINTEXT://host:port."),
    int32("broker.id", -1, "This broker's id.", Range(-1)),
    string("broker.rack", None, "This broker's rack or zone.", kip="KIP-36"),
    strings(
        "controller.listener.names",
        (),
        "Names of the controller's listeners; the first is the one that is used.",
        kip="KIP-631",
    ),
    strings(
        "controller.quorum.bootstrap.servers",
        (),
        "The controller's address: host:port. There is one controller, so the first is used.",
        kip="KIP-853",
    ),
    strings(
        "controller.quorum.voters",
        (),
        "The controller: id@host:port. There is one.",
        kip="KIP-595",
    ),
    string(
        "inter.broker.listener.name",
        None,
        "Name of the listener to which other brokers connect.",
        kip="KIP-103",
    ),
    string(
        "listener.security.protocol.map",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Protocol of each listener, name:protocol,… Only PLAINTEXT is supported.",
        kip="KIP-103",
    ),
    strings("listeners", ("PLAINTEXT://:9092",), "Addresses listened on."),
    strings("log.dirs", None, "Directories with the partitions' logs."),
    int32("node.id", -1, "This broker's id.", Range(-1), kip="KIP-631"),
    strings(
        "process.roles",
        None,
        "The roles of this process: broker, controller, or both.",
        ("broker", "controller"),
        kip="KIP-631",
    ),
    strings("early.start.listeners", None, "All listeners start together.", honoured=False),
    strings("log.dir", ("/tmp/kafka-logs",), "Set log.dirs instead.", honoured=False),
    string(
        "metadata.log.dir", None, "The controller's log is in its data directory.", honoured=False
    ),
    string(
        "security.inter.broker.protocol",
        "PLAINTEXT",
        "All connections are plain text.",
        ("PLAINTEXT",),
        honoured=False,
    ),
)

_CONNECTIONS = (
    int64(
        "connections.max.idle.ms",
        600_000,
        "A connection on which no request came for this long is closed; -1 is never.",
        Range(-1),
    ),
    int32(
        "fetch.max.bytes",
        57_671_680,
        "Largest sum of records in one fetch response, whatever limit the request has.",
        Range(1024),
        kip="KIP-541",
    ),
    int32(
        "max.connections",
        INT_MAX,
        "Connections open at once; further ones are closed at once. The hard limit on open files"
        " (ulimit -Hn) bounds them as well: a quarter of it is for log files, the rest but 64 for"
        " connections. A broker process raises its soft limit to the hard one when it starts.",
        NOT_NEGATIVE,
        kip="KIP-402",
        dynamic=CLUSTER_WIDE,
    ),
    int32(
        "max.connections.per.ip",
        INT_MAX,
        "Connections open at once from one address; further ones are closed at once.",
        NOT_NEGATIVE,
        dynamic=CLUSTER_WIDE,
    ),
    int32(
        "max.incremental.fetch.session.cache.slots",
        1000,
        "Fetch sessions that are kept.",
        NOT_NEGATIVE,
        kip="KIP-227",
    ),
    int32(
        "socket.listen.backlog.size",
        1024,
        "Connections the operating system queues until they are accepted. Kafka's default is 50,"
        " but a thread of its own accepts them.",
        POSITIVE,
        kip="KIP-764",
    ),
    int32(
        "socket.request.max.bytes",
        104_857_600,
        "Largest request; a longer one closes its connection.",
        POSITIVE,
    ),
    int64(
        "sasl.kerberos.min.time.before.relogin",
        60_000,
        "There is no Kerberos. Suites of clients set it to try changes of a broker's options.",
        unit="ms",
        dynamic=PER_BROKER,
        honoured=False,
    ),
    int32("background.threads", 10, _ONE_LOOP, POSITIVE, dynamic=CLUSTER_WIDE, honoured=False),
    int32(
        "max.connection.creation.rate",
        INT_MAX,
        "Connections are accepted without a limit on their rate.",
        NOT_NEGATIVE,
        dynamic=CLUSTER_WIDE,
        honoured=False,
    ),
    string(
        "max.connections.per.ip.overrides",
        "",
        "max.connections.per.ip applies to every address.",
        dynamic=CLUSTER_WIDE,
        honoured=False,
    ),
    int32("num.io.threads", 8, _ONE_LOOP, POSITIVE, dynamic=CLUSTER_WIDE, honoured=False),
    int32("num.network.threads", 3, _ONE_LOOP, POSITIVE, dynamic=CLUSTER_WIDE, honoured=False),
    int32(
        "num.recovery.threads.per.data.dir",
        2,
        _ONE_LOOP,
        POSITIVE,
        dynamic=CLUSTER_WIDE,
        honoured=False,
    ),
    int64(
        "queued.max.request.bytes",
        -1,
        "A connection is not read while one of its requests is unanswered.",
        honoured=False,
    ),
    int32(
        "queued.max.requests",
        500,
        "Each connection has one request in progress.",
        POSITIVE,
        honoured=False,
    ),
    int32(
        "request.timeout.ms", 30_000, "Each kind of request has its own timeout.", honoured=False
    ),
    *(
        int32(
            f"{name}.buffer.bytes",
            default,
            "The operating system chooses the size of socket buffers.",
            Range(-1),
            honoured=False,
        )
        for name, default in (
            ("socket.send", 102_400),
            ("socket.receive", 102_400),
            ("replica.socket.receive", 65_536),
        )
    ),
    *(
        int32(
            f"{name}.purgatory.purge.interval.requests",
            default,
            "A waiting request is removed as soon as its wait ends.",
            honoured=False,
        )
        for name, default in (("delete.records", 1), ("fetch", 1000), ("producer", 1000))
    ),
)

_REPLICATION = (
    int32(
        "broker.heartbeat.interval.ms",
        2000,
        "Time between two heartbeats of a broker to the controller.",
        POSITIVE,
        kip="KIP-631",
    ),
    int32(
        "broker.session.timeout.ms",
        9000,
        "Time without a heartbeat after which the controller fences a broker.",
        POSITIVE,
        kip="KIP-631",
    ),
    boolean(
        "controlled.shutdown.enable",
        True,
        "Whether a broker hands over leadership of its partitions before it stops.",
    ),
    int32(
        "num.replica.fetchers",
        1,
        "A broker uses one connection to fetch from another, which already uses a whole core.",
        POSITIVE,
        dynamic=CLUSTER_WIDE,
        honoured=False,
    ),
    int32(
        "replica.fetch.backoff.ms",
        1000,
        "Wait before a follower fetches a partition again after an error.",
        NOT_NEGATIVE,
    ),
    int32(
        "replica.fetch.max.bytes",
        1_048_576,
        "Bytes that a follower fetches per partition; a larger batch is returned whole.",
        NOT_NEGATIVE,
    ),
    int32(
        "replica.fetch.min.bytes",
        1,
        "Bytes that a leader waits for before it answers a follower.",
    ),
    int32(
        "replica.fetch.response.max.bytes",
        10_485_760,
        "Bytes that a follower fetches in one request; a larger batch is returned whole.",
        NOT_NEGATIVE,
        kip="KIP-74",
    ),
    int32(
        "replica.fetch.wait.max.ms",
        500,
        "How long a leader waits for replica.fetch.min.bytes; less than replica.lag.time.max.ms.",
    ),
    int64(
        "replica.high.watermark.checkpoint.interval.ms",
        5000,
        "Time between two checkpoints of the high watermarks.",
        POSITIVE,
    ),
    int64(
        "replica.lag.time.max.ms",
        30_000,
        "A follower that has not caught up with its leader for this long leaves the ISR.",
        POSITIVE,
    ),
    string(
        "replica.selector.class",
        None,
        "Which replicas consumers may read from: leaders only, or a replica in their rack.",
        (f"{_SELECTORS}RackAwareReplicaSelector", f"{_SELECTORS}LeaderSelector", ""),
        kip="KIP-392",
    ),
    int32(
        "replica.socket.timeout.ms",
        30_000,
        "How long a follower waits for a response; at least replica.fetch.wait.max.ms.",
        POSITIVE,
    ),
    *(
        int64(
            f"{side}.replication.throttled.rate",
            LONG_MAX,
            f"Bytes per second {what} throttled replicas ({side}.replication.throttled.replicas).",
            NOT_NEGATIVE,
            unit="bytes/s",
            kip="KIP-73",
            dynamic=CLUSTER_WIDE,
        )
        for side, what in (("leader", "that leaders send to"), ("follower", "that are fetched for"))
    ),
    int32(
        "initial.broker.registration.timeout.ms",
        60_000,
        "A broker waits for the controller without a limit.",
        honoured=False,
    ),
    int64(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG_MAX,
        "Replicas are not moved between directories.",
        NOT_NEGATIVE,
        unit="bytes/s",
        dynamic=CLUSTER_WIDE,
        honoured=False,
    ),
)

_CONTROLLER = (
    boolean(
        "auto.create.topics.enable",
        True,
        "Whether a Metadata request that allows it creates the topics it names.",
    ),
    boolean(
        "auto.leader.rebalance.enable",
        True,
        "Whether the controller moves leadership back to preferred replicas by itself.",
    ),
    int32(
        "default.replication.factor",
        1,
        "Replicas of topics that are created without a replication factor.",
        Range(1, 32767),
    ),
    boolean("delete.topic.enable", True, "Whether topics can be deleted."),
    int64(
        "leader.imbalance.check.interval.seconds",
        300,
        "Time between two checks for leaders that are not the preferred replicas.",
        POSITIVE,
    ),
    int64(
        "metadata.log.max.record.bytes.between.snapshots",
        20_971_520,
        "Bytes of records after which the controller takes a snapshot.",
        POSITIVE,
        unit="bytes",
        kip="KIP-630",
    ),
    int32(
        "num.partitions",
        1,
        "Partitions of topics that are created without a partition count.",
        POSITIVE,
    ),
    int64(
        "max.broker.partitions",
        LONG_MAX,
        "The most partition replicas that may be assigned to a broker, not counting the cluster's "
        "own topics. Existing replicas stay. Set it for all brokers; a value for one node has an "
        "effect only if that is the controller.",
        NOT_NEGATIVE,
        kip="KIP-578",
        dynamic=CLUSTER_WIDE,
    ),
    int64(
        "max.partitions",
        LONG_MAX,
        "The most partition replicas that may be assigned to all brokers together, not counting "
        "the cluster's own topics. Existing replicas stay.",
        NOT_NEGATIVE,
        kip="KIP-578",
        dynamic=CLUSTER_WIDE,
    ),
    string(
        GOAL,
        PlacementGoal.RACKS.value,
        "What the replicas of new partitions make even first if racks have different numbers of "
        "brokers. racks: a partition is on as many racks as possible, so a broker that is alone in "
        "its rack gets more replicas than others. brokers: all brokers get the same number of "
        "replicas, as far as max.broker.partitions allows. weighted: racks get replicas in "
        "proportion to their brokers; what a full broker cannot take goes to others of its rack. A "
        "value for one node has an effect only if that is the controller.",
        tuple(each.value for each in PlacementGoal),
        kip="KIP-1194",
        dynamic=CLUSTER_WIDE,
    ),
    int64(
        "unclean.leader.election.interval.ms",
        300_000,
        "Time between two checks for partitions without leader that may elect an unclean one.",
        POSITIVE,
    ),
    int64(
        "metadata.log.max.snapshot.interval.ms",
        3_600_000,
        "Snapshots are taken by size only.",
        NOT_NEGATIVE,
        honoured=False,
    ),
    int32(
        "metadata.log.segment.bytes",
        1_073_741_824,
        "The controller begins a new log with each snapshot.",
        Range(8_388_608),
        honoured=False,
    ),
    int64(
        "metadata.log.segment.ms",
        604_800_000,
        "The controller begins a new log with each snapshot.",
        honoured=False,
    ),
    int32(
        "metadata.max.idle.interval.ms",
        500,
        "The controller writes no records while nothing changes.",
        NOT_NEGATIVE,
        honoured=False,
    ),
    *(
        int64(
            f"metadata.max.retention.{unit}",
            default,
            "Records before the last snapshot are deleted at once.",
            honoured=False,
        )
        for unit, default in (("bytes", 104_857_600), ("ms", 604_800_000))
    ),
    *(
        int32(
            f"controller.quorum.{name}.ms",
            default,
            "There is one controller.",
            NOT_NEGATIVE,
            honoured=False,
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
    int64(
        "log.retention.check.interval.ms",
        300_000,
        "Time between two checks for segments to delete.",
        POSITIVE,
    ),
    int32(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        "Time between two checkpoints of the offsets up to which each log is on disk.",
        NOT_NEGATIVE,
    ),
    int32(
        "producer.ids.max",
        100_000,
        "Most idempotent producers that a partition remembers, until some expire; another one is"
        " refused. trimtab's own option.",
        POSITIVE,
    ),
    int32(
        "producer.id.expiration.ms",
        86_400_000,
        "How long a partition remembers an idempotent producer after its last append.",
        POSITIVE,
        kip="KIP-854",
        dynamic=CLUSTER_WIDE,
    ),
    int32("log.retention.hours", 168, "Default of the topic option retention.ms, in hours."),
    int32(
        "log.retention.minutes",
        None,
        "Default of the topic option retention.ms, in minutes; overrides hours.",
    ),
    int64(
        "log.retention.ms",
        None,
        "Default of the topic option retention.ms; overrides minutes.",
        dynamic=CLUSTER_WIDE,
    ),
    int32("log.roll.hours", 168, "Default of the topic option segment.ms, in hours.", POSITIVE),
    int64(
        "log.roll.ms",
        None,
        "Default of the topic option segment.ms; overrides hours.",
        dynamic=CLUSTER_WIDE,
    ),
    int32(
        "log.roll.jitter.hours",
        0,
        "Default of the topic option segment.jitter.ms, in hours.",
        NOT_NEGATIVE,
    ),
    int64(
        "log.roll.jitter.ms",
        None,
        "Default of the topic option segment.jitter.ms; overrides hours.",
        dynamic=CLUSTER_WIDE,
    ),
    int64(
        "log.flush.interval.ms",
        None,
        "Default of the topic option flush.ms.",
        dynamic=CLUSTER_WIDE,
    ),
    int64(
        "log.flush.scheduler.interval.ms",
        LONG_MAX,
        "Time between two checks for logs to force to disk; default of flush.ms.",
    ),
    *(
        _broker_form(topic.name, synonym)
        for topic in TOPIC
        for synonym in topic.synonyms[:1]
        if topic.name not in ("retention.ms", "segment.ms", "segment.jitter.ms", "flush.ms")
    ),
    boolean("log.cleaner.enable", True, "Whether this broker compacts logs."),
    int64(
        "log.cleaner.backoff.ms",
        15_000,
        "Time until the next check for logs to compact if there was none.",
        NOT_NEGATIVE,
        dynamic=CLUSTER_WIDE,
    ),
    int64(
        "log.cleaner.dedupe.buffer.size",
        134_217_728,
        "Memory for the keys of the log that is being compacted.",
        POSITIVE,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
    ),
    double(
        "log.cleaner.io.buffer.load.factor",
        0.9,
        "The table of keys grows as needed.",
        dynamic=CLUSTER_WIDE,
        honoured=False,
    ),
    int32(
        "log.cleaner.io.buffer.size",
        524_288,
        "Batches are read and written one by one.",
        NOT_NEGATIVE,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
        honoured=False,
    ),
    double(
        "log.cleaner.io.max.bytes.per.second",
        1.7976931348623157e308,
        "Compaction yields to requests by itself.",
        unit="bytes/s",
        dynamic=CLUSTER_WIDE,
        honoured=False,
    ),
    int32(
        "log.cleaner.threads",
        1,
        "One log is compacted at a time.",
        NOT_NEGATIVE,
        dynamic=CLUSTER_WIDE,
        honoured=False,
    ),
    int64(
        "log.dir.failure.timeout.ms", 30_000, "There is one directory.", POSITIVE, honoured=False
    ),
    int32(
        "log.flush.start.offset.checkpoint.interval.ms",
        60_000,
        "Log start offsets are written together with recovery points.",
        NOT_NEGATIVE,
        honoured=False,
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
