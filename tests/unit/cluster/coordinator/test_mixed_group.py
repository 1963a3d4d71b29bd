"""Groups with members of both protocols, and the ways between the kinds of groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.unit.cluster.coordinator.scene import GROUP, Scene
from tests.unit.cluster.coordinator.test_consumer_group import described, partitions, state
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_embedded,
    encode_embedded,
)


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.topics.create("t", 4)
    return scene


def subscription(
    owned: Iterable[int] = (), version: int = 3, generation: int = -1
) -> list[tuple[str, bytes]]:
    """The protocols of a member that subscribes to t."""
    partitions = [TopicPartition(topic="t", partitions=list(owned))]
    message = ConsumerProtocolSubscription(
        topics=["t"], owned_partitions=partitions, generation_id=generation
    )
    return [("cooperative-sticky", encode_embedded(message, version))]


def assignment(indexes: Iterable[int]) -> bytes:
    partitions = [TopicPartition(topic="t", partitions=list(indexes))]
    return encode_embedded(ConsumerProtocolAssignment(assigned_partitions=partitions), 3)


def read(data: bytes) -> list[int]:
    found, _ = decode_embedded(ConsumerProtocolAssignment, data)
    return sorted(index for each in found.assigned_partitions for index in each.partitions)


def classic_group(scene: Scene, **more: Any) -> str:
    """A stable classic group of one member with all partitions; returns its id."""
    if "instance" in more:
        member = scene.answer(scene.join(protocols=subscription(), **more)).member_id
    else:
        member, _ = scene.new_member(protocols=subscription(), **more)
    scene.sync(member, 1, {member: assignment(range(4))}, more.get("instance"))
    assert scene.state() == "Stable"
    return str(member)


def catch_up(scene: Scene, member: str, owned: Iterable[int], **more: Any) -> tuple[int, list[int]]:
    """Join again and synchronize; returns generation and partitions."""
    joined = scene.answer(scene.join(member, protocols=subscription(owned), **more))
    assert joined.error_code == 0
    synced = scene.answer(scene.sync(member, joined.generation_id, **more))
    assert synced.error_code == 0
    return joined.generation_id, read(synced.assignment)


def test_a_member_of_the_consumer_protocol_joins_a_classic_group(scene: Scene) -> None:
    member = classic_group(scene)
    scene.commit(7, member, 1)
    first = scene.beat("b")
    assert (first.error_code, first.member_epoch, partitions(first)) == (0, 2, [])
    assert [each.member_type for each in described(scene).values()] == [0, 1]
    assert scene.heartbeat(member, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert catch_up(scene, member, range(4)) == (1, [0, 1])
    assert partitions(scene.beat("b", 2)) is None
    assert scene.heartbeat(member, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert catch_up(scene, member, [0, 1]) == (2, [0, 1])
    assert scene.heartbeat(member, 2) == ErrorCode.NONE
    assert partitions(scene.beat("b", 2)) == [2, 3]
    assert (state(scene), scene.committed()) == ("Stable", 7)
    assert scene.commit(8, member, 2) == ErrorCode.NONE
    assert scene.commit(8, member, 1) == ErrorCode.ILLEGAL_GENERATION


def test_the_upgraded_group_is_in_the_log(scene: Scene) -> None:
    member = classic_group(scene)
    scene.beat("b")
    before = scene.shard.describe_consumers(GROUP)
    scene.restart()
    assert scene.shard.describe_consumers(GROUP) == before
    assert scene.heartbeat(member, 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_an_eager_member_gives_everything_back_when_it_joins(scene: Scene) -> None:
    member = classic_group(scene)
    scene.beat("b")
    assert catch_up(scene, member, []) == (2, [0, 1])
    assert partitions(scene.beat("b", 2)) == [2, 3]


def test_a_classic_member_waits_for_partitions_of_another(scene: Scene) -> None:
    scene.beat("b")
    member, joined = scene.new_member(protocols=subscription())
    generation = scene.answer(joined).generation_id
    assert read(scene.answer(scene.sync(member, generation)).assignment) == []
    assert scene.heartbeat(member, generation) == ErrorCode.NONE
    scene.beat("b", 2)
    assert scene.heartbeat(member, generation) == ErrorCode.NONE
    scene.beat("b", 2, [("t", 0), ("t", 1)])
    assert scene.heartbeat(member, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert catch_up(scene, member, []) == (generation, [2, 3])
    assert state(scene) == "Stable"


def test_the_last_member_of_the_consumer_protocol_leaves(scene: Scene) -> None:
    member = classic_group(scene)
    scene.beat("b")
    catch_up(scene, member, [])
    scene.beat("b", 2)
    scene.beat("b", -1)
    assert scene.state() == "PreparingRebalance"
    assert scene.heartbeat(member, 3) == ErrorCode.REBALANCE_IN_PROGRESS
    joined = scene.answer(scene.join(member, protocols=subscription()))
    assert (joined.error_code, joined.leader) == (0, member)
    assert joined.generation_id == 4
    scene.sync(member, 4, {member: assignment(range(4))})
    scene.restart()
    assert scene.state() == "Stable"
    assert scene.shard.describe_consumers(GROUP).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_downgraded_group_is_in_the_log(scene: Scene) -> None:
    member = classic_group(scene)
    scene.beat("b")
    catch_up(scene, member, [])
    scene.pass_time(9)
    scene.heartbeat(member, 2)
    scene.pass_time(2)  # b is not heard of
    scene.restart()
    assert scene.state() == "PreparingRebalance"
    assert scene.heartbeat(member, 3) == ErrorCode.REBALANCE_IN_PROGRESS
    joined = scene.answer(scene.join(member, protocols=subscription([0, 1])))
    assert (joined.error_code, joined.leader, joined.generation_id) == (0, member, 4)


@pytest.mark.parametrize("interruptions", [0, 1])
def test_a_group_that_rebalances_changes_with_what_its_members_kept(
    scene: Scene, interruptions: int
) -> None:
    """Nobody has synchronized, so the members have no assignments in the new generation."""
    member = classic_group(scene)
    others = [scene.new_member(protocols=subscription())[0]]
    joined = scene.answer(scene.join(member, protocols=subscription(range(4))))
    for _ in range(interruptions):
        others.append(scene.new_member(protocols=subscription())[0])
        for each in others[:-1]:
            scene.join(each, protocols=subscription())
        joined = scene.answer(scene.join(member, protocols=subscription(range(4))))
    assert joined.generation_id == 2 + interruptions
    assert scene.state() == "CompletingRebalance"
    assert partitions(scene.beat("b")) == []
    assert partitions(scene.beat("b", 3 + interruptions)) is None
    assert catch_up(scene, member, range(4))[1] != list(range(4))
    assert partitions(scene.beat("b", 3 + interruptions)) is None
    catch_up(scene, member, [0])
    assert partitions(scene.beat("b", 3 + interruptions))


def test_of_two_members_that_claim_a_partition_the_later_one_has_it(scene: Scene) -> None:
    member = classic_group(scene)
    other = scene.new_member(protocols=subscription())[0]
    scene.join(other, protocols=subscription(range(4), generation=0))
    scene.answer(scene.join(member, protocols=subscription(range(4), generation=1)))
    scene.beat("b")
    assert [
        sum(len(topic.partitions) for topic in each.assignment.topic_partitions)
        for each in described(scene).values()
    ] == [4, 0, 0]


def test_a_group_that_changes_back_and_forth_keeps_what_its_members_have(scene: Scene) -> None:
    """The target was another one, which the member has not heard of."""
    member = classic_group(scene)
    scene.beat("b")
    scene.beat("b", -1)
    assert scene.state() == "PreparingRebalance"
    came = scene.beat("c")
    assert partitions(came) == []
    assert partitions(scene.beat("c", came.member_epoch)) is None
    catch_up(scene, member, range(4))
    assert partitions(scene.beat("c", came.member_epoch)) is None
    catch_up(scene, member, [0, 1])
    assert partitions(scene.beat("c", came.member_epoch)) == [2, 3]


def test_members_that_wait_for_a_classic_group_are_asked_to_join_again(scene: Scene) -> None:
    member = classic_group(scene)
    other, waiting = scene.new_member(protocols=subscription())
    scene.beat("b")
    assert scene.answer(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert list(described(scene)) == [member, other, "b"]
    catch_up(scene, member, [])
    catch_up(scene, other, [])


def test_a_group_in_its_first_generation_changes_too(scene: Scene) -> None:
    scene = Scene(initial_delay_s=3)
    scene.topics.create("t", 4)
    member, waiting = scene.new_member(protocols=subscription())
    assert scene.beat("b").member_epoch == 2
    assert scene.answer(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert catch_up(scene, member, [])[0] == 2


def test_an_empty_group_that_changes_its_kind_keeps_its_epoch(scene: Scene) -> None:
    scene.beat("a")
    scene.beat("a", -1)
    member, joined = scene.new_member(protocols=subscription())
    generation = scene.answer(joined).generation_id
    assert generation == 4
    scene.leave((member, None))
    scene.restart()
    assert scene.beat("a").member_epoch > generation


def test_a_static_member_changes_its_protocol(scene: Scene) -> None:
    member = classic_group(scene, instance="i")
    came = scene.beat("a", instance="i")
    assert (came.error_code, partitions(came)) == (0, [0, 1, 2, 3])
    assert scene.heartbeat(member, 1, "i") == ErrorCode.FENCED_INSTANCE_ID
    back = scene.answer(scene.join(instance="i", protocols=subscription()))
    assert back.error_code == 0
    assert scene.state() == "PreparingRebalance"
    assert scene.beat("a", came.member_epoch).error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("step", ["join", "sync"])
def test_a_classic_member_that_does_not_follow_is_removed(scene: Scene, step: str) -> None:
    member = classic_group(scene, rebalance_s=15)
    scene.beat("b")
    assert scene.heartbeat(member, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    generation = 1
    if step == "sync":
        joined = scene.answer(scene.join(member, protocols=subscription(), rebalance_s=15))
        generation = joined.generation_id
    for _ in range(4):
        assert list(described(scene)) == [member, "b"]
        scene.pass_time(4)
        scene.heartbeat(member, generation)
        scene.beat("b", 2)
    assert list(described(scene)) == ["b"]


def test_a_classic_member_that_is_not_heard_of_is_removed(scene: Scene) -> None:
    member = classic_group(scene)
    scene.beat("b")
    catch_up(scene, member, [])
    scene.pass_time(9)
    scene.beat("b", 2)
    scene.pass_time(2)
    assert list(described(scene)) == ["b"]
    assert scene.heartbeat(member, 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_removed_classic_member_does_not_come_back_with_its_partitions(scene: Scene) -> None:
    """It would let go of them, and commit, as if nobody else had them yet."""
    member = classic_group(scene)
    scene.beat("b")
    scene.pass_time(9)
    scene.beat("b", 2)
    scene.pass_time(2)
    assert list(described(scene)) == ["b"]
    joined = scene.answer(scene.join(member, protocols=subscription([0])))
    assert joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.answer(scene.join("given", protocols=subscription())).generation_id > 0


def test_what_a_mixed_group_refuses(scene: Scene) -> None:
    member = classic_group(scene)
    scene.beat("b")

    def joining(member: str = "", **more: Any) -> int:
        return int(scene.answer(scene.join(member, **more)).error_code)

    good = subscription()
    assert joining(protocols=[("range", good[0][1])]) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert joining(protocols=good, kind="connect") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    unreadable = [("cooperative-sticky", b"\0\0\1")]
    assert joining(protocols=unreadable) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert joining("x", protocols=good, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID
    assert joining(protocols=good) == ErrorCode.MEMBER_ID_REQUIRED
    assert scene.heartbeat("b", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.heartbeat(member, 9) == ErrorCode.ILLEGAL_GENERATION

    def syncing(generation: int = 1, **more: Any) -> int:
        return int(scene.answer(scene.sync(member, generation, **more)).error_code)

    assert syncing() == ErrorCode.REBALANCE_IN_PROGRESS
    assert syncing(protocol_name="range") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert syncing(protocol_type="connect") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    scene.consumer_rules = scene.consumer_rules._replace(max_size=2)
    assert joining("new", protocols=good) == ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("rules", [{"upgrades": False}, {"max_size": 0}])
def test_a_classic_group_is_not_upgraded_against_its_rules(
    scene: Scene, rules: dict[str, Any]
) -> None:
    scene.consumer_rules = scene.consumer_rules._replace(**rules)
    classic_group(scene)
    refused = scene.beat("b")
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "group.protocol" in refused.error_message
    assert scene.state() == "Stable"


def test_a_consumer_group_is_not_downgraded_against_its_rules(scene: Scene) -> None:
    scene.consumer_rules = scene.consumer_rules._replace(downgrades=False)
    member = classic_group(scene)
    scene.beat("b")
    scene.beat("b", -1)
    assert catch_up(scene, member, []) == (3, [0, 1, 2, 3])
    assert state(scene) == "Stable"


def test_a_classic_group_as_large_as_may_be_is_full(scene: Scene) -> None:
    classic_group(scene)
    records = len(scene.records)
    scene.consumer_rules = scene.consumer_rules._replace(max_size=1)
    assert scene.beat("b").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert (scene.state(), len(scene.records)) == ("Stable", records)


def test_a_group_with_more_members_than_a_classic_group_may_have_stays(scene: Scene) -> None:
    member = classic_group(scene)
    scene.beat("b")
    scene.shard._rules = scene.rules._replace(max_size=0)
    scene.beat("b", -1)
    assert list(described(scene)) == [member]
    assert state(scene) != "Empty"
