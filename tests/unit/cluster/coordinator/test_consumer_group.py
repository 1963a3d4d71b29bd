"""Consumer groups (KIP-848): members, epochs, hand-over, static members, time, offsets, records."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cluster.coordinator.scene import DAY_MS, GROUP, Scene
from trimtab.cluster.coordinator.consumer_heartbeat import LEAVE, LEAVE_FOR_NOW
from trimtab.cluster.coordinator.transaction import ProducerIdAndEpoch
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.consumer_group_records import ConsumerGroupRegularExpressionKey

pytestmark = pytest.mark.kip(848)


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.topics.create("t", 4)
    return scene


def partitions(response: Any) -> list[int] | None:
    """The numbers of the partitions in a response; None if it has no assignment."""
    if response.assignment is None:
        return None
    return sorted(
        index for each in response.assignment.topic_partitions for index in each.partitions
    )


def described(scene: Scene) -> dict[str, Any]:
    return {each.member_id: each for each in scene.shard.describe_consumers(GROUP).members}


def pair(scene: Scene) -> tuple[int, int]:
    """Members a and b with two partitions each; returns their epochs."""
    scene.beat("a")
    scene.beat("b")
    scene.beat("a", 2)
    a = scene.beat("a", 2, [("t", 0), ("t", 1)]).member_epoch
    b = scene.beat("b", 3).member_epoch
    assert state(scene) == "Stable"
    return a, b


def state(scene: Scene) -> str:
    return str(scene.shard.describe_consumers(GROUP).group_state)


def test_the_first_member_has_everything(scene: Scene) -> None:
    response = scene.beat("a")
    assert (response.error_code, response.member_id, response.member_epoch) == (0, "a", 2)
    assert response.heartbeat_interval_ms == 500
    assert partitions(response) == [0, 1, 2, 3]
    assert state(scene) == "Stable"


def test_a_partition_is_handed_over_once_its_owner_says_it_let_go(scene: Scene) -> None:
    scene.beat("a")
    b = scene.beat("b")
    assert (b.member_epoch, partitions(b)) == (3, [])
    asked = scene.beat("a", 2)
    assert (asked.member_epoch, partitions(asked)) == (2, [0, 1])
    assert partitions(scene.beat("b", 3)) is None
    still = scene.beat("a", 2, [("t", 0), ("t", 1), ("t", 2)])
    assert (still.member_epoch, state(scene)) == (2, "Reconciling")
    assert scene.beat("a", 2, [("t", 0), ("t", 1)]).member_epoch == 3
    assert partitions(scene.beat("b", 3)) == [2, 3]


def test_a_heartbeat_without_news_says_nothing(scene: Scene) -> None:
    pair(scene)
    records = len(scene.records)
    assert partitions(scene.beat("a", 3)) is None
    assert len(scene.records) == records


def test_a_full_heartbeat_is_told_everything(scene: Scene) -> None:
    pair(scene)
    full = scene.beat("a", 3, [("t", 0), ("t", 1)], topics=("t",), rebalance_s=30)
    assert partitions(full) == [0, 1]


def test_who_leaves_has_its_partitions_taken_over(scene: Scene) -> None:
    _, b = pair(scene)
    left = scene.beat("a", LEAVE)
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert partitions(scene.beat("b", b)) == [0, 1, 2, 3]
    assert scene.beat("a", 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_that_all_have_left_is_empty(scene: Scene) -> None:
    scene.beat("a")
    scene.beat("a", LEAVE)
    assert state(scene) == "Empty"
    again = scene.beat("b")
    assert (again.member_epoch, partitions(again)) == (4, [0, 1, 2, 3])


# Epochs


def test_a_lost_response_is_repeated(scene: Scene) -> None:
    scene.beat("a")
    scene.beat("b")
    scene.beat("a", 2, [("t", 0), ("t", 1)])  # lost
    again = scene.beat("a", 2, [("t", 0), ("t", 1)], topics=("t",), rebalance_s=30)
    assert (again.error_code, again.member_epoch, partitions(again)) == (0, 3, [0, 1])


@pytest.mark.parametrize("owned", [None, [("t", 0), ("t", 3)]])
def test_an_earlier_epoch_with_other_partitions_is_fenced(
    scene: Scene, owned: list[tuple[str, int]] | None
) -> None:
    pair(scene)
    assert scene.beat("a", 2, owned).error_code == ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize("epoch", [1, 4])
def test_an_epoch_of_long_ago_or_to_come_is_fenced(scene: Scene, epoch: int) -> None:
    pair(scene)
    response = scene.beat("a", epoch, [])
    assert response.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert "join again" in response.error_message


def test_a_fenced_member_joins_again_and_has_its_partitions(scene: Scene) -> None:
    pair(scene)
    again = scene.beat("a", 0)
    assert (again.error_code, again.member_epoch, partitions(again)) == (0, 3, [0, 1])


def test_a_member_that_joins_again_has_let_go_of_everything(scene: Scene) -> None:
    scene.beat("a")
    scene.beat("b")
    scene.beat("a", 2)
    assert scene.beat("a", 0).member_epoch == 3
    assert partitions(scene.beat("b", 3)) == [2, 3]


def test_a_larger_topic_begins_an_epoch(scene: Scene) -> None:
    scene.beat("a")
    scene.topics.create("other", 1)
    assert scene.beat("a", 2).member_epoch == 2
    scene.topics.create("t", 5)
    grown = scene.beat("a", 2)
    assert (grown.member_epoch, partitions(grown)) == (3, [0, 1, 2, 3, 4])


def test_a_deleted_topic_is_let_go_of(scene: Scene) -> None:
    scene.beat("a")
    scene.topics.delete("t")
    asked = scene.beat("a", 2)
    assert (asked.member_epoch, partitions(asked)) == (2, [])
    assert scene.beat("a", 2, []).member_epoch == 3


def test_another_subscription_begins_an_epoch(scene: Scene) -> None:
    scene.topics.create("u", 1)
    scene.beat("a")
    both = scene.beat("a", 2, topics=("t", "u"))
    assert (both.member_epoch, partitions(both)) == (3, [0, 0, 1, 2, 3])


def test_a_regular_expression_follows_the_topics(scene: Scene) -> None:
    scene.topics.create("u1", 1)
    first = scene.beat("a", topics=(), subscribed_topic_regex="u.*")
    assert partitions(first) == [0]
    scene.topics.create("u2", 2)
    assert partitions(scene.beat("a", 2)) == [0, 0, 1]
    scene.restart()
    scene.topics.create("v", 1)
    assert scene.beat("a", 3).member_epoch == 3
    (member,) = described(scene).values()
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ([], "u.*")
    other = scene.beat("a", 3, topics=("t",), subscribed_topic_regex="")
    assert partitions(other) == []
    assert partitions(scene.beat("a", 3, [])) == [0, 1, 2, 3]


def test_a_regular_expression_that_nobody_uses_is_forgotten(scene: Scene) -> None:
    scene.beat("a", topics=(), subscribed_topic_regex="t")
    scene.beat("a", LEAVE)
    written = [
        value for key, value in scene.records if isinstance(key, ConsumerGroupRegularExpressionKey)
    ]
    assert len(written) == 2
    assert written[-1] is None


# Requests that are refused


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"member": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"topics": ()}, ErrorCode.INVALID_REQUEST),
        ({"owned": [("t", 0)]}, ErrorCode.INVALID_REQUEST),
        ({"assignor": "none"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"topics": [str(number) for number in range(10_001)]}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"epoch": 5}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    scene: Scene, changes: dict[str, Any], code: ErrorCode
) -> None:
    response = scene.beat(**{"member": "a", **changes})
    assert response.error_code == code
    assert response.error_message
    assert scene.records == []


def test_a_full_group_takes_nobody(scene: Scene) -> None:
    scene.consumer_rules = scene.consumer_rules._replace(max_size=1)
    scene.beat("a")
    assert scene.beat("b").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert scene.beat("a", 2).error_code == ErrorCode.NONE


def test_a_member_without_an_id_is_given_one_before_version_1(scene: Scene) -> None:
    member = scene.beat("", version=0).member_id
    assert member
    assert scene.beat(member, 2, version=0).error_code == ErrorCode.NONE


# Time


def test_a_member_that_is_not_heard_of_is_removed(scene: Scene) -> None:
    scene.beat("a")
    scene.pass_time(9)
    scene.beat("a", 2)
    scene.pass_time(9)
    assert scene.beat("a", 2).error_code == ErrorCode.NONE
    scene.pass_time(11)
    assert scene.beat("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_let_go_in_time_is_removed(scene: Scene) -> None:
    scene.beat("a", rebalance_s=12)
    scene.beat("b")
    scene.beat("a", 2)
    for _ in range(3):
        scene.pass_time(5)
        scene.beat("a", 2)
        scene.beat("b", 3)
    assert list(described(scene)) == ["b"]


def test_after_a_load_everybody_has_a_whole_session(scene: Scene) -> None:
    scene.beat("a")
    scene.pass_time(9)
    scene.restart()
    scene.pass_time(9)
    assert scene.beat("a", 2).error_code == ErrorCode.NONE
    scene.restart()
    scene.pass_time(11)
    assert scene.beat("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_another_coordinator_knows_the_same(scene: Scene) -> None:
    scene.beat("a", instance="i", assignor="range")
    scene.beat("b")
    scene.beat("a", 2, instance="i")
    before = scene.shard.describe_consumers(GROUP)
    scene.restart()
    assert scene.shard.describe_consumers(GROUP) == before
    assert scene.beat("a", 2, [("t", 0), ("t", 1)], instance="i").member_epoch == 3
    assert partitions(scene.beat("b", 3)) == [2, 3]


# Static members


def test_a_static_member_that_comes_back_has_its_partitions(scene: Scene) -> None:
    scene.beat("a", instance="i")
    scene.beat("b")
    scene.beat("a", 2, [("t", 0), ("t", 1)], instance="i")
    scene.beat("b", 3)
    assert scene.beat("a", LEAVE_FOR_NOW, instance="i").member_epoch == -2
    assert partitions(scene.beat("b", 3)) is None
    back = scene.beat("a2", instance="i")
    assert (back.error_code, back.member_epoch, partitions(back)) == (0, 3, [0, 1])
    assert scene.beat("a", 3, instance="i").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert list(described(scene)) == ["b", "a2"]


def test_a_static_member_that_does_not_come_back_is_removed(scene: Scene) -> None:
    scene.beat("a", instance="i")
    scene.beat("a", LEAVE_FOR_NOW, instance="i")
    scene.pass_time(11)
    assert state(scene) == "Empty"


def test_an_instance_that_has_not_left_is_not_replaced(scene: Scene) -> None:
    scene.beat("a", instance="i")
    assert scene.beat("a2", instance="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert scene.beat("x", 2, instance="j").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_operator_removes_members(scene: Scene) -> None:
    scene.beat("a", instance="i")
    scene.beat("b")
    codes = scene.leave(("", "i"), ("b", None), ("c", None))
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert state(scene) == "Empty"


# Assignors


def test_the_assignor_is_the_one_that_most_ask_for(scene: Scene) -> None:
    scene.beat("a", assignor="range")
    scene.beat("b")
    assert scene.shard.describe_consumers(GROUP).assignor_name == "range"
    scene.beat("c", assignor="uniform")
    scene.beat("d", assignor="uniform")
    assert scene.shard.describe_consumers(GROUP).assignor_name == "uniform"


# Offsets


def test_commits_need_the_members_epoch(scene: Scene) -> None:
    a, _ = pair(scene)
    assert scene.commit(5, "a", a, version=9) == ErrorCode.NONE
    assert scene.commit(6, "a", a + 1, version=9) == ErrorCode.STALE_MEMBER_EPOCH
    assert scene.commit(6, "c", a, version=9) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.commit(6, "a", a, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert scene.commit(6) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.committed() == 5


@pytest.mark.kip(447)
def test_a_producer_commits_with_its_members_epoch(scene: Scene) -> None:
    a, _ = pair(scene)
    producer = ProducerIdAndEpoch(7, 0)
    assert scene.commit(5, "a", a, producer=producer) == ErrorCode.NONE
    assert scene.commit(6, "a", a + 1, producer=producer) == ErrorCode.ILLEGAL_GENERATION
    assert scene.commit(6, "c", a, producer=producer) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.commit(7, producer=producer) == ErrorCode.NONE


def test_an_earlier_epoch_may_commit_what_the_member_has_had_since(scene: Scene) -> None:
    pair(scene)  # a has partition 0 since epoch 2, and is at epoch 3
    assert scene.commit(5, "a", 2, version=9) == ErrorCode.NONE
    assert scene.commit(5, "a", 1, version=9) == ErrorCode.STALE_MEMBER_EPOCH
    assert scene.commit(5, "b", 2, version=9) == ErrorCode.STALE_MEMBER_EPOCH
    scene.restart()
    assert scene.commit(6, "a", 2, version=9) == ErrorCode.NONE


def test_anybody_commits_while_there_is_no_member(scene: Scene) -> None:
    scene.beat("a")
    scene.beat("a", LEAVE)
    assert scene.commit(7) == ErrorCode.NONE


def test_members_read_offsets_with_their_epoch(scene: Scene) -> None:
    scene.beat("a")
    check = scene.shard.check_fetch
    assert check(GROUP, None, -1) == ErrorCode.NONE
    assert check(GROUP, "a", 2) == ErrorCode.NONE
    assert check(GROUP, "a", 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert check(GROUP, "b", 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_subscribed_topics_stay(scene: Scene) -> None:
    scene.topics.create("u", 1)
    scene.beat("a")
    scene.commit(1, "a", 2, version=9)
    scene.commit(2, "a", 2, version=9, topic="u")
    scene.now_s += 8 * DAY_MS / 1000
    scene.expire_offsets()
    assert (scene.committed(), scene.committed("u")) == (1, None)


def test_a_group_without_members_and_offsets_goes(scene: Scene) -> None:
    scene.beat("a")
    scene.beat("a", LEAVE)
    scene.expire_offsets()
    assert scene.shard.describe_consumers(GROUP).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    scene.restart()
    assert list(scene.shard.list_groups([], [])) == []


# Groups of both kinds


def test_groups_are_listed_by_type_and_state(scene: Scene) -> None:
    scene.beat("a")
    scene.join(group="c", version=3)
    listed = {each.group_id: each for each in scene.shard.list_groups([], [])}
    assert (listed[GROUP].group_type, listed[GROUP].group_state) == ("Consumer", "Stable")
    assert listed[GROUP].protocol_type == "consumer"
    assert [each.group_id for each in scene.shard.list_groups([], ["classic"])] == ["c"]
    assert [each.group_id for each in scene.shard.list_groups(["stable"], [])] == [GROUP]


def test_a_group_whose_members_are_no_consumers_refuses_one(scene: Scene) -> None:
    scene.join(version=3, kind="connect")
    refused = scene.beat("a")
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "group.protocol" in refused.error_message
    scene.join(group="c", version=3)
    refused = scene.beat("a", group="c")
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "cannot be read" in refused.error_message


def test_a_group_without_members_changes_its_protocol_and_keeps_its_offsets(scene: Scene) -> None:
    (member,) = scene.stable_group(1)
    scene.commit(3, member, 1)
    scene.leave((member, None))
    assert scene.beat("a").error_code == ErrorCode.NONE
    scene.restart()
    assert (state(scene), scene.committed()) == ("Stable", 3)
    scene.beat("a", LEAVE)
    scene.stable_group(1)
    scene.restart()
    assert (scene.state(), scene.committed()) == ("Stable", 3)
    assert scene.shard.describe_consumers(GROUP).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_with_members_is_not_deleted(scene: Scene) -> None:
    scene.beat("a")
    assert scene.shard.delete_group(GROUP) == ErrorCode.NON_EMPTY_GROUP
    scene.beat("a", LEAVE)
    assert scene.shard.delete_group(GROUP) == ErrorCode.NONE
    scene.restart()
    assert scene.shard.describe_consumers(GROUP).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_describing_a_consumer_group_as_a_classic_one_says_so(scene: Scene) -> None:
    scene.beat("a")
    found = scene.shard.describe(6, GROUP)
    assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert found.error_message == f"Group {GROUP} is not a classic group."


def test_an_instance_is_removed_under_its_own_names_only(scene: Scene) -> None:
    scene.beat("a", instance="i")
    scene.beat("b")
    unknown, fenced = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID
    assert scene.leave(("b", "other"), ("b", "i"), ("c", "i"), ("", "other")) == [
        unknown,
        fenced,
        fenced,
        unknown,
    ]
    assert sorted(described(scene)) == ["a", "b"]
    assert scene.leave(("", "i")) == [ErrorCode.NONE]
    assert sorted(described(scene)) == ["b"]
