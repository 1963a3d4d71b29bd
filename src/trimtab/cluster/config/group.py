"""The options of groups (KIP-848, KIP-932, KIP-1071): Kafka's `GroupConfig`.

The options of consumer groups take effect; their defaults and bounds are options of the brokers
(`resolve_group` and `check_group` in `effective.py`). Those of share and streams groups are
accepted, stored and described as in Kafka 4.3, and have no effect; their bounds are the defaults of
Kafka's brokers.
"""

from __future__ import annotations

from typing import Unpack

from trimtab.cluster.config.broker import BROKER
from trimtab.kafka.options import (
    INT_MAX,
    READ_ONLY,
    Form,
    More,
    Option,
    OptionTable,
    Range,
    boolean,
    int32,
    string,
)

_RESET = Form(
    r"earliest|by_duration:(?i:P(?!$)(\d+D)?(T(?!$)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?)",
    "latest",
    "earliest, latest or by_duration:PnDTnHnMn.nS",
)


_SHARE: More = {"kip": "KIP-932", "honoured": False}
_STREAMS: More = {"kip": "KIP-1071", "honoured": False}

_INTERVAL = "Least time between two computations of the assignment."
_HEARTBEAT = "How often a member sends a heartbeat."
_SESSION = "A member that sends no heartbeat for this long leaves the group."


def _served(name: str, doc: str) -> Option:
    """An option of consumer groups; its default is an option of the brokers."""
    default = BROKER[f"group.consumer.{name}"]
    return default._replace(
        name=f"consumer.{name}", doc=doc, synonyms=(default.name,), dynamic=READ_ONLY
    )


def _unserved(kind: str, **more: Unpack[More]) -> tuple[Option, ...]:
    """The same options of groups that are not served."""
    return (
        int32(f"{kind}.assignment.interval.ms", 1000, _INTERVAL, Range(0, 15_000), **more),
        int32(f"{kind}.heartbeat.interval.ms", 5000, _HEARTBEAT, Range(5000, 15_000), **more),
        int32(f"{kind}.session.timeout.ms", 45_000, _SESSION, Range(45_000, 60_000), **more),
    )


GROUP = OptionTable(
    "group",
    (
        _served("assignment.interval.ms", _INTERVAL),
        _served("heartbeat.interval.ms", _HEARTBEAT),
        _served("session.timeout.ms", _SESSION),
        *_unserved("share", **_SHARE),
        string(
            "share.auto.offset.reset",
            "latest",
            "Where a share group begins to read a partition.",
            _RESET,
            **_SHARE,
        ),
        int32(
            "share.delivery.count.limit",
            5,
            "The largest number of deliveries of a record.",
            Range(2, 10),
            **_SHARE,
        ),
        string(
            "share.isolation.level",
            "read_uncommitted",
            "Whether records of open and aborted transactions are delivered.",
            ("read_committed", "read_uncommitted"),
            **_SHARE,
        ),
        int32(
            "share.partition.max.record.locks",
            2000,
            "The largest number of a partition's records that members have acquired.",
            Range(100, 4000),
            **_SHARE,
        ),
        int32(
            "share.record.lock.duration.ms",
            30_000,
            "How long a member keeps a record that it has acquired.",
            Range(15_000, 60_000),
            **_SHARE,
        ),
        boolean(
            "share.renew.acknowledge.enable",
            True,
            "Whether a member may keep a record for longer.",
            **_SHARE,
        ),
        *_unserved("streams", **_STREAMS),
        int32(
            "streams.initial.rebalance.delay.ms",
            3000,
            "How long the first computation of the assignment waits for members.",
            Range(0, INT_MAX),
            **_STREAMS,
        ),
        int32(
            "streams.num.standby.replicas",
            0,
            "Standby replicas of each task.",
            Range(0, 2),
            **_STREAMS,
        ),
    ),
)
