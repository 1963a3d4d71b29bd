"""Groups whose records would be larger than a batch of the log may be."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.unit.cluster.coordinator.scene import GROUP, Scene
from tests.unit.cluster.coordinator.test_consumer_group import described, pair, partitions, state
from tests.unit.cluster.coordinator.test_mixed_group import (
    catch_up,
    classic_group,
    subscription,
)
from trimtab.cluster.coordinator.assignors import Subscriber, uniform
from trimtab.cluster.coordinator.classic_member import Tally
from trimtab.cluster.coordinator.effects import BATCH_OVERHEAD, CoordinatorRecord
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.kafka.wire.messages.group_records import encode_key, encode_value

TOO_LARGE = ErrorCode.UNKNOWN_SERVER_ERROR
LARGE = [("range", bytes(4000))]


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.topics.create("t", 4)
    scene.max_batch = 5000
    return scene


def vars_of(tally: Tally) -> dict[str, Any]:
    return {name: getattr(tally, name) for name in tally.__slots__}


def snapshot(scene: Scene) -> dict[str, Any]:
    """All that the coordinator knows of the groups, but not the order of the members, and not the
    deadlines of the timers, which may be too early."""
    shard = scene.shard
    groups = {}
    for group in shard._groups.values():
        members = {
            each.id: {name: getattr(each, name) for name in each.__slots__ if name != "_tally"}
            for each in group.members.values()
        }
        tally = Tally()
        for member in group.members.values():
            tally.count_member(member)
        assert vars_of(group._tally) == vars_of(tally)
        groups[group.id] = (group.phase, group.generation, group.leader, group.since_ms, members)
    consumers = {}
    for each in shard._consumer_groups.values():
        members = {
            member.id: {name: getattr(member, name) for name in member.__slots__}
            for member in each.members.values()
        }
        consumers[each.id] = (
            (each.epoch, each.metadata_hash, each.assignment_epoch, each._seen_topics, members),
            (each.targets, each.owners, each._static, each._matched, each._before),
        )
    offsets = {group: dict(shard.offsets(group)) for group in shard._offsets.groups()}
    return copy.deepcopy({"classic": groups, "consumers": consumers, "offsets": offsets})


def refused(scene: Scene, before: dict[str, Any], records: int) -> None:
    """Nothing was written, and nothing has changed."""
    assert len(scene.records) == records
    assert snapshot(scene) == before


# Classic groups


def test_a_member_that_makes_the_record_too_large_is_refused_and_the_group_goes_on(
    scene: Scene,
) -> None:
    (first,) = scene.stable_group(1)
    before, records = snapshot(scene), len(scene.records)
    for _ in range(3):
        answer = scene.answer(scene.join(protocols=[("range", bytes(4800))]))
        assert (answer.error_code, answer.generation_id) == (TOO_LARGE, -1)
    refused(scene, before, records)
    assert scene.heartbeat(first, 1) == ErrorCode.NONE


def test_members_are_refused_once_they_are_too_large_together(scene: Scene) -> None:
    (first,) = scene.stable_group(1, protocols=LARGE)
    assert scene.answer(scene.join(protocols=LARGE)).error_code == TOO_LARGE
    assert scene.heartbeat(first, 1) == ErrorCode.NONE
    scene.max_batch = 9000
    assert scene.answer(scene.join(protocols=LARGE)).error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_a_member_may_replace_its_own_metadata_up_to_the_limit(scene: Scene) -> None:
    (first,) = scene.stable_group(1, protocols=LARGE)
    assert scene.answer(scene.join(first, protocols=[("range", bytes(4500))])).error_code == 0
    assert scene.answer(scene.join(first, protocols=[("range", bytes(5000))])).error_code == (
        TOO_LARGE
    )


def test_a_record_fits_if_the_members_were_accepted(scene: Scene) -> None:
    """At every limit: either a member is refused, or the group without assignments is written."""
    outcomes = set()
    for scene.max_batch in range(300, 700):
        group = f"g{scene.max_batch}"
        ticket = scene.join("", "ä" * 20, [("range", bytes(150))], group=group)
        joined = scene.answer(ticket)
        outcomes.add(joined.error_code)
        if joined.error_code == 0:
            one = scene.shard._groups[group]
            one._write(scene.now)
            scene.take()
    assert outcomes == {0, TOO_LARGE}


def test_an_assignment_that_is_too_large_is_refused_to_the_leader_alone(scene: Scene) -> None:
    first, second = scene.stable_group(2)
    again = scene.join(first), scene.join(second)
    generation = scene.answer(again[0]).generation_id
    waiting = scene.sync(second, generation)
    before, records = snapshot(scene), len(scene.records)
    for _ in range(2):
        answer = scene.answer(scene.sync(first, generation, {second: bytes(5000)}))
        assert (answer.error_code, answer.assignment) == (TOO_LARGE, b"")
    refused(scene, before, records)
    assert not scene.is_answered(waiting)
    assert scene.state() == "CompletingRebalance"
    given = scene.answer(scene.sync(first, generation, {first: b"1", second: b"2"}))
    assert (given.error_code, given.assignment) == (0, b"1")
    assert scene.answer(waiting).assignment == b"2"


def test_a_static_member_comes_back_when_there_is_no_room_for_its_name(scene: Scene) -> None:
    scene.join(instance="s", protocols=[("range", bytes(2000))])
    member = scene.answer(0).member_id
    scene.sync(member, 1, {member: bytes(2700)}, "s")
    assert scene.state() == "Stable"
    scene.max_batch = 4000
    back = scene.answer(scene.join(instance="s", protocols=[("range", bytes(2000))]))
    assert (back.error_code, back.generation_id) == (0, 2)  # as after a rebalance


def test_the_operator_is_warned(scene: Scene) -> None:
    request = scene.join(protocols=[("range", bytes(4800))])
    assert scene.is_answered(request)
    (warning,) = scene.warnings
    assert "group='g'" in warning
    assert "max.message.bytes" in warning


def test_an_offset_is_refused_by_itself(scene: Scene) -> None:
    scene.max_batch = 130
    assert scene.commit(1, topic="t" * 200) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert scene.commit(1) == ErrorCode.NONE
    assert (scene.committed("t" * 200), scene.committed()) == (None, 1)


# Consumer groups


def test_a_target_that_is_too_large_is_refused_and_the_group_goes_on(scene: Scene) -> None:
    a, b = pair(scene)
    scene.topics.create("u", 3000)
    before, records = snapshot(scene), len(scene.records)
    for _ in range(3):
        response = scene.beat("c", topics=["u"])
        assert (response.error_code, response.assignment) == (TOO_LARGE, None)
        assert "max.message.bytes" in response.error_message
    refused(scene, before, records)
    assert (scene.beat("a", a).error_code, scene.beat("b", b).error_code) == (0, 0)
    assert state(scene) == "Stable"
    assert sorted(described(scene)) == ["a", "b"]


def test_a_new_group_that_is_too_large_leaves_nothing(scene: Scene) -> None:
    scene.topics.create("u", 3000)
    assert scene.beat("a", topics=["u"]).error_code == TOO_LARGE
    assert (scene.records, list(scene.shard.list_groups([], []))) == ([], [])


def test_a_member_that_subscribes_to_too_much_keeps_what_it_had(scene: Scene) -> None:
    a, _ = pair(scene)
    before, records = snapshot(scene), len(scene.records)
    names = [f"topic-{number:04}" for number in range(500)]
    assert scene.beat("a", a, topics=names).error_code == TOO_LARGE
    refused(scene, before, records)
    assert scene.beat("a", a).error_code == 0


def test_a_topic_that_grows_too_large_is_refused_to_all_and_nothing_is_half_done(
    scene: Scene,
) -> None:
    a, b = pair(scene)
    scene.topics.create("t", 3000)
    before, records = snapshot(scene), len(scene.records)
    assert scene.beat("a", a).error_code == TOO_LARGE
    assert scene.beat("b", b).error_code == TOO_LARGE
    refused(scene, before, records)
    scene.max_batch = 50_000
    assert scene.beat("a", a).error_code == 0
    assert scene.beat("b", b).error_code == 0
    assert len(partitions(scene.beat("a", 0)) or ()) == 1500


def test_a_regular_expression_of_too_many_topics_is_refused(scene: Scene) -> None:
    for number in range(500):
        scene.topics.create(f"topic-{number:04}", 1)
    response = scene.beat("a", topics=[], subscribed_topic_regex="topic-.*")
    assert response.error_code == TOO_LARGE
    assert scene.beat("a", topics=[], subscribed_topic_regex="topic-000.").error_code == 0


def test_topics_that_come_later_do_not_stop_a_group_with_a_regular_expression(
    scene: Scene,
) -> None:
    scene.topics.create("topic-0000", 1)
    epoch = scene.beat("a", topics=[], subscribed_topic_regex="topic-.*").member_epoch
    for number in range(500):
        scene.topics.create(f"topic-{number:04}", 1)
    assert scene.beat("a", epoch).error_code == 0
    assert partitions(scene.beat("a", 0, topics=[], subscribed_topic_regex="topic-.*")) == [0]
    scene.beat("a", -1)
    assert state(scene) == "Empty"


def test_a_static_member_that_comes_back_refused_is_still_expected(scene: Scene) -> None:
    scene.beat("a", instance="i")
    scene.beat("a", -2, instance="i")
    before, records = snapshot(scene), len(scene.records)
    scene.topics.create("u", 3000)
    assert scene.beat("b", instance="i", topics=["u"]).error_code == TOO_LARGE
    refused(scene, before, records)
    back = scene.beat("b", instance="i")
    assert (back.error_code, partitions(back)) == (0, [0, 1, 2, 3])


def test_a_refused_member_is_not_removed_by_a_deadline_of_the_refused_change(
    scene: Scene,
) -> None:
    scene.beat("a", rebalance_s=2.0)
    scene.beat("b")  # a is asked to let go of two partitions by its next heartbeat
    scene.max_batch = 100
    assert scene.beat("a", 2).error_code == TOO_LARGE
    scene.max_batch = 5000
    scene.pass_time(5.0)
    assert scene.beat("a", 2).error_code == 0


# Both protocols


def test_a_classic_group_that_is_too_large_for_one_batch_is_not_upgraded(scene: Scene) -> None:
    classic_group(scene)
    _, waiting = scene.new_member(protocols=subscription())
    scene.max_batch = 450
    assert scene.state() == "PreparingRebalance"
    before, records = snapshot(scene), len(scene.records)
    for _ in range(2):
        response = scene.beat("b")
        assert response.error_code == TOO_LARGE
    refused(scene, before, records)
    assert not scene.is_answered(waiting)
    scene.max_batch = 5000
    assert scene.beat("b").error_code == 0
    assert scene.answer(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_an_upgrade_is_one_batch(scene: Scene) -> None:
    classic_group(scene)
    begin = len(scene.records)
    scene.beat("b")
    records = len(scene.records) - begin
    assert records > 6
    assert (begin, begin + records) in scene.units
    scene.beat("b", -1)
    assert scene.state() == "PreparingRebalance"  # as a classic group again, in one batch too
    downgrade = [unit for unit in scene.units if unit[1] == len(scene.records)]
    assert scene.records[downgrade[-1][0]][1] is None
    assert downgrade[-1][1] - downgrade[-1][0] > 4


def test_a_group_that_is_too_large_for_a_downgrade_stays_as_it_is(scene: Scene) -> None:
    member = classic_group(scene)
    scene.beat("b")
    catch_up(scene, member, [])
    epoch = scene.beat("b", 2).member_epoch
    scene.max_batch = 300
    assert scene.beat("b", -1).error_code == 0
    assert state(scene) != "Empty"
    assert list(described(scene)) == [member]
    assert scene.heartbeat(member, epoch) == ErrorCode.REBALANCE_IN_PROGRESS
    scene.max_batch = 5000
    scene.join(member, protocols=subscription())
    assert scene.shard.describe(5, GROUP).error_code == 0
    assert scene.state() == "PreparingRebalance"


def test_a_classic_member_that_is_too_large_may_not_join_a_consumer_group(scene: Scene) -> None:
    scene.beat("b")
    before, records = snapshot(scene), len(scene.records)
    protocols = [*subscription(), ("other", bytes(6000))]
    answer = scene.answer(scene.join(protocols=protocols))
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined = scene.answer(scene.join(answer.member_id, protocols=protocols))
    assert (joined.error_code, joined.generation_id) == (TOO_LARGE, -1)
    refused(scene, before, records)


def test_the_size_of_a_record_is_not_less_than_what_a_batch_takes(scene: Scene) -> None:
    classic_group(scene)
    scene.beat("b")
    scene.commit(5, "b", 2, version=9)
    builder = BatchBuilder(2**31 - 1)
    size = BATCH_OVERHEAD
    for key, value in scene.records:
        record = CoordinatorRecord(key, value, encode_key(key), encode_value(value))
        builder.append(1, record.encoded_key, record.encoded_value, ())
        size += record.size
    assert len(builder.build()) <= size


# The cost of many members


def count_calls(act: Callable[[], object]) -> int:
    """The calls of functions, and of generators to go on."""
    calls = 0

    def note(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


def many(members: int) -> Scene:
    scene = Scene(initial_delay_s=3.0, max_size=10_000)
    scene.consumer_rules = scene.consumer_rules._replace(assignment_ms=1000)
    scene.max_batch = 1 << 30
    scene.topics.create("t", 2 * members)
    return scene


def join_classic(members: int) -> int:
    scene = many(members)
    return count_calls(lambda: [scene.new_member() for _ in range(members)])


def settle_consumers(members: int) -> int:
    scene = many(members)
    epochs: dict[str, int] = {}

    def settle() -> None:
        for number in range(members):
            epochs[f"m{number}"] = scene.beat(f"m{number}").member_epoch
        for owned in cast("list[list[Any] | None]", [[], None, None]):
            scene.now_s += 1.5
            for member, epoch in epochs.items():
                answer = scene.beat(member, epoch, owned)
                assert answer.error_code == 0
                epochs[member] = answer.member_epoch

    calls = count_calls(settle)
    group = scene.shard._consumer_groups[GROUP]
    assert {len(each.assigned) for each in group.members.values()} == {2}
    return calls


def level_one_by_one(members: int) -> int:
    """One member has had all partitions until the others came."""
    keys = frozenset((b"t", index) for index in range(2 * members))
    group = {
        f"m{number}": Subscriber(None, frozenset([b"t"]), frozenset() if number else keys, None)
        for number in range(members)
    }
    return count_calls(lambda: uniform(group, {b"t": 2 * members}))


def level_two_kinds(members: int) -> int:
    """Of members that subscribe to different topics, those of one kind have had twice as many."""
    topics = {b"t": members, b"u": members}
    given = {0: frozenset((b"t", index) for index in range(members))}
    group = {
        f"m{number}": Subscriber(
            None,
            frozenset(topics) if number % 3 else frozenset([b"u"]),
            given.get(number, frozenset()),
        )
        for number in range(members)
    }
    return count_calls(lambda: uniform(group, topics))


def level_after_others_join(partitions: int) -> int:
    """The only member subscribes to one topic more than the nine that join."""
    topics = {b"t": 10 * partitions, b"u": 1}
    keys = frozenset((name, index) for name, count in topics.items() for index in range(count))
    group = {
        f"m{number}": Subscriber(None, frozenset([b"t"]), frozenset(), None) for number in range(9)
    }
    group["owner"] = Subscriber(None, frozenset(topics), keys, None)
    return count_calls(lambda: uniform(group, topics))


@pytest.mark.parametrize(
    "act",
    [join_classic, settle_consumers, level_one_by_one, level_two_kinds, level_after_others_join],
)
def test_the_cost_grows_no_faster_than_members_and_partitions(act: Callable[[int], int]) -> None:
    assert act(400) < 1.3 * 4 * act(100)


def test_what_members_subscribe_to_is_counted(scene: Scene) -> None:
    def counts() -> tuple[dict[str, int], dict[str, int]]:
        group = scene.shard._consumer_groups[GROUP]
        return group._subscribed, group._patterns

    scene.beat("a", topics=["t", "u"])
    scene.beat("b", topics=["u"], subscribed_topic_regex="t.*")
    assert counts() == ({"t": 1, "u": 2}, {"t.*": 1})
    scene.max_batch = 300
    refused = scene.beat("a", 2, topics=[f"topic-{number}" for number in range(100)])
    assert refused.error_code == TOO_LARGE
    assert counts() == ({"t": 1, "u": 2}, {"t.*": 1})
    scene.max_batch = 5000
    scene.restart()
    assert counts() == ({"t": 1, "u": 2}, {"t.*": 1})
    scene.beat("b", -1)
    assert counts() == ({"t": 1, "u": 1}, {})
