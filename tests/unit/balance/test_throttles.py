from __future__ import annotations

from trimtab.balance.throttles import (
    CopyEnds,
    ThrottledLists,
    find_ends,
    list_pairs,
    read_lists,
    read_pair,
)
from trimtab.kafka.records import TopicPartition


def test_a_partition_is_copied_from_all_present_replicas_to_those_that_are_new() -> None:
    assert find_ends((1, 2), (2, 3)) == CopyEnds(frozenset({1, 2}), frozenset({3}))
    assert find_ends((1, 2), (2, 1)).targets == frozenset()


def test_replicas_that_are_being_added_are_no_source() -> None:
    ends = find_ends((4, 2, 1), (4, 2, 3), adding=(4,))
    assert ends == CopyEnds(frozenset({1, 2}), frozenset({3, 4}))


def test_pairs_are_listed_by_topic_in_order_for_what_is_copied() -> None:
    copies = {
        TopicPartition("t", 10): find_ends((1,), (3,)),
        TopicPartition("t", 2): find_ends((2, 1), (3, 4)),
        TopicPartition("u", 0): find_ends((2, 1), (1, 2)),
    }
    assert list_pairs(copies) == {
        "t": ThrottledLists(("2:1", "2:2", "10:1"), ("2:3", "2:4", "10:3"))
    }


def test_lists_are_read_from_and_written_as_options() -> None:
    lists = ThrottledLists(("0:1", "0:2"), ())
    options = {"leader.replication.throttled.replicas": "0:1,0:2"}
    assert lists.options() == options
    assert read_lists(options | {"follower.replication.throttled.replicas": ""}) == lists
    assert read_lists({"leader.replication.throttled.replicas": None}) == ThrottledLists()


def test_a_pair_has_a_partition_and_a_broker_but_all_replicas_is_none() -> None:
    assert read_pair("12:3") == (12, 3)
    assert read_pair("*") is None
