"""The whole room on a cluster in virtual time: rates against what is really sent and read, and a
broker that becomes slow against ordinary jitter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.measure.followers import Blame, find_blame, find_lags, poll_ends
from trimtab.client.measure.probe import BrokerProbe
from trimtab.client.measure.rates import LoadMeter
from trimtab.client.measure.sample import take_sample
from trimtab.client.measure.slow import SlowBrokers, collect_signs, find_slow
from trimtab.client.producer import AsyncProducer
from trimtab.client.topic_view import TopicView
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.pytest.virtual import VirtualKafka
from trimtab.sim.network import ANY, NetworkLink
from trimtab.sim.world import World

T = "flights"
SENT = {0: (10, 1000), 1: (4, 300), 2: (2, 20_000), 3: (1, 100), 4: (0, 0)}
"""By partition, records/s and bytes of a value: skewed 400 : 1."""


def stored(size: int) -> int:
    """The bytes of a batch with one record, as the log stores it."""
    builder = BatchBuilder(size)
    builder.append(0, None, bytes(size), ())
    return len(builder.build())


@asynccontextmanager
async def tasks(*works: asyncio.Task[None]) -> AsyncIterator[None]:
    yield
    for work in works:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)


async def produce(producer: AsyncProducer, partition: int, rate: int, size: int) -> None:
    loop = asyncio.get_running_loop()
    begin, number = loop.time(), 0
    while rate:
        number += 1
        await asyncio.sleep(begin + number / rate - loop.time())
        await (await producer.send(T, bytes(size), partition=partition))


async def consume(consumer: AsyncConsumer) -> None:
    consumer.subscribe([T])
    while True:
        await consumer.poll(timeout_ms=200)


async def test_rates_are_within_two_per_cent_of_what_is_sent_and_read(
    world: World, kafka: VirtualKafka
) -> None:
    """While segments are deleted, and a leader changes."""
    servers = kafka.bootstrap_servers
    async with (
        AsyncAdmin(servers, random=kafka.random("admin")) as admin,
        AsyncProducer(
            servers, random=kafka.random("p"), wall_clock=world.wall_clock, linger_ms=0
        ) as producer,
        AsyncConsumer(
            servers,
            random=kafka.random("c"),
            group_id="g",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=1000,
        ) as consumer,
    ):
        await admin.create_topic(
            T,
            assignment={index: [index % 3, (index + 1) % 3] for index in SENT},
            config={"segment.bytes": 1 << 20},
        )
        create = world.loop.create_task
        works = [create(produce(producer, index, *each)) for index, each in SENT.items()]
        works.append(create(consume(consumer)))
        async with tasks(*works):
            await asyncio.sleep(10)
            meter = LoadMeter(60)
            sample = None
            for turn in range(23):
                sample = await take_sample(admin, sample, wall=world.wall_clock)
                meter.add(sample)
                if turn == 15:
                    await admin.alter_reassignments({(T, 0): [1, 0]})
                    await admin.elect_leaders([(T, 0)])
                if turn == 17:
                    ends = sample.ends[2].value
                    await admin.delete_records({(T, 2): ends[TopicPartition(T, 2)]})
                if turn > 12:
                    measured = meter.measure()
                    assert measured.left_out == {}
                    loads = {each.partition: each for each in measured.load.partitions}
                    for index, (rate, size) in SENT.items():
                        partition = TopicPartition(T, index)
                        found = loads[partition]
                        true = rate * stored(size) if rate else 0
                        assert found.bytes_in == pytest.approx(true, rel=0.02)
                        assert measured.records_in[partition] == pytest.approx(rate, rel=0.02)
                        if rate > 1:  # a commit is a step of a second
                            assert found.bytes_out == pytest.approx(true, rel=0.02)
                await asyncio.sleep(5)
        assert sample is not None
        assert sample.topics.value[T].leaders[0] == 1
        sizes = sample.logs[2].value.sizes
        assert sizes[TopicPartition(T, 2)] < 2 * (1 << 20), "no segment was deleted"
        assert len(loads) == len(SENT) + len(sample.topics.value["__consumer_offsets"].leaders)


class Watch:
    """Probes all brokers, asks them for ends every second, and judges them four times a second.

    Attributes:
        found: the judgements in which any broker is slow, suspected or a cause of alarm, with the
            loop's time.
        judged: the number of all judgements.
    """

    def __init__(self, kafka: VirtualKafka, world: World) -> None:
        self.found: list[tuple[float, SlowBrokers]] = []
        self.judged = 0
        self._kafka = kafka
        self._world = world
        self._signs: dict[int, list[str]] = {}

    async def run(self, fault: Callable[[], None], seconds: float) -> None:
        servers = self._kafka.bootstrap_servers
        async with AsyncAdmin(servers, random=self._kafka.random("admin")) as admin:
            await admin.create_topic(
                T, assignment={index: [index % 3, (index + 1) % 3] for index in range(6)}
            )
            views = await admin.describe_topics([T])
            probe = BrokerProbe(admin, wall=self._world.wall_clock)
            await probe.start()
            create = self._world.loop.create_task
            async with tasks(create(self._poll(admin, views)), create(self._judge(probe))):
                await asyncio.sleep(10)
                fault()
                await asyncio.sleep(seconds)
                self._world.loop.resume_all()
                self._world.network.set_link(ANY, ANY, NetworkLink())
            await probe.remove()

    async def _poll(self, admin: AsyncAdmin, views: Mapping[str, TopicView]) -> None:
        replicas: dict[int, list[TopicPartition]] = {}
        for index, view in enumerate(views[T].partitions):
            for broker in view.replicas:
                replicas.setdefault(broker, []).append(TopicPartition(T, index))
        before = await poll_ends(admin, replicas)
        while True:
            await asyncio.sleep(1)
            now = await poll_ends(admin, replicas)
            blame = find_blame(find_lags(views, before, now))
            self._signs = collect_signs(blame, now.round_trips)
            before = now

    async def _judge(self, probe: BrokerProbe) -> None:
        while True:
            await asyncio.sleep(0.25)
            self.judged += 1
            judgement = find_slow(probe.times(), self._signs)
            if any(judgement):
                self.found.append((self._world.loop.time(), judgement))


async def test_a_broker_that_replicates_slowly_is_blamed(world: World, kafka: VirtualKafka) -> None:
    """As a follower, and as a leader; its clients notice nothing."""
    servers = kafka.bootstrap_servers
    async with (
        AsyncAdmin(servers, random=kafka.random("admin")) as admin,
        AsyncProducer(
            servers, random=kafka.random("p"), wall_clock=world.wall_clock, acks=1
        ) as producer,
    ):
        assignment = {index: [index % 3, (index + 1) % 3, (index + 2) % 3] for index in range(3)}
        await admin.create_topic(T, assignment=assignment)
        views = await admin.describe_topics([T])
        replicas = {broker: [TopicPartition(T, index) for index in range(3)] for broker in range(3)}
        works = (world.loop.create_task(produce(producer, index, 20, 100)) for index in range(3))
        async with tasks(*works):
            blamed = []
            before = await poll_ends(admin, replicas)
            for turn in range(12):
                if turn == 6:
                    for other in ("broker-0", "broker-2"):
                        world.network.set_link("broker-1", other, NetworkLink(700, 700))
                await asyncio.sleep(2)
                now = await poll_ends(admin, replicas)
                blamed.append(find_blame(find_lags(views, before, now)))
                before = now
            world.network.set_link(ANY, ANY, NetworkLink())
    assert blamed[:6] == [Blame(frozenset(), frozenset())] * 6
    assert blamed[6:] == [Blame(frozenset({1}), frozenset({1}))] * 6


def slow_link(world: World) -> None:
    world.network.set_link("broker-1", ANY, NetworkLink(40, 50))


def hang(world: World) -> None:
    world.loop.pause("broker-1")


@pytest.mark.parametrize("fault", [slow_link, hang])
async def test_a_broker_that_becomes_slow_is_named_within_four_seconds(
    world: World, kafka: VirtualKafka, fault: Callable[[World], None]
) -> None:
    watch = Watch(kafka, world)
    began: list[float] = []

    def begin() -> None:
        began.append(world.loop.time())
        fault(world)

    await watch.run(begin, seconds=6)
    slow = [(at, list(each.slow)) for at, each in watch.found if each.slow]
    assert slow
    assert slow[0][0] - began[0] <= 4
    assert all(names == [1] for _, names in slow)
    assert all(at >= began[0] for at, _ in watch.found)
    assert not any(each.alarm for _, each in watch.found)


async def test_a_broker_of_which_only_probes_are_slow_is_suspected(
    world: World, kafka: VirtualKafka
) -> None:
    watch = Watch(kafka, world)
    await watch.run(lambda: kafka.slow(1, produce_ms=100), seconds=6)
    assert watch.found
    assert all(list(each.suspected) == [1] for _, each in watch.found)
    assert not any(each.slow or each.alarm for _, each in watch.found)


async def test_ten_minutes_of_ordinary_jitter_are_no_alarm(
    world: World, kafka: VirtualKafka
) -> None:
    """Round trips of a few milliseconds, one in fifty 60 ms late."""
    watch = Watch(kafka, world)

    def jitter() -> None:
        world.network.set_link(ANY, ANY, NetworkLink(0.2, 1.5, late_share=0.02, late_ms=60))

    await watch.run(jitter, seconds=600)
    assert watch.judged > 2400
    assert watch.found == []
