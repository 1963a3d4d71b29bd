from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.balance.model_cluster import MB, ModelCluster
from tests.unit.client.moves.model_admin import ModelAdmin, as_admin
from trimtab.balance.observed import Observed
from trimtab.balance.steps import Decided, MoveRules
from trimtab.client.moves.executor import STOP_S, MoveExecutor
from trimtab.client.moves.observer import ProbeReading
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.sim.world import World

T0, T1, T2 = (TopicPartition("t", index) for index in range(3))
RATE = 50 * MB


def build(size: int = 10 * MB, **options: Any) -> ModelAdmin:
    """Four brokers; t-0 and t-1 on brokers 0 and 1, t-2 on 1 and 2."""
    placed = {T0: (0, 1), T1: (0, 1), T2: (1, 2)}
    return ModelAdmin(ModelCluster(range(4), placed, size=size, **options))


def executor_of(
    model: ModelAdmin, wanted: Mapping[TopicPartition, tuple[int, ...]], **options: Any
) -> MoveExecutor:
    options.setdefault("rules", MoveRules(RATE))
    return MoveExecutor(as_admin(model), wanted, **options)


async def stop_after(executor: MoveExecutor, seconds: float, cancels: bool = True) -> None:
    await asyncio.sleep(seconds)
    executor.stop(cancels)


async def test_leaders_change_replicas_move_and_the_report_says_so(world: World) -> None:
    model = build()
    wanted = {T0: (0, 3), T1: (1, 0), T2: (1, 2)}
    report = await executor_of(model, wanted).run()
    assert report == ((T0,), (T1,), {}, 10 * MB, (), ())
    assert {each: tuple(model.cluster.partitions[each].replicas) for each in wanted} == wanted
    assert model.cluster.partitions[T1].leader == 1
    assert model.cluster.leftovers() == []


@pytest.mark.parametrize("theirs", [[0, 1, 2], [0, 2], [0]])
async def test_a_partition_that_others_have_moved_since_the_plan_is_left_alone(
    world: World, theirs: list[int]
) -> None:
    model = build()
    model.cluster.partitions[T0].replicas = theirs
    wanted = {T0: (0, 3), T1: (1, 0)}
    report = await executor_of(model, wanted, before={T0: (0, 1), T1: (0, 1)}).run()
    names = ", ".join(map(str, theirs))
    assert report.given_up == {T0: f"somebody else has changed its replicas to {names}"}
    assert model.cluster.partitions[T0].replicas == theirs
    assert report.elected == (T1,)


async def test_where_all_is_as_wanted_nothing_is_changed(world: World) -> None:
    model = build()
    report = await executor_of(model, {T0: (0, 1)}).run()
    assert report == ((), (), {}, 0, (), ())
    assert not {"alter_configs", "alter_reassignments", "elect_leaders"} & {*model.calls}


async def test_each_look_can_be_watched(world: World) -> None:
    seen: list[tuple[Observed, Decided]] = []
    model = build()
    executor = executor_of(model, {T0: (0, 3)}, watch=lambda *look: seen.append(look))
    await executor.run()
    assert [decided.is_done for _, decided in seen] == [False] * (len(seen) - 1) + [True]
    assert any(observed.copied.keys() == {(T0, 3)} for observed, _ in seen)


@pytest.mark.parametrize("cancels", [True, False])
async def test_stop_ends_it_in_10_s_and_leaves_no_throttle(world: World, cancels: bool) -> None:
    model = build(size=10_000 * MB)
    executor = executor_of(model, {T0: (0, 3), T2: (1, 3)})
    stopping = asyncio.create_task(stop_after(executor, 5, cancels))
    report = await executor.run()
    await stopping
    assert asyncio.get_running_loop().time() <= 5 + STOP_S
    assert (model.cluster.rates, model.cluster.lists["t"]) == ({}, (set(), set()))
    assert model.cluster.partitions[T0].is_moving is not cancels
    reason = "stopped" if cancels else "stopped; its reassignment goes on without a throttle"
    assert report.given_up[T0] == reason
    assert report.left == ()


async def test_stop_ends_it_in_10_s_though_the_cluster_hangs_and_says_what_is_left(
    world: World,
) -> None:
    model = build(size=10_000 * MB)
    executor = executor_of(model, {T0: (0, 3)})
    stopping = asyncio.create_task(stop_after(executor, 5))
    asyncio.get_running_loop().call_later(
        4, lambda: model.hanging.update({"list_reassignments", "alter_configs"})
    )
    report = await executor.run()
    await stopping
    assert asyncio.get_running_loop().time() <= 5 + STOP_S
    assert report.given_up == {T0: "the executor ended before it was done"}
    assert "broker 3 may still have a throttle" in report.left
    assert "topic t may still have throttled replicas" in report.left


async def test_a_cluster_that_cannot_be_observed_at_first_is_an_error(world: World) -> None:
    model = build()
    model.errors["describe_topics"] = Unavailable("nobody answers")
    with pytest.raises(Unavailable, match="nobody answers"):
        await executor_of(model, {T0: (0, 3)}).run()


async def test_a_cluster_that_cannot_be_observed_for_a_while_is_waited_for_within_bounds(
    world: World,
) -> None:
    model = build(size=500 * MB)
    loop = asyncio.get_running_loop()
    loop.call_later(3, model.errors.update, {"describe_topics": Unavailable("gone")})
    loop.call_later(60, model.errors.clear)
    report = await executor_of(model, {T0: (0, 3)}).run()
    assert report.moved == (T0,)
    assert report.notes == ("the cluster could not be observed: gone",)
    loop.call_later(3, model.errors.update, {"describe_topics": Unavailable("gone")})
    begin_s = loop.time()
    report = await executor_of(model, {T2: (1, 3)}).run()
    assert loop.time() - begin_s < 130
    assert report.given_up == {T2: "the executor ended before it was done"}


async def test_a_broker_that_takes_no_throttle_is_moved_from_by_bytes_in_flight(
    world: World,
) -> None:
    model = build()
    model.errors["alter_configs", 0] = BrokerError(ErrorCode.INVALID_REQUEST, "unknown option")
    rated: set[int] = set()

    def watch(observed: Observed, decided: Decided) -> None:
        rated.update(observed.rates)

    report = await executor_of(model, {T0: (0, 3), T2: (1, 3)}, watch=watch).run()
    assert report.moved == (T0, T2)
    assert any("takes no throttle, so only the bytes in flight" in each for each in report.notes)
    assert rated == {1, 2, 3}  # the others are throttled all the same
    assert model.cluster.leftovers() == []


async def test_a_broker_that_dies_before_it_is_throttled_does_not_end_the_throttling(
    world: World,
) -> None:
    model = build(size=200 * MB)
    refusal = BrokerError(ErrorCode.INVALID_REQUEST, "Unexpected broker id")
    model.errors["alter_configs", 2] = refusal

    def watch(observed: Observed, decided: Decided) -> None:
        model.cluster.alive.discard(2)

    report = await executor_of(model, {T2: (1, 3), T0: (0, 3)}, watch=watch).run()
    assert report.moved == (T0, T2)
    assert not any("takes no throttle" in note for note in report.notes)
    assert asyncio.get_running_loop().time() > 200 * MB / RATE


async def test_what_cannot_be_throttled_now_does_not_begin_now(world: World) -> None:
    model = build()
    model.errors["alter_configs", 3] = Unavailable("broker 3 hangs")
    loop = asyncio.get_running_loop()
    loop.call_later(10, model.errors.clear)
    began: list[float] = []

    def watch(observed: Observed, decided: Decided) -> None:
        if observed.partitions[T0].is_moving:
            began.append(observed.now_s)

    report = await executor_of(model, {T0: (0, 3), T2: (1, 2)}, watch=watch).run()
    assert min(began) >= 10
    assert report.moved == (T0,)
    assert "broker 3 hangs" in report.notes


async def test_what_cannot_be_throttled_for_a_minute_is_given_up(world: World) -> None:
    model = build()
    model.errors["alter_configs", 3] = Unavailable("broker 3 hangs")
    report = await executor_of(model, {T0: (0, 3), T2: (1, 0)}).run()
    assert report.given_up == {T0: "it could not be throttled: 3"}
    assert report.moved == (T2,)
    assert 60 <= asyncio.get_running_loop().time() <= 75


async def test_a_topic_that_takes_no_list_is_moved_by_bytes_in_flight(world: World) -> None:
    model = build()
    refusal = BrokerError(ErrorCode.POLICY_VIOLATION, "no lists here", "topic t")
    model.errors["alter_configs", "t"] = refusal
    report = await executor_of(model, {T0: (0, 3)}).run()
    assert report.moved == (T0,)
    assert str(refusal) in report.notes


async def test_a_throttle_that_cannot_be_removed_is_named_after_a_minute(world: World) -> None:
    model = build(size=200 * MB)
    refusal = BrokerError(ErrorCode.POLICY_VIOLATION, "not now", "topic t")
    loop = asyncio.get_running_loop()
    loop.call_later(1.5, lambda: model.errors.update({("alter_configs", "t"): refusal}))
    report = await executor_of(model, {T0: (0, 3)}).run()
    assert report.moved == (T0,)
    assert report.left == ("topic t may still have throttled replicas",)
    assert 60 <= loop.time() <= 80


async def test_without_the_right_to_alter_what_has_begun_is_taken_back(world: World) -> None:
    model = build()
    refusal = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not you", "topic t")
    model.errors["alter_configs", "t"] = refusal
    with pytest.raises(BrokerError, match="not you"):
        await executor_of(model, {T0: (0, 3)}).run()
    assert model.cluster.leftovers() == []


async def test_a_move_that_is_refused_is_given_up_with_the_reason_and_the_others_go_on(
    world: World,
) -> None:
    model = build()
    model.refused = {T0}
    report = await executor_of(model, {T0: (0, 3), T1: (0, 3)}).run()
    assert report.moved == (T1,)
    assert report.given_up[T0].startswith("refused: t-0: INVALID_REPLICA_ASSIGNMENT")
    assert model.cluster.leftovers() == []


async def test_a_leader_waits_until_the_replica_has_what_the_leader_had_a_look_ago(
    world: World,
) -> None:
    model = build()
    model.ends = {(T0, 0): 100, (T0, 1): 40}
    loop = asyncio.get_running_loop()
    loop.call_later(10, model.ends.update, {(T0, 0): 200, (T0, 1): 150})
    report = await executor_of(model, {T0: (1, 0)}).run()
    assert report.elected == (T0,)
    assert 10 <= loop.time() <= 15


async def test_followers_that_do_not_tell_their_ends_lead_if_they_are_in_the_isr(
    world: World,
) -> None:
    model = build()
    model.ends = {(T0, 1): None}
    assert (await executor_of(model, {T0: (1, 0)}).run()).elected == (T0,)


async def test_a_broker_that_recovers_or_is_slow_gets_no_leader(world: World) -> None:
    model = build()
    model.cluster.partitions[T2].in_sync = {2}
    loop = asyncio.get_running_loop()
    loop.call_later(20, model.cluster.partitions[T2].in_sync.add, 1)

    def probe() -> ProbeReading:
        return ProbeReading({}, {1: "is slow"} if loop.time() < 40 else {})

    waits: dict[str, None] = {}

    def watch(observed: Observed, decided: Decided) -> None:
        waits.update(dict.fromkeys(observed.unwell.values()))

    report = await executor_of(model, {T0: (1, 0)}, probe=probe, watch=watch).run()
    assert report.elected == (T0,)
    assert loop.time() >= 40
    assert [*waits] == ["is slow"]


@pytest.mark.parametrize(("told", "before"), [({}, 0.01), ({0: 0.02}, 0.02)])
async def test_the_p99_before_is_told_by_the_probe_or_the_first_reading(
    world: World, told: dict[int, float], before: float
) -> None:
    model = build(size=200 * MB)
    readings = iter([0.01, *[0.05] * 100])
    seen: list[tuple[float, float]] = []

    def probe() -> ProbeReading:
        return ProbeReading({0: next(readings)}, {}, told)

    def watch(observed: Observed, decided: Decided) -> None:
        seen.append(observed.p99[0])

    await executor_of(model, {T0: (0, 3)}, probe=probe, watch=watch).run()
    assert seen[:3] == [(before, 0.01), (before, 0.05), (before, 0.05)]


async def test_the_room_of_disks_is_seen(world: World) -> None:
    model = build(size=100 * MB)
    model.room = 50 * MB
    seen: list[dict[int, int]] = []

    def watch(observed: Observed, decided: Decided) -> None:
        seen.append({**observed.room})

    rules = MoveRules(RATE, patience_s=20)
    report = await executor_of(model, {T0: (0, 3)}, rules=rules, watch=watch).run()
    assert seen[0] == dict.fromkeys((0, 1, 3), 50 * MB)
    reason = "the disks of broker 3 have no room for a replica of 100000000 bytes"
    assert report.given_up == {T0: reason}


async def test_sizes_that_brokers_do_not_tell_are_named_and_do_not_stop_it(world: World) -> None:
    model = build()
    model.errors["describe_log_dirs"] = BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    report = await executor_of(model, {T0: (0, 3)}).run()
    assert report.moved == (T0,)
    assert any("does not tell the sizes of its logs" in note for note in report.notes)


async def test_a_throttle_on_a_broker_that_died_is_named(world: World) -> None:
    model = build(size=500 * MB)
    asyncio.get_running_loop().call_later(3, model.cluster.kill, 1)
    report = await executor_of(model, {T0: (0, 3)}).run()
    assert report.moved == (T0,)
    assert report.left == ("broker 1 is not alive: its throttle stays, without effect",)


@pytest.mark.parametrize(
    ("wanted", "rules", "said"),
    [
        ({T0: (1, 1)}, MoveRules(), "t-0 has replicas .* name each broker once"),
        ({T0: ()}, MoveRules(), "t-0 has replicas"),
        ({T0: (1,)}, MoveRules(0), "rate=0: must be bytes/s above 0"),
    ],
)
async def test_what_cannot_be_wanted_is_refused(
    world: World, wanted: dict[TopicPartition, tuple[int, ...]], rules: MoveRules, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        executor_of(build(), wanted, rules=rules)
