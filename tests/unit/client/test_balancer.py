"""The balancer on a cluster in virtual time: three brokers, one of which leads all that is written.

Its parts have tests of their own: what they are joined to is tested here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.unit.balance.level_cases import MB, partition
from tests.unit.client.virtual_load import (
    HOT,
    LEVEL,
    WINDOW_S,
    T,
    assert_nothing_is_left,
    leaders,
    loaded,
)
from trimtab.balance.cluster_load import OUT
from trimtab.balance.level_plan import Change, Goal, LevelPlan, find_level_plan
from trimtab.balance.steps import MoveRules
from trimtab.client import balancer as module
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.balancer import Balancer, BalancerStopped, Event, Measured, take_part
from trimtab.client.measure.probe import PROBE_TOPIC
from trimtab.client.measure.slow import SlowBrokers
from trimtab.client.moves.executor import MoveReport
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable, UsageError
from trimtab.pytest.virtual import VirtualKafka
from trimtab.sim.network import ANY, NetworkLink
from trimtab.sim.world import World

STOP_S = 10.0


@pytest.fixture
def kafka(world: World) -> Iterator[VirtualKafka]:
    kafka = VirtualKafka(world, 3, {"log.retention.check.interval.ms": 5000})
    kafka.start_all()
    yield kafka
    world.network.set_link(ANY, ANY, NetworkLink())
    world.network.heal()
    kafka.close()


class Told:
    """What a balancer has told, with the loop's time.

    Attributes:
        watcher: runs `watch`.
    """

    def __init__(self, balancer: Balancer, rules: MoveRules | None = None) -> None:
        self.events: list[tuple[float, Event]] = []
        self.balancer = balancer
        self.watcher = asyncio.ensure_future(balancer.watch(rules, self._note))

    def _note(self, event: Event) -> None:
        if not isinstance(event, Measured):
            self.events.append((asyncio.get_running_loop().time(), event))

    def plans(self) -> list[tuple[float, LevelPlan]]:
        return [(at, each) for at, each in self.events if isinstance(each, LevelPlan)]

    def reports(self) -> list[MoveReport]:
        return [each for _, each in self.events if isinstance(each, MoveReport)]

    def sentences(self) -> list[str]:
        return [each for _, each in self.events if isinstance(each, str)]

    async def end(self) -> None:
        self.balancer.stop()
        async with asyncio.timeout(STOP_S):
            await self.watcher


def balancer_of(admin: AsyncAdmin, goal: Goal | None = None, probes: bool = False) -> Balancer:
    return Balancer(admin, goal or Goal(), window_s=WINDOW_S, probes=probes)


# Once


async def test_a_hot_broker_is_measured_relieved_and_then_level(
    world: World, kafka: VirtualKafka
) -> None:
    async with loaded(world, kafka, HOT) as admin, balancer_of(admin, probes=True) as balancer:
        plan = balancer.plan(await balancer.measure())
        assert plan.before[OUT].level == pytest.approx(3, abs=0.05)
        assert (plan.before[OUT].busiest, plan.copied) == (0, 0)
        report = await balancer.move(plan)
        assert (report.given_up, report.left) == ({}, ())
        assert {each.partition for each in report.elected} == {
            each.before.partition.partition for each in plan.changes
        }
        after = balancer.plan(await balancer.measure())
        assert after.before[OUT].level < 1.05
        assert (after.changes, after.reasons) == ([], [])
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("b")) as admin:
        await assert_nothing_is_left(admin)
        assert sorted(await leaders(admin)) == [0, 0, 1, 1, 2, 2]


async def test_a_window_too_short_is_refused(world: World, kafka: VirtualKafka) -> None:
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("a")) as admin:
        for window_s in (1.9, float("nan"), float("inf")):
            with pytest.raises(UsageError, match=f"window_s={window_s}: must be 2 seconds or more"):
                Balancer(admin, window_s=window_s)


@pytest.mark.parametrize(
    ("goal", "why"),
    [
        (Goal(drain=frozenset({0, 9})), "drain: there is no broker 9; alive are 0, 1, 2"),
        (Goal(relieve=frozenset({-1})), "relieve: there is no broker -1; alive are 0, 1, 2"),
        (Goal(drain=frozenset({0, 1, 2})), "drain: these are all brokers .*; leave one out"),
    ],
)
async def test_brokers_of_a_goal_must_exist(
    world: World, kafka: VirtualKafka, goal: Goal, why: str
) -> None:
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("a")) as admin:
        with pytest.raises(UsageError, match=why):
            async with balancer_of(admin, goal, probes=True):
                pass
        assert PROBE_TOPIC not in await admin.topics()


async def test_a_dead_broker_can_be_drained(world: World, kafka: VirtualKafka) -> None:
    async with loaded(world, kafka, LEVEL) as admin:
        kafka.kill(2)
        await asyncio.sleep(15)
        assert 2 not in {node.id for node in (await admin.cluster()).nodes}
        async with balancer_of(admin, Goal(drain=frozenset({2}))) as balancer:
            report = await balancer.move(balancer.plan(await balancer.measure()))
            assert report.given_up == {}
        view = (await admin.describe_topics([T]))[T]
        assert all({*each.replicas} == {0, 1} for each in view.partitions)
        await kafka.start(2)


# The topic for probes


async def test_a_start_that_fails_leaves_no_topic_and_a_topic_of_others_stays(
    world: World, kafka: VirtualKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("a")) as admin:
        create = admin.create_topic

        async def lose(*words: Any, **named: Any) -> None:
            await create(*words, **named)
            raise Unavailable("the answer is lost")

        monkeypatch.setattr(admin, "create_topic", lose)
        with pytest.raises(Unavailable, match="the answer is lost") as caught:
            async with balancer_of(admin, probes=True):
                pass
        assert not hasattr(caught.value, "__notes__")
        assert PROBE_TOPIC not in await admin.topics()
        monkeypatch.undo()
        await admin.create_topic(PROBE_TOPIC)
        with pytest.raises(UsageError, match="is not a probe's"):
            async with balancer_of(admin, probes=True):
                pass
        assert PROBE_TOPIC in await admin.topics()


async def test_a_topic_that_cannot_be_removed_is_named(
    world: World, kafka: VirtualKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = rf"topic {PROBE_TOPIC} may be left: .*topics --delete --topic {PROBE_TOPIC}"
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("a")) as admin:

        async def refuse(*_: Any) -> None:
            raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no", PROBE_TOPIC)

        async def hang(*_: Any) -> None:
            await asyncio.Event().wait()

        for fault in (refuse, hang):
            monkeypatch.setattr(admin, "delete_topic", fault)
            with pytest.raises(Unavailable, match=left):
                async with balancer_of(admin, probes=True):
                    pass
            with pytest.raises(KeyError, match="a mistake") as caught:
                async with balancer_of(admin, probes=True):
                    raise KeyError("a mistake")
            assert f"topic {PROBE_TOPIC} may be left" in caught.value.__notes__[0]


# Watching


@pytest.mark.parametrize(
    ("assignment", "weights", "windows"), [(LEVEL, (8, 6, 6) * 2, 3), (HOT, (1,) * 6, 1)]
)
async def test_it_acts_after_three_windows_or_one_if_a_broker_is_hot(
    world: World,
    kafka: VirtualKafka,
    assignment: dict[int, list[int]],
    weights: tuple[int, ...],
    windows: int,
) -> None:
    async with loaded(world, kafka, assignment, weights) as admin, balancer_of(admin) as balancer:
        began = world.loop.time()
        told = Told(balancer)
        await asyncio.sleep(12 * WINDOW_S)
        await told.end()
        (at, plan), *_ = told.plans()
        assert windows * WINDOW_S <= at - began <= windows * WINDOW_S + 6
        assert (plan.before[OUT].level > 1.5) == (windows == 1)
        assert plan.after[OUT].level < 1.1
        assert {str(each.given_up) for each in told.reports()} == {"{}"}
        assert told.sentences() == []


async def test_a_peak_of_two_windows_moves_nothing(
    world: World, kafka: VirtualKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = iter([True, True, False] * 4)
    async with loaded(world, kafka, LEVEL) as admin, balancer_of(admin) as balancer:
        monkeypatch.setattr(balancer, "_is_out_of_level", lambda _, far=0: not far and next(levels))
        monkeypatch.setattr(module, "find_level_plan", lambda *_: pytest.fail("it has planned"))
        told = Told(balancer)
        await asyncio.sleep(10 * WINDOW_S)
        await told.end()
        assert told.events == []


async def test_what_moved_rests_although_the_load_goes_round(
    world: World, kafka: VirtualKafka
) -> None:
    """Each window another third of the partitions is hot."""
    weights = [1] * 6
    async with loaded(world, kafka, LEVEL, weights, pause_s=0.5) as admin:
        balancer = Balancer(admin, Goal(leaders_only=True), window_s=3)
        moved: dict[int, list[float]] = {}
        async with balancer:
            told = Told(balancer)
            for turn in range(40):
                weights[:] = [6 if index % 3 == turn // 3 % 3 else 1 for index in range(6)]
                await asyncio.sleep(9)
            await told.end()
    for at, plan in told.plans():
        for change in plan.changes:
            moved.setdefault(change.before.partition.partition, []).append(at)
    assert moved
    for times in moved.values():
        for before, after in pairwise(times):
            assert after - before >= 300


async def test_copied_replicas_rest_longer_than_their_leaders(
    world: World, kafka: VirtualKafka
) -> None:
    """A broker that becomes slow leads what was copied an hour ago no longer."""
    async with loaded(world, kafka, HOT) as admin, balancer_of(admin) as balancer:
        measured = await balancer.measure()
        changed = balancer.plan(measured).assignment
        balancer._replicas_rest = dict.fromkeys(
            (each.partition for each in measured.metered.load.partitions), world.loop.time() + 1
        )
        assert balancer.plan(measured).changes == []
        balancer._goal = Goal(leaders_only=True)
        assert balancer.plan(measured).assignment == changed
        balancer._goal = Goal()
        await asyncio.sleep(2)
        assert balancer.plan(measured).assignment == changed


async def test_a_slow_broker_loses_its_leaders_within_ten_seconds_and_gets_none_at_once(
    world: World, kafka: VirtualKafka
) -> None:
    async with (
        loaded(world, kafka, LEVEL) as admin,
        balancer_of(admin, probes=True) as balancer,
    ):
        told = Told(balancer)
        await asyncio.sleep(2 * WINDOW_S)
        assert told.events == []
        world.network.set_link("broker-1", ANY, NetworkLink(40, 50))
        await asyncio.sleep(10)
        assert 1 not in await leaders(admin)
        assert any(
            list(each.slow) == [1] for _, each in told.events if isinstance(each, SlowBrokers)
        )
        assert all(
            change.leader != 1 and change.copied == 0
            for _, plan in told.plans()
            for change in plan.changes
        )
        world.network.set_link("broker-1", ANY, NetworkLink())
        await asyncio.sleep(60)
        assert told.events[-1][1] in [SlowBrokers({}, {}, {}), *told.reports()]
        moved = [change.before.partition for _, plan in told.plans() for change in plan.changes]
        assert len(moved) == len({*moved})
        await told.end()
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("b")) as admin:
        await assert_nothing_is_left(admin)


async def test_a_broker_that_stands_still_half_of_the_time_is_slow(
    world: World, kafka: VirtualKafka
) -> None:
    """A poll in between does not make it well."""

    async def stutter() -> None:
        while True:
            world.loop.pause("broker-1")
            await asyncio.sleep(0.43)
            world.loop.resume("broker-1")
            await asyncio.sleep(0.37)

    async with (
        loaded(world, kafka, LEVEL) as admin,
        balancer_of(admin, probes=True) as balancer,
    ):
        told = Told(balancer)
        await asyncio.sleep(2 * WINDOW_S)
        stuttering = world.loop.create_task(stutter())
        await asyncio.sleep(10)
        assert 1 not in await leaders(admin)
        stuttering.cancel()
        await asyncio.wait([stuttering])
        world.loop.resume("broker-1")
        slow = [each for _, each in told.events if isinstance(each, SlowBrokers)]
        assert [*slow[0].slow] == [1]
        assert len(slow) <= 5  # it is told when that changes
        await told.end()


def test_a_plan_is_carried_out_in_parts_of_ten_minutes() -> None:
    """At 1 MB a second each broker sends or receives 600 MB in a part."""

    def change(number: int, replicas: tuple[int, ...], payback_s: float | None) -> Change:
        before = partition(number, (0, 1), size=250 * MB)
        copied = 250 * MB * len({*replicas} - {0, 1})
        return Change(before, replicas, copied, payback_s, "")

    changes = [
        change(0, (1, 0), None),
        change(1, (0, 2), 90),
        change(2, (0, 2), 50),
        change(3, (0, 2), None),
        change(4, (3, 1), 70),
    ]
    plan = LevelPlan(changes, {}, {}, 0, 0, [], [])
    taken = take_part(plan, MoveRules(1 * MB)).changes
    # Broker 2 gets two replicas; those that pay soonest, and what copies nothing.
    assert [each.before.partition.partition for each in taken] == [0, 2, 4, 1]
    alone = take_part(plan, MoveRules(1)).changes
    assert [each.before.partition.partition for each in alone] == [0, 2]
    assert len(take_part(plan, MoveRules()).changes) == 5


async def test_a_cluster_that_is_away_for_a_while_is_told_once_and_does_not_end_it(
    world: World, kafka: VirtualKafka
) -> None:
    async with loaded(world, kafka, HOT) as admin, balancer_of(admin, probes=True) as balancer:
        told = Told(balancer)
        await asyncio.sleep(WINDOW_S)
        for broker in range(3):
            kafka.isolate(broker)
        await asyncio.sleep(90)
        assert not told.watcher.done()
        [away] = told.sentences()
        assert away.startswith("The cluster does not answer: cannot ")
        assert away.endswith(". It is asked again each second.")
        kafka.heal()
        while not told.reports():
            assert not told.watcher.done()
            await asyncio.sleep(1)
        assert told.sentences() == [away, "The cluster answers again."]
        await told.end()
        assert sorted(await leaders(admin)) == [0, 0, 1, 1, 2, 2]


async def test_a_right_that_is_missing_ends_it_and_is_named(
    world: World, kafka: VirtualKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user could not help it: it would plan the same again and again."""
    async with loaded(world, kafka, HOT) as admin, balancer_of(admin) as balancer:

        async def refuse(*_: Any) -> None:
            raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not allowed", "the cluster")

        monkeypatch.setattr(admin, "elect_leaders", refuse)
        monkeypatch.setattr(admin, "alter_reassignments", refuse)
        told = Told(balancer)
        with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
            async with asyncio.timeout(60):
                await told.watcher
        await assert_nothing_is_left(admin)


async def test_a_broker_is_drained_once(world: World, kafka: VirtualKafka) -> None:
    goal = Goal(drain=frozenset({2}))
    async with loaded(world, kafka, LEVEL) as admin, balancer_of(admin, goal) as balancer:
        began = world.loop.time()
        told = Told(balancer)
        await asyncio.sleep(12 * WINDOW_S)
        await told.end()
        [(at, _)] = told.plans()
        assert at - began < 2 * WINDOW_S
        view = (await admin.describe_topics([T]))[T]
        assert all(2 not in each.replicas for each in view.partitions)


async def test_a_plan_that_changes_nothing_is_told_once(world: World, kafka: VirtualKafka) -> None:
    """Every partition has replicas on all three brokers, so none can be drained."""
    everywhere = {index: [index % 3, (index + 1) % 3, (index + 2) % 3] for index in range(6)}
    goal = Goal(drain=frozenset({2}), leaders_only=False)
    async with loaded(world, kafka, everywhere) as admin, balancer_of(admin, goal) as balancer:
        told = Told(balancer)
        await asyncio.sleep(8 * WINDOW_S)
        await told.end()
        stuck = [plan for _, plan in told.plans() if not plan.changes]
        assert len(stuck) == 1
        assert stuck[0].reasons == ["broker 2 is to be drained"]


async def test_brokers_to_relieve_that_are_gone_are_no_reason_to_level_the_others(
    world: World, kafka: VirtualKafka
) -> None:
    async with loaded(world, kafka, HOT) as admin, balancer_of(admin) as balancer:
        measured = await balancer.measure()
        assert balancer.plan(measured).changes
        balancer._goal = Goal(relieve=frozenset({7}))
        assert balancer.plan(measured).changes == []
        balancer._goal = Goal(relieve=frozenset({0, 7}))
        assert {each.before.leader for each in balancer.plan(measured).changes} == {0}


# Stopping


async def test_stopped_while_it_starts_it_leaves_no_topic(
    world: World, kafka: VirtualKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("a")) as admin:
        balancer = balancer_of(admin, probes=True)
        create = admin.create_topic

        async def stop_and_wait(*words: Any, **named: Any) -> None:
            await create(*words, **named)
            balancer.stop()
            await asyncio.Event().wait()

        monkeypatch.setattr(admin, "create_topic", stop_and_wait)
        began = world.loop.time()
        with pytest.raises(BalancerStopped):
            async with asyncio.timeout(60), balancer:
                pass
        assert world.loop.time() - began < STOP_S
        assert PROBE_TOPIC not in await admin.topics()


@pytest.mark.parametrize("is_away", [False, True])
async def test_stopped_while_it_measures_it_ends_at_once(
    world: World, kafka: VirtualKafka, is_away: bool
) -> None:
    async with loaded(world, kafka, HOT) as admin, balancer_of(admin) as balancer:
        measuring = asyncio.ensure_future(balancer.measure())
        await asyncio.sleep(0.5)
        if is_away:
            for broker in range(3):
                kafka.isolate(broker)
        await asyncio.sleep(2)
        balancer.stop()
        began = world.loop.time()
        with pytest.raises(BalancerStopped, match="before the load was measured"):
            await measuring
        assert world.loop.time() - began < 0.5
        kafka.heal()
        await assert_nothing_is_left(admin)


async def test_stopped_while_it_plans_it_moves_nothing(
    world: World, kafka: VirtualKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with loaded(world, kafka, HOT) as admin, balancer_of(admin) as balancer:

        def plan_and_stop(*words: Any) -> LevelPlan:
            balancer.stop()
            return find_level_plan(*words)

        monkeypatch.setattr(module, "find_level_plan", plan_and_stop)
        told = Told(balancer)
        async with asyncio.timeout(60):
            await told.watcher
        assert told.events == []
        assert set(await leaders(admin)) == {0}
        plan = find_level_plan(await measured_by_another(admin))
        report = await balancer.move(plan)
        assert (report.elected, report.left) == ((), ())


async def measured_by_another(admin: AsyncAdmin) -> Any:
    async with balancer_of(admin) as other:
        return (await other.measure()).metered.load


async def test_stopped_while_it_moves_it_cancels_and_leaves_no_throttle(
    world: World, kafka: VirtualKafka
) -> None:
    """At 100 bytes a second a move would take hours."""
    goal = Goal(drain=frozenset({2}))
    async with (
        loaded(world, kafka, LEVEL, stored=500_000) as admin,
        balancer_of(admin, goal, probes=True) as balancer,
    ):
        told = Told(balancer, MoveRules(100))
        await asyncio.sleep(WINDOW_S + 5)
        assert await admin.list_reassignments()
        began = world.loop.time()
        balancer.stop()
        await told.watcher
        assert world.loop.time() - began <= STOP_S
        [report] = told.reports()
        assert report.left == ()
        assert "stopped" in report.given_up.values()
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("b")) as admin:
        await assert_nothing_is_left(admin)


async def test_stopped_while_it_waits_it_ends_at_once(world: World, kafka: VirtualKafka) -> None:
    async with loaded(world, kafka, LEVEL) as admin:
        async with balancer_of(admin, probes=True) as balancer:
            told = Told(balancer)
            await asyncio.sleep(3.5 * WINDOW_S)
            began = world.loop.time()
            await told.end()
            assert world.loop.time() - began < 0.1
        assert world.loop.time() - began < STOP_S
        await assert_nothing_is_left(admin)
