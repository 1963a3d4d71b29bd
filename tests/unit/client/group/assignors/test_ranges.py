"""`range` gives each member what Apache Kafka's RangeAssignor gives it."""

from __future__ import annotations

import pytest

from tests.unit.client.group.assignors.vectors import assign, count_far, show, spread
from trimtab.client.group.assignors.protocol import Subscriber, Topic
from trimtab.client.group.assignors.ranges import RangeAssignor

NO_RACKS = [None, None, None]
ABC = ["a", "b", "c"]
UNEVEN = {"t1": 6, "t2": 7, "t3": 2}
EVEN = {"t1": 5, "t2": 5, "t3": 5}
ALL = ["t1 t2 t3"] * 3
PARTLY = ["t1 t2 t3", "t1 t2 t3", "t1 t3"]

PLAIN = {
    "uneven": ["t1-0 t1-1 t2-0 t2-1 t2-2 t3-0", "t1-2 t1-3 t2-3 t2-4 t3-1", "t1-4 t1-5 t2-5 t2-6"],
    "uneven, partly": [
        "t1-0 t1-1 t2-0 t2-1 t2-2 t2-3 t3-0",
        "t1-2 t1-3 t2-4 t2-5 t2-6 t3-1",
        "t1-4 t1-5",
    ],
    "even": ["t1-0 t1-1 t2-0 t2-1 t3-0 t3-1", "t1-2 t1-3 t2-2 t2-3 t3-2 t3-3", "t1-4 t2-4 t3-4"],
    "even, partly": [
        "t1-0 t1-1 t2-0 t2-1 t2-2 t3-0 t3-1",
        "t1-2 t1-3 t2-3 t2-4 t3-2 t3-3",
        "t1-4 t3-4",
    ],
}
CASES = {
    "uneven": (UNEVEN, ALL),
    "uneven, partly": (UNEVEN, PARTLY),
    "even": (EVEN, ALL),
    "even, partly": (EVEN, PARTLY),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("replicas", "brokers", "consumers"),
    [
        (3, NO_RACKS, ABC),
        (3, ABC, NO_RACKS),
        (3, ABC, ABC),
        (4, ["a", "b", "c", "d"], ABC),
        (3, ABC, ["d", "e", "f"]),
        (3, ABC, [None, "e", "f"]),
    ],
)
def test_racks_change_nothing_where_all_are_equally_near(
    case: str, replicas: int, brokers: list[str | None], consumers: list[str | None]
) -> None:
    counts, subscribed = CASES[case]
    topics = spread(counts, replicas, brokers)
    assert assign(RangeAssignor(), topics, subscribed, consumers) == PLAIN[case]


@pytest.mark.kip(881)
@pytest.mark.parametrize(
    ("case", "replicas", "expected", "far"),
    [
        (
            "uneven",
            1,
            [
                "t1-0 t1-3 t2-0 t2-3 t2-6",
                "t1-1 t1-4 t2-1 t2-4 t3-0",
                "t1-2 t1-5 t2-2 t2-5 t3-1",
            ],
            0,
        ),
        (
            "uneven",
            2,
            ["t1-0 t1-2 t2-0 t2-2 t2-3 t3-1", "t1-1 t1-3 t2-1 t2-4 t3-0", "t1-4 t1-5 t2-5 t2-6"],
            1,
        ),
        (
            "uneven, partly",
            1,
            [
                "t1-0 t1-3 t2-0 t2-2 t2-3 t2-6",
                "t1-1 t1-4 t2-1 t2-4 t2-5 t3-0",
                "t1-2 t1-5 t3-1",
            ],
            2,
        ),
        (
            "uneven, partly",
            2,
            ["t1-0 t1-2 t2-0 t2-2 t2-3 t2-5 t3-1", "t1-1 t1-3 t2-1 t2-4 t2-6 t3-0", "t1-4 t1-5"],
            0,
        ),
        ("even", 1, PLAIN["even"], 10),
        ("even", 2, PLAIN["even"], 5),
        (
            "even, partly",
            1,
            ["t1-0 t1-1 t2-0 t2-1 t2-4 t3-0 t3-1", "t1-2 t1-3 t2-2 t2-3 t3-2 t3-3", "t1-4 t3-4"],
            9,
        ),
        (
            "even, partly",
            2,
            [
                "t1-2 t2-0 t2-1 t2-3 t3-2",
                "t1-0 t1-3 t2-2 t2-4 t3-0 t3-3",
                "t1-1 t1-4 t3-1 t3-4",
            ],
            0,
        ),
    ],
)
def test_members_get_what_is_near_as_far_as_shares_and_copartitioning_allow(
    case: str, replicas: int, expected: list[str], far: int
) -> None:
    counts, subscribed = CASES[case]
    topics = spread(counts, replicas, ABC)
    given = assign(RangeAssignor(), topics, subscribed, ABC)
    assert given == expected
    assert count_far(topics, ABC, given) == far


@pytest.mark.kip(881)
@pytest.mark.parametrize(
    ("racks", "subscribed", "expected"),
    [
        (
            "ab",
            ["t1 t2", "t1 t2", "t3 t4", "t3 t4"],
            [
                "t1-0 t1-2 t1-4 t2-0 t2-2 t2-4",
                "t1-1 t1-3 t1-5 t2-1 t2-3 t2-5",
                "t3-1 t4-1",
                "t3-0 t4-0",
            ],
        ),
        (
            "ab",
            ["t1 t2 t3 t4"] * 4,
            [
                "t1-0 t1-2 t2-0 t2-2 t3-0 t4-0",
                "t1-1 t1-3 t2-1 t2-3 t3-1 t4-1",
                "t1-5 t2-5",
                "t1-4 t2-4",
            ],
        ),
        (
            "abc",
            ["t1 t2 t3 t4"] * 4,
            [
                "t1-0 t1-3 t2-0 t2-3 t3-0 t4-0",
                "t1-1 t1-4 t2-1 t2-4 t3-1 t4-1",
                "t1-2 t2-2",
                "t1-5 t2-5",
            ],
        ),
    ],
)
def test_topics_of_one_size_are_divided_alike_also_by_racks(
    racks: str, subscribed: list[str], expected: list[str]
) -> None:
    topics = spread({"t1": 6, "t2": 6, "t3": 2, "t4": 2}, 1, list(racks))
    assert assign(RangeAssignor(), topics, subscribed, ["a", "b", "b", "a"]) == expected


def test_static_members_come_first_by_instance_id() -> None:
    both = frozenset({"topic1", "topic2"})
    members = [
        Subscriber("consumer-a", None, both),
        Subscriber("consumer-b", "instance2", both),
        Subscriber("consumer-c", "instance1", both),
    ]
    assigned = RangeAssignor().assign(members, {"topic1": Topic(4), "topic2": Topic(3)})
    assert show(assigned) == [
        "topic1-3 topic2-2",
        "topic1-2 topic2-1",
        "topic1-0 topic1-1 topic2-0",
    ]


def test_ids_are_in_the_order_of_java() -> None:
    """Java compares UTF-16: a character outside the first 65,536 comes before U+FFFD."""
    members = [Subscriber(each, None, frozenset({"t"})) for each in ("\ufffd", "\U0001f600")]
    assigned = RangeAssignor().assign(members, {"t": Topic(1)})
    assert [len(assigned[each.member_id]) for each in members] == [0, 1]


def test_topics_without_partitions_or_subscribers_are_left_out() -> None:
    topics = {"a": Topic(2), "empty": Topic(0), "other": Topic(1)}
    assert assign(RangeAssignor(), topics, ["a empty gone", ""]) == ["a-0 a-1", ""]
    assert RangeAssignor().assign([], topics) == {}
