"""The options of groups (KIP-848, KIP-932, KIP-1071): Kafka's `GroupConfig`.

The options of consumer groups take effect; their defaults and bounds are options of the brokers
(`resolve_group` and `check_group` in `effective.py`). Those of share and streams groups are
accepted, stored and described as in Kafka 4.3, and have no effect; their bounds are the defaults of
Kafka's brokers.
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


def _option(
    name: str,
    kind: OptionType,
    default: Value,
    doc: str,
    valid: Range | Form | tuple[str, ...] | None = None,
    unit: str = "",
) -> Option:
    kip = {"share": "KIP-932", "streams": "KIP-1071"}[name.partition(".")[0]]
    return Option(name, kind, default, doc, valid, unit, kip, honoured=False)


_INTERVAL = "Least time between two computations of the assignment."
_HEARTBEAT = "How often a member sends a heartbeat."
_SESSION = "A member that sends no heartbeat for this long leaves the group."


def _served(name: str, default: int, doc: str, low: int, kip: str = "KIP-848") -> Option:
    """An option of consumer groups, with the broker option that is its default."""
    return Option(
        f"consumer.{name}", INT, default, doc, Range(low), "ms", kip, (f"group.consumer.{name}",)
    )


def _unserved(kind: str) -> tuple[Option, ...]:
    """The same options of groups that are not served."""
    return (
        _option(f"{kind}.assignment.interval.ms", INT, 1000, _INTERVAL, Range(0, 15_000), "ms"),
        _option(f"{kind}.heartbeat.interval.ms", INT, 5000, _HEARTBEAT, Range(5000, 15_000), "ms"),
        _option(f"{kind}.session.timeout.ms", INT, 45_000, _SESSION, Range(45_000, 60_000), "ms"),
    )


GROUP = OptionTable(
    "group",
    (
        _served("assignment.interval.ms", 1000, _INTERVAL, 0, "KIP-1263"),
        _served("heartbeat.interval.ms", 5000, _HEARTBEAT, 1),
        _served("session.timeout.ms", 45_000, _SESSION, 1),
        *_unserved("share"),
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
        *_unserved("streams"),
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
