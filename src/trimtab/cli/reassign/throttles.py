"""Sets and removes the throttles of replication during reassignments (KIP-73).

Rates are set first, on the brokers that are alive, then the lists, which are taken back if one of
them cannot be set. Lists are removed first. Apache Kafka changes a broker's rates only through this
broker, and so not while it is stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from trimtab.balance.throttles import (
    ALL_REPLICAS,
    LISTS,
    RATES,
    ThrottledLists,
    find_ends,
    list_pairs,
    read_lists,
    read_pair,
)
from trimtab.cli.selection import describe_brokers
from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError
from trimtab.kafka.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.client.admin import Reassignment
    from trimtab.client.blocking.admin import Admin


class Release(NamedTuple):
    """The brokers whose rates were removed, and those whose rates stay.

    Attributes:
        cleared: brokers without rates now.
        moving: brokers that keep theirs, since replicas of theirs are still being reassigned.
        stopped: brokers that are not alive, and that no other broker can change.
    """

    cleared: list[int]
    moving: list[int]
    stopped: list[int]


def set_throttles(
    admin: Admin,
    wanted: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
    moving: Mapping[TopicPartition, Reassignment],
    rate: int,
) -> list[int]:
    """Limit each broker that takes part to `rate` bytes per second in each direction, for these
    reassignments and for those in progress.

    Returns:
        The brokers without a limit: they are not alive, and no other broker can change them.

    Raises:
        KafkaError: a live broker, or a topic, takes no throttle; the lists are as before.
    """
    copies = {each: find_ends(current[each], replicas) for each, replicas in wanted.items()}
    for each, move in moving.items():
        replicas = wanted.get(each, move.replicas)
        copies[each] = find_ends(move.replicas, replicas, move.adding)
    brokers = {
        broker for ends in copies.values() if ends.targets for side in ends for broker in side
    }
    left_out = _set_rates(admin, brokers, rate)
    added: dict[str, dict[str, str]] = {}
    try:
        for topic, pairs in list_pairs(copies).items():
            listed = _read_lists(admin, topic)
            missing = (
                tuple(each for each in side if each not in there)
                if ALL_REPLICAS not in there
                else ()
                for side, there in zip(pairs, map(frozenset, listed), strict=True)
            )
            options = ThrottledLists(*missing).options()
            if options:
                admin.alter_configs("topic", topic, append=options)
                added[topic] = options
    except KafkaError:
        for topic, options in added.items():
            admin.alter_configs("topic", topic, subtract=options)
        raise
    return left_out


def release_throttles(admin: Admin, topics: Iterable[str]) -> Release:
    """Remove the throttles that no reassignment in progress needs: of these topics the replicas of
    other partitions, and the rates of brokers without replicas that are being reassigned."""
    moving = admin.list_reassignments()
    for topic in sorted(topics):
        try:
            _shorten_lists(admin, topic, {each.partition for each in moving if each.topic == topic})
        except BrokerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
    brokers = {node.id for node in describe_brokers(admin).nodes}
    busy = brokers & {broker for each in moving.values() for broker in each.replicas}
    stopped = _set_rates(admin, brokers - busy, None)
    return Release(sorted(brokers - busy - {*stopped}), sorted(busy), stopped)


def _shorten_lists(admin: Admin, topic: str, moving: Set[int]) -> None:
    if not moving:
        admin.alter_configs("topic", topic, dict.fromkeys(LISTS))
        return
    stale = (
        tuple(each for each in side if (pair := read_pair(each)) and pair[0] not in moving)
        for side in _read_lists(admin, topic)
    )
    options = ThrottledLists(*stale).options()
    if options:
        admin.alter_configs("topic", topic, subtract=options)


def _read_lists(admin: Admin, topic: str) -> ThrottledLists:
    return read_lists({each.name: each.value for each in admin.describe_configs("topic", topic)})


def _set_rates(admin: Admin, brokers: Iterable[int], rate: int | None) -> list[int]:
    """Set or, for None, remove the rates of these brokers.

    Returns:
        The brokers that are not alive, and that no other broker can change.
    """
    left_out = []
    for broker in sorted(brokers):
        try:
            admin.alter_configs("broker", broker, dict.fromkeys(RATES, rate))
        except KafkaError:
            if any(node.id == broker for node in admin.cluster().nodes):
                raise
            left_out.append(broker)
    return left_out
