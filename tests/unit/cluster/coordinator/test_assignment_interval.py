"""The target of a consumer group is computed at most once in an interval (KIP-1263)."""

from __future__ import annotations

import pytest

from tests.unit.cluster.coordinator.scene import GROUP, Scene
from tests.unit.cluster.coordinator.test_consumer_group import partitions, state
from tests.unit.cluster.coordinator.test_mixed_group import catch_up, classic_group, subscription
from trimtab.cluster.coordinator.consumer_heartbeat import LEAVE
from trimtab.kafka.errors import ErrorCode

pytestmark = pytest.mark.kip(1263)


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.consumer_rules = scene.consumer_rules._replace(assignment_ms=1000)
    scene.topics.create("t", 4)
    return scene


def epochs(scene: Scene) -> tuple[int, int]:
    """Of the group, and of its target."""
    group = scene.shard.describe_consumers(GROUP)
    return group.group_epoch, group.assignment_epoch


def test_the_first_member_does_not_wait(scene: Scene) -> None:
    assert partitions(scene.beat("a")) == [0, 1, 2, 3]


def test_who_joins_early_has_nothing_until_the_interval_is_over(scene: Scene) -> None:
    scene.beat("a")
    scene.pass_time(0.999)
    b = scene.beat("b")
    assert (b.member_epoch, partitions(b), state(scene)) == (2, [], "Assigning")
    assert partitions(scene.beat("a", 2)) is None
    scene.pass_time(0.001)
    assert partitions(scene.beat("a", 2)) == [0, 1]
    assert scene.beat("b", 2).member_epoch == 3
    assert state(scene) == "Reconciling"


def test_changes_in_one_interval_are_assigned_together(scene: Scene) -> None:
    scene.beat("a")
    for member in "bcd":
        scene.beat(member)
    assert epochs(scene) == (5, 2)
    scene.pass_time(1)
    for member in "bcd":
        assert scene.beat(member, 2).member_epoch == 5
    assert partitions(scene.beat("a", 2)) == [0]
    assert epochs(scene) == (5, 5)


def test_the_next_interval_begins_with_the_target(scene: Scene) -> None:
    scene.beat("a")
    scene.pass_time(1.5)
    scene.beat("b")
    scene.pass_time(0.9)
    scene.beat("c")
    assert epochs(scene) == (4, 3)


def test_an_empty_group_waits_as_well(scene: Scene) -> None:
    scene.beat("a")
    scene.beat("a", LEAVE)
    b = scene.beat("b")
    assert (b.member_epoch, partitions(b)) == (2, [])
    scene.pass_time(1)
    assert partitions(scene.beat("b", 2)) == [0, 1, 2, 3]


def test_another_coordinator_waits_for_the_rest_of_the_interval(scene: Scene) -> None:
    scene.beat("a")
    scene.pass_time(0.5)
    scene.restart()
    assert partitions(scene.beat("b")) == []
    scene.pass_time(0.5)
    assert scene.beat("b", 2).member_epoch == 3


def test_a_clock_that_is_set_back_does_not_hold_a_group_up(scene: Scene) -> None:
    scene.beat("a")
    scene.now_s -= 500
    assert scene.beat("b").member_epoch == 3


def test_topics_that_a_member_leaves_are_let_go_of_at_once(scene: Scene) -> None:
    scene.topics.create("u", 1)
    assert partitions(scene.beat("a", topics=("t", "u"))) == [0, 0, 1, 2, 3]
    everything = [("t", index) for index in range(4)] + [("u", 0)]
    asked = scene.beat("a", 2, everything, topics=("t",))
    assert (partitions(asked), epochs(scene)) == ([0, 1, 2, 3], (3, 2))
    assert scene.beat("a", 2, everything[:4]).member_epoch == 2
    assert partitions(scene.beat("b", topics=("u",))) == []
    scene.pass_time(1)
    b = scene.beat("b", 2)
    assert (b.member_epoch, partitions(b)) == (4, [0])


def test_a_member_that_lets_go_twice_is_not_ahead_of_the_target(scene: Scene) -> None:
    for name in "uv":
        scene.topics.create(name, 1)
    scene.beat("a", topics=("u", "v"))
    scene.beat("a", 2, [("u", 0), ("v", 0)], topics=("v",))
    twice = scene.beat("a", 2, [("v", 0)], topics=("t",))
    assert (twice.member_epoch, partitions(twice)) == (2, [])
    assert scene.beat("a", 2, []).member_epoch == 2


def test_a_deleted_topic_is_let_go_of_at_once(scene: Scene) -> None:
    scene.beat("a")
    scene.topics.delete("t")
    asked = scene.beat("a", 2)
    assert (asked.member_epoch, partitions(asked)) == (2, [])


def test_a_classic_group_that_becomes_a_consumer_group_does_not_wait(scene: Scene) -> None:
    classic_group(scene)
    assert scene.beat("b").member_epoch == 2
    assert epochs(scene) == (2, 2)


def test_a_classic_member_joins_again_once_there_is_a_target_for_it(scene: Scene) -> None:
    scene.beat("b")
    member, joined = scene.new_member(protocols=subscription())
    assert scene.answer(joined).generation_id == 2
    assert scene.answer(scene.sync(member, 2)).error_code == ErrorCode.NONE
    assert scene.heartbeat(member, 2) == ErrorCode.NONE
    scene.pass_time(1)
    assert scene.heartbeat(member, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert catch_up(scene, member, []) == (3, [])
    assert epochs(scene) == (3, 3)
