"""The collector on a cluster in virtual time: three brokers, one of which leads all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

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
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.collector import Collector, Snapshot, Stage
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.producer import AsyncProducer
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.pytest.virtual import VirtualKafka
from trimtab.sim.world import World


@pytest.fixture
def kafka(world: World) -> Iterator[VirtualKafka]:
    kafka = VirtualKafka(world, 3, {})
    kafka.start_all()
    yield kafka
    world.network.heal()
    kafka.close()


class Watcher:
    """Waits for what a collector shows."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.changed = asyncio.Event()

    async def until(
        self, is_so: Callable[[Snapshot], bool] = lambda _: True, limit_s: float = 60.0
    ) -> Snapshot:
        async with asyncio.timeout(limit_s):
            while self.collector.snapshot is None or not is_so(self.collector.snapshot):
                await self.next()
        return self.collector.snapshot

    async def next(self) -> None:
        self.changed.clear()
        await self.changed.wait()


@asynccontextmanager
async def collecting(
    world: World, admin: AsyncAdmin, probes: bool = False, shows_keys: bool = False
) -> AsyncIterator[Watcher]:
    """A collector that runs, and ends within 10 s."""
    collector = Collector(
        admin,
        window_s=WINDOW_S,
        probes=probes,
        show_key=bytes.decode if shows_keys else None,
        history_s=600,
        wall=world.wall_clock,
    )
    watcher = Watcher(collector)
    running = asyncio.ensure_future(watcher.collector.run(watcher.changed.set))
    try:
        yield watcher
    finally:
        collector.stop()
        async with asyncio.timeout(10):
            await running


async def test_a_snapshot_has_rates_levels_and_a_plan(world: World, kafka: VirtualKafka) -> None:
    async with loaded(world, kafka, HOT) as admin, collecting(world, admin) as watcher:
        shown = await watcher.until(lambda each: each.plan is not None)
        rates = {each.partition.partition: each.bytes_in for each in shown.metered.load.partitions}
        assert rates == pytest.approx(dict.fromkeys(range(6), 4300), rel=0.15)
        assert shown.levels[OUT].busiest == 0
        assert shown.levels[OUT].level == pytest.approx(3)
        assert shown.plan is not None
        assert shown.plan.plan.changes
        assert {*shown.answers} == {0, 1, 2}
        assert watcher.collector.trouble == ""


async def test_numbers_rise_and_history_grows(world: World, kafka: VirtualKafka) -> None:
    async with loaded(world, kafka, LEVEL) as admin, collecting(world, admin) as watcher:
        first = await watcher.until()
        later = await watcher.until(lambda each: each.number >= first.number + 5)
        assert later.taken_s > first.taken_s
        curve = watcher.collector.history.of_topic(T)
        assert len(curve.times) >= 5
        assert curve.values[-1] == pytest.approx(6 * 4300, rel=0.15)
        assert watcher.collector.history.of_partition(T, 5).values[-1] == pytest.approx(
            4300, rel=0.15
        )
        written, sent = watcher.collector.history.of_broker(0)
        assert written.values[-1] == pytest.approx(4 * 4300, rel=0.15)
        assert sent.values[-1] == pytest.approx(2 * 4300, rel=0.15)


async def test_the_newest_records_show_keys_and_producers(
    world: World, kafka: VirtualKafka
) -> None:
    async with (
        loaded(world, kafka, LEVEL) as admin,
        AsyncProducer(
            kafka.bootstrap_servers, random=kafka.random("keys"), wall_clock=world.wall_clock
        ) as producer,
    ):
        await admin.create_topic("orders", assignment={0: [1, 2]})

        async def produce() -> None:
            while True:
                for key in (b"a", b"a", b"a", b"b", None):
                    await producer.send("orders", bytes(9999), key=key)
                await asyncio.sleep(0.25)

        producing = asyncio.ensure_future(produce())
        try:
            async with collecting(world, admin, shows_keys=True) as watcher:
                orders = TopicPartition("orders", 0)
                shown = await watcher.until(lambda each: orders in each.tails)
        finally:
            producing.cancel()
            await asyncio.wait([producing])
    tail = shown.tails[orders]
    assert 20 <= tail.records <= 27  # 256 KiB
    assert tail.keys[0].name == "a"
    assert tail.keys[0].share == pytest.approx(0.6, abs=0.08)
    assert {each.name for each in tail.keys} == {"a", "b", ""}
    assert len(tail.producers) == 1
    assert tail.producers[0].share == 1
    assert tail.producers[0].name.isdecimal()


async def test_lag_has_a_time_until_it_is_cleared(world: World, kafka: VirtualKafka) -> None:
    async with loaded(world, kafka, LEVEL) as admin, collecting(world, admin) as watcher:
        async with AsyncConsumer(
            kafka.bootstrap_servers,
            group_id="billing",
            auto_offset_reset="earliest",
            random=kafka.random("c"),
            max_poll_records=20,
        ) as consumer:
            consumer.subscribe([T])
            for _ in range(60):
                await consumer.poll(timeout_ms=500)
                await consumer.commit()
            shown = watcher.collector.snapshot
        assert shown is not None
        assert {each.group for each in shown.lags} == {"billing"}
        assert len(shown.lags) == 6
        assert all(each.read_per_s is not None for each in shown.lags)


async def test_a_silent_cluster_is_said_and_forgotten_when_it_answers(
    world: World, kafka: VirtualKafka
) -> None:
    async with loaded(world, kafka, LEVEL) as admin, collecting(world, admin) as watcher:
        before = await watcher.until()
        for node in range(3):
            kafka.isolate(node)
        async with asyncio.timeout(60):
            while not watcher.collector.trouble:
                await watcher.next()
        assert "cannot" in watcher.collector.trouble
        assert watcher.collector.snapshot is not None
        kafka.heal()
        await watcher.until(lambda each: each.number > before.number + 3, 120)
        assert watcher.collector.trouble == ""


async def test_a_plan_that_wants_the_same_keeps_its_number(
    world: World, kafka: VirtualKafka
) -> None:
    async with loaded(world, kafka, HOT) as admin, collecting(world, admin) as watcher:
        first = (await watcher.until(lambda each: each.plan is not None)).plan
        assert first is not None
        later = await watcher.until(
            lambda each: each.plan is not None and each.plan.measured_s > first.measured_s, 120
        )
        assert later.plan is not None
        assert later.plan.plan.changes
        assert later.plan.number == first.number
        watcher.collector.carry_out(first.number)


async def test_a_plan_is_carried_out(world: World, kafka: VirtualKafka) -> None:
    async with loaded(world, kafka, HOT) as admin, collecting(world, admin) as watcher:
        shown = await watcher.until(lambda each: each.plan is not None)
        assert shown.plan is not None
        watcher.collector.carry_out(shown.plan.number)
        with pytest.raises(UsageError, match="is being carried out"):
            watcher.collector.carry_out(shown.plan.number)
        done = await watcher.until(lambda each: bool(each.progress and each.progress.report))
        assert done.progress is not None
        assert done.progress.stage is Stage.DONE
        assert done.progress.unfinished == 0
        assert (await leaders(admin)).count(0) <= 3
        with pytest.raises(UsageError, match="no plan is being carried out"):
            watcher.collector.cancel()
        await watcher.until(lambda each: each.plan is not None and each.plan != shown.plan)
        with pytest.raises(UsageError, match="not the newest any more"):
            watcher.collector.carry_out(shown.plan.number)
    await check_left(world, kafka)


@pytest.mark.parametrize(("end", "stage"), [("pause", Stage.PAUSED), ("cancel", Stage.CANCELLED)])
async def test_moves_end_within_10_s(
    world: World, kafka: VirtualKafka, end: str, stage: Stage
) -> None:
    async with (
        loaded(world, kafka, HOT, stored=2_000_000) as admin,
        collecting(world, admin) as watcher,
    ):
        shown = await watcher.until(lambda each: each.plan is not None)
        assert shown.plan is not None
        watcher.collector.carry_out(shown.plan.number)
        getattr(watcher.collector, end)()
        ended = await watcher.until(
            lambda each: bool(each.progress and not each.progress.stage.is_moving), 20
        )
        assert ended.progress is not None
        assert ended.progress.stage is stage
        assert ended.progress.report is not None
    await check_left(world, kafka)


async def test_a_stop_ends_moves_and_leaves_nothing(world: World, kafka: VirtualKafka) -> None:
    async with loaded(world, kafka, HOT) as admin:
        async with collecting(world, admin, probes=True) as watcher:
            shown = await watcher.until(lambda each: each.plan is not None)
            assert shown.plan is not None
            assert all(each.p99_s is not None for each in shown.answers.values())
            watcher.collector.carry_out(shown.plan.number)
        await assert_nothing_is_left(admin)


async def check_left(world: World, kafka: VirtualKafka) -> None:
    async with AsyncAdmin(kafka.bootstrap_servers, random=kafka.random("left")) as admin:
        await assert_nothing_is_left(admin)
