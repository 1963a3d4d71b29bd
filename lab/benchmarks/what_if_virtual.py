"""The changes of `what_if.py` on six brokers in virtual time, where nothing else takes their CPU.

Brokers, controller, producers, consumers and the collector are the real ones; network, disks and
clock are virtual. What one host sends to another passes at 1.5 MB/s, so probes wait for the
producers' batches: the more, the more bytes a broker has.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from lab.benchmarks.what_if import RACKS, USUAL, Load, Rates, forecast, read, write
from trimtab.balance.level_plan import Goal, LevelPlan
from trimtab.cli.what_if.forecast import compare
from trimtab.cli.what_if.measured import Measured, read_snapshots
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.balancer import Balancer
from trimtab.client.collector import Collector, Snapshot
from trimtab.client.moves.executor import MoveExecutor
from trimtab.cluster.config.node import EMBEDDED
from trimtab.kafka.records import TopicPartition
from trimtab.sim.network import NetworkLink
from trimtab.sim.virtual_cluster import VirtualBroker, VirtualCluster
from trimtab.sim.world import World

SECONDS = 50.0
WINDOW_S = 6.0
SETTLE_S = 12.0
CLIENTS = "clients"
BYTES_S = 1.5e6
MOVED = {TopicPartition("flights", at): [4, 1] for at in range(6)}
CONFIG = {**EMBEDDED, "log.message.timestamp.after.max.ms": 2**63 - 1}


class VirtualScene:
    """A cluster with its load, in virtual time."""

    def __init__(self, world: World, cluster: VirtualCluster) -> None:
        self.world = world
        self.cluster = cluster
        self.admin = AsyncAdmin(cluster.bootstrap_servers)
        self.snapshots: list[Snapshot] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, is_uneven: bool) -> None:
        while not all(node.is_serving for node in self.cluster.nodes):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for at in range(6):
            self.world.network.set_link(
                CLIENTS, f"broker-{at}", NetworkLink(bytes_per_second=BYTES_S)
            )
        flights = {
            at: [0, 1] if is_uneven and at % 2 else [at % 6, (at + 1) % 6] for at in range(12)
        }
        await self.admin.create_topic("flights", assignment=flights)
        trips = {at: [(at + 3) % 6, at % 6] for at in range(6)}
        await self.admin.create_topic("trips", assignment=trips)
        await self.set_load(USUAL)
        await asyncio.sleep(SETTLE_S)

    async def set_load(self, rates: Rates) -> None:
        await self.end()
        servers = self.cluster.bootstrap_servers
        random = self.world.random("clients")
        work = [write(servers, *each, random) for each in rates.items()]
        self._tasks = [asyncio.create_task(each) for each in (*work, read(servers, [*rates]))]

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def watch(self) -> None:
        """Collect snapshots for less than a minute."""
        self.snapshots = []
        wall = self.world.wall_clock

        async def make_no_plan(_: Callable[[], LevelPlan]) -> LevelPlan:
            return LevelPlan((), {}, {}, 0, 0, (), ())

        collector = Collector(
            self.admin, window_s=WINDOW_S / 2, probes=True, wall=wall, compute=make_no_plan
        )

        def keep() -> None:
            last = collector.snapshot
            if last is not None and (not self.snapshots or self.snapshots[-1] is not last):
                self.snapshots.append(last)

        running = asyncio.create_task(collector.run(keep))
        await asyncio.sleep(SECONDS)
        collector.stop()
        await running

    def measured(self) -> Measured:
        return read_snapshots("the virtual cluster", self.snapshots, WINDOW_S)


async def _growth(scene: VirtualScene) -> None:
    grown = {name: {**each, "rate": 1.5 * each["rate"]} for name, each in USUAL.items()}
    await scene.set_load(grown)


async def _partitions(scene: VirtualScene) -> None:
    await scene.admin.create_partitions("flights", 18)


async def _like(scene: VirtualScene) -> None:
    await scene.admin.create_topic("arrivals", 6, 2)
    await scene.set_load({**USUAL, "arrivals": USUAL["flights"]})


async def _topic(scene: VirtualScene) -> None:
    await scene.admin.create_topic("alarms", 8, 3)
    await scene.set_load({**USUAL, "alarms": {"rate": 100}})


async def _broker(scene: VirtualScene) -> None:
    scene.cluster.brokers[5].kill()


async def _rack(scene: VirtualScene) -> None:
    for at in (2, 5):
        scene.cluster.brokers[at].kill()


async def _level(scene: VirtualScene) -> None:
    wall = scene.world.wall_clock
    async with Balancer(scene.admin, Goal(), window_s=30.0, wall=wall) as balancer:
        await balancer.move(balancer.plan(await balancer.measure()))


async def _reassign(scene: VirtualScene) -> None:
    await MoveExecutor(scene.admin, MOVED).run()


async def _key(scene: VirtualScene) -> None:
    await scene.set_load({**USUAL, "trips": {**USUAL["trips"], "key": "city"}})


async def _producer(scene: VirtualScene) -> None:
    options = {"partitioner.rack.aware": "true", "client.rack": "a"}
    await scene.set_load({**USUAL, "flights": {**USUAL["flights"], "options": options}})


ACTS: list[Callable[[VirtualScene], Awaitable[None]]] = [
    *(_growth, _partitions, _like, _topic, _broker, _rack, _level, _reassign, _key, _producer)
]
"""In the order of `what_if.CHANGES`."""


def try_virtually(words: list[str], number: int) -> list[dict[str, Any]]:
    """Forecast a change, make it, and compare."""
    with World(seed=number) as world, tempfile.TemporaryDirectory() as directory:
        cluster = VirtualCluster(world, len(RACKS), CONFIG)
        for at, rack in enumerate(RACKS):
            own = VirtualBroker(world, at, {**CONFIG, "broker.rack": rack})
            cluster.brokers[at] = cluster.nodes[at + 1] = own
        cluster.start()
        with world.network.at(CLIENTS):
            scene = VirtualScene(world, cluster)
            world.run(scene.start("level" in words))
            world.run(scene.watch())
            files = _write_files(Path(directory), world.random("sample"))
            words = [files.get(word, word) for word in words]
            words += ["--sample", files["SAMPLE"]] if "--key" in words else []
            said = forecast(scene.measured(), words)
            world.run(_act(scene, ACTS[number - 1]))
            rows = compare(said, scene.measured())
            world.run(_end(scene))
        return rows


async def _act(scene: VirtualScene, act: Callable[[VirtualScene], Awaitable[None]]) -> None:
    await act(scene)
    await asyncio.sleep(SETTLE_S)
    await scene.watch()


async def _end(scene: VirtualScene) -> None:
    await scene.end()
    await scene.admin.close()
    for node in scene.cluster.nodes:
        if node.life is not None:
            node.kill()


def _write_files(directory: Path, random: Random) -> dict[str, str]:
    """A plan, and a sample of what is written to trips."""
    plan, sample = directory / "plan.json", directory / "sample.jsonl"
    partitions = [
        {"topic": each.topic, "partition": each.partition, "replicas": replicas}
        for each, replicas in MOVED.items()
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    sample.write_text("".join(f"{Load.fields(random)}\n" for _ in range(20_000)))
    return {"FILE": str(plan), "SAMPLE": str(sample)}
