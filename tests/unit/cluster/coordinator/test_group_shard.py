"""Committed offsets, and groups as a whole."""

from __future__ import annotations

import pytest

from tests.unit.cluster.coordinator.scene import DAY_MS, GROUP, Scene
from trimtab.cluster.coordinator.transaction import ProducerIdAndEpoch
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.group_records import GroupMetadataKey, OffsetCommitKey


def subscribe_to(*topics: str) -> bytes:
    """A consumer's subscription, as it is on the wire in version 0."""
    names = b"".join(len(each).to_bytes(2, "big") + each.encode() for each in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def test_a_member_of_the_generation_commits() -> None:
    scene = Scene()
    leader, _ = scene.stable_group()
    assert scene.commit(5, leader, 2) is ErrorCode.NONE
    assert scene.committed() == 5
    assert scene.commit(6, "unknown", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.commit(6) is ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.committed() == 5


def test_the_old_generation_may_commit_until_the_new_one_begins() -> None:
    scene = Scene()
    leader, follower = scene.stable_group()
    ticket = scene.join(leader)
    assert scene.commit(7, follower, 2) is ErrorCode.NONE
    scene.join(follower)
    assert scene.answer(ticket).generation_id == 3
    assert scene.commit(8, follower, 2) is ErrorCode.ILLEGAL_GENERATION
    assert scene.commit(8, follower, 3) is ErrorCode.REBALANCE_IN_PROGRESS
    assert scene.committed() == 7


@pytest.mark.kip(447)
def test_a_producer_commits_for_a_member_or_for_nobody() -> None:
    scene = Scene()
    leader, follower = scene.stable_group()
    producer = ProducerIdAndEpoch(7, 0)
    assert scene.commit(1, producer=producer) is ErrorCode.NONE  # it says nothing of itself
    assert scene.commit(2, leader, 2, producer=producer) is ErrorCode.NONE
    assert scene.commit(3, leader, 1, producer=producer) is ErrorCode.ILLEGAL_GENERATION
    assert scene.commit(3, "unknown", 2, producer=producer) is ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.committed() is None
    assert list(scene.shard.undecided(GROUP)) == [("t", 0)]
    ticket = scene.join(leader)
    scene.join(follower)
    assert scene.answer(ticket).generation_id == 3
    assert scene.commit(4, leader, 3, producer=producer) is ErrorCode.NONE  # before it is synced
    scene.shard.end_transaction(7, True)
    assert (scene.committed(), list(scene.shard.undecided(GROUP))) == (4, [])


@pytest.mark.kip(447)
def test_a_producer_commits_for_a_group_that_there_is_not() -> None:
    scene = Scene()
    producer = ProducerIdAndEpoch(7, 0)
    assert scene.commit(1, "member", 1, producer=producer) is ErrorCode.ILLEGAL_GENERATION
    assert scene.commit(1, producer=producer) is ErrorCode.NONE
    assert [each.group_id for each in scene.shard.list_groups([], [])] == [GROUP]
    scene.expire_offsets()
    assert scene.shard.delete_group(GROUP) is ErrorCode.NONE
    scene.shard.end_transaction(7, True)
    assert scene.committed() is None, "it was deleted later"


def test_a_commit_counts_as_a_heartbeat() -> None:
    scene = Scene()
    (member,) = scene.stable_group(size=1, session_s=10.0)
    for _ in range(3):
        scene.pass_time(9.0)
        assert scene.commit(1, member, 1) is ErrorCode.NONE


def test_a_client_that_assigns_partitions_itself_commits_while_there_are_no_members() -> None:
    scene = Scene()
    assert scene.commit(3) is ErrorCode.NONE
    assert scene.committed() == 3
    assert scene.state() == "Empty"
    scene.stable_group()
    assert scene.commit(4) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_member_of_a_group_that_is_gone_is_refused(version: int, code: ErrorCode) -> None:
    assert Scene().commit(1, "member", 3, version=version) is code


def test_offsets_are_loaded() -> None:
    scene = Scene()
    scene.commit(1)
    scene.commit(2)
    scene.commit(9, topic="u")
    scene.shard.delete_offsets(GROUP, [TopicPartition("u", 0)])
    scene.restart()
    assert (scene.committed(), scene.committed("u")) == (2, None)


# Expiry (KIP-211)


def test_without_members_offsets_stay_for_the_retention_time() -> None:
    scene = Scene()
    (member,) = scene.stable_group(size=1, protocols=[("range", subscribe_to("t"))])
    scene.commit(1, member, 1)
    scene.now_s += 20 * DAY_MS / 1000
    scene.expire_offsets()
    assert scene.committed() == 1, "a member is there"
    scene.leave((member, None))
    scene.now_s += 7 * DAY_MS / 1000 - 1
    scene.expire_offsets()
    assert scene.committed() == 1
    scene.now_s += 1
    scene.expire_offsets()
    assert scene.committed() is None
    assert scene.state() == "Dead"
    assert scene.records[-1] == (GroupMetadataKey(group=GROUP), None)


def test_offsets_expire_in_steps_of_a_few_hundred() -> None:
    """Also those of a single group; between two steps the group may go on."""
    scene = Scene()
    for number in range(1000):
        scene.commit(1, topic=f"u{number}")
        scene.commit(1, group=f"g{number}")
    scene.now_s += 8 * DAY_MS / 1000
    begin = len(scene.records)
    steps = scene.shard.expire(lambda: scene.now)
    sizes: list[int] = []
    for number, _ in enumerate(steps):
        scene.take()
        sizes.append(len(scene.records) - begin - sum(sizes))
        if number == 0:
            scene.commit(2, topic="u999")
            begin += 1
    scene.take()
    assert max(sizes) <= 400
    assert sum(sizes) > 1800
    assert scene.committed("u999") == 2
    assert [each.group_id for each in scene.shard.list_groups([], [])] == [GROUP]


def test_a_stable_group_loses_the_offsets_of_topics_that_it_left() -> None:
    scene = Scene()
    (member,) = scene.stable_group(size=1, protocols=[("range", subscribe_to("t", "u"))])
    scene.commit(1, member, 1)
    scene.commit(2, member, 1, topic="left")
    scene.now_s += 8 * DAY_MS / 1000
    scene.expire_offsets()
    assert (scene.committed(), scene.committed("left")) == (1, None)


def test_offsets_without_members_ever_stay_since_their_commit() -> None:
    scene = Scene()
    scene.commit(1)
    scene.commit(2, topic="u", keep_ms=1000)
    scene.now_s += 1.0
    scene.expire_offsets()
    assert (scene.committed(), scene.committed("u")) == (1, None)
    scene.now_s += 7 * DAY_MS / 1000
    scene.expire_offsets()
    assert scene.state() == "Dead"


# Deleting, describing, listing


def test_a_group_without_members_is_deleted_with_its_offsets() -> None:
    scene = Scene()
    leader, follower = scene.stable_group()
    scene.commit(1, leader, 2)
    assert scene.shard.delete_group(GROUP) is ErrorCode.NON_EMPTY_GROUP
    scene.leave((leader, None), (follower, None))
    assert scene.shard.delete_group(GROUP) is ErrorCode.NONE
    scene.take()
    assert scene.records[-2:] == [
        (OffsetCommitKey(group=GROUP, topic="t", partition=0), None),
        (GroupMetadataKey(group=GROUP), None),
    ]
    assert scene.shard.delete_group(GROUP) is ErrorCode.GROUP_ID_NOT_FOUND
    assert scene.shard.delete_group("") is ErrorCode.INVALID_GROUP_ID
    scene.restart()
    assert scene.state() == "Dead"


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    scene = Scene()
    (member,) = scene.stable_group(size=1, protocols=[("range", subscribe_to("t"))])
    scene.commit(1, member, 1)
    scene.commit(2, member, 1, topic="u")
    t, u = TopicPartition("t", 0), TopicPartition("u", 0)
    code, codes = scene.shard.delete_offsets(GROUP, [t, u])
    assert code is ErrorCode.NONE
    assert codes == {t: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, u: ErrorCode.NONE}
    assert (scene.committed(), scene.committed("u")) == (1, None)
    assert scene.shard.delete_offsets("other", [t]) == (ErrorCode.GROUP_ID_NOT_FOUND, {})


def test_offsets_of_members_that_are_no_consumers_are_not_deleted() -> None:
    scene = Scene()
    scene.stable_group(size=1, kind="connect")
    code, _ = scene.shard.delete_offsets(GROUP, [TopicPartition("t", 0)])
    assert code is ErrorCode.NON_EMPTY_GROUP


def test_members_are_described_while_the_group_is_stable() -> None:
    scene = Scene()
    leader, _ = scene.stable_group()
    described = scene.shard.describe(6, GROUP)
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    first = described.members[0]
    assert (first.member_id, first.client_id, first.client_host) == (leader, "client", "/127.0.0.1")
    assert (first.member_metadata, first.member_assignment) == (b"topics", leader.encode())
    scene.join(leader)
    described = scene.shard.describe(6, GROUP)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert described.members[0].member_metadata == b""


@pytest.mark.parametrize(
    ("version", "code"), [(5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_group_that_does_not_exist_is_dead(version: int, code: ErrorCode) -> None:
    described = Scene().shard.describe(version, "nobody")
    assert (described.group_state, described.error_code) == ("Dead", code)


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], ["g", "offsets only"]),
        (["stable"], [], ["g"]),
        (["Empty"], ["CLASSIC"], ["offsets only"]),
        ([], ["consumer"], []),
    ],
)
def test_groups_are_listed_by_state_and_type(
    states: list[str], types: list[str], found: list[str]
) -> None:
    scene = Scene()
    scene.stable_group()
    scene.commit(1, group="offsets only")
    assert [each.group_id for each in scene.shard.list_groups(states, types)] == found


def test_metadata_of_an_offset_is_counted_as_in_java() -> None:
    scene = Scene()
    assert scene.commit(1, metadata="ä" * 10) == ErrorCode.NONE
    assert scene.commit(1, metadata="\U0001f600" * 5) == ErrorCode.NONE
    assert scene.commit(1, metadata="ä" * 11) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert scene.commit(1, metadata="\U0001f600" * 6) == ErrorCode.OFFSET_METADATA_TOO_LARGE
