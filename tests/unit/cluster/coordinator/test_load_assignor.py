"""The assignor `load` of consumer groups: bytes/s, then racks, then few moves."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.cluster.coordinator.scene import GROUP, FixedTopics, Scene, topic_id
from trimtab.cluster.coordinator.assignors import Assignment, Subscriber, assign_load
from trimtab.cluster.coordinator.topics import Topic
from trimtab.kafka.records import TopicPartition


def members(
    count: int, topic: str = "t", given: Assignment | None = None, racks: str = ""
) -> dict[str, Subscriber]:
    return {
        (name := f"m{number:03}"): Subscriber(
            None,
            frozenset([topic_id(topic)]),
            (given or {}).get(name, frozenset()),
            racks[number % len(racks)] if racks else None,
        )
        for number in range(count)
    }


def topics(**partitions: int) -> dict[bytes, Topic]:
    return {
        topic_id(name): Topic(name, topic_id(name), count) for name, count in partitions.items()
    }


def sums(assigned: Assignment, load: FixedTopics, topic: str = "t") -> list[float]:
    return [
        sum(load.measured[TopicPartition(topic, index)] for _, index in keys)
        for keys in assigned.values()
    ]


def test_bytes_are_level() -> None:
    load = FixedTopics()
    load.measure("t", 60, 50, 40, 30, 20)
    assigned = assign_load(members(2), topics(t=5), load)
    assert sorted(sums(assigned, load)) == [100, 100]


def test_without_rates_partitions_are_counted() -> None:
    assigned = assign_load(members(3), topics(t=9), FixedTopics())
    assert [len(keys) for keys in assigned.values()] == [3, 3, 3]


def test_an_unknown_partition_counts_as_the_mean_of_its_topic() -> None:
    load = FixedTopics()
    load.measure("t", 30, 10)
    assigned = assign_load(members(2), topics(t=3), load)
    assert assigned["m000"] | assigned["m001"] == {(topic_id("t"), index) for index in range(3)}
    assert {(topic_id("t"), 0)} in assigned.values()  # 30, and 10 + 20


def test_members_read_from_their_own_rack() -> None:
    load = FixedTopics()
    load.measure("t", *[10] * 6)
    load.racks = {TopicPartition("t", index): "abc"[index % 3] for index in range(6)}
    assigned = assign_load(members(3, racks="cab"), topics(t=6), load)
    assert [sorted(index for _, index in keys) for keys in assigned.values()] == [
        [2, 5],
        [0, 3],
        [1, 4],
    ]


@pytest.mark.parametrize("change", [-1, 1])
def test_one_of_a_hundred_moves_few_partitions_and_leaves_them_level(change: int) -> None:
    random = Random(7)
    load = FixedTopics()
    load.measure("t", *(random.uniform(1, 10) for _ in range(1000)))
    before = assign_load(members(100), topics(t=1000), load)
    after = assign_load(members(100 + change, given=before), topics(t=1000), load)
    for assigned in (before, after):
        found = sums(assigned, load)
        assert max(found) <= 1.05 * sum(found) / len(found)
    moved = sum(len(keys - before.get(member, frozenset())) for member, keys in after.items())
    assert moved <= 100


def load_scene() -> Scene:
    scene = Scene()
    scene.topics.create("t", 4)
    return scene


def owned(response: object) -> list[tuple[str, int]]:
    return [
        ("t", index)
        for each in response.assignment.topic_partitions  # type: ignore[attr-defined]
        for index in each.partitions
    ]


def test_a_group_is_levelled_once_its_first_rates_are_known() -> None:
    """It was assigned by counts until then. Later rates wait for a change of the group."""
    scene = load_scene()
    scene.beat("a", assignor="load")
    assert scene.topics.asked == {"t"}
    scene.beat("b", assignor="load")
    a = scene.beat("a", 2)
    a = scene.beat("a", a.member_epoch, owned(a))
    b = scene.beat("b", 3)
    assert len(owned(b)) == 2
    heavy = owned(b)[0][1]
    scene.topics.measure("t", 0, 0, 0, 0)
    assert scene.beat("a", a.member_epoch).member_epoch == a.member_epoch, "nothing is written"
    scene.topics.measure("t", *(90 if index == heavy else 10 for index in range(4)))
    b = scene.beat("b", b.member_epoch)
    assert owned(b) == [("t", heavy)]
    b = scene.beat("b", b.member_epoch, owned(b))
    a = scene.beat("a", a.member_epoch)
    assert len(owned(a)) == 3
    scene.topics.measure("t", 10, 10, 10, 10)
    assert scene.beat("a", a.member_epoch).member_epoch == a.member_epoch


def test_the_next_coordinator_measures_before_it_is_asked_to_assign() -> None:
    scene = load_scene()
    scene.beat("a", assignor="load")
    scene.topics.asked.clear()
    scene.restart()
    assert scene.topics.asked == {"t"}


def test_other_groups_have_nothing_measured() -> None:
    scene = load_scene()
    scene.beat("a")
    scene.restart()
    scene.beat("b", assignor="uniform")
    assert scene.topics.asked == set()


def test_another_rack_of_a_member_is_a_change() -> None:
    scene = load_scene()
    scene.topics.racks = {TopicPartition("t", index): "xxyy"[index] for index in range(4)}
    scene.topics.measure("t", 10, 10, 10, 10)
    scene.beat("a", assignor="load", rack_id="x")
    scene.beat("b", assignor="load", rack_id="y")
    a = scene.beat("a", 2)
    assert owned(a) == [("t", 0), ("t", 1)]
    scene.beat("a", a.member_epoch, owned(a), rack_id="y")
    members = {each.member_id: each for each in scene.shard.describe_consumers(GROUP).members}
    assert members["a"].rack_id == "y"
    assert scene.shard.describe_consumers(GROUP).group_epoch == 4
