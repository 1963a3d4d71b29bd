"""A cluster in virtual time with load, and what a balancer and a collector must leave of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from trimtab.balance.throttles import LISTS, RATES
from trimtab.client.admin import ConfigSource
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.measure.probe import PROBE_TOPIC
from trimtab.client.producer import AsyncProducer
from trimtab.pytest.virtual import VirtualKafka
from trimtab.sim.world import World

T = "flights"
WINDOW_S = 6.0
HOT = {index: [0, 1, 2] for index in range(6)}
"""Broker 0 leads all."""
LEVEL = {index: [index % 3, (index + 1) % 3] for index in range(6)}


@asynccontextmanager
async def loaded(
    world: World,
    kafka: VirtualKafka,
    assignment: dict[int, list[int]],
    weights: Sequence[int] = (1,) * 6,
    stored: int = 0,
    pause_s: float = 0.25,
) -> AsyncIterator[AsyncAdmin]:
    """A topic that gets weight x 1 kB each `pause_s`.

    Args:
        stored: bytes in each partition at first.
    """
    servers = kafka.bootstrap_servers
    async with (
        AsyncAdmin(servers, random=kafka.random("admin"), default_api_timeout_ms=15_000) as admin,
        AsyncProducer(
            servers, random=kafka.random("p"), wall_clock=world.wall_clock, linger_ms=0, acks=1
        ) as producer,
    ):
        await admin.create_topic(T, assignment=assignment)
        for partition in assignment:
            for _ in range(stored // 100_000):
                await (await producer.send(T, bytes(100_000), partition=partition))

        async def produce() -> None:
            while True:
                for partition in assignment:
                    for _ in range(weights[partition]):
                        await producer.send(T, bytes(1000), partition=partition)
                await asyncio.sleep(pause_s)

        producing = world.loop.create_task(produce())
        try:
            yield admin
        finally:
            producing.cancel()
            await asyncio.wait([producing])


async def leaders(admin: AsyncAdmin) -> tuple[int, ...]:
    return (await admin.describe_topics([T]))[T].leaders


async def assert_nothing_is_left(admin: AsyncAdmin) -> None:
    """No throttle, no reassignment, no topic for probes."""
    entries = (await admin.describe_topic_configs([T], LISTS))[T]
    assert [each for each in entries if each.value] == []
    for broker in range(3):
        for entry in await admin.describe_configs("broker", broker):
            assert entry.name not in RATES or entry.source >= ConfigSource.DEFAULT_CONFIG
    assert await admin.list_reassignments() == {}
    assert PROBE_TOPIC not in await admin.topics()
