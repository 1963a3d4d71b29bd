"""What an assignment costs, counted in calls of functions."""

from __future__ import annotations

import sys
from random import Random

import pytest

from trimtab.client.group.assignors.factory import ASSIGNORS
from trimtab.client.group.assignors.protocol import Assignor, Subscriber, Topic
from trimtab.kafka.records import TopicPartition

RACKS = ("x", "y", "z")
NAMES = tuple(f"t{number}" for number in range(10))


def make_group(scale: int, alike: bool, owned: bool) -> tuple[list[Subscriber], dict[str, Topic]]:
    """10 members, and 100 partitions, times `scale`; they are owned at random, or by nobody."""
    random = Random(3)
    count = 10 * scale
    topics = {
        name: Topic(count, tuple(frozenset(random.sample(RACKS, 2)) for _ in range(count)))
        for name in NAMES
    }
    group = [
        Subscriber(
            f"m{number:04}",
            None,
            frozenset(NAMES) if alike else frozenset(NAMES[number % 2 :: 2]),
            rack=RACKS[number % 3],
            rates={
                TopicPartition(name, index): random.uniform(1, 10)
                for name in NAMES
                for index in range(number, count, count)
            },
        )
        for number in range(count)
    ]
    if owned:
        held: list[set[TopicPartition]] = [set() for _ in group]
        for name in NAMES:
            for index in range(count):
                held[random.randrange(count)].add(TopicPartition(name, index))
        group = [
            each._replace(owned=frozenset(given), generation=1)
            for each, given in zip(group, held, strict=True)
        ]
    return group, topics


def count_calls(assignor: Assignor, group: list[Subscriber], topics: dict[str, Topic]) -> int:
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        assignor.assign(group, topics)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky", "load"])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("owned", [True, False])
def test_four_times_the_group_costs_about_four_times_as_much(
    name: str, alike: bool, owned: bool
) -> None:
    """Not sixteen times, which partitions times members would."""
    assignor = ASSIGNORS[name]()
    small = count_calls(assignor, *make_group(3, alike, owned))
    assert count_calls(assignor, *make_group(12, alike, owned)) < 6 * small
