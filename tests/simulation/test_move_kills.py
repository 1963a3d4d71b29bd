"""Executors of moves and brokers are killed while partitions move, in virtual time.

Each seed kills four times. `SEEDS` (environment; default 6) is the number of seeds, `FIRST_SEED`
the first one: 250 seeds are 1,000 kills.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial

import pytest

from tests.simulation.test_moves import Stage, run, t
from trimtab.balance.steps import MoveRules
from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.moves import MoveReport
from trimtab.client.producer import AsyncProducer
from trimtab.kafka.errors import KafkaError

FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
SEEDS = int(os.environ.get("SEEDS", "6"))
KILLS = 4
PARTITIONS = 4
BROKERS = 6


async def ended(moving: asyncio.Task[MoveReport]) -> bool:
    """Whether all was moved."""
    try:
        report = await moving
    except KafkaError:
        return False
    return not report.left and not report.given_up


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_kills_leave_nothing_behind(seed: int) -> None:
    stored: list[bytes] = []
    acknowledged: list[bytes] = []

    def note(value: bytes, delivery: Delivery) -> None:
        if delivery.exception(0) is None:
            acknowledged.append(value)

    async def write(stage: Stage, is_over: asyncio.Event) -> None:
        random = stage.world.random("writer")
        async with AsyncProducer(
            stage.cluster.bootstrap_servers,
            random=stage.world.random("loaded"),
            wall_clock=stage.world.wall_clock,
            linger_ms=5,
        ) as producer:
            number = 0
            while not is_over.is_set():
                value = b"%08d" % number + bytes(random.randrange(500))
                delivery = await producer.send("t", value, partition=number % PARTITIONS)
                delivery.add_done_callback(partial(note, value))
                number += 1
                await asyncio.sleep(0.02)

    async def scenario(stage: Stage) -> None:
        random = stage.world.random("kills")
        await stage.create(
            *[[index, (index + 1) % BROKERS, (index + 2) % BROKERS] for index in range(PARTITIONS)],
            size=100_000,
            **{"min.insync.replicas": 1},
        )
        wanted = {
            t(index): tuple(dict.fromkeys((5 - index, (9 - index) % BROKERS, index)))
            for index in range(PARTITIONS)
        }
        is_over = asyncio.Event()
        writing = asyncio.create_task(write(stage, is_over))
        rules = MoveRules(random.choice([20_000, 100_000, 10_000_000]))
        moving = stage.begin(wanted, rules)
        for _ in range(KILLS):
            await asyncio.sleep(6 * random.random())
            if random.random() < 0.5:
                moving.cancel()
                await asyncio.wait([moving])
                await asyncio.sleep(3 * random.random())
                moving = stage.begin(wanted, rules)
            else:
                down = random.randrange(BROKERS)
                stage.down(down)
                await asyncio.sleep(8 * random.random())
                stage.cluster.brokers[down].start()
        async with asyncio.timeout(600):
            await ended(moving)

            async def are_all_alive() -> bool:
                return len((await stage.admin.cluster()).nodes) == BROKERS

            await stage.until(are_all_alive)
            # What a killed executor has left on a broker that was dead is removed by the next run.
            while not await ended(stage.begin(wanted, rules)):  # noqa: ASYNC110
                await asyncio.sleep(1)
        assert await stage.leftovers() == []
        assert {key: set(each) for key, each in (await stage.replicas()).items()} == {
            key: set(each) for key, each in wanted.items()
        }
        is_over.set()
        await writing
        async with AsyncConsumer(
            stage.cluster.bootstrap_servers, random=stage.world.random("reader")
        ) as consumer:
            places = [t(index) for index in range(PARTITIONS)]
            consumer.assign(places)
            consumer.seek_to_beginning()
            ends = await consumer.end_offsets(places)
            while any([await consumer.position(each) < ends[each] for each in places]):
                stored.extend(record.value or b"" for record in await consumer.poll())

    stage = run(scenario, seed)
    assert all(
        len(each.replicas) <= 4
        for observed, _ in stage.looks
        for each in observed.partitions.values()
    )
    assert len(acknowledged) > 100
    assert len(stored) == len(set(stored))
    assert set(acknowledged) <= set(stored)
