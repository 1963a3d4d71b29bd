"""The load assignors: whose rates count, and how bytes/s are divided."""

from __future__ import annotations

import pytest

from tests.unit.client.group.assignors.vectors import parse, show
from trimtab.client.group.assignors.load import CooperativeLoadAssignor, LoadAssignor, find_rates
from trimtab.client.group.assignors.protocol import Subscriber, Topic
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from trimtab.kafka.wire.messages.consumer_protocol import TopicPartition as Owned


def rates_of(*rates: float, topic: str = "a") -> dict[TopicPartition, float]:
    return {TopicPartition(topic, index): rate for index, rate in enumerate(rates)}


def members(count: int, *rates: float) -> list[Subscriber]:
    """Members that subscribe to `a`; the first one reports the rates."""
    group = [Subscriber(f"m{number}", None, frozenset("a")) for number in range(count)]
    return [group[0]._replace(rates=rates_of(*rates)), *group[1:]]


def test_partitions_without_a_rate_count_as_the_mean() -> None:
    topics = {"a": Topic(3), "b": Topic(2), "empty": Topic(0)}
    group = [Subscriber("m", None, frozenset(("a", "b", "empty", "gone")))]
    assert set(find_rates(group, topics).values()) == {1.0}
    group = [group[0]._replace(rates={**rates_of(10, 20), **rates_of(1, topic="gone")})]
    assert find_rates(group, topics) == {**rates_of(10, 20, 15), **rates_of(15, 15, topic="b")}
    group = [group[0]._replace(rates={**rates_of(10, 20), **rates_of(3, topic="b")})]
    assert find_rates(group, topics) == {**rates_of(10, 20, 15), **rates_of(3, 3, topic="b")}


def test_the_newest_report_of_a_rate_counts() -> None:
    group = [
        Subscriber(f"m{number}", None, frozenset("a"), generation=generation, rates=rates_of(rate))
        for number, (generation, rate) in enumerate(((3, 100), (5, 7), (5, 8)))
    ]
    assert find_rates(group, {"a": Topic(1)}) == rates_of(8)


def test_bytes_are_divided_equally() -> None:
    assigned = LoadAssignor().assign(members(2, 60, 50, 40, 30, 20), {"a": Topic(5)})
    assert sorted(show(assigned)) == ["a-0 a-2", "a-1 a-3 a-4"]


def test_what_is_heavier_than_a_share_has_a_member_of_its_own() -> None:
    """And the others are level among themselves."""
    assigned = LoadAssignor().assign(members(3, 1000, 10, 10, 10, 10), {"a": Topic(5)})
    assert show(assigned)[0] == "a-0"
    assert [len(each) for each in assigned.values()] == [1, 2, 2]


def test_idle_partitions_are_spread_as_well() -> None:
    assigned = LoadAssignor().assign(members(3, 900, 900, 900, *[0] * 30), {"a": Topic(33)})
    assert [len(each) for each in assigned.values()] == [11, 11, 11]
    assigned = LoadAssignor().assign(members(3, *[0] * 30), {"a": Topic(30)})
    assert [len(each) for each in assigned.values()] == [10, 10, 10]


def test_a_member_that_is_heavy_gives_one_partition_away() -> None:
    owned = [parse("a-0 a-1 a-2"), parse("a-3")]
    group = [
        each._replace(owned=given, generation=1)
        for each, given in zip(members(2, 30, 20, 10, 20), owned, strict=True)
    ]
    assert show(LoadAssignor().assign(group, {"a": Topic(4)})) in (
        ["a-1 a-2", "a-0 a-3"],
        ["a-0 a-2", "a-1 a-3"],
    )
    # 30 + 10 of 80 is as level as 20 + 20, and moves less.
    assigned = CooperativeLoadAssignor().assign(group, {"a": Topic(4)})
    assert [len(each) for each in assigned.values()] == [2, 1]


def test_a_small_difference_moves_nothing() -> None:
    owned = [parse("a-0 a-1"), parse("a-2 a-3")]
    group = [
        each._replace(owned=given, generation=1)
        for each, given in zip(members(2, 51, 50, 49, 50), owned, strict=True)
    ]
    assert show(LoadAssignor().assign(group, {"a": Topic(4)})) == ["a-0 a-1", "a-2 a-3"]


@pytest.mark.parametrize("level", [True, False])
def test_racks_matter_less_than_balance_and_more_than_moves(level: bool) -> None:
    """All partitions are in rack x; so half of the bytes must come from there to a member in y,
    unless there are two members in x."""
    topics = {"a": Topic(4, (frozenset("x"),) * 4)}
    racks = ("x", "y") if level else ("x", "x")
    owned = (parse("a-0 a-1"), parse("a-2 a-3"))
    group = [
        each._replace(rack=rack, owned=given, generation=1)
        for each, rack, given in zip(members(2, 10, 10, 10, 10), racks, owned, strict=True)
    ]
    assert show(LoadAssignor().assign(group, topics)) == ["a-0 a-1", "a-2 a-3"]
    topics = {"a": Topic(4, tuple(map(frozenset, "xxyy")))}
    group = [
        each._replace(rack=rack, owned=given, generation=1)
        for each, rack, given in zip(members(2, 10, 10, 10, 10), "yx", owned, strict=True)
    ]
    assert show(LoadAssignor().assign(group, topics)) == ["a-2 a-3", "a-0 a-1"]


def test_owned_partitions_are_read_from_the_right_place() -> None:
    """Of a member of `load` from its user data, of `cooperative-load` from the subscription."""
    partition = TopicPartition("a", 0)
    data = LoadAssignor().user_data([partition], 5, {partition: 8.0})
    for assignor, generation_id, owned, generation in (
        (LoadAssignor(), 6, parse("a-0"), 5),
        (CooperativeLoadAssignor(), 6, parse("b-1"), 6),
        (CooperativeLoadAssignor(), -1, parse("b-1"), 5),
    ):
        found = assignor.subscriber(
            "m",
            None,
            ConsumerProtocolSubscription(
                topics=["a"],
                user_data=data,
                owned_partitions=[Owned(topic="b", partitions=[1])],
                generation_id=generation_id,
            ),
        )
        assert (found.owned, found.generation) == (owned, generation)
        assert found.rates == {partition: pytest.approx(8, rel=1e-3)}


def test_a_member_with_damaged_data_is_one_without_rates() -> None:
    group = [
        LoadAssignor().subscriber(
            "m0", None, ConsumerProtocolSubscription(topics=["a"], user_data=b"\1\0\0\0")
        ),
        members(1, 50, 30, 20)[0]._replace(member_id="m1"),
    ]
    assert group[0].rates == {}
    assert show(LoadAssignor().assign(group, {"a": Topic(3)})) == ["a-0", "a-1 a-2"]
