"""The throttles of replication during reassignments (KIP-73), as values.

A throttle has two halves, which have no effect alone: a rate for each broker, and for each topic
the lists of the replicas (`partition:broker`) that it applies to, as leaders and as followers.
Rates are set first, and lists are removed first, so that whatever fails in between holds back
nothing. Replicas are listed one by one: `*` would also hold back brokers that restart meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from trimtab.kafka.records import TopicPartition

_SIDES = ("leader", "follower")
RATES: Final = tuple(f"{side}.replication.throttled.rate" for side in _SIDES)
"""Options of a broker: bytes/s that it sends to followers, and that it receives from leaders."""
LISTS: Final = tuple(f"{side}.replication.throttled.replicas" for side in _SIDES)
"""Options of a topic: the replicas that are throttled where they lead, and where they follow."""
ALL_REPLICAS: Final = "*"


def mark_rate(rate: int) -> tuple[int, int]:
    """The bytes/s of a broker as leader and as follower, as `is_marked` knows them again: others
    set both alike.

    Args:
        rate: 2 or more.
    """
    return rate, rate - 1


def is_marked(rates: tuple[int | None, int | None] | None) -> bool:
    """Whether a broker's rates are from `mark_rate`, in this process or an earlier one."""
    return rates is not None and None not in rates and rates == mark_rate(rates[0] or 0)


class CopyEnds(NamedTuple):
    """The brokers that a partition is copied from, and those that it is copied to."""

    sources: frozenset[int]
    targets: frozenset[int]


class ThrottledLists(NamedTuple):
    """A topic's lists: `partition:broker`, or `*`."""

    leaders: tuple[str, ...] = ()
    followers: tuple[str, ...] = ()

    def options(self) -> dict[str, str]:
        """The lists that are not empty, as a topic's options."""
        return {name: ",".join(each) for name, each in zip(LISTS, self, strict=True) if each}


def find_ends(
    present: Iterable[int], wanted: Iterable[int], adding: Iterable[int] = ()
) -> CopyEnds:
    """The ends of a partition's copies from its present replicas to those wanted.

    Args:
        adding: those of the present ones that a reassignment copies already.
    """
    sources = frozenset(present) - frozenset(adding)
    return CopyEnds(sources, frozenset(wanted) - sources)


def list_pairs(copies: Mapping[TopicPartition, CopyEnds]) -> dict[str, ThrottledLists]:
    """By topic the lists of what these copies need; of partitions that are copied nothing."""
    pairs: dict[str, tuple[list[str], list[str]]] = {}
    for partition, ends in sorted(copies.items()):
        if ends.targets:
            lists = pairs.setdefault(partition.topic, ([], []))
            for side, brokers in zip(lists, ends, strict=True):
                side += (f"{partition.partition}:{broker}" for broker in sorted(brokers))
    return {
        topic: ThrottledLists(tuple(leaders), tuple(followers))
        for topic, (leaders, followers) in pairs.items()
    }


def read_lists(options: Mapping[str, str | None]) -> ThrottledLists:
    """The lists among a topic's options."""
    texts = (options.get(name) or "" for name in LISTS)
    leaders, followers = (tuple(filter(None, text.split(","))) for text in texts)
    return ThrottledLists(leaders, followers)


def read_pair(entry: str) -> tuple[int, int] | None:
    """Partition and broker of a list's entry; None if it is `*`."""
    partition, colon, broker = entry.partition(":")
    return (int(partition), int(broker)) if colon else None
