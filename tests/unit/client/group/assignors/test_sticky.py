"""The sticky assignors in the scenes of Apache Kafka's tests of them."""

from __future__ import annotations

import pytest

from tests.unit.client.group.assignors.vectors import assign, count_far, parse, spread
from trimtab.client.group.assignors.protocol import Subscriber, Topic
from trimtab.client.group.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from trimtab.kafka.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from trimtab.kafka.wire.messages.consumer_protocol import TopicPartition as Owned

TOPICS = {"t": Topic(3), "t2": Topic(3)}
ABC = ["a", "b", "c"]


def test_partitions_are_dealt_in_order_and_move_with_the_highest_number() -> None:
    topics = {"t1": Topic(3), "t2": Topic(4)}
    first = assign(StickyAssignor(), topics, ["t1 t2"] * 2)
    assert first == ["t1-0 t1-2 t2-1 t2-3", "t1-1 t2-0 t2-2"]
    second = assign(StickyAssignor(), topics, ["t1 t2"] * 4, owned=[*first, "", ""])
    assert second == ["t1-0 t2-1", "t1-1 t2-0", "t1-2 t2-3", "t2-2"]
    third = assign(StickyAssignor(), topics, ["t1 t2"] * 2, owned=second[2:])
    assert third == ["t1-1 t1-2 t2-1 t2-3", "t1-0 t2-0 t2-2"]


@pytest.mark.parametrize(
    ("owned", "expected"),
    [
        (["t1-0 t2-1", "t1-1 t2-2"], ["t1-0 t2-0 t2-1", "t1-1 t2-2"]),
        (["t1-0", "t1-1", ""], ["t1-0 t2-1", "t1-1 t2-2", "t2-0"]),
    ],
)
def test_members_keep_what_they_have_below_their_share(
    owned: list[str], expected: list[str]
) -> None:
    topics = {"t1": Topic(2), "t2": Topic(3)}
    assert assign(StickyAssignor(), topics, ["t1 t2"] * len(owned), owned=owned) == expected


def test_the_larger_shares_are_of_those_that_own_most() -> None:
    given = assign(StickyAssignor(), {"a": Topic(5)}, ["a"] * 4, owned=["", "", "a-1", "a-0 a-3"])
    assert given == ["a-2", "a-4", "a-1", "a-0 a-3"]


def test_each_topic_is_balanced_after_members_came_and_went() -> None:
    topics = {"t1": Topic(12), "t2": Topic(12)}
    given = assign(StickyAssignor(), topics, ["t1 t2"])
    for count in (2, 4):
        owned = [*given, *[""] * (count - len(given))]
        given = assign(StickyAssignor(), topics, ["t1 t2"] * count, owned=owned)
        assert [each.count("t1") for each in given] == [12 // count] * count
        assert [each.count("t2") for each in given] == [12 // count] * count
    given = assign(StickyAssignor(), topics, ["t1 t2"] * 2, owned=given[2:])
    assert [each.count("t1") for each in given] == [6, 6]


def test_the_newest_generation_owns_a_partition() -> None:
    claimed = "t-0 t-2 t2-1"
    for generations in ((10, 9), (10, -1)):
        given = assign(
            StickyAssignor(), TOPICS, ["t t2"] * 2, owned=[claimed] * 2, generations=generations
        )
        assert given == [claimed, "t-1 t2-0 t2-2"]
    topics = {**TOPICS, "t3": Topic(3)}
    given = assign(
        StickyAssignor(),
        topics,
        ["t t2 t3"] * 3,
        owned=["t-0 t2-0 t3-0", "t-1 t2-1 t3-1", "t2-1 t3-0 t3-2"],
        generations=(10, 9, 8),
    )
    assert given == ["t-0 t2-0 t3-0", "t-1 t2-1 t3-1", "t-2 t2-2 t3-2"]


def test_what_was_contested_long_ago_has_an_owner_now() -> None:
    given = assign(
        StickyAssignor(), {"t": Topic(3)}, ["t"] * 3, owned=["t-0"] * 3, generations=(1, 1, 2)
    )
    assert given == ["t-1", "t-2", "t-0"]


@pytest.mark.parametrize(("count", "first"), [(3, "t-1"), (4, "t-1 t-3")])
def test_nobody_owns_what_several_claim_in_one_generation(count: int, first: str) -> None:
    owned = ["t-0 t-1", "t-0 t-2", ""]
    topics = {"t": Topic(count)}
    assert assign(StickyAssignor(), topics, ["t"] * 3, owned=owned) == [first, "t-2", "t-0"]
    # Both may still read it: until they have revoked it, nobody gets it.
    assert assign(CooperativeStickyAssignor(), topics, ["t"] * 3, owned=owned) == [first, "t-2", ""]


def test_a_partition_that_moves_is_withheld_until_its_owner_let_go() -> None:
    topics = {"t1": Topic(2), "t2": Topic(2)}
    given = ["t1-0 t2-0", "t1-1 t2-1", ""]
    first = assign(CooperativeStickyAssignor(), topics, ["t1 t2"] * 3, owned=given)
    assert sum(len(each.split()) for each in first) == 3
    assert first[2] == ""
    second = assign(CooperativeStickyAssignor(), topics, ["t1 t2"] * 3, owned=first)
    assert [len(each.split()) for each in second] in ([1, 2, 1], [2, 1, 1])
    # Also from a member that no longer subscribes to the topic.
    given = assign(CooperativeStickyAssignor(), {"t": Topic(1)}, ["", "t"], owned=["t-0", ""])
    assert given == ["", ""]


def test_topics_that_few_may_read_go_to_these() -> None:
    topics = {f"topic{number}": Topic(number % 2 + 1) for number in range(1, 6)}
    odd, every = "topic1 topic3 topic5", "topic1 topic2 topic3 topic4 topic5"
    given = assign(StickyAssignor(), topics, [every, odd, odd, every])
    assert [len(each.split()) for each in given] == [2, 2, 2, 2]


def test_partitions_move_along_chains_of_members() -> None:
    """The first member can only get from the second, and the second only from the third."""
    topics = {"a": Topic(2), "b": Topic(4)}
    given = assign(
        StickyAssignor(),
        topics,
        ["a", "a b", "b"],
        owned=["", "a-0 a-1", "b-0 b-1 b-2 b-3"],
    )
    assert [len(each.split()) for each in given] == [2, 2, 2]


@pytest.mark.kip(881)
@pytest.mark.parametrize("subscribed", [["t1 t2 t3"] * 3, ["t1 t2 t3", "t1 t2 t3", "t1 t3"]])
@pytest.mark.parametrize(("replicas", "brokers"), [(1, "abc"), (2, "abc"), (3, "ab")])
@pytest.mark.parametrize(
    "owned",
    [(), ["t1-0 t1-1 t1-2 t1-3 t1-4", "t1-5 t2-0 t2-1 t2-2 t2-3", "t2-4 t2-5 t2-6 t3-0 t3-1"]],
)
def test_members_read_from_their_racks_as_far_as_balance_allows(
    subscribed: list[str], replicas: int, brokers: str, owned: list[str]
) -> None:
    """Kafka's tests allow as many from other racks, or more."""
    topics = spread({"t1": 6, "t2": 7, "t3": 2}, replicas, list(brokers))
    given = assign(StickyAssignor(), topics, subscribed, ABC, owned)
    assert [len(each.split()) for each in given] == [5, 5, 5]
    far = count_far(topics, ABC, given)
    if brokers == "ab":
        assert far == 5
    elif replicas == 1 and "t1 t3" in subscribed:
        assert far <= 4
    else:
        assert far == 0
    assert assign(StickyAssignor(), topics, subscribed, ABC, given) == given


@pytest.mark.kip(881)
def test_the_larger_share_moves_where_that_brings_partitions_near() -> None:
    """The second member's partition goes to the third, for one of the first's: two chains."""
    racks = tuple(map(frozenset, ("xz", "xz", "y", "y")))
    given = assign(
        StickyAssignor(), {"t": Topic(4, racks)}, ["t"] * 3, "xzy", ["t-0 t-1", "t-2", "t-3"]
    )
    assert given in (["t-0", "t-1", "t-2 t-3"], ["t-1", "t-0", "t-2 t-3"])


def test_owned_partitions_are_read_from_the_right_place() -> None:
    """Of a member of `sticky` from its user data, of `cooperative-sticky` from the subscription;
    the generation there from the user data only if the subscription has none."""
    mine, old = parse("u-1"), StickyAssignor().user_data(parse("u-1"), 5, {})
    eager = StickyAssignor().subscriber(
        "m",
        None,
        ConsumerProtocolSubscription(
            topics=["t"],
            user_data=old,
            owned_partitions=[Owned(topic="t", partitions=[0])],
            generation_id=6,
            rack_id="",
        ),
    )
    assert eager == Subscriber("m", None, frozenset("t"), mine, 5)
    for generation_id, expected in ((-1, 5), (6, 6)):
        cooperative = CooperativeStickyAssignor().subscriber(
            "m",
            "i",
            ConsumerProtocolSubscription(
                topics=["t"],
                user_data=CooperativeStickyAssignor().user_data(mine, 5, {}),
                owned_partitions=[Owned(topic="t", partitions=[0])],
                generation_id=generation_id,
                rack_id="a",
            ),
        )
        assert cooperative == Subscriber("m", "i", frozenset("t"), parse("t-0"), expected, "a")


def test_a_member_without_partitions_sends_no_sticky_user_data() -> None:
    assert StickyAssignor().user_data([], -1, {}) is None
    assert StickyAssignor().user_data([], 3, {}) is not None
