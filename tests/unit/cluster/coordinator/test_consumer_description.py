"""A consumer group as ConsumerGroupDescribe shows it."""

from __future__ import annotations

from typing import Any

from tests.unit.cluster.coordinator.scene import GROUP, Scene


def shown(assignment: Any) -> list[tuple[str, list[int]]]:
    return [(each.topic_name, each.partitions) for each in assignment.topic_partitions]


def test_a_member_is_shown_with_what_it_has_and_is_to_have() -> None:
    scene = Scene()
    scene.topics.create("t", 4)
    scene.beat("a", instance="i", rack_id="r", assignor="range")
    scene.beat("b")
    group = scene.shard._consumer_groups[GROUP]
    described = group.describe(scene.consumer_rules)
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == (
        "Reconciling",
        3,
        3,
    )
    assert described.assignor_name == "range"
    first, second = described.members
    assert (first.member_id, first.instance_id, first.rack_id, first.member_epoch) == (
        "a",
        "i",
        "r",
        2,
    )
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (["t"], None)
    assert shown(first.assignment) == [("t", [0, 1, 2, 3])]
    assert shown(first.target_assignment) == [("t", [0, 1])]
    assert (shown(second.assignment), shown(second.target_assignment)) == ([], [("t", [2, 3])])
    assert (first.client_id, first.client_host) == ("client", "/127.0.0.1")


def test_a_topic_that_is_gone_is_not_shown() -> None:
    scene = Scene()
    scene.topics.create("t", 4)
    scene.beat("a")
    scene.topics.delete("t")
    (member,) = scene.shard.describe_consumers(GROUP).members
    assert (shown(member.assignment), shown(member.target_assignment)) == ([], [])
