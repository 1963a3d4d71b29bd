"""The options of brokers as coordinators of groups and transactions."""

from __future__ import annotations

from trimtab.config.options import (
    BOOLEAN,
    CLUSTER_WIDE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    NOT_NEGATIVE,
    POSITIVE,
    SHORT,
    STRING,
    Option,
    Range,
)
from trimtab.config.unused import unused

_NO_SHARES = "There are no share groups, and so no topic for their state."


def _bounds(what: str, low: int, high: int, least: int, kip: str = "KIP-848") -> tuple[Option, ...]:
    """The bounds of an option of consumer groups."""
    return tuple(
        Option(
            f"group.consumer.{word}.{what}.ms",
            INT,
            value,
            f"{doc} value of consumer.{what}.ms that a group may have.",
            Range(least),
            "ms",
            kip,
        )
        for word, value, doc in (("min", low, "Smallest"), ("max", high, "Largest"))
    )


COORDINATORS = (
    Option(
        "group.consumer.assignment.interval.ms",
        INT,
        1000,
        "Least time between two computations of a consumer group's assignment: a change that comes "
        "earlier waits for the first heartbeat after that time.",
        NOT_NEGATIVE,
        "ms",
        "KIP-1263",
        dynamic=CLUSTER_WIDE,
    ),
    *_bounds("assignment.interval", 0, 15_000, 0, "KIP-1263"),
    *_bounds("heartbeat.interval", 5000, 15_000, 1),
    *_bounds("session.timeout", 45_000, 60_000, 1),
    unused(
        "group.consumer.regex.refresh.interval.ms",
        INT,
        600_000,
        "Regular expressions of consumer groups are matched again whenever topics change.",
        Range(10_000),
        "ms",
    ),
    Option(
        "group.consumer.assignors",
        LIST,
        ("uniform", "range", "load"),
        "Assignors that members of consumer groups may ask for; the first is the default.",
        ("uniform", "range", "load"),
        kip="KIP-848",
    ),
    Option(
        "group.consumer.heartbeat.interval.ms",
        INT,
        5000,
        "How often a member of a consumer group is asked to send a heartbeat.",
        POSITIVE,
        "ms",
        "KIP-848",
    ),
    Option(
        "group.consumer.max.size",
        INT,
        INT_MAX,
        "Most members of a consumer group.",
        POSITIVE,
        kip="KIP-848",
    ),
    Option(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "Whether a group with members changes from the classic to the consumer protocol (upgrade),"
        " back (downgrade), both ways, or not at all (disabled).",
        ("disabled", "downgrade", "upgrade", "bidirectional"),
        kip="KIP-848",
        ignores_case=True,
    ),
    Option(
        "group.consumer.session.timeout.ms",
        INT,
        45_000,
        "A member of a consumer group that sends no heartbeat for this long is removed.",
        POSITIVE,
        "ms",
        "KIP-848",
    ),
    Option(
        "group.initial.rebalance.delay.ms",
        INT,
        3000,
        "Time that the first rebalance of an empty group waits for more members.",
        NOT_NEGATIVE,
        "ms",
        "KIP-134",
    ),
    Option(
        "group.max.session.timeout.ms",
        INT,
        1_800_000,
        "Longest session of a group's member.",
        unit="ms",
    ),
    Option("group.max.size", INT, INT_MAX, "Most members of a group.", POSITIVE, kip="KIP-389"),
    Option(
        "group.min.session.timeout.ms",
        INT,
        6000,
        "Shortest session of a group's member.",
        unit="ms",
    ),
    Option(
        "offset.metadata.max.bytes",
        INT,
        4096,
        "Longest metadata of a committed offset.",
        unit="bytes",
    ),
    Option(
        "offsets.retention.check.interval.ms",
        LONG,
        600_000,
        "Time between two searches for committed offsets whose retention time is over.",
        POSITIVE,
        "ms",
    ),
    Option(
        "offsets.retention.minutes",
        INT,
        10_080,
        "Time that committed offsets are kept after their group has lost its last member.",
        POSITIVE,
        "minutes",
        "KIP-211",
    ),
    Option(
        "offsets.topic.num.partitions",
        INT,
        50,
        "Partitions of __consumer_offsets when it is created.",
        POSITIVE,
    ),
    Option(
        "offsets.topic.replication.factor",
        SHORT,
        3,
        "Replicas of __consumer_offsets when it is created. Unless it is set, there are fewer where"
        " there are fewer brokers.",
        POSITIVE,
    ),
    Option(
        "offsets.topic.segment.bytes",
        INT,
        104_857_600,
        "Size of the segments of __consumer_offsets.",
        POSITIVE,
        "bytes",
    ),
    unused("share.coordinator.state.topic.min.isr", SHORT, 2, _NO_SHARES, POSITIVE),
    unused("share.coordinator.state.topic.num.partitions", INT, 50, _NO_SHARES, POSITIVE),
    unused("share.coordinator.state.topic.replication.factor", SHORT, 3, _NO_SHARES, POSITIVE),
    Option(
        "add.partitions.to.txn.retry.backoff.max.ms",
        INT,
        100,
        "Time for which a leader repeats the question whether a partition becomes part of a"
        " transaction, while the one before it ends.",
        NOT_NEGATIVE,
        "ms",
        "KIP-890",
    ),
    Option(
        "add.partitions.to.txn.retry.backoff.ms",
        INT,
        20,
        "Time between two such questions.",
        POSITIVE,
        "ms",
        "KIP-890",
    ),
    Option(
        "transaction.max.timeout.ms",
        INT,
        900_000,
        "The longest transaction.timeout.ms of a producer.",
        POSITIVE,
        "ms",
        "KIP-98",
    ),
    Option(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        3_600_000,
        "How often transactional ids are deleted that nobody has used for long.",
        POSITIVE,
        "ms",
        "KIP-98",
    ),
    Option(
        "transaction.state.log.min.isr",
        INT,
        2,
        "min.insync.replicas of __transaction_state when it is created.",
        POSITIVE,
    ),
    Option(
        "transaction.state.log.num.partitions",
        INT,
        50,
        "Partitions of __transaction_state when it is created.",
        POSITIVE,
    ),
    Option(
        "transaction.state.log.replication.factor",
        SHORT,
        3,
        "Replicas of __transaction_state when it is created. Unless it is set, there are fewer"
        " where there are fewer brokers.",
        POSITIVE,
    ),
    Option(
        "transaction.state.log.segment.bytes",
        INT,
        104_857_600,
        "Size of the segments of __transaction_state.",
        POSITIVE,
        "bytes",
    ),
    Option(
        "transaction.two.phase.commit.enable",
        BOOLEAN,
        False,
        "Whether producers may keep prepared transactions open without a limit.",
        kip="KIP-939",
    ),
    Option(
        "transactional.id.expiration.ms",
        INT,
        604_800_000,
        "How long a transactional id without an open transaction is kept after its last use.",
        POSITIVE,
        "ms",
        "KIP-98",
    ),
)
