"""One run of the reliability simulation: a cluster, who uses it, faults, and what must hold."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, NamedTuple

from trimtab.client.admin import AsyncAdmin
from trimtab.records import TopicPartition
from trimtab.sim.checkers import Checkers, Violation, is_converged
from trimtab.sim.faults import FaultSchedule
from trimtab.sim.virtual_cluster import VirtualCluster
from trimtab.sim.workload import Reader, Readings, Sender, judge, read_all
from trimtab.sim.world import World

OPTIONS: dict[str, Any] = {
    "broker.heartbeat.interval.ms": 1000,
    "broker.session.timeout.ms": 3000,
    "replica.lag.time.max.ms": 4000,
    "replica.fetch.wait.max.ms": 1500,
    "replica.socket.timeout.ms": 3000,
    "replica.fetch.backoff.ms": 500,
    "log.flush.offset.checkpoint.interval.ms": 10_000,
    "leader.imbalance.check.interval.seconds": 20,
}
GUARDED = "guarded"
LOOSE = "loose"
CALM_S = 120.0
"""Within which everything is well again once the faults have ended."""


class Run(NamedTuple):
    """What a run came to."""

    seed: int
    virtual_s: float
    faults: Counter[str]
    acknowledged: int
    looks: int
    trace_hash: str


def run_seed(seed: int, world: World | None = None) -> Run:
    """One run.

    Raises:
        Violation: something did not hold; the notes say when, and what was last.
    """
    with world or World(seed) as world:
        return world.run(_run(world))


async def _run(world: World) -> Run:
    random = world.random("plan")
    cluster = VirtualCluster(world, random.choice((3, 3, 4, 5)), OPTIONS)
    guarded = frozenset((GUARDED,))
    checkers = Checkers(cluster, guarded)
    checkers.start()
    cluster.start()
    while not all(node.is_serving for node in cluster.nodes):
        await asyncio.sleep(0.1)
    partitions = random.choice((1, 2, 3))
    with world.network.at("admin"):
        async with AsyncAdmin(cluster.bootstrap_servers, random=world.random("admin")) as admin:
            await admin.create_topic(
                GUARDED, partitions, 3, config={"min.insync.replicas": 2, "segment.bytes": 20_000}
            )
            await admin.create_topic(LOOSE, 1, 3, config={"min.insync.replicas": 1})
    places = [TopicPartition(GUARDED, number) for number in range(partitions)]

    senders = []
    for number in range(3):
        options: dict[str, Any] = {
            "delivery_timeout_ms": 7_200_000,
            "max_block_ms": 7_200_000,
            "request_timeout_ms": random.choice((500, 2000, 5000)),
            "linger_ms": random.choice((0, 5)),
            "metadata_max_age_ms": 10_000,
        }
        keeps = number < 2
        if not keeps:
            options |= {"enable_idempotence": False, "acks": "1"}
        senders.append(
            Sender(
                world, number, cluster.bootstrap_servers, GUARDED if keeps else LOOSE, keeps, options
            )
        )
    readings = Readings()
    reader = Reader(world, 0, cluster.bootstrap_servers, places, readings,
                    {"fetch_max_wait_ms": 2000, "request_timeout_ms": 5000,
                     "metadata_max_age_ms": 10_000})
    tasks: list[asyncio.Task[None]] = []
    for user in (*senders, reader):
        with world.network.at(user.host):
            tasks.append(asyncio.get_running_loop().create_task(user.run(), name=user.host))
    schedule = FaultSchedule(cluster, guarded, [user.host for user in (*senders, reader)])
    faults = asyncio.get_running_loop().create_task(schedule.run(), name="faults")
    duration_s = random.uniform(60, 180)

    async def elapse(seconds: float) -> None:
        done, _ = await asyncio.wait(
            [*tasks, faults], timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
        )
        if len(done) == len(tasks) + 1:
            await asyncio.sleep(seconds)
        for task in done:
            if not task.cancelled():
                task.result()

    async def until(what: Any, limit_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + limit_s
        while missing := what():
            schedule.look_after()
            if asyncio.get_running_loop().time() > deadline:
                raise Violation(f"{limit_s:g} s after the last fault, still: {missing}")
            await elapse(0.5)
            checkers.check_metadata()
            checkers.check_processes()

    end_s = asyncio.get_running_loop().time() + duration_s
    while asyncio.get_running_loop().time() < end_s:
        await elapse(1.0)
        checkers.check_metadata()
        checkers.check_processes()
    faults.cancel()
    await asyncio.wait([faults])
    schedule.heal()
    for sender in senders:
        sender.stop()
    await until(lambda: is_converged(cluster), CALM_S)
    sending = tasks[: len(senders)]
    await until(lambda: "a sender waits" if not all(t.done() for t in sending) else "", CALM_S)
    with world.network.at("last"):
        stored = await read_all(
            world, cluster.bootstrap_servers, [*places, TopicPartition(LOOSE, 0)]
        )
    judge(senders, stored)
    ends = {place: records[-1][0] + 1 if records else 0 for place, records in stored.items()}
    await until(
        lambda: ""
        if all(reader.next[place] == ends[place] for place in places)
        else "a reader is behind",
        CALM_S,
    )
    for task in tasks[len(senders):]:
        task.cancel()
    await asyncio.gather(*tasks[len(senders):], return_exceptions=True)
    await cluster.close()
    await asyncio.sleep(1)
    checkers.check_processes()
    checkers.stop()
    return Run(
        world.seed,
        world.loop.time(),
        schedule.counts,
        sum(len(sender.ledger.acknowledged) for sender in senders),
        checkers.looks,
        world.trace_hash,
    )
