"""The assignors of classic groups: whole, balanced, sticky, near, and the same in any order.

Most of it is in `trimtab.balance.count_levels` and `trimtab.balance.rack_rings` for numbers of
partitions, and in `trimtab.balance.load_levels` for bytes/s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trimtab.balance.load_levels import _Shares, level_load
from trimtab.client.group.assignors.factory import ASSIGNORS
from trimtab.client.group.assignors.ownership import find_owners
from trimtab.client.group.assignors.protocol import Assignment, Subscriber, Topic
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from trimtab.kafka.wire.messages.consumer_protocol import TopicPartition as Owned

NAMES = ("a", "b", "c", "d")
RACKS = ("x", "y", "z")
COOPERATIVE = ("cooperative-sticky", "cooperative-load")
EAGER = tuple(name for name in ASSIGNORS if name not in COOPERATIVE)
STICKY = ("sticky", "cooperative-sticky", "load", "cooperative-load")


def make_topics(random: Random) -> dict[str, Topic]:
    has_racks = random.random() < 0.5
    return {
        name: Topic(
            count := random.randrange(9),
            tuple(frozenset(random.sample(RACKS, random.randrange(3))) for _ in range(count))
            if has_racks
            else (),
        )
        for name in random.sample(NAMES, random.randint(1, len(NAMES)))
    }


def make_group(random: Random, alike: bool = False) -> list[Subscriber]:
    """Members that own anything: partitions of others, of other topics, or that do not exist."""

    def some_partitions() -> list[TopicPartition]:
        return [
            TopicPartition(random.choice(NAMES), random.randrange(10))
            for _ in range(random.choice((0, 1, 3, 8)))
        ]

    return [
        Subscriber(
            f"m{number}",
            random.choice((None, f"i{9 - number}")),
            frozenset(NAMES if alike else random.sample(NAMES, random.randint(0, len(NAMES)))),
            frozenset(some_partitions()),
            random.randint(-1, 2),
            random.choice((None, *RACKS)),
            {each: random.choice((0, 1, 1e3, 1e9)) * random.random() for each in some_partitions()},
        )
        for number in range(random.randint(1, 6))
    ]


# From one number each: an example takes microseconds instead of milliseconds.
randoms = st.integers(0, 2**32).map(Random)
groups = randoms.map(make_group)
alike = randoms.map(lambda random: make_group(random, alike=True))
topic_sets = randoms.map(make_topics)


def everything_of(group: Sequence[Subscriber], topics: Mapping[str, Topic]) -> list[TopicPartition]:
    return sorted(
        TopicPartition(name, index)
        for name, topic in topics.items()
        for index in range(topic.partitions)
        if any(name in each.topics for each in group)
    )


def sizes_of(assigned: Assignment) -> list[int]:
    return [len(each) for each in assigned.values()]


def far_of(
    group: Sequence[Subscriber], topics: Mapping[str, Topic], assigned: Assignment
) -> list[TopicPartition]:
    return [
        partition
        for each in group
        for partition in assigned[each.member_id]
        if each.rack is not None
        and (racks := topics[partition.topic].racks_of(partition.partition))
        and each.rack not in racks
    ]


def moved(group: Sequence[Subscriber], assigned: Assignment) -> set[TopicPartition]:
    """Partitions that their owner, still a member, does not keep."""
    return {
        partition for each in group for partition in each.owned.difference(assigned[each.member_id])
    }


def given_last(group: Sequence[Subscriber], assigned: Assignment) -> list[Subscriber]:
    """The members as they join again."""
    return [
        each._replace(owned=frozenset(assigned[each.member_id]), generation=7) for each in group
    ]


@pytest.mark.parametrize("name", EAGER)
@given(groups, topic_sets)
def test_each_partition_goes_to_one_subscriber(
    name: str, group: list[Subscriber], topics: dict[str, Topic]
) -> None:
    assigned = ASSIGNORS[name]().assign(group, topics)
    assert set(assigned) == {each.member_id for each in group}
    assert sorted(each for given in assigned.values() for each in given) == everything_of(
        group, topics
    )
    for each in group:
        assert {partition.topic for partition in assigned[each.member_id]} <= each.topics


@pytest.mark.parametrize("name", ASSIGNORS)
@given(groups, topic_sets, randoms)
def test_the_order_of_members_and_topics_changes_nothing(
    name: str, group: list[Subscriber], topics: dict[str, Topic], random: Random
) -> None:
    assigned = ASSIGNORS[name]().assign(group, topics)
    shuffled = random.sample(group, len(group))
    names = random.sample(list(topics), len(topics))
    assert ASSIGNORS[name]().assign(shuffled, {each: topics[each] for each in names}) == assigned


@pytest.mark.kip(429)
@pytest.mark.parametrize("name", COOPERATIVE)
@given(groups, topic_sets)
def test_no_new_owner_before_the_old_one_let_go(
    name: str, group: list[Subscriber], topics: dict[str, Topic]
) -> None:
    """A member that claims a partition in its newest generation may still read it. All partitions
    are assigned after a few rebalances, in which members join with what they were given."""
    assignor = ASSIGNORS[name]()
    given: list[TopicPartition] = []
    for _ in range(3 if name == "cooperative-sticky" else 6):
        assigned = assignor.assign(group, topics)
        given = [each for partitions in assigned.values() for each in partitions]
        assert len(set(given)) == len(given)
        for each in group:
            for partition in assigned[each.member_id]:
                newest = max(
                    (other.generation for other in group if partition in other.owned), default=-2
                )
                owners = {
                    other.member_id
                    for other in group
                    if partition in other.owned and other.generation == newest
                }
                assert owners <= {each.member_id}
                assert partition.topic in each.topics
        group = given_last(group, assigned)
    assert sorted(given) == everything_of(group, topics)


@pytest.mark.parametrize("name", STICKY)
@given(groups, topic_sets)
@example(make_group(Random(12226)), make_topics(Random(1012226)))  # once planned without end
@example(make_group(Random(19648)), make_topics(Random(1019648)))
def test_the_same_members_keep_all(
    name: str, group: list[Subscriber], topics: dict[str, Topic]
) -> None:
    """Once what they were given is what the assignor wants."""
    assignor = ASSIGNORS[name]()
    for _ in range(6):
        group = given_last(group, assignor.assign(group, topics))
    assert moved(group, assignor.assign(group, topics)) == set()


@given(groups, topic_sets)
def test_the_same_members_keep_all_at_once(
    group: list[Subscriber], topics: dict[str, Topic]
) -> None:
    assignor = ASSIGNORS["sticky"]()
    group = given_last(group, assignor.assign(group, topics))
    assert moved(group, assignor.assign(group, topics)) == set()


@given(alike, topic_sets)
def test_sticky_numbers_differ_by_one_if_all_subscribe_alike(
    group: list[Subscriber], topics: dict[str, Topic]
) -> None:
    sizes = sizes_of(ASSIGNORS["sticky"]().assign(group, topics))
    assert max(sizes) - min(sizes) <= 1


@given(groups, topic_sets)
def test_no_sticky_assignment_is_more_equal(
    group: list[Subscriber], topics: dict[str, Topic]
) -> None:
    """Compared with the best: the sum of squares of a flow that takes one partition at a time along
    the cheapest path (successive shortest paths are optimal for convex costs)."""
    sizes = sizes_of(ASSIGNORS["sticky"]().assign(group, topics))
    best = [len(each) for each in _most_equal(group, topics).values()]
    assert sum(size * size for size in sizes) == sum(size * size for size in best)


def _most_equal(
    group: Sequence[Subscriber], topics: Mapping[str, Topic]
) -> dict[str, set[TopicPartition]]:
    given: dict[str, set[TopicPartition]] = {each.member_id: set() for each in group}
    for partition in everything_of(group, topics):
        paths = {
            each.member_id: [(each.member_id, partition)]
            for each in group
            if partition.topic in each.topics
        }
        queue = list(paths)
        for member_id in queue:
            for held in sorted(given[member_id]):
                for other in group:
                    if held.topic in other.topics and other.member_id not in paths:
                        paths[other.member_id] = [*paths[member_id], (other.member_id, held)]
                        queue.append(other.member_id)
        for taker, passed in paths[min(paths, key=lambda each: len(given[each]))]:
            for held_set in given.values():
                held_set.discard(passed)
            given[taker].add(passed)
    return given


@given(alike, topic_sets)
def test_sticky_moves_no_more_than_it_must(
    group: list[Subscriber], topics: dict[str, Topic]
) -> None:
    """Without racks each member keeps the smaller of what it owns and its share, and the larger
    shares are of those that own most."""
    group = [each._replace(rack=None) for each in group]
    owner = find_owners(group, topics).owner
    owned = sorted(
        (sum(each == member.member_id for each in owner.values()) for member in group), reverse=True
    )
    share, larger = divmod(len(everything_of(group, topics)), len(group))
    kept = sum(min(own, share + (place < larger)) for place, own in enumerate(owned))
    assigned = ASSIGNORS["sticky"]().assign(group, topics)
    assert (
        sum(owner.get(each) == member for member in assigned for each in assigned[member]) == kept
    )


@pytest.mark.parametrize("name", ["sticky", "load"])
@given(st.integers(2, 8), st.integers(0, 40), st.booleans())
def test_one_member_comes_or_goes(name: str, count: int, partitions: int, comes: bool) -> None:
    """Only its partitions move, all of the same weight."""
    topics = {"a": Topic(partitions)}
    group = [Subscriber(f"m{number}", None, frozenset("a")) for number in range(count)]
    assignor = ASSIGNORS[name]()
    group = given_last(group, assignor.assign(group, topics))
    if comes:
        after = assignor.assign([*group, Subscriber("new", None, frozenset("a"))], topics)
        assert moved(group, after) == set(after["new"])
        assert len(after["new"]) <= -(-partitions // (count + 1))
    else:
        assert moved(group[1:], assignor.assign(group[1:], topics)) == set()


@given(alike, topic_sets)
def test_sticky_reads_nothing_from_other_racks_where_that_is_feasible(
    group: list[Subscriber], topics: dict[str, Topic]
) -> None:
    """Feasible: a maximum flow gives each member its share from its own rack."""
    assigned = ASSIGNORS["sticky"]().assign(group, topics)
    far = far_of(group, topics, assigned)
    if _is_near_feasible(group, topics):
        assert far == []


def _is_near_feasible(group: Sequence[Subscriber], topics: Mapping[str, Topic]) -> bool:
    """Whether shares that differ by one can be read without other racks: partitions are matched to
    `share` places of each member, then to one more of as many as there are larger shares."""
    everything = everything_of(group, topics)
    share, larger = divmod(len(everything), len(group))
    near = {
        partition: [
            place
            for place, each in enumerate(group)
            if each.rack is None
            or not (racks := topics[partition.topic].racks_of(partition.partition))
            or each.rack in racks
        ]
        for partition in everything
    }
    given: list[set[TopicPartition]] = [set() for _ in group]

    def has_room(place: int) -> bool:
        if len(given[place]) < share:
            return True
        over = sum(max(0, len(each) - share) for each in given)
        return len(given[place]) == share and over < larger

    def find(partition: TopicPartition, seen: set[int]) -> bool:
        for place in near[partition]:
            if place not in seen and has_room(place):
                given[place].add(partition)
                return True
        for place in near[partition]:
            if place in seen:
                continue
            seen.add(place)
            for held in sorted(given[place]):
                if find(held, seen):
                    given[place].discard(held)
                    given[place].add(partition)
                    return True
        return False

    return all(find(partition, set()) for partition in everything)


def racks_in(topics: dict[str, Topic]) -> Callable[[TopicPartition], frozenset[str]]:
    return lambda each: topics[each.topic].racks_of(each.partition)


weights = st.one_of(
    st.lists(st.integers(1, 1000), min_size=1, max_size=7),
    st.lists(st.sampled_from([1, 1, 1, 10, 100]), min_size=1, max_size=7),
)


@given(weights, st.integers(1, 3))
def test_few_loads_are_as_level_as_possible(weights: list[int], count: int) -> None:
    """The largest is at most 1.05 times the mean, or within 1 % of the best of all assignments."""
    topics = {"a": Topic(len(weights))}
    rates = {TopicPartition("a", index): float(each) for index, each in enumerate(weights)}
    group = [Subscriber(f"m{number}", None, frozenset("a")) for number in range(count)]
    assigned = level_load(group, {}, rates, racks_in(topics))
    largest = max(sum(rates[each] for each in given) for given in assigned.values())
    best = min(
        max(
            sum(weight for weight, place in zip(weights, places, strict=True) if place == member)
            for member in range(count)
        )
        for places in product(range(count), repeat=len(weights))
    )
    assert largest <= max(1.05 * sum(weights) / count, 1.011 * best)


@given(st.integers(2, 12), st.integers(8, 20), st.integers(0, 10**6), st.booleans())
def test_many_loads_are_level_and_near(count: int, each: int, seed: int, is_second: bool) -> None:
    """Rates between 1 and 10; each partition with replicas in two of three racks, members in all of
    them. Also after a second rebalance, with other rates and one member more: its share moves, and
    little else."""
    random = Random(seed)
    number = 3 * count * each
    topics = {"a": Topic(number, tuple(frozenset(random.sample(RACKS, 2)) for _ in range(number)))}
    group = [
        Subscriber(f"m{place:02}", None, frozenset("a"), rack=RACKS[place % 3])
        for place in range(3 * count)
    ]
    rates = {TopicPartition("a", index): random.uniform(1, 10) for index in range(number)}
    assigned = level_load(group, {}, rates, racks_in(topics))
    if is_second:
        owner = {partition: member for member in assigned for partition in assigned[member]}
        rates = {partition: rate * random.uniform(0.9, 1.1) for partition, rate in rates.items()}
        before = given_last(group, assigned)
        group = [*before, Subscriber("new", None, frozenset("a"), rack=random.choice(RACKS))]
        assigned = level_load(group, owner, rates, racks_in(topics))
        assert len(moved(before, assigned)) <= number / len(group) + number / 5
    loads = [sum(rates[each] for each in given) for given in assigned.values()]
    assert max(loads) <= 1.05 * sum(loads) / len(loads)
    assert min(loads) >= 0.8 * sum(loads) / len(loads)
    assert far_of(group, topics, assigned) == []


def test_what_members_own_counts_more_than_what_was_planned() -> None:
    topics = {"a": Topic(2)}
    assignor = ASSIGNORS["cooperative-load"]()
    group = [Subscriber(f"m{number}", None, frozenset("a")) for number in range(2)]
    assert assignor.assign(group, topics) == {"m0": [("a", 0)], "m1": [("a", 1)]}
    owned = (TopicPartition("a", 1), TopicPartition("a", 0))
    group = [
        each._replace(owned=frozenset([has]), generation=9)
        for each, has in zip(group, owned, strict=True)
    ]
    assert assignor.assign(group, topics) == {"m0": [("a", 1)], "m1": [("a", 0)]}


def test_who_owns_much_too_much_gives_up_little_more() -> None:
    """And first what it reads from another rack."""
    racks = [frozenset("x" if index % 2 else "y") for index in range(200)]
    topics = {"a": Topic(200, tuple(racks))}
    rates = {TopicPartition("a", index): 1.0 + index % 3 for index in range(200)}
    group = [Subscriber(each, None, frozenset("a"), rack=each) for each in "xy"]
    assigned = level_load(group, dict.fromkeys(rates, "x"), rates, racks_in(topics))
    assert far_of(group, topics, assigned) == []
    group = [each._replace(rack=None) for each in group]
    assigned = level_load(group, dict.fromkeys(rates, "x"), rates, racks_in(topics))
    loads = [sum(rates[each] for each in given) for given in assigned.values()]
    assert max(loads) <= 1.03 * sum(loads) / 2
    assert len(assigned["y"]) <= 70, "the heaviest ones move"


@given(randoms)
def test_bringing_partitions_back_to_their_owners_does_no_harm(random: Random) -> None:
    number, count = random.randint(10, 60), random.randint(2, 6)
    near = [frozenset(random.sample(RACKS, random.randint(1, 2))) for _ in range(number)]
    topics = {"a": Topic(number, tuple(near) if random.random() < 0.5 else ())}
    group = [
        Subscriber(f"m{place}", None, frozenset("a"), rack=random.choice(RACKS))
        for place in range(count)
    ]
    rates = {
        TopicPartition("a", index): random.choice((1.0, 2.0, 3.0, 5.0, 8.0))
        for index in range(number)
    }
    owner = {each: f"m{random.randrange(count)}" for each in rates if random.random() < 0.9}
    bring_back = _Shares._bring_back

    def compare(shares: _Shares) -> None:
        before = shares.score()
        bring_back(shares)
        after = shares.score()
        assert after.excess <= before.excess
        assert after.far <= before.far
        assert after.moves <= before.moves

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Shares, "_bring_back", compare)
        level_load(group, owner, rates, racks_in(topics))


@given(groups, topic_sets, st.binary(max_size=40))
def test_user_data_come_back_and_foreign_ones_harm_nobody(
    group: list[Subscriber], topics: dict[str, Topic], noise: bytes
) -> None:
    for name, make in ASSIGNORS.items():
        assignor = make()
        for each in group:
            metadata = ConsumerProtocolSubscription(
                topics=sorted(each.topics),
                user_data=assignor.user_data(each.owned, each.generation, each.rates),
                owned_partitions=[
                    Owned(topic=topic, partitions=[index]) for topic, index in sorted(each.owned)
                ],
            )
            found = assignor.subscriber(each.member_id, each.instance_id, metadata)
            assert (found.member_id, found.instance_id, found.topics, found.owned) == (
                each.member_id,
                each.instance_id,
                each.topics,
                each.owned,
            )
            if name in STICKY:
                assert found.generation == each.generation or not each.owned
            if "load" in name:
                assert found.rates == pytest.approx(dict(each.rates), rel=4e-4, abs=3e-3)
        strange = assignor.subscriber(
            "x", None, ConsumerProtocolSubscription(topics=["a"], user_data=noise)
        )
        assigned = assignor.assign([*group, strange], topics)
        if not assignor.is_cooperative:
            given = sorted(partition for each in assigned.values() for partition in each)
            assert given == everything_of([*group, strange], topics)
