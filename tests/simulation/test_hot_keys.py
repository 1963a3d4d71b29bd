"""Split, sharded and moved keys under faults, in virtual time: `merge_split` returns each stored
record once, and those of each key and producer in the order in which they were sent.

`SEEDS` (environment; default 24) is the number of seeds, `FIRST_SEED` the first one; `pytest -s`
prints the counts.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import pytest

from lab.benchmarks.faults import FaultRates, FaultyCluster, draw_fault_rates
from tests.simulation.test_producer_faults import AMPLE_S, FACES, TOPIC
from trimtab.client.admin import AsyncAdmin
from trimtab.client.blocking.merged_records import merge_split
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.producer import AsyncProducer
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.records import Record, TopicPartition
from trimtab.sim.network import NetworkLink
from trimtab.sim.world import World

FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
SEEDS = int(os.environ.get("SEEDS", "24"))

KEYS = 30


class Plan(NamedTuple):
    """The settings of a run, which its seed decides.

    Attributes:
        treatment: `partitioner.hot.keys` of the topic.
        is_tight: some records fail, because of a timeout.
        is_transactional: records are sent in transactions, of which some are aborted; without
            faults, as a coordinator tells clients the cluster's own addresses.
        exponent: of the keys' Zipf distribution.
        records: of each producer.
        max_bytes: how much `merge_split` may hold.
    """

    treatment: str
    is_tight: bool
    is_transactional: bool
    rates: FaultRates
    link: NetworkLink
    partitions: int
    options: dict[str, Any]
    producers: int
    records: int
    exponent: float
    burst: int
    max_bytes: int


def draw_plan(seed: int) -> Plan:
    random = Random(f"{seed}/hot")
    is_tight = seed % 6 == 5
    is_transactional = seed % 6 == 4
    options: dict[str, Any] = {
        "linger_ms": random.choice([0, 1, 5, 20]),
        "request_timeout_ms": random.choice([250, 600, 1500]),
        "delivery_timeout_ms": 4000 if is_tight else int(AMPLE_S * 1000),
        "batch_size": random.choice([500, 1_000, 4_000, 16_384]),
        "max_in_flight_requests_per_connection": random.randint(1, 5),
        "compression_type": random.choice(["none", "none", "lz4"]),
        "buffer_memory": random.choice([33_554_432, 33_554_432, 60_000]),
        "retry_backoff_ms": random.choice([1, 10, 100]),
        "metadata_max_age_ms": random.choice([100, 1_000, 300_000]),
        "max_block_ms": 2 * int(AMPLE_S * 1000),
    }
    producers = random.choice([1, 1, 2])
    # With one producer the earliest record never waits, however little may be held.
    never_waits = producers == 1 and not is_tight and not is_transactional
    return Plan(
        treatment=random.choice(["split", "split", "shard:2", "move", "move"]),
        is_tight=is_tight,
        is_transactional=is_transactional,
        rates=draw_fault_rates(random, is_outliving=False, final=0.0),
        link=NetworkLink(latency_ms_min=0.1, latency_ms_mean=random.choice([0.25, 2, 10])),
        partitions=random.randint(2, 9),
        options=options,
        producers=producers,
        records=random.choice([2500, 4000]),
        exponent=random.choice([0.8, 1.1, 1.4]),
        burst=random.choice([5, 30, 200]),
        max_bytes=random.choice([20_000, 1 << 26]) if never_waits else 1 << 26,
    )


class Found(NamedTuple):
    sent: dict[tuple[int, int], list[int]]
    acknowledged: set[tuple[int, int, int]]
    stored: int
    merged: list[Record]
    given_up: int
    late: int


async def _run(world: World, plan: Plan) -> tuple[Found, Counter[str]]:
    async with Cluster(
        storage=world.disk, now_ms=world.now_ms, random=world.random("cluster")
    ) as cluster:
        with world.network.at("reader"):
            async with AsyncAdmin(cluster.bootstrap_servers, random=world.random("admin")) as admin:
                await admin.create_topic(TOPIC, partitions=plan.partitions)
        faulty = FaultyCluster(
            cluster.addresses[0], FACES, plan.rates, world.random("weather"), is_virtual=True
        )
        world.network.set_link("client", "127.0.0.1", plan.link)
        sent: dict[tuple[int, int], list[int]] = {}
        acknowledged: set[tuple[int, int, int]] = set()
        async with asyncio.timeout(3 * AMPLE_S):
            with world.network.at("faces"):
                await faulty.__aenter__()
            servers = faulty.bootstrap_servers
            if plan.is_transactional:
                servers = cluster.bootstrap_servers
            try:
                with world.network.at("client"):
                    async with asyncio.TaskGroup() as tasks:
                        for number in range(plan.producers):
                            tasks.create_task(
                                _produce(
                                    world,
                                    plan,
                                    servers,
                                    number,
                                    sent,
                                    acknowledged,
                                )
                            )
                await faulty.calm()
                await faulty.drain()
            finally:
                await faulty.__aexit__(None, None, None)
        with world.network.at("reader"):
            found = await _read(world, plan, cluster.bootstrap_servers)
        assert faulty.failures == []
    return Found(sent, acknowledged, *found), faulty.seen


async def _produce(
    world: World,
    plan: Plan,
    bootstrap: str,
    number: int,
    sent: dict[tuple[int, int], list[int]],
    acknowledged: set[tuple[int, int, int]],
) -> None:
    random = world.random(f"producer {number}")
    options = dict(plan.options, partitioner_hot_keys=f"{TOPIC}={plan.treatment}")
    if plan.is_transactional:
        options["transactional_id"] = f"t{number}"
    weights = [1 / rank**plan.exponent for rank in range(1, KEYS + 1)]
    drawn = random.choices(range(KEYS), weights, k=plan.records)
    async with AsyncProducer(
        bootstrap, wall_clock=world.wall_clock, random=world.random(f"p{number}"), **options
    ) as producer:
        if plan.is_transactional:
            await producer.init_transactions()
        part: list[tuple[int, int, int]] = []
        for index, key in enumerate(drawn):
            if plan.is_transactional and index % 500 == 0:
                await producer.begin_transaction()
                part = []
            seen = sent.setdefault((number, key), [])
            record = number, key, len(seen)
            seen.append(len(seen))

            def note(delivery: Any, record: tuple[int, int, int] = record) -> None:
                if delivery.exception(0) is None and not plan.is_transactional:
                    acknowledged.add(record)

            part.append(record)
            await producer.send(
                TOPIC,
                b"%d %d %d " % record + bytes(random.randrange(60)),
                key=b"key-%d" % key,
                on_delivery=note,
            )
            if index % plan.burst == 0:
                await asyncio.sleep(0.004 * random.random())
            if plan.is_transactional and index % 500 == 499:
                if random.random() < 0.3:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
                    acknowledged.update(part)
        await producer.flush()


async def _read(world: World, plan: Plan, bootstrap: str) -> tuple[int, list[Record], int, int]:
    places = [TopicPartition(TOPIC, number) for number in range(plan.partitions)]
    isolation: Any = "read_committed" if plan.is_transactional else "read_uncommitted"
    stored = 0
    async with AsyncConsumer(
        bootstrap, random=world.random("counter"), isolation_level=isolation
    ) as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends = await consumer.end_offsets(places)
        while any([await consumer.position(place) < end for place, end in ends.items()]):
            stored += len(await consumer.poll(max_records=10_000))
    async with AsyncConsumer(
        bootstrap, random=world.random("merger"), isolation_level=isolation
    ) as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning()
        merged = merge_split(consumer, max_bytes=plan.max_bytes)
        records: list[Record] = []
        async with asyncio.timeout(1000):
            while len(records) < stored:
                records += await merged.poll()
        assert merged.held_bytes == 0
        assert await merged.poll(timeout_ms=1000) == []
    return stored, records, merged.given_up, merged.late


def _judge(plan: Plan, found: Found) -> Counter[str]:
    places: dict[tuple[int, int], set[int]] = {}
    seen: dict[tuple[int, int], list[int]] = {}
    for record in found.merged:
        assert record.value is not None
        number, key, index = map(int, record.value.split()[:3])
        assert record.key == b"key-%d" % key
        seen.setdefault((number, key), []).append(index)
        places.setdefault((number, key), set()).add(record.partition)
    for each, indexes in seen.items():
        assert len(indexes) == len(set(indexes)), "doubled"
        if not plan.is_tight and not found.given_up:
            assert indexes == sorted(indexes), f"key {each} of {plan.treatment}"
    merged = {(*each, index) for each, indexes in seen.items() for index in indexes}
    assert found.acknowledged <= merged, "lost"
    if not plan.is_tight and not plan.is_transactional:
        assert len(merged) == sum(map(len, found.sent.values()))
    treated = sum(len(each) > 1 for each in places.values())
    return Counter(
        {
            f"{plan.treatment}, runs": 1,
            f"{plan.treatment}, runs with treated keys": bool(treated),
            f"{plan.treatment}, keys in several partitions": treated,
            f"{plan.treatment}, records": len(merged),
            "given up": found.given_up,
            "late": found.late,
            "tight and late": found.late if plan.is_tight else 0,
        }
    )


@pytest.fixture(scope="module")
def totals() -> Iterator[Counter[str]]:
    totals: Counter[str] = Counter()
    yield totals
    print()
    for name, count in sorted(totals.items()):
        print(f"{name}: {count}")


def run_plan(seed: int, plan: Plan) -> tuple[Found, Counter[str]]:
    with World(seed) as world:
        return world.run(_run(world, plan))


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_hot_keys_keep_their_order_under_faults(seed: int, totals: Counter[str]) -> None:
    plan = draw_plan(seed)
    try:
        found, _ = run_plan(seed, plan)
        counts = _judge(plan, found)
    except BaseException as error:
        error.add_note(f"{plan}")
        raise
    totals.update(counts)
    if not plan.is_tight:
        assert (found.late, found.given_up) == (0, 0)
