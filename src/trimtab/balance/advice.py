"""What to do about a load that is wrong: rules that Spark's load tables and the live views share.

Tests: tests/spark/test_load.py, tests/unit/cli/live/test_findings.py
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple


class Thresholds(NamedTuple):
    """The values from which rules are broken.

    Attributes:
        max_over_mean: bytes of a topic's largest partition divided by the mean; 1.5 for two
            partitions, whose maximum is 2. With few records, the threshold is higher, so that
            chance alone does not exceed it.
        min_bytes: topics and brokers with fewer bytes are not checked.
        key_share: share of one key in a topic's records, if the number of partitions is unknown. If
            `skew` gives it, a key is hot if it alone takes its partition beyond `max_over_mean`.
        key_records: minimum number of records of a hot key.
        used_share: used share of a broker's limit of replicas (KIP-578).
        days_to_full: days until a broker's disks are full.
        free_share: free share of a broker's disks.
        batch_bytes: mean size of a topic's batches.
        savable_cost: cost of avoidable traffic between racks in the window, in the currency of
            `rack_traffic`.
        leader_over_mean: bytes of the partitions that a broker leads divided by the mean of all
            brokers, and by the bytes of its largest partition, because moves cannot split it.
        lag_records: a group's lag in a topic, if it grows.
        lag_seconds: a group's lag in a partition, if known.
    """

    max_over_mean: float = 2.0
    min_bytes: int = 1_000_000
    key_share: float = 0.1
    key_records: int = 100
    used_share: float = 0.8
    days_to_full: float = 14.0
    free_share: float = 0.1
    batch_bytes: int = 1024
    savable_cost: float = 0.01
    leader_over_mean: float = 1.5
    lag_records: int = 1000
    lag_seconds: float = 60.0


CHANCE: Final = 0.001
"""Probability that a topic without skew is reported as uneven."""

SWITCH_BYTES: Final = 16_384
"""Producers change the partition of records without keys after about this many bytes (KIP-794)."""


def most_by_chance(partitions: int, records: float, octets: float, is_keyed: bool) -> float:
    """The largest partition divided by the mean that chance alone may make: Bernstein's inequality.
    Records with keys are placed one by one, others in runs.

    Args:
        records, octets: of the topic, in the time that is looked at.
    """
    events = (records if is_keyed else min(records, octets / SWITCH_BYTES)) / partitions
    each = math.log(partitions / CHANCE) / events if events > 0 else math.inf
    return 1 + each / 3 + math.sqrt(each * each / 9 + 2 * each)


class Advice(NamedTuple):
    """A rule, and what to do where it is broken.

    Attributes:
        severity: 1: records will soon be refused or lost, 2: causes cost, 3: information.
        action: a command that can be run as written, or an option of producer or consumer to set.
    """

    severity: int
    rule: str
    action: str


_FREE_DISKS: Final = (
    "trimtab log-dirs shows the largest topics; trimtab configs --alter --topic <topic>"
    " --add-config retention.bytes=<bytes> bounds one"
)

SEVERITIES: Final = {1: "Act now", 2: "It costs", 3: "Worth knowing"}

UNEVEN_WITHOUT_KEYS: Final = Advice(
    2,
    "uneven-without-keys",
    "producers: leave partitioner.class and the partition of a record unset, so that the built-in"
    " partitioner evens them out; `trimtab experiment` compares the ways",
)
UNEVEN_BY_KEY: Final = Advice(
    2,
    "uneven-by-key",
    "load.hot_keys tells whether one key is the cause, load.what_if whether another number of"
    " partitions would help; where order by key is not needed,"
    " producers: partitioner.ignore.keys=true",
)
HOT_KEY: Final = Advice(
    2,
    "hot-key",
    "producers of trimtab: partitioner.hot.keys=split, and merge_split where the order of a key is"
    " read; others split the key where it is produced (key#1, key#2, ...)",
)
SMALL_BATCHES: Final = Advice(
    3, "small-batches", "producers: linger.ms=20 or more, and compression.type=lz4 or zstd"
)
UNEVEN_LEADERS: Final = Advice(
    2, "uneven-leaders", "trimtab balance shows a plan that copies the least"
)
SAVABLE_TO_PRODUCE: Final = Advice(
    2,
    "savable-rack-traffic",
    "producers: client.rack=<their rack> and partitioner.rack.aware=true (KIP-1123)",
)
SAVABLE_TO_CONSUME: Final = Advice(
    2,
    "savable-rack-traffic",
    "consumers: client.rack=<their rack>; brokers: trimtab configs --alter --entity-type brokers"
    " --entity-default --add-config replica.selector.class="
    "org.apache.kafka.common.replica.RackAwareReplicaSelector (KIP-392)",
)
FEW_PARTITIONS_LEFT: Final = Advice(
    1,
    "few-partitions-left",
    "trimtab limits shows which brokers have room; trimtab balance moves",
)
DISK_FULL_SOON: Final = Advice(1, "disk-full-soon", _FREE_DISKS)
DISK_NEARLY_FULL: Final = Advice(1, "disk-nearly-full", _FREE_DISKS)
GROWING_LAG: Final = Advice(
    2,
    "growing-lag",
    "give the group more members, up to one a partition; trimtab topics --alter --topic <topic>"
    " --partitions <n> makes room for more (load.what_if: which keys would move)",
)
STALLED_GROUP: Final = Advice(
    1,
    "stalled-group",
    "look at the members' logs; trimtab consume --topic <topic> --partition <n> --offset"
    " <committed> shows the record that it stands at",
)
LAG: Final = Advice(
    3,
    "lag",
    "run the report again in some minutes: two snapshots tell whether the group catches up",
)

# Only live views know these.
NO_LEADER: Final = Advice(
    1, "no-leader", "start the brokers of its replicas; trimtab topics --describe shows them"
)
BROKER_DOWN: Final = Advice(
    1, "broker-down", "start it, or move its replicas away: trimtab balance --execute --drain <id>"
)
UNDER_REPLICATED: Final = Advice(
    2, "under-replicated", "look at the brokers that are missing in the ISR"
)
SLOW_BROKER: Final = Advice(
    1,
    "slow-broker",
    "look at its disk and its network; trimtab balance --watch --probe takes its leaders away",
)
