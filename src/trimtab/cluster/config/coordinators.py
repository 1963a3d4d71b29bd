"""The options of brokers as coordinators of groups and transactions."""

from __future__ import annotations

from trimtab.kafka.options import (
    CLUSTER_WIDE,
    INT_MAX,
    NOT_NEGATIVE,
    POSITIVE,
    Option,
    Range,
    boolean,
    int16,
    int32,
    int64,
    string,
    strings,
)

_NO_SHARES = "There are no share groups, and so no topic for their state."


def _bounds(what: str, low: int, high: int, least: int, kip: str = "KIP-848") -> tuple[Option, ...]:
    """The bounds of an option of consumer groups."""
    return tuple(
        int32(
            f"group.consumer.{word}.{what}.ms",
            value,
            f"{doc} value of consumer.{what}.ms that a group may have.",
            Range(least),
            kip=kip,
        )
        for word, value, doc in (("min", low, "Smallest"), ("max", high, "Largest"))
    )


COORDINATORS = (
    int32(
        "coordinator.groups.max",
        100_000,
        "Most groups that a broker coordinates; trimtab's own option.",
        POSITIVE,
    ),
    int64(
        "coordinator.memory.max.bytes",
        268_435_456,
        "Most bytes that a broker remembers of groups, and as many of transactional ids: of their"
        " members, offsets and partitions. It is an estimate; trimtab's own option.",
        POSITIVE,
    ),
    int32(
        "coordinator.members.max",
        100_000,
        "Most members of all groups that a broker coordinates; trimtab's own option.",
        POSITIVE,
    ),
    int32(
        "coordinator.transactional.ids.max",
        100_000,
        "Most transactional ids that a broker coordinates; trimtab's own option.",
        POSITIVE,
    ),
    int32(
        "group.consumer.assignment.interval.ms",
        1000,
        "Least time between two computations of a consumer group's assignment: a change that comes "
        "earlier waits for the first heartbeat after that time.",
        NOT_NEGATIVE,
        kip="KIP-1263",
        dynamic=CLUSTER_WIDE,
    ),
    *_bounds("assignment.interval", 0, 15_000, 0, "KIP-1263"),
    *_bounds("heartbeat.interval", 5000, 15_000, 1),
    *_bounds("session.timeout", 45_000, 60_000, 1),
    int32(
        "group.consumer.regex.refresh.interval.ms",
        600_000,
        "Regular expressions of consumer groups are matched again whenever topics change.",
        Range(10_000),
        honoured=False,
    ),
    strings(
        "group.consumer.assignors",
        ("uniform", "range", "load"),
        "Assignors that members of consumer groups may ask for; the first is the default.",
        ("uniform", "range", "load"),
        kip="KIP-848",
    ),
    int32(
        "group.consumer.heartbeat.interval.ms",
        5000,
        "How often a member of a consumer group is asked to send a heartbeat.",
        POSITIVE,
        kip="KIP-848",
    ),
    int32(
        "group.consumer.max.size",
        INT_MAX,
        "Most members of a consumer group.",
        POSITIVE,
        kip="KIP-848",
    ),
    string(
        "group.consumer.migration.policy",
        "bidirectional",
        "Whether a group with members changes from the classic to the consumer protocol (upgrade),"
        " back (downgrade), both ways, or not at all (disabled).",
        ("disabled", "downgrade", "upgrade", "bidirectional"),
        kip="KIP-848",
        ignores_case=True,
    ),
    int32(
        "group.consumer.session.timeout.ms",
        45_000,
        "A member of a consumer group that sends no heartbeat for this long is removed.",
        POSITIVE,
        kip="KIP-848",
    ),
    int32(
        "group.initial.rebalance.delay.ms",
        3000,
        "Time that the first rebalance of an empty group waits for more members.",
        NOT_NEGATIVE,
        kip="KIP-134",
    ),
    int32("group.max.session.timeout.ms", 1_800_000, "Longest session of a group's member."),
    int32("group.max.size", INT_MAX, "Most members of a group.", POSITIVE, kip="KIP-389"),
    int32("group.min.session.timeout.ms", 6000, "Shortest session of a group's member."),
    int32("offset.metadata.max.bytes", 4096, "Longest metadata of a committed offset."),
    int64(
        "offsets.retention.check.interval.ms",
        600_000,
        "Time between two searches for committed offsets whose retention time is over.",
        POSITIVE,
    ),
    int32(
        "offsets.retention.minutes",
        10_080,
        "Time that committed offsets are kept after their group has lost its last member.",
        POSITIVE,
        kip="KIP-211",
    ),
    int32(
        "offsets.topic.num.partitions",
        50,
        "Partitions of __consumer_offsets when it is created.",
        POSITIVE,
    ),
    int16(
        "offsets.topic.replication.factor",
        3,
        "Replicas of __consumer_offsets when it is created. Unless it is set, there are fewer where"
        " there are fewer brokers.",
        POSITIVE,
    ),
    int32(
        "offsets.topic.segment.bytes",
        104_857_600,
        "Size of the segments of __consumer_offsets.",
        POSITIVE,
    ),
    int16("share.coordinator.state.topic.min.isr", 2, _NO_SHARES, POSITIVE, honoured=False),
    int32("share.coordinator.state.topic.num.partitions", 50, _NO_SHARES, POSITIVE, honoured=False),
    int16(
        "share.coordinator.state.topic.replication.factor", 3, _NO_SHARES, POSITIVE, honoured=False
    ),
    int32(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        "Time for which a leader repeats the question whether a partition becomes part of a"
        " transaction, while the one before it ends.",
        NOT_NEGATIVE,
        kip="KIP-890",
    ),
    int32(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        "Time between two such questions.",
        POSITIVE,
        kip="KIP-890",
    ),
    int32(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "A transaction is aborted as soon as its time is over.",
        POSITIVE,
        honoured=False,
    ),
    int32(
        "transaction.max.timeout.ms",
        900_000,
        "The longest transaction.timeout.ms of a producer.",
        POSITIVE,
        kip="KIP-98",
    ),
    boolean(
        "transaction.partition.verification.enable",
        True,
        "Leaders always ask the coordinator before the first batch of a transaction.",
        honoured=False,
    ),
    int32(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often transactional ids are deleted that nobody has used for long.",
        POSITIVE,
        kip="KIP-98",
    ),
    int32(
        "transaction.state.log.load.buffer.size",
        5_242_880,
        "The log is loaded in pieces of a megabyte.",
        POSITIVE,
        unit="bytes",
        honoured=False,
    ),
    int32(
        "transaction.state.log.min.isr",
        2,
        "min.insync.replicas of __transaction_state when it is created.",
        POSITIVE,
    ),
    int32(
        "transaction.state.log.num.partitions",
        50,
        "Partitions of __transaction_state when it is created.",
        POSITIVE,
    ),
    int16(
        "transaction.state.log.replication.factor",
        3,
        "Replicas of __transaction_state when it is created. Unless it is set, there are fewer"
        " where there are fewer brokers.",
        POSITIVE,
    ),
    int32(
        "transaction.state.log.segment.bytes",
        104_857_600,
        "Size of the segments of __transaction_state.",
        POSITIVE,
    ),
    boolean(
        "transaction.two.phase.commit.enable",
        False,
        "Whether producers may keep prepared transactions open without a limit.",
        kip="KIP-939",
    ),
    int32(
        "transactional.id.expiration.ms",
        604_800_000,
        "How long a transactional id without an open transaction is kept after its last use.",
        POSITIVE,
        kip="KIP-98",
    ),
)
