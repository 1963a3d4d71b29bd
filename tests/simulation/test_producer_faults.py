"""A producer under faults, in virtual time: no acknowledged record is lost or duplicated; all are
in order.

Each seed is another run with other faults (`lab.benchmarks.faults`), other options and another
load. `SEEDS` (environment; default 60) is the number of seeds, `FIRST_SEED` the first one; `pytest
-s` prints the counts. A failure shows its seed, the plan drawn from it, and the last events.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from random import Random
from typing import Any, NamedTuple

import pytest

from lab.benchmarks.faults import FaultRates, FaultyCluster, draw_fault_rates
from tests.simulation.ledger import Ledger, RecordId, Tally, read_value, write_value
from trimtab.client.admin import AsyncAdmin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.producer import AsyncProducer
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.records import TopicPartition
from trimtab.sim.network import NetworkLink
from trimtab.sim.world import World

FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
SEEDS = int(os.environ.get("SEEDS", "60"))

TOPIC = "flights"
FACES = 3
AMPLE_S = 7200.0
"""A `delivery.timeout.ms` that is longer than all faults."""
SLACK_S = 0.05
"""Seconds after `delivery.timeout.ms` within which an outcome must be reported."""


class Plan(NamedTuple):
    """The settings of a run, which its seed decides.

    Attributes:
        is_safe: whether the producer is idempotent.
        is_tight: some records fail, because of a timeout or a final error.
        options: the producer's options.
        tasks: number of concurrent senders.
        records: number of records of each sender.
        burst: number of records sent at once, before a pause of `pause` seconds.
        largest: bytes of the largest value.
        aim: how a record gets its partition: by the partitioner ("itself"), by its key, as given
            ("told"), or each in turn ("mixed").
    """

    is_safe: bool
    is_tight: bool
    rates: FaultRates
    link: NetworkLink
    partitions: int
    max_message_bytes: int
    options: dict[str, Any]
    tasks: int
    records: int
    burst: int
    pause: float
    largest: int
    aim: str


def draw_plan(seed: int) -> Plan:
    random = Random(f"{seed}/plan")
    is_safe, is_tight = seed % 5 != 4, seed % 5 in (2, 3)
    linger_ms = random.choice([0, 0, 1, 5, 20])
    request_timeout_ms = random.choice([100, 250, 600, 1500])
    delivery_timeout_ms = int(AMPLE_S * 1000)
    if is_tight:
        delivery_timeout_ms = linger_ms + request_timeout_ms + random.randrange(2000)
    max_message_bytes = random.choice([1_000_000, 1_000_000, 1_000_000, 2_000])
    largest = random.choice([20, 100, 400])
    options: dict[str, Any] = {
        "linger_ms": linger_ms,
        "request_timeout_ms": request_timeout_ms,
        "delivery_timeout_ms": delivery_timeout_ms,
        "batch_size": random.choice([0, 200, 500, 1_000, 4_000, 16_384]),
        "max_in_flight_requests_per_connection": random.randint(1, 5),
        "compression_type": random.choice(["none", "none", "gzip", "snappy", "lz4", "zstd"]),
        "buffer_memory": random.choice([33_554_432, 33_554_432, 60_000]),
        "max_request_size": random.choice([1_048_576, 1_048_576, 5_000]),
        "retry_backoff_ms": random.choice([1, 10, 100]),
        "retry_backoff_max_ms": random.choice([100, 1000]),
        "reconnect_backoff_ms": random.choice([1, 50]),
        "metadata_max_age_ms": random.choice([100, 1_000, 300_000]),
        "max_block_ms": 2 * int(AMPLE_S * 1000),
        **random.choice(
            [
                {},
                {"partitioner_class": "round_robin"},
                {"partitioner_class": "sticky"},
                {"partitioner_balance": "strict"},
                {"partitioner_balance": 0.1},
                {"partitioner_balance": "free"},
                {"partitioner_availability_timeout_ms": 20},
                {"partitioner_compat": "java", "partitioner_availability_timeout_ms": 20},
                {"partitioner_adaptive_partitioning_enable": False},
            ]
        ),
    }
    if not is_safe:
        options |= {"enable_idempotence": False, "acks": random.choice(["1", "all"])}
    elif is_tight and random.random() < 0.3:
        options["retries"] = random.randint(1, 5)
    return Plan(
        is_safe=is_safe,
        is_tight=is_tight,
        rates=draw_fault_rates(
            random,
            # A failed record must not be stored behind records of a later producer epoch.
            is_outliving=not is_tight and random.random() < 0.5,
            **({} if is_tight else {"final": 0.0}),
        ),
        link=NetworkLink(latency_ms_min=0.1, latency_ms_mean=random.choice([0.25, 2, 10])),
        partitions=random.randint(1, 12),
        max_message_bytes=max_message_bytes,
        options=options,
        tasks=random.choice([1, 1, 2, 3]),
        records=random.choice([100, 300, 1000]),
        burst=random.choice([1, 5, 30]),
        pause=random.choice([0.0002, 0.002, 0.02]),
        largest=largest,
        aim=random.choice(["itself", "key", "told", "mixed"]),
    )


class Run(NamedTuple):
    """The results of a run."""

    tally: Tally
    seen: Counter[str]
    trace_hash: str


def run_plan(seed: int, plan: Plan) -> Run:
    with World(seed) as world:
        tally, seen = world.run(_run(world, plan))
        return Run(tally, seen, world.trace.hash)


async def _run(world: World, plan: Plan) -> tuple[Tally, Counter[str]]:
    loop = asyncio.get_running_loop()
    longest = plan.options["delivery_timeout_ms"] / 1000 + SLACK_S
    ledger = Ledger(loop.time, longest)
    async with Cluster(
        storage=world.disk, now_ms=world.now_ms, random=world.random("cluster")
    ) as cluster:
        with world.network.at("reader"):
            async with AsyncAdmin(cluster.bootstrap_servers, random=world.random("admin")) as admin:
                await admin.create_topic(
                    TOPIC,
                    partitions=plan.partitions,
                    config={"max.message.bytes": plan.max_message_bytes},
                )
        faulty = FaultyCluster(
            cluster.addresses[0], FACES, plan.rates, world.random("weather"), is_virtual=True
        )
        try:
            world.network.set_link("client", "127.0.0.1", plan.link)
            async with asyncio.timeout(3 * AMPLE_S):
                with world.network.at("faces"):
                    await faulty.__aenter__()
                try:
                    with world.network.at("client"):
                        metrics = await _produce(world, plan, faulty.bootstrap_servers, ledger)
                    await faulty.calm()
                    # Delayed requests must reach the broker before the logs are read.
                    await faulty.drain()
                finally:
                    await faulty.__aexit__(None, None, None)
            with world.network.at("reader"):
                stored = await _read(world, cluster.bootstrap_servers, plan.partitions)
            tally = ledger.tally(stored)
            _judge(plan, tally)
            assert faulty.failures == []
        except BaseException as error:
            error.add_note("\n".join([*_describe(plan), "the rates:", *list(faulty.log)[-30:]]))
            raise
    return tally, faulty.seen + Counter(metrics)


async def _produce(world: World, plan: Plan, bootstrap: str, ledger: Ledger) -> dict[str, int]:
    async with AsyncProducer(
        bootstrap, wall_clock=world.wall_clock, random=world.random("producer"), **plan.options
    ) as producer:
        await asyncio.gather(
            *(
                _send(producer, plan, task, world.random(f"task {task}"), ledger)
                for task in range(plan.tasks)
            )
        )
        await producer.flush()
        accumulator = producer._core.accumulator
        assert accumulator.used == 0
        assert accumulator.incomplete_batches() == []
        for node_id in range(FACES):
            load = accumulator.node(node_id)
            assert (load.queued_batches, load.queued_bytes) == (0, 0)
            assert load.requests == 0 or (plan.is_tight and load.requests > 0)
        metrics = producer.metrics()["producer-metrics"]
        counts: dict[str, int] = {}
        for name in ("record-retry-total", "batch-split-total"):
            count = metrics[name]
            assert not isinstance(count, dict)
            counts[name] = int(count)
        return counts


async def _send(
    producer: AsyncProducer, plan: Plan, task: int, random: Random, ledger: Ledger
) -> None:
    for number in range(plan.records):
        record: RecordId = task, number
        value = write_value(
            record, bytes(random.choices(b"abcd", k=random.randint(0, plan.largest)))
        )
        aim = random.choice(["itself", "key", "told"]) if plan.aim == "mixed" else plan.aim
        await producer.send(
            TOPIC,
            value,
            key=b"%d" % random.randrange(20) if aim == "key" else None,
            partition=random.randrange(plan.partitions) if aim == "told" else None,
            on_delivery=ledger.expect(record),
        )
        ledger.note_sent(record)
        if number % plan.burst == 0:
            await asyncio.sleep(plan.pause * random.random() * 2)
        if random.random() < 0.002:
            await producer.flush()


async def _read(world: World, bootstrap: str, partitions: int) -> dict[tuple[int, int], RecordId]:
    places = [TopicPartition(TOPIC, number) for number in range(partitions)]
    async with AsyncAdmin(bootstrap, random=world.random("admin")) as admin:
        ends = await admin.list_offsets(places, "latest")
    total = sum(end.offset for end in ends.values())
    stored: dict[tuple[int, int], RecordId] = {}
    async with AsyncConsumer(bootstrap, random=world.random("consumer")) as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning()
        while len(stored) < total:
            for record in await consumer.poll(timeout_ms=60_000, max_records=10_000):
                stored[record.partition, record.offset] = read_value(record)
    return stored


def _judge(plan: Plan, tally: Tally) -> None:
    assert (tally.unanswered, tally.reported_twice, tally.late, tally.lost) == (0, 0, 0, 0), tally
    if plan.is_safe:
        assert (tally.doubled, tally.disordered) == (0, 0), tally
    if not plan.is_tight:
        assert tally.acknowledged == tally.sent, tally


def _describe(plan: Plan) -> Iterator[str]:
    for name, value in plan._asdict().items():
        if isinstance(value, FaultRates):
            value = {name: share for name, share in asdict(value).items() if share}
        yield f"{name}: {value}"


@pytest.fixture(scope="module")
def totals() -> Iterator[Counter[str]]:
    """Counts of the events of all runs; printed at the end."""
    totals: Counter[str] = Counter()
    yield totals
    print()
    for name, count in sorted(totals.items()):
        print(f"{name}: {count}")


@pytest.mark.kip(98)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_acknowledged_records_are_stored_once_in_order_under_faults(
    seed: int, totals: Counter[str]
) -> None:
    _check(seed, draw_plan(seed), totals)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_so_are_those_that_are_placed_where_they_end_soonest(
    seed: int, totals: Counter[str]
) -> None:
    """With `partitioner.balance`, and fewer records, as each run then takes a fifth of the time."""
    plan = draw_plan(seed)
    options = {
        name: value for name, value in plan.options.items() if not name.startswith("partitioner")
    }
    options["partitioner_balance"] = ["strict", 0.1, "free"][seed % 3]
    _check(seed, plan._replace(options=options, records=100, aim="itself"), totals)


def _check(seed: int, plan: Plan, totals: Counter[str]) -> None:
    run = run_plan(seed, plan)
    kind = "tight" if plan.is_tight else "ample" if plan.is_safe else "without idempotence"
    for name, count in vars(run.tally).items():
        totals[f"{kind}, {name}"] += count
    for name, count in run.seen.items():
        totals[f"seen, {name}"] += count


def test_a_seed_gives_the_same_faults() -> None:
    runs = [run_plan(FIRST_SEED, draw_plan(FIRST_SEED)) for _ in range(2)]
    assert runs[0] == runs[1]
