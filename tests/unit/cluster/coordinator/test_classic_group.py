"""Classic groups: how members come to a generation, stay in it, and leave it."""

from __future__ import annotations

import pytest

from tests.unit.cluster.coordinator.scene import GROUP, Scene
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.group_records import GroupMetadataKey, GroupMetadataValue

RANGE, STICKY = ("range", b"topics"), ("sticky", b"topics and more")


def test_two_members_get_a_generation_and_the_assignment_of_their_leader() -> None:
    scene = Scene()
    leader, first = scene.new_member()
    assert scene.answer(first).generation_id == 1
    follower, second = scene.new_member()
    assert not scene.is_answered(second)
    assert scene.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = scene.answer(scene.join(leader))
    answer = scene.answer(second)
    assert (again.generation_id, answer.generation_id) == (2, 2)
    assert again.leader == answer.leader == leader
    assert [each.member_id for each in again.members] == [leader, follower]
    assert answer.members == []
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    waits = scene.sync(follower, 2)
    assert not scene.is_answered(waits)
    synced = scene.sync(leader, 2, {leader: b"p0", follower: b"p1"})
    assert scene.answer(synced).assignment == b"p0"
    assert scene.answer(waits).assignment == b"p1"
    assert scene.state() == "Stable"
    assert scene.heartbeat(follower, 2) is ErrorCode.NONE
    assert scene.answer(scene.sync(follower, 2)).assignment == b"p1"


def test_a_generation_is_written_with_its_assignment() -> None:
    scene = Scene()
    leader, follower = scene.stable_group(rebalance_s=30.0, session_s=20.0)
    key, value = scene.records[-1]
    assert key == GroupMetadataKey(group=GROUP)
    assert isinstance(value, GroupMetadataValue)
    assert (value.generation, value.protocol, value.leader) == (2, "range", leader)
    assert value.current_state_timestamp == scene.now.ms
    assert [(each.member_id, each.assignment) for each in value.members] == [
        (leader, leader.encode()),
        (follower, follower.encode()),
    ]
    assert value.members[0].rebalance_timeout == 30_000
    assert value.members[0].session_timeout == 20_000


def test_before_version_4_a_member_joins_without_an_id() -> None:
    scene = Scene()
    answer = scene.answer(scene.join(version=3))
    assert answer.error_code == ErrorCode.NONE
    assert answer.member_id.startswith("client-")


def test_an_id_that_nobody_joins_with_ends_and_blocks_nobody_for_longer() -> None:
    scene = Scene()
    refused = scene.answer(scene.join(session_s=10.0))
    member, ticket = scene.new_member()
    assert not scene.is_answered(ticket), "the other one may come yet"
    scene.pass_time(10.0)
    assert scene.answer(ticket).generation_id == 1
    late = scene.answer(scene.join(refused.member_id))
    assert late.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.heartbeat(member, 1) is ErrorCode.NONE


def test_a_group_that_nobody_joined_is_gone() -> None:
    scene = Scene()
    scene.join()
    assert scene.state() == "Empty"
    scene.pass_time(10.0)
    assert scene.state() == "Dead"
    assert scene.records == []


def test_a_follower_that_joins_again_unchanged_gets_the_generation_that_there_is() -> None:
    scene = Scene()
    leader, follower = scene.stable_group()
    answer = scene.answer(scene.join(follower))
    assert (answer.generation_id, answer.leader, answer.members) == (2, leader, [])
    assert scene.state() == "Stable"


@pytest.mark.parametrize("who", ["leader", "changed follower"])
def test_a_leader_or_a_change_begins_a_rebalance(who: str) -> None:
    scene = Scene()
    leader, follower = scene.stable_group()
    if who == "leader":
        scene.join(leader)
    else:
        scene.join(follower, protocols=[("range", b"other topics")])
    assert scene.state() == "PreparingRebalance"


def test_a_rebalance_while_members_synchronize_sends_them_back() -> None:
    scene = Scene()
    leader, _ = scene.new_member()
    follower, _ = scene.new_member()
    scene.join(leader)
    waits = scene.sync(follower, 2)
    scene.new_member()
    assert scene.answer(waits).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert scene.state() == "PreparingRebalance"


def test_members_that_do_not_join_in_time_are_left_out() -> None:
    scene = Scene()
    leader, follower = scene.stable_group(session_s=100.0, rebalance_s=30.0)
    newcomer, ticket = scene.new_member(session_s=100.0, rebalance_s=30.0)
    back = scene.join(follower, session_s=100.0, rebalance_s=30.0)
    scene.pass_time(29.9)
    assert not scene.is_answered(ticket)
    scene.pass_time(0.1)
    assert scene.answer(back).generation_id == 3
    assert scene.answer(back).leader == follower, "the leader did not come"
    assert [each.member_id for each in scene.answer(back).members] == [follower, newcomer]
    assert scene.heartbeat(leader, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_members_that_do_not_synchronize_are_removed() -> None:
    scene = Scene()
    leader, _ = scene.new_member(rebalance_s=20.0, session_s=100.0)
    follower, _ = scene.new_member(rebalance_s=20.0, session_s=100.0)
    scene.join(leader, rebalance_s=20.0, session_s=100.0)
    scene.sync(leader, 2, {})
    scene.pass_time(20.0)
    assert scene.state() == "PreparingRebalance"
    assert scene.heartbeat(follower, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_session_ends_without_heartbeats_and_the_others_rebalance() -> None:
    scene = Scene()
    leader, follower = scene.stable_group(session_s=10.0)
    for _ in range(4):
        scene.pass_time(4.0)
        code = scene.heartbeat(leader, 2)
    assert code is ErrorCode.REBALANCE_IN_PROGRESS
    assert scene.heartbeat(follower, 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.answer(scene.join(leader)).generation_id == 3


def test_a_session_ends_a_session_after_the_last_request_of_its_member() -> None:
    scene = Scene()
    leader, _ = scene.stable_group(session_s=10.0)
    scene.pass_time(1.0)
    scene.heartbeat(leader, 2)
    scene.pass_time(9.9)
    assert leader in scene.shard._groups[GROUP].members
    scene.pass_time(0.1)
    assert leader not in scene.shard._groups[GROUP].members


def test_heartbeats_put_the_end_of_a_session_off() -> None:
    scene = Scene()
    scene.stable_group(size=1, session_s=10.0)
    (member,) = scene.shard._groups[GROUP].members
    for _ in range(100):
        scene.pass_time(9.9)
        assert scene.heartbeat(member, 1) is ErrorCode.NONE
    scene.pass_time(10.0)
    assert scene.state() == "Empty"


def test_who_waits_for_the_group_need_not_send_heartbeats() -> None:
    scene = Scene()
    _, follower = scene.stable_group(session_s=10.0, rebalance_s=300.0)
    scene.pass_time(5.0)
    waits = scene.join(follower, protocols=[STICKY, RANGE], session_s=10.0, rebalance_s=300.0)
    scene.pass_time(5.0)  # the leader's session ends; now all have joined
    assert scene.answer(waits).generation_id == 3
    scene.pass_time(9.9)
    assert scene.heartbeat(follower, 3) is ErrorCode.NONE


def test_a_new_member_does_not_wait_for_ever() -> None:
    scene = Scene()
    scene.stable_group(size=1, session_s=1800.0, rebalance_s=1800.0)
    _, ticket = scene.new_member(session_s=1800.0, rebalance_s=1800.0)
    scene.pass_time(299.9)
    assert not scene.is_answered(ticket)
    scene.pass_time(0.1)
    assert scene.answer(ticket).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_first_rebalance_waits_for_more_members_but_not_for_ever() -> None:
    scene = Scene(initial_delay_s=3.0)
    tickets = [scene.new_member(rebalance_s=7.0, session_s=30.0)[1]]
    for _ in range(3):
        scene.pass_time(2.5)
        assert not scene.is_answered(tickets[0])
        tickets.append(scene.new_member(rebalance_s=7.0, session_s=30.0)[1])
        if len(tickets) == 3:
            break
    scene.pass_time(1.9)
    assert not scene.is_answered(tickets[0])
    scene.pass_time(0.1)
    assert [scene.answer(ticket).generation_id for ticket in tickets] == [1, 1, 1]


def test_the_first_rebalance_ends_after_its_delay_if_nobody_else_comes() -> None:
    scene = Scene(initial_delay_s=3.0)
    _, ticket = scene.new_member()
    scene.pass_time(2.9)
    assert not scene.is_answered(ticket)
    scene.pass_time(0.1)
    assert scene.answer(ticket).generation_id == 1


def test_the_protocol_is_the_one_that_most_prefer_among_those_that_all_know() -> None:
    scene = Scene()
    tickets = [
        scene.new_member(protocols=protocols)
        for protocols in ([RANGE, STICKY], [STICKY, RANGE], [STICKY, RANGE])
    ]
    scene.join(tickets[0][0], protocols=[RANGE, STICKY])
    assert {scene.answer(ticket).protocol_name for _, ticket in tickets[1:]} == {"sticky"}


@pytest.mark.parametrize(
    "wrong",
    [{"protocols": [("other", b"")]}, {"kind": "connect"}, {"protocols": []}, {"kind": ""}],
)
def test_a_member_that_has_no_protocol_in_common_is_refused(wrong: dict[str, object]) -> None:
    scene = Scene()
    scene.stable_group()
    answer = scene.answer(scene.join(**wrong))  # type: ignore[arg-type]
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert scene.state() == "Stable"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"session_s": 5.9}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_s": 1801.0}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"member": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_requests_that_are_refused(request_: dict[str, object], code: ErrorCode) -> None:
    scene = Scene()
    assert scene.answer(scene.join(**request_)).error_code == code  # type: ignore[arg-type]
    assert scene.state() == "Dead"


def test_a_full_group_takes_no_more_members() -> None:
    scene = Scene(max_size=2)
    members = scene.stable_group()
    answer = scene.answer(scene.join())
    assert answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert scene.heartbeat(members[1], 2) is ErrorCode.NONE


def test_leaving_begins_a_rebalance_and_the_last_one_empties_the_group() -> None:
    scene = Scene()
    leader, follower = scene.stable_group()
    codes = scene.leave((leader, None), ("x", None))
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert scene.state() == "PreparingRebalance"
    assert scene.leave((follower, None)) == [ErrorCode.NONE]
    assert scene.state() == "Empty"
    _, value = scene.records[-1]
    assert isinstance(value, GroupMetadataValue)
    assert (value.generation, value.members, value.leader) == (3, [], None)


@pytest.mark.parametrize("generation", [0, 1, 3])
def test_another_generation_is_refused(generation: int) -> None:
    scene = Scene()
    leader, _ = scene.stable_group()
    assert scene.heartbeat(leader, generation) is ErrorCode.ILLEGAL_GENERATION
    answer = scene.answer(scene.sync(leader, generation))
    assert answer.error_code == ErrorCode.ILLEGAL_GENERATION
    assert scene.commit(1, leader, generation) is ErrorCode.ILLEGAL_GENERATION


def test_another_protocol_is_refused_when_synchronizing() -> None:
    scene = Scene()
    leader, _ = scene.stable_group()
    for wrong in ({"protocol_type": "connect"}, {"protocol_name": "sticky"}):
        answer = scene.answer(scene.sync(leader, 2, **wrong))  # type: ignore[arg-type]
        assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


# Static members (KIP-345)


def join_statically(scene: Scene, version: int = 9) -> tuple[str, str]:
    """A stable group of two static members "a" and "b"; returns their ids."""
    leader = scene.answer(scene.join(instance="a")).member_id
    ticket = scene.join(instance="b")
    scene.join(leader, instance="a")
    scene.settle()
    return leader, scene.answer(ticket).member_id


def test_a_static_member_that_comes_back_unchanged_has_its_assignment() -> None:
    scene = Scene()
    leader, follower = join_statically(scene)
    back = scene.answer(scene.join(instance="b"))
    assert back.member_id not in (follower, "")
    assert (back.generation_id, back.leader, back.skip_assignment) == (2, leader, False)
    assert scene.state() == "Stable"
    given = scene.answer(scene.sync(back.member_id, 2, instance="b"))
    assert given.assignment == follower.encode()
    assert scene.heartbeat(follower, 2, "b") is ErrorCode.FENCED_INSTANCE_ID
    _, value = scene.records[-1]
    assert isinstance(value, GroupMetadataValue)
    assert [each.member_id for each in value.members] == [leader, back.member_id]


def test_a_static_leader_that_comes_back_keeps_the_assignment() -> None:
    scene = Scene()
    _, follower = join_statically(scene)
    back = scene.answer(scene.join(instance="a"))
    assert (back.leader, back.skip_assignment) == (back.member_id, True)
    assert [each.member_id for each in back.members] == [back.member_id, follower]
    old = scene.answer(scene.join(instance="a", version=8))
    assert (old.leader, old.members) == (back.member_id, []), "a follower in its own eyes"


def test_a_static_member_that_comes_back_changed_begins_a_rebalance() -> None:
    scene = Scene()
    join_statically(scene)
    scene.join(instance="b", protocols=[("range", b"other topics")])
    assert scene.state() == "PreparingRebalance"


def test_a_static_member_that_waits_is_fenced_by_its_successor() -> None:
    scene = Scene()
    _, follower = join_statically(scene)
    scene.join(follower, "b", protocols=[("range", b"other topics")])
    waits = scene.join(follower, "b", protocols=[("range", b"more topics")])
    scene.join(instance="b", protocols=[("range", b"more topics")])
    assert scene.answer(waits).error_code == ErrorCode.FENCED_INSTANCE_ID


def test_static_members_stay_when_a_rebalance_ends_without_them() -> None:
    scene = Scene()
    ids = [scene.answer(scene.join(instance="a", session_s=600.0, rebalance_s=30.0)).member_id]
    ticket = scene.join(instance="b", session_s=600.0, rebalance_s=30.0)
    scene.pass_time(30.0)
    assert scene.answer(ticket).generation_id == 2
    assert len(scene.answer(ticket).members) == 2
    assert scene.answer(ticket).leader == scene.answer(ticket).member_id
    assert scene.heartbeat(ids[0], 2, "a") is ErrorCode.NONE


def test_a_static_member_leaves_by_its_instance_id() -> None:
    scene = Scene()
    join_statically(scene)
    codes = scene.leave(("", "b"), ("wrong", "a"), ("", "c"))
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]


# Another coordinator


def test_a_group_is_loaded_as_it_was_with_whole_sessions() -> None:
    scene = Scene()
    leader, follower = scene.stable_group(session_s=10.0)
    scene.pass_time(9.0)
    scene.restart()
    scene.pass_time(9.0)
    assert scene.heartbeat(leader, 2) is ErrorCode.NONE
    assert scene.answer(scene.sync(leader, 2)).assignment == leader.encode()
    scene.pass_time(1.0)
    assert scene.state() == "PreparingRebalance"
    assert scene.heartbeat(follower, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_that_was_not_finished_is_forgotten() -> None:
    scene = Scene()
    leader, follower = scene.stable_group()
    scene.join(leader)
    scene.restart()
    assert scene.state() == "Stable"
    assert scene.heartbeat(follower, 2) is ErrorCode.NONE


@pytest.mark.parametrize("has_joined", [True, False])
def test_a_static_member_that_came_back_in_a_rebalance_is_not_fenced_by_the_next_coordinator(
    has_joined: bool,
) -> None:
    scene = Scene()
    leader, follower = join_statically(scene)
    scene.join(leader, instance="a")  # asks for a new assignment
    back = scene.join(instance="b")
    member_id = scene.answer(back).member_id
    if not has_joined:  # before the generation is complete
        scene.join(leader, instance="a")
    scene.restart()
    assert scene.state() == "Stable"
    assert scene.heartbeat(member_id, 3, "b") is ErrorCode.ILLEGAL_GENERATION
    assert scene.heartbeat(leader, 2, "a") is ErrorCode.NONE
    assert scene.heartbeat(follower, 2, "b") is ErrorCode.FENCED_INSTANCE_ID
    assert scene.answer(scene.sync(leader, 2, instance="a")).assignment == leader.encode()
    again = scene.join(member_id, instance="b", protocols=[("range", b"other")])
    scene.join(leader, instance="a")
    assert scene.answer(again).error_code == ErrorCode.NONE


def test_nor_is_one_that_came_back_after_its_session_was_over() -> None:
    scene = Scene()
    leader, follower = join_statically(scene)
    scene.pass_time(5.0)
    scene.heartbeat(leader, 2, "a")
    scene.pass_time(5.0)  # the follower's session is over, but no generation without it begins
    assert scene.state() == "PreparingRebalance"
    back = scene.join(instance="b")
    scene.join(leader, instance="a")
    member_id = scene.answer(back).member_id
    assert member_id != follower
    scene.restart()
    assert scene.heartbeat(member_id, 3, "b") is ErrorCode.ILLEGAL_GENERATION


def test_a_member_may_not_take_an_instance_id_with_an_id_that_it_was_given() -> None:
    scene = Scene()
    owner = scene.answer(scene.join(instance="i")).member_id
    given = scene.answer(scene.join()).member_id
    assert scene.answer(scene.join(given, "i")).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert scene.answer(scene.join(given, "j")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    group = scene.shard._groups[GROUP]
    assert list(group.members) == [owner]
