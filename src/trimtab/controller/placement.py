"""Which brokers get the replicas of a new topic.

Leaders go one after the other over the brokers, in an order in which racks alternate, from a start
that is drawn at random: every broker leads the same number of a topic's partitions, give or take
one, and many small topics spread as well. Followers go to racks that a partition does not have yet
as long as there is one. Fenced brokers lead nothing, and follow where no other is left (the rules
of Kafka's `StripedReplicaPlacer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from random import Random
from typing import Protocol

from trimtab.metadata.image import BrokerRegistration, ClusterImage


class Candidate(Protocol):
    """What placement knows of a broker."""

    @property
    def id(self) -> int: ...

    @property
    def rack(self) -> str | None: ...

    @property
    def fenced(self) -> bool: ...


def usable_brokers(image: ClusterImage) -> list[BrokerRegistration]:
    """The brokers that may get replicas: also those that have ended, but not those about to."""
    return [
        broker
        for broker in image.brokers.values()
        if broker.fenced or not broker.in_controlled_shutdown
    ]


def place(
    brokers: Iterable[Candidate], partitions: int, replication_factor: int, random: Random
) -> list[list[int]]:
    """Broker ids per partition, the preferred leader first.

    `replication_factor` lies between 1 and the number of brokers, one of which is not fenced.
    """
    usable = list(brokers)
    order = alternate_racks(broker for broker in usable if not broker.fenced)
    fenced = alternate_racks(broker for broker in usable if broker.fenced)
    start = random.randrange(len(order))
    assignments = []
    for partition in range(partitions):
        leader = (start + partition) % len(order)
        others = order[leader + 1 :] + order[:leader]
        if others:
            # Each round over the brokers begins elsewhere, so that the partitions of one leader
            # do not all have the same follower.
            shift = partition // len(order) % len(others)
            others = others[shift:] + others[:shift]
        others += fenced
        replicas = [order[leader]]
        racks = {order[leader].rack}
        elsewhere = [broker for broker in others if broker.rack not in racks]
        while len(replicas) < replication_factor:
            chosen = elsewhere[0] if elsewhere else others[0]
            replicas.append(chosen)
            racks.add(chosen.rack)
            others.remove(chosen)
            elsewhere = [broker for broker in others if broker.rack not in racks]
        assignments.append([broker.id for broker in replicas])
    return assignments


def alternate_racks(brokers: Iterable[Candidate]) -> list[Candidate]:
    """The brokers in an order in which neighbours are of different racks as far as that goes."""
    racks: dict[str | None, list[Candidate]] = {}
    for broker in sorted(brokers, key=lambda broker: (broker.rack or "", broker.id)):
        racks.setdefault(broker.rack, []).append(broker)
    stripes: Iterable[Sequence[Candidate | None]] = zip_longest(*racks.values())
    return [broker for stripe in stripes for broker in stripe if broker is not None]
