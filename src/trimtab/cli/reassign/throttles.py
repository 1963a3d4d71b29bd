"""Sets and removes the throttles of replication during reassignments (KIP-73)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from trimtab.errors import BrokerError, ErrorCode
from trimtab.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.blocking.admin import Admin
    from trimtab.client.admin import Reassignment

_SIDES = ("leader", "follower")


def set_throttles(
    admin: Admin,
    wanted: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
    moving: Mapping[TopicPartition, Reassignment],
    rate: int,
) -> None:
    """Limit each broker that takes part to `rate` bytes per second in each direction, for these
    reassignments and for those in progress."""
    sources, destinations = _find_ends(wanted, current, moving)
    topics = {partition.topic for partition in sources}
    for topic in sorted(topics):
        admin.alter_configs(
            "topic",
            topic,
            {
                f"{side}.replication.throttled.replicas": ",".join(
                    f"{partition.partition}:{broker}"
                    for partition, brokers in sorted(ends.items())
                    if partition.topic == topic
                    for broker in sorted(brokers)
                )
                for side, ends in zip(_SIDES, (sources, destinations), strict=True)
            },
        )
    brokers = {
        broker for ends in (sources, destinations) for each in ends.values() for broker in each
    }
    for broker in sorted(brokers):
        admin.alter_configs(
            "broker", broker, {f"{side}.replication.throttled.rate": rate for side in _SIDES}
        )


def _find_ends(
    wanted: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
    moving: Mapping[TopicPartition, Reassignment],
) -> tuple[dict[TopicPartition, set[int]], dict[TopicPartition, set[int]]]:
    """The brokers that each partition may be copied from, and those that it is copied to."""
    sources = {partition: {*each.replicas} - {*each.adding} for partition, each in moving.items()}
    destinations = {partition: {*each.adding} for partition, each in moving.items()}
    for partition, replicas in wanted.items():
        here = sources.setdefault(partition, {*current[partition]})
        destinations[partition] = {*replicas} - here
    return sources, destinations


def clear_throttles(admin: Admin, brokers: Iterable[int], topics: Iterable[str]) -> None:
    """Remove all throttles of these brokers and topics; deleted topics are skipped."""
    for broker in sorted(brokers):
        admin.alter_configs(
            "broker", broker, dict.fromkeys(f"{side}.replication.throttled.rate" for side in _SIDES)
        )
    for topic in sorted(topics):
        try:
            admin.alter_configs(
                "topic",
                topic,
                dict.fromkeys(f"{side}.replication.throttled.replicas" for side in _SIDES),
            )
        except BrokerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
