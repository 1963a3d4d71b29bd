"""The executor of moves against trimtab's cluster, in virtual time: the cases that other executors
failed in, by the number that they have in `tests/unit/balance/test_steps.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from trimtab.balance.observed import Observed
from trimtab.balance.steps import Decided, MoveRules
from trimtab.balance.throttles import LISTS, RATES, mark_rate
from trimtab.client.admin import AsyncAdmin
from trimtab.client.moves import MoveExecutor, MoveReport
from trimtab.client.producer import AsyncProducer
from trimtab.kafka.records import TopicPartition
from trimtab.sim.virtual_cluster import VirtualCluster
from trimtab.sim.world import World

OPTIONS: Mapping[str, object] = {
    "replica.fetch.max.bytes": 20_000,
    "replica.fetch.response.max.bytes": 20_000,
}
SIZE = 400_000
SLOW = MoveRules(10_000)
"""A partition takes 40 s."""
FAST = MoveRules(10_000_000)
Wanted = Mapping[TopicPartition, tuple[int, ...]]


def t(index: int) -> TopicPartition:
    return TopicPartition("t", index)


class Stage:
    """Six brokers, and a client that moves partitions of topic t.

    Attributes:
        looks: what was observed and decided, by all executors.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = VirtualCluster(world, 6, OPTIONS)
        self.clients = 0
        self.looks: list[tuple[Observed, Decided]] = []
        self.executors: list[MoveExecutor] = []
        self.admin = self.new_admin()

    def new_admin(self) -> AsyncAdmin:
        self.clients += 1
        return AsyncAdmin(
            self.cluster.bootstrap_servers, random=self.world.random(f"client {self.clients}")
        )

    async def create(self, *placed: list[int], size: int = SIZE, **config: object) -> None:
        await self.admin.create_topic("t", assignment=dict(enumerate(placed)), config=config)
        random = self.world.random("records")
        async with AsyncProducer(
            self.cluster.bootstrap_servers,
            random=self.world.random("producer"),
            wall_clock=self.world.wall_clock,
            acks="all",
        ) as producer:
            for index in range(len(placed)):
                for _ in range(size // 10_000):
                    await producer.send("t", random.randbytes(10_000), partition=index)
            await producer.flush()

    def begin(self, wanted: Wanted, rules: MoveRules = FAST) -> asyncio.Task[MoveReport]:
        """Begin to move."""

        def watch(observed: Observed, decided: Decided) -> None:
            self.looks.append((observed, decided))

        executor = MoveExecutor(self.admin, wanted, rules, watch=watch)
        self.executors.append(executor)
        return asyncio.create_task(executor.run())

    async def replicas(self) -> dict[TopicPartition, tuple[int, ...]]:
        view = (await self.admin.describe_topics(["t"]))["t"]
        return {t(index): each.replicas for index, each in enumerate(view.partitions)}

    async def leaders(self) -> tuple[int, ...]:
        return (await self.admin.describe_topics(["t"]))["t"].leaders

    async def lists(self) -> list[str]:
        entries = (await self.admin.describe_topic_configs(["t"], LISTS))["t"]
        return [each.value or "" for each in entries]

    async def leftovers(self) -> list[object]:
        """What moves and throttles there are."""
        nodes = (await self.admin.cluster()).nodes
        return [
            *await self.admin.list_reassignments(),
            *filter(None, await self.lists()),
            *[
                (node.id, each.name, each.value)
                for node in nodes
                for each in await self.admin.describe_configs("broker", node.id)
                if each.name in RATES and not each.is_default
            ],
        ]

    async def until(self, condition: Callable[[], Awaitable[object]], within_s: float = 60) -> None:
        async with asyncio.timeout(within_s):
            while not await condition():  # noqa: ASYNC110
                await asyncio.sleep(0.2)

    async def until_copying(self, *partitions: TopicPartition) -> None:
        """Wait until some of the bytes of these partitions are copied, and not all."""

        async def some() -> bool:
            copied = self.looks[-1][0].copied if self.looks else {}
            return all(
                any(0 < size < SIZE for (each, _), size in copied.items() if each == partition)
                for partition in partitions
            )

        await self.until(some)

    def down(self, broker: int) -> None:
        self.cluster.brokers[broker].kill()


def run(scenario: Callable[[Stage], Awaitable[None]], seed: int = 1) -> Stage:
    with World(seed) as world:
        with world.network.at("client"):
            stage = Stage(world)

        async def whole() -> None:
            with world.network.at("client"):
                stage.cluster.start()
                await asyncio.sleep(5)
                await scenario(stage)
                await stage.admin.close()
            await stage.cluster.close()

        world.run(whole())
    for observed, _ in stage.looks:
        assert all(len(each.replicas) <= 4 for each in observed.partitions.values())
    return stage


def test_leaders_and_replicas_are_as_wanted_afterwards() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0, 1], [0, 1], [0, 1])
        wanted = {t(0): (1, 0), t(1): (0, 3), t(2): (4, 5)}
        report = await stage.begin(wanted)
        assert report.moved == (t(1), t(2))
        assert report.elected == (t(0),)
        assert (report.given_up, report.left) == ({}, ())
        assert report.bytes >= 3 * SIZE
        assert await stage.replicas() == wanted
        assert await stage.leaders() == (1, 0, 4)
        assert await stage.leftovers() == []

    run(scenario)


def test_a_rate_is_kept() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0, 1])
        begin_s = stage.world.loop.time()
        report = await stage.begin({t(0): (0, 3)}, SLOW)
        assert report.moved == (t(0),)
        # Kafka's quota allows as much at once as in its 11 seconds.
        assert stage.world.loop.time() - begin_s > 0.5 * SIZE / 10_000

    run(scenario)


def test_case_1_a_target_that_dies_cancels_its_partitions_and_the_others_go_on() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0, 1], [0, 1])
        moving = stage.begin({t(0): (0, 3), t(1): (0, 4)}, SLOW)
        await stage.until_copying(t(0), t(1))
        stage.down(3)
        report = await moving
        assert report.given_up == {t(0): "broker 3, to which it moves, is not alive"}
        assert report.moved == (t(1),)
        assert await stage.replicas() == {t(0): (0, 1), t(1): (0, 4)}
        assert report.left == ("broker 3 is not alive: its throttle stays, without effect",)
        assert await stage.leftovers() == []

    run(scenario)


def test_case_2_a_kept_replica_that_is_dead_is_named_and_not_waited_for() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([1, 2])
        moving = stage.begin({t(0): (2, 3)}, MoveRules(1_000))
        await stage.until_copying(t(0))
        stage.down(2)
        report = await moving
        assert report.given_up == {t(0): "broker 2, which is to keep its replica, is not alive"}
        assert set((await stage.replicas())[t(0)]) == {1, 2}
        assert await stage.leftovers() == []

    run(scenario)


@pytest.mark.parametrize("cancels", [True, False])
def test_case_3_stopped_midway_nothing_is_left(cancels: bool) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0, 1], [0, 1])
        moving = stage.begin({t(0): (0, 3), t(1): (0, 4)}, SLOW)
        await stage.until_copying(t(0), t(1))
        stage.executors[0].stop(cancels)
        begin_s = stage.world.loop.time()
        report = await moving
        assert stage.world.loop.time() - begin_s <= 10
        assert report.left == ()
        if cancels:
            assert set(report.given_up.values()) == {"stopped"}
            assert await stage.replicas() == {t(0): (0, 1), t(1): (0, 1)}
        assert not any(await stage.lists())
        await stage.until(lambda: _is_empty(stage))

    run(scenario)


async def _is_empty(stage: Stage) -> bool:
    return await stage.leftovers() == []


def test_case_4_what_is_done_loses_its_throttle_at_once_and_the_others_keep_theirs() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0, 1], [0, 1], [0, 1], [0, 1])
        stage.world.network.cut("broker-4", "broker-0")
        moving = stage.begin({t(0): (0, 3), t(1): (0, 3), t(2): (0, 4), t(3): (0, 4)})

        async def half() -> bool:
            return [*await stage.admin.list_reassignments()] == [t(2), t(3)]

        await stage.until(half)
        await asyncio.sleep(3)
        assert await stage.lists() == ["2:4,3:4", "2:0,2:1,3:0,3:1"]
        stage.world.network.heal("broker-4", "broker-0")
        report = await moving
        assert len(report.moved) == 4
        assert await stage.leftovers() == []

    run(scenario)


def test_case_5_a_stall_is_found_in_two_minutes() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0, 1], [1, 0])
        moving = stage.begin({t(0): (0, 3), t(1): (1, 4)}, SLOW)
        await stage.until_copying(t(0))
        stage.world.network.cut("broker-3", "broker-0")
        begin_s = stage.world.loop.time()
        report = await moving
        assert report.given_up.keys() == {t(0)}
        assert report.given_up[t(0)].startswith("no byte was copied for 120 s")
        assert report.moved == (t(1),)
        assert 120 <= stage.world.loop.time() - begin_s <= 140
        assert await stage.leftovers() == []

    run(scenario)


def test_case_6_reassignments_of_others_are_shown_and_not_touched() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0, 1], [0, 1])
        stage.world.network.cut("broker-4", "broker-0")
        await stage.admin.alter_reassignments({t(1): [0, 4]})
        moving = stage.begin({t(0): (0, 3)})
        await asyncio.sleep(30)
        assert [*await stage.admin.list_reassignments()] == [t(1)]
        stage.world.network.heal("broker-4", "broker-0")
        report = await moving
        assert report.moved == (t(0),)
        assert "reassignments that are not ours: t-1" in report.notes
        assert await stage.replicas() == {t(0): (0, 3), t(1): (0, 4)}

    run(scenario)


@pytest.mark.parametrize("after_s", [1, 2, 3, 5, 8, 13, 21])
def test_case_7_killed_and_started_again_it_goes_on(after_s: float) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0, 1], [0, 1])
        wanted = {t(0): (3, 4), t(1): (0, 5)}
        moving = stage.begin(wanted, SLOW)
        await asyncio.sleep(after_s)
        moving.cancel()
        await asyncio.wait([moving])
        report = await stage.begin(wanted, SLOW)
        assert report.given_up == {}
        assert await stage.replicas() == wanted
        assert await stage.leftovers() == []
        begun = len(stage.looks)
        assert (await stage.begin(wanted, SLOW)).bytes == 0
        assert [decided.actions for _, decided in stage.looks[begun:]] == [()]

    run(scenario)


def test_case_8_a_leader_that_is_not_in_the_isr_is_given_up_with_the_reason() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0, 1])
        stage.world.network.cut("broker-0", "broker-1")
        async with AsyncProducer(
            stage.cluster.bootstrap_servers,
            random=stage.world.random("late"),
            wall_clock=stage.world.wall_clock,
            acks=1,
        ) as producer:
            await producer.send("t", b"v", partition=0)
            await producer.flush()
        await asyncio.sleep(40)
        report = await stage.begin({t(0): (1, 0)}, MoveRules(patience_s=100))
        assert report.given_up == {t(0): "broker 1, its wanted leader, is not in the ISR"}
        assert await stage.leaders() == (0,)

    run(scenario)


def test_case_10_three_new_brokers_one_at_a_time() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0, 1, 2])
        report = await stage.begin({t(0): (3, 4, 5)}, SLOW)
        assert report.moved == (t(0),)
        assert await stage.replicas() == {t(0): (3, 4, 5)}
        assert await stage.leaders() == (3,)

    stage = run(scenario)
    assert max(len(each.partitions[t(0)].replicas) for each, _ in stage.looks) == 4


def test_case_13_moves_pause_while_a_partition_is_below_min_isr() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0, 1], [4, 5], **{"min.insync.replicas": 2})
        stage.down(5)
        await stage.until(lambda: _has_isr(stage, 1, 1))
        moving = stage.begin({t(0): (0, 3)})
        await asyncio.sleep(30)
        assert await stage.replicas() == {t(0): (0, 1), t(1): (4, 5)}
        stage.cluster.brokers[5].start()
        report = await moving
        assert report.moved == (t(0),)

    run(scenario)


async def _has_isr(stage: Stage, index: int, size: int) -> bool:
    view = (await stage.admin.describe_topics(["t"]))["t"]
    return len(view.partitions[index].in_sync_replicas) == size


def test_case_18_brokers_restart_during_moves_and_all_arrive() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create(*[[0, 1]] * 30, size=50_000)
        wanted = {t(index): (0, 2 + index % 4) for index in range(30)}
        moving = stage.begin(wanted, MoveRules(20_000))
        for broker in (3, 1, 0):
            await asyncio.sleep(6)
            stage.down(broker)
            await asyncio.sleep(15)
            stage.cluster.brokers[broker].start()
        report = await moving
        assert report.given_up == {}
        assert await stage.replicas() == wanted
        assert await stage.leftovers() == []

    run(scenario)


def test_case_19_while_a_broker_is_down_the_live_ones_are_throttled_and_it_is_named() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0, 1])
        stage.down(1)
        await stage.until(lambda: _has_isr(stage, 0, 1))
        report = await stage.begin({t(0): (0, 3)}, SLOW)
        assert report.moved == (t(0),)
        assert "broker 1 is not alive, and so gets no throttle" in report.notes
        assert await stage.leftovers() == []

    stage = run(scenario)
    assert any(
        observed.rates == {0: mark_rate(10_000), 3: mark_rate(10_000)}
        for observed, _ in stage.looks
    )


def test_case_20_a_cancel_without_a_former_replica_that_lives_is_refused() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0])
        moving = stage.begin({t(0): (3,)}, MoveRules(1_000))
        await stage.until_copying(t(0))
        stage.down(0)
        await asyncio.sleep(30)
        stage.executors[0].stop()
        report = await moving
        assert (
            "not cancelled, since of its former replicas 0 none is alive" in report.given_up[t(0)]
        )
        assert [*await stage.admin.list_reassignments()] == [t(0)]
        assert not any(await stage.lists())

    run(scenario)


def test_case_21_lists_that_someone_removes_are_noticed() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0, 1])
        stage.world.network.cut("broker-3", "broker-0")
        stage.world.loop.call_later(5, stage.world.network.heal, "broker-3", "broker-0")

        async def revert() -> None:
            while True:
                await asyncio.sleep(0.3)
                await stage.admin.alter_configs("topic", "t", dict.fromkeys(LISTS))

        reverting = asyncio.create_task(revert())
        report = await stage.begin({t(0): (0, 3)}, FAST)
        reverting.cancel()
        assert report.moved == (t(0),)
        assert any("someone has removed its throttled replicas" in each for each in report.notes)

    run(scenario)


def test_case_22_a_broker_that_returns_gets_no_leader_before_it_has_all() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create([0, 1], [1, 0])
        stage.down(1)
        await stage.until(lambda: _has_isr(stage, 0, 1))
        async with AsyncProducer(
            stage.cluster.bootstrap_servers,
            random=stage.world.random("late"),
            wall_clock=stage.world.wall_clock,
        ) as producer:
            for _ in range(100):
                await producer.send("t", bytes(10_000), partition=0)
            await producer.flush()
        moving = stage.begin({t(0): (1, 0)}, FAST)
        await asyncio.sleep(10)
        stage.cluster.brokers[1].start()
        report = await moving
        assert report.elected == (t(0),)
        assert await stage.leaders() == (1, 0)

    stage = run(scenario)
    for observed, decided in stage.looks:
        if any(type(action).__name__ == "ElectLeaders" for action in decided.actions):
            assert 1 in observed.partitions[t(0)].in_sync
            assert observed.lag == {(t(0), 1): 0}
            assert 1 not in observed.unwell
