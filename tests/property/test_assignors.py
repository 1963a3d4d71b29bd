"""Server-side assignors: whole, balanced, sticky; and the same for the same arguments."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cluster.coordinator.scene import FixedTopics
from trimtab.cluster.coordinator.assignors import ASSIGNORS, Subscriber, assign_ranges, uniform
from trimtab.cluster.coordinator.topics import PartitionKey, Topic

pytestmark = pytest.mark.kip(848)

TOPICS = [bytes([number]) * 16 for number in range(4)]

numbers = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7), min_size=1)
subscriptions = st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1, max_size=6)


def make_members(
    subscribed: list[frozenset[bytes]], given: dict[str, frozenset[PartitionKey]] | None = None
) -> dict[str, Subscriber]:
    return {
        f"m{number}": Subscriber(None, topics, (given or {}).get(f"m{number}", frozenset()))
        for number, topics in enumerate(subscribed)
    }


held = st.frozensets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 9)), max_size=6)


rates = st.lists(st.integers(0, 1000), max_size=20)


@given(
    numbers, subscriptions, st.lists(held, max_size=6), rates, st.sampled_from(sorted(ASSIGNORS))
)
def test_each_partition_with_a_subscriber_goes_to_one_that_subscribes(
    topics: dict[bytes, int],
    subscribed: list[frozenset[bytes]],
    had: list[frozenset[PartitionKey]],
    rates: list[float],
    name: str,
) -> None:
    """Whatever members had before: partitions of others, of other topics, or that do not exist."""
    members = make_members(subscribed, {f"m{number}": keys for number, keys in enumerate(had)})
    described = {each: Topic(f"t{each[0]}", each, count) for each, count in topics.items()}
    load = FixedTopics()
    load.measure("t1", *rates)
    assigned = ASSIGNORS[name](members, described, load)
    assert list(assigned) == list(members)
    everything = sorted(chain.from_iterable(assigned.values()))
    assert everything == sorted(
        (topic, index)
        for topic, count in topics.items()
        for index in range(count)
        if any(topic in each for each in subscribed)
    )
    for member_id, keys in assigned.items():
        assert {topic for topic, _ in keys} <= members[member_id].topics
    assert ASSIGNORS[name](members, described, load) == assigned


@given(numbers, st.integers(1, 6))
def test_uniform_numbers_differ_by_one_if_all_subscribe_alike(
    topics: dict[bytes, int], count: int
) -> None:
    sizes = [
        len(each) for each in uniform(make_members([frozenset(topics)] * count), topics).values()
    ]
    assert max(sizes) - min(sizes) <= 1


@given(numbers, subscriptions)
def test_no_uniform_assignment_is_more_equal(
    topics: dict[bytes, int], subscribed: list[frozenset[bytes]]
) -> None:
    """Compared with the best: the sum of squares of a flow that takes one partition at a time along
    the cheapest path (successive shortest paths are optimal for convex costs)."""
    members = make_members(subscribed)
    sizes = [len(each) for each in uniform(members, topics).values()]
    best = [len(each) for each in _best(members, topics).values()]
    assert sum(size * size for size in sizes) == sum(size * size for size in best)


def _best(members: dict[str, Subscriber], topics: dict[bytes, int]) -> dict[str, set[PartitionKey]]:
    given: dict[str, set[PartitionKey]] = {member_id: set() for member_id in members}
    for topic, count in topics.items():
        subscribers = [each for each, member in members.items() if topic in member.topics]
        for index in range(count):
            if not subscribers:
                break
            paths: dict[str, list[tuple[str, PartitionKey]]] = {
                each: [(each, (topic, index))] for each in subscribers
            }
            queue = list(subscribers)
            for member_id in queue:
                for key in sorted(given[member_id]):
                    for other, member in members.items():
                        if key[0] in member.topics and other not in paths:
                            paths[other] = [*paths[member_id], (other, key)]
                            queue.append(other)
            for taker, key in paths[min(paths, key=lambda each: len(given[each]))]:
                for keys in given.values():
                    keys.discard(key)
                given[taker].add(key)
    return given


@given(numbers, subscriptions)
def test_uniform_keeps_what_is_equal_enough(
    topics: dict[bytes, int], subscribed: list[frozenset[bytes]]
) -> None:
    before = uniform(make_members(subscribed), topics)
    assert uniform(make_members(subscribed, before), topics) == before


@given(st.integers(1, 6), st.integers(0, 20), st.booleans())
def test_uniform_moves_no_more_than_it_must(count: int, partitions: int, comes: bool) -> None:
    """When one of the members that subscribe alike comes or goes, only its own partitions move."""
    topics = {TOPICS[0]: partitions}
    subscribed = [frozenset(topics)]
    before = uniform(make_members(subscribed * (count + (not comes))), topics)
    after = uniform(make_members(subscribed * (count + comes), before), topics)
    moved = sum(len(keys - after.get(member_id, frozenset())) for member_id, keys in before.items())
    last = f"m{count}"
    assert moved == len((after if comes else before)[last])


@given(numbers, st.integers(1, 6))
def test_ranges_are_consecutive_and_alike(topics: dict[bytes, int], count: int) -> None:
    assigned = assign_ranges(make_members([frozenset(topics)] * count), topics)
    for keys in assigned.values():
        for topic, partitions in topics.items():
            indexes = sorted(index for each, index in keys if each == topic)
            assert indexes == list(range(*_ends(indexes)))
            assert partitions // count <= len(indexes) <= -(-partitions // count)
            for other, theirs in topics.items():
                if theirs == partitions:
                    assert indexes == sorted(index for each, index in keys if each == other)


def _ends(indexes: list[int]) -> tuple[int, int]:
    return (indexes[0], indexes[-1] + 1) if indexes else (0, 0)


def test_ranges_follow_instance_ids_then_member_ids() -> None:
    topics = {TOPICS[0]: 3}
    nothing: frozenset[PartitionKey] = frozenset()
    members = {
        "a": Subscriber(None, frozenset(topics), nothing),
        "c": Subscriber("i1", frozenset(topics), nothing),
        "b": Subscriber("i2", frozenset(topics), nothing),
    }
    assert assign_ranges(members, topics) == {
        "c": {(TOPICS[0], 0)},
        "b": {(TOPICS[0], 1)},
        "a": {(TOPICS[0], 2)},
    }
