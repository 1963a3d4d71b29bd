"""`roundrobin` gives each member what Apache Kafka's RoundRobinAssignor gives it."""

from __future__ import annotations

from tests.unit.client.group.assignors.vectors import assign, show
from trimtab.client.group.assignors.protocol import Subscriber, Topic
from trimtab.client.group.assignors.round_robin import RoundRobinAssignor


def test_members_that_do_not_subscribe_are_passed_over() -> None:
    topics = {"topic1": Topic(3), "topic2": Topic(2)}
    assert assign(RoundRobinAssignor(), topics, ["topic1", "topic1 topic2", "topic1"]) == [
        "topic1-0",
        "topic1-1 topic2-0 topic2-1",
        "topic1-2",
    ]
    # Where the sticky assignor was invented: the third member gets nothing.
    topics = {f"topic{number}": Topic(number % 2 + 1) for number in range(1, 6)}
    odd, every = "topic1 topic3 topic5", "topic1 topic2 topic3 topic4 topic5"
    assert assign(RoundRobinAssignor(), topics, [every, odd, odd, every]) == [
        "topic1-0 topic3-0 topic5-0",
        "topic1-1 topic3-1 topic5-1",
        "",
        "topic2-0 topic4-0",
    ]


def test_static_members_come_first_by_instance_id() -> None:
    both = frozenset({"topic1", "topic2"})
    members = [
        Subscriber("dynamic", None, both),
        *(Subscriber(f"m{9 - number}", f"instance{number}", both) for number in (1, 2, 3)),
    ]
    assigned = RoundRobinAssignor().assign(members, {"topic1": Topic(3), "topic2": Topic(3)})
    assert show(assigned) == [
        "topic2-0",
        "topic1-2",
        "topic1-1 topic2-2",
        "topic1-0 topic2-1",
    ]
    assigned = RoundRobinAssignor().assign(members[1:], {"topic1": Topic(5), "topic2": Topic(5)})
    assert show(assigned) == [
        "topic1-2 topic2-0 topic2-3",
        "topic1-1 topic1-4 topic2-2",
        "topic1-0 topic1-3 topic2-1 topic2-4",
    ]


def test_topics_without_partitions_or_subscribers_are_left_out() -> None:
    topics = {"a": Topic(2), "empty": Topic(0), "other": Topic(1)}
    assert assign(RoundRobinAssignor(), topics, ["a empty gone", ""]) == ["a-0 a-1", ""]
    assert RoundRobinAssignor().assign([], topics) == {}
