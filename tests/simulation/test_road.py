"""A producer, three brokers and a consumer in the virtual world: minutes in seconds.

The code is the same as in production; only time, network, disks and randomness are virtual.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Unpack

import pytest

from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.client.admin import AsyncAdmin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.network.option_types import ProducerOptions
from trimtab.client.producer import AsyncProducer
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.records import Record, TopicPartition
from trimtab.sim.network import NetworkLink
from trimtab.sim.world import World

TOPIC = "flights"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(3)]
VALUE_BYTES = 100


class Run(NamedTuple):
    """The results of a run."""

    trace_hash: str
    events: int
    virtual_s: float
    shares: tuple[float, ...]
    """Each broker's share of the records, by the leader of their partition."""


Send = Callable[[int], Awaitable[None]]


def run_road(
    seed: int,
    send_all: Callable[[World, Send], Awaitable[None]],
    slow_ms: float = 0,
    link: NetworkLink | None = None,
    **options: Unpack[ProducerOptions],
) -> Run:
    """Produce records, read them back, and check each one.

    Args:
        send_all: calls its `Send` argument with 0, 1, 2, … at times of its choice.
        slow_ms: delay of broker 0's answers to produce requests.
        options: the producer's options.
    """
    with World(seed) as world:
        if link is not None:
            world.network.set_link("client", "127.0.0.1", link)
        shares = world.run(_road(world, send_all, slow_ms, options))
        return Run(world.trace.hash, world.trace.count, world.loop.time(), shares)


async def _road(
    world: World,
    send_all: Callable[[World, Send], Awaitable[None]],
    slow_ms: float,
    options: ProducerOptions,
) -> tuple[float, ...]:
    cluster = Cluster(
        brokers=3, storage=world.disk, now_ms=world.now_ms, random=world.random("cluster")
    )
    async with cluster:
        with world.network.at("client"):
            bootstrap = cluster.bootstrap_servers
            async with AsyncAdmin(bootstrap, random=world.random("admin")) as admin:
                await admin.create_topic(TOPIC, partitions=len(PARTITIONS))
                leaders = (await admin.describe_topics([TOPIC]))[TOPIC].leaders
            cluster.slow(broker=0, produce_ms=slow_ms)
            deliveries = await _produce(world, bootstrap, send_all, options)
            records = await _consume(world, bootstrap, len(deliveries))
    _check(deliveries, records)
    by_leader = Counter(leaders[record.partition] for record in records)
    return tuple(by_leader[broker] / len(records) for broker in range(3))


async def _produce(
    world: World,
    bootstrap: str,
    send_all: Callable[[World, Send], Awaitable[None]],
    options: ProducerOptions,
) -> list[Delivery]:
    deliveries: list[Delivery] = []
    async with AsyncProducer(
        bootstrap, wall_clock=world.wall_clock, random=world.random("producer"), **options
    ) as producer:

        async def send(number: int) -> None:
            deliveries.append(await producer.send(TOPIC, b"%0*d" % (VALUE_BYTES, number)))

        await send_all(world, send)
        await producer.flush()
    return deliveries


async def _consume(world: World, bootstrap: str, count: int) -> list[Record]:
    records: list[Record] = []
    async with AsyncConsumer(bootstrap, random=world.random("consumer")) as consumer:
        consumer.assign(PARTITIONS)
        consumer.seek_to_beginning()
        while polled := await consumer.poll(timeout_ms=5_000, max_records=10_000):
            records += polled
    return records


def _check(deliveries: list[Delivery], records: list[Record]) -> None:
    """Every record is stored once, at its acknowledged offset, in the order of sending."""
    stored = {(record.partition, record.offset): int(record.value or b"") for record in records}
    assert len(stored) == len(records) == len(deliveries)
    for number, delivery in enumerate(deliveries):
        acknowledged = delivery.result()
        assert stored[acknowledged.partition, acknowledged.offset] == number
    for partition in range(len(PARTITIONS)):
        in_order = [stored[place] for place in sorted(stored) if place[0] == partition]
        assert in_order == sorted(in_order)


async def send_in_busy_spells(world: World, send: Send) -> None:
    """100,000 records in ten minutes: 2,000 per second during five seconds of each minute."""
    for minute in range(10):
        for spell in range(1000):
            for number in range(10):
                await send(minute * 10_000 + spell * 10 + number)
            await asyncio.sleep(0.005)
        await asyncio.sleep(55)


def run_slow_broker(seed: int) -> Run:
    # Batches of eight records: 250 per second in a busy spell, while broker 0 can answer 50.
    return run_road(seed, send_in_busy_spells, slow_ms=20, batch_size=1000, linger_ms=0)


@pytest.mark.kip(794)
def test_two_runs_with_a_slow_broker_are_equal_and_send_it_less() -> None:
    first = run_slow_broker(seed=1)
    assert first.virtual_s >= 600
    assert first.shares[0] < 0.8 * min(first.shares[1:])
    assert run_slow_broker(seed=1) == first
    print(", ".join(f"broker {broker}: {part:.1%}" for broker, part in enumerate(first.shares)))


def test_another_seed_gives_another_run() -> None:
    async def send_a_few(world: World, send: Send) -> None:
        for number in range(1000):
            await send(number)
            await asyncio.sleep(0.01)

    runs = [run_road(seed, send_a_few) for seed in (1, 2, 1)]
    assert runs[0] == runs[2]
    assert runs[0].trace_hash != runs[1].trace_hash


@pytest.mark.parametrize("seed", range(3))
def test_every_record_is_stored_once_through_resets_and_cuts(seed: int) -> None:
    broken = 0

    async def make_faults(world: World) -> None:
        nonlocal broken
        random = world.random("faults")
        while True:
            await asyncio.sleep(random.uniform(0.1, 0.7))
            server = random.choice(world.network.servers)
            if random.random() < 0.5:
                broken += world.network.reset("client", server)
            else:
                world.network.cut("client", server, one_way=random.random() < 0.5)
                await asyncio.sleep(random.uniform(0.1, 1.5))
                world.network.heal()

    async def send_through_faults(world: World, send: Send) -> None:
        faults = asyncio.create_task(make_faults(world))
        for number in range(10_000):
            await send(number)
            await asyncio.sleep(0.002)
        faults.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await faults
        world.network.heal()

    # A latency at which several requests are in flight whenever a connection breaks.
    link = NetworkLink(latency_ms_min=5, latency_ms_mean=20)
    run_road(seed, send_through_faults, link=link, request_timeout_ms=700, linger_ms=0)
    assert broken >= 5


def test_a_run_is_the_same_in_another_process_compiled_or_interpreted() -> None:
    """Decisions must not depend on the order of a set of strings, or on object addresses."""
    script = f"""
import asyncio, sys
sys.path[:0] = {[os.path.dirname(__file__), *sys.path]!r}
from test_road import run_road

async def send_some(world, send):
    for number in range(2000):
        await send(number)
        if number % 10 == 9:
            await asyncio.sleep(0.005)

print(run_road(1, send_some, slow_ms=20, batch_size=1000))
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, **environment},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for environment in (
            {"PYTHONHASHSEED": "1"},
            {"PYTHONHASHSEED": "2", "TRIMTAB_PURE": "1"},
        )
    ]
    assert runs[0] == runs[1]
    assert runs[0].startswith("Run(")
