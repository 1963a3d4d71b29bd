"""The options of groups (KIP-848, KIP-932, KIP-1071): Kafka's `GroupConfig`.

The options of consumer groups take effect, but for `consumer.assignment.interval.ms`: assignments
are computed at once. Those of share and streams groups are accepted, stored and described as in
Kafka 4.3, and have no effect. The bounds are the defaults of Kafka's brokers.
"""

from __future__ import annotations

from trimtab.config.options import (
    BOOLEAN,
    INT,
    INT_MAX,
    STRING,
    Form,
    Option,
    OptionTable,
    OptionType,
    Range,
    Value,
)

_RESET = Form(
    r"earliest|by_duration:(?i:P(?!$)(\d+D)?(T(?!$)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?)",
    "latest",
    "earliest, latest or by_duration:PnDTnHnMn.nS",
)


_SERVED = ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms")


def _option(
    name: str,
    kind: OptionType,
    default: Value,
    doc: str,
    valid: Range | Form | tuple[str, ...] | None = None,
    unit: str = "",
) -> Option:
    kip = {"consumer": "KIP-848", "share": "KIP-932", "streams": "KIP-1071"}[name.partition(".")[0]]
    return Option(name, kind, default, doc, valid, unit, kip, honoured=name in _SERVED)


def _of_every_group(kind: str) -> tuple[Option, ...]:
    """The options that consumer, share and streams groups all have."""
    return (
        _option(
            f"{kind}.assignment.interval.ms",
            INT,
            1000,
            "Least time between two computations of the assignment.",
            Range(0, 15_000),
            "ms",
        ),
        _option(
            f"{kind}.heartbeat.interval.ms",
            INT,
            5000,
            "How often a member sends a heartbeat.",
            Range(5000, 15_000),
            "ms",
        ),
        _option(
            f"{kind}.session.timeout.ms",
            INT,
            45_000,
            "A member that sends no heartbeat for this long leaves the group.",
            Range(45_000, 60_000),
            "ms",
        ),
    )


GROUP = OptionTable(
    "group",
    (
        *_of_every_group("consumer"),
        *_of_every_group("share"),
        _option(
            "share.auto.offset.reset",
            STRING,
            "latest",
            "Where a share group begins to read a partition.",
            _RESET,
        ),
        _option(
            "share.delivery.count.limit",
            INT,
            5,
            "The largest number of deliveries of a record.",
            Range(2, 10),
        ),
        _option(
            "share.isolation.level",
            STRING,
            "read_uncommitted",
            "Whether records of open and aborted transactions are delivered.",
            ("read_committed", "read_uncommitted"),
        ),
        _option(
            "share.partition.max.record.locks",
            INT,
            2000,
            "The largest number of a partition's records that members have acquired.",
            Range(100, 4000),
        ),
        _option(
            "share.record.lock.duration.ms",
            INT,
            30_000,
            "How long a member keeps a record that it has acquired.",
            Range(15_000, 60_000),
            "ms",
        ),
        _option(
            "share.renew.acknowledge.enable",
            BOOLEAN,
            True,
            "Whether a member may keep a record for longer.",
        ),
        *_of_every_group("streams"),
        _option(
            "streams.initial.rebalance.delay.ms",
            INT,
            3000,
            "How long the first computation of the assignment waits for members.",
            Range(0, INT_MAX),
            "ms",
        ),
        _option(
            "streams.num.standby.replicas",
            INT,
            0,
            "Standby replicas of each task.",
            Range(0, 2),
        ),
    ),
)
