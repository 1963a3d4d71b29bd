"""Groups as in the tests of Apache Kafka's assignors, and their assignments as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trimtab.client.group.assignors.protocol import Assignment, Assignor, Subscriber, Topic
from trimtab.kafka.records import TopicPartition


def spread(
    counts: Mapping[str, int], replicas: int, racks: Sequence[str | None]
) -> dict[str, Topic]:
    """Topics whose partitions go round the brokers in these racks."""
    topics: dict[str, Topic] = {}
    first = 0
    for name, count in counts.items():
        topics[name] = Topic(
            count,
            tuple(
                frozenset(
                    rack
                    for number in range(replicas)
                    if (rack := racks[(first + index + number) % len(racks)]) is not None
                )
                for index in range(count)
            ),
        )
        first += count
    return topics


def parse(text: str) -> frozenset[TopicPartition]:
    """`t1-0 t1-1` as partitions."""
    return frozenset(
        TopicPartition(topic, int(index))
        for topic, _, index in (word.rpartition("-") for word in text.split())
    )


def show(assigned: Assignment) -> list[str]:
    """What each member has, in the order of their ids."""
    return [" ".join(map(str, sorted(given))) for _, given in sorted(assigned.items())]


def assign(
    assignor: Assignor,
    topics: Mapping[str, Topic],
    subscribed: Sequence[str],
    racks: Sequence[str | None] = (),
    owned: Sequence[str] = (),
    generations: Sequence[int] = (),
) -> list[str]:
    """The assignment of members `consumer0`, `consumer1`, … to topics, separated by blanks."""
    return show(
        assignor.assign(
            [
                Subscriber(
                    f"consumer{number}",
                    None,
                    frozenset(names.split()),
                    parse(owned[number]) if owned else frozenset(),
                    generations[number] if generations else 1,
                    racks[number] if racks else None,
                )
                for number, names in enumerate(subscribed)
            ],
            topics,
        )
    )


def count_far(
    topics: Mapping[str, Topic], racks: Sequence[str | None], given: Sequence[str]
) -> int:
    """Partitions that a member reads from another rack."""
    return sum(
        rack is not None and rack not in topics[each.topic].racks_of(each.partition)
        for rack, text in zip(racks, given, strict=True)
        for each in parse(text)
    )
