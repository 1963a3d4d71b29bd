"""Everything that clients do at brokers while the controller is down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from trimtab.client.admin import AsyncAdmin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.producer import AsyncProducer
from trimtab.cluster.metadata.features import TRANSACTION_VERSION
from trimtab.kafka.errors import KafkaError
from trimtab.kafka.records import TopicPartition
from trimtab.sim.virtual_cluster import VirtualCluster
from trimtab.sim.world import World

OPTIONS: Mapping[str, object] = {
    "transaction.state.log.num.partitions": 3,
    "offsets.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
}
PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2)]
LIMIT_S = 20
"""Virtual seconds of each activity: below all the clients' own time limits."""


class Scene:
    """A cluster, and clients that are new."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = VirtualCluster(world, 3, OPTIONS)
        self.clients = 0

    def _options(self) -> dict[str, Any]:
        self.clients += 1
        return {
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "random": self.world.random(f"client {self.clients}"),
        }

    def producer(self, **options: Any) -> AsyncProducer:
        return AsyncProducer(**self._options(), wall_clock=self.world.wall_clock, **options)

    def consumer(self, **options: Any) -> AsyncConsumer:
        return AsyncConsumer(**self._options(), auto_offset_reset="earliest", **options)

    def admin(self) -> AsyncAdmin:
        return AsyncAdmin(**self._options())

    async def begin(self, version: int) -> None:
        """Start; create the topics, also those of the coordinators."""
        self.cluster.start()
        await asyncio.sleep(5)
        async with self.admin() as admin:
            await admin.create_topic("t", 3, 3)
            await admin.update_features({TRANSACTION_VERSION: version}, "safe_downgrade")
        await self.transact("before")
        await self.read_in_a_group("before", "classic")

    async def write(self) -> None:
        async with self.producer() as producer:
            for partition in range(3):
                await producer.send("t", b"v", partition=partition)
            await producer.flush()

    async def transact(self, transactional_id: str = "new") -> None:
        async with self.producer(transactional_id=transactional_id) as producer:
            await producer.init_transactions()
            for commits in (True, False, True):
                await producer.begin_transaction()
                for partition in range(3):
                    await producer.send("t", b"v", partition=partition)
                await producer.send_offsets_to_transaction({PARTITIONS[0]: 1}, "in transactions")
                if commits:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()

    async def read(self) -> None:
        async with self.consumer(isolation_level="read_committed") as consumer:
            consumer.assign(PARTITIONS)
            ends = await consumer.end_offsets(PARTITIONS)
            while any([await consumer.position(each) < ends[each] for each in PARTITIONS]):
                await consumer.poll(timeout_ms=100)

    async def read_in_a_group(self, group: str, protocol: str) -> None:
        options = {"group_id": group, "group_protocol": protocol}
        async with self.consumer(**options) as one, self.consumer(**options) as other:
            one.subscribe(["t"])
            other.subscribe(["t"])
            while not (one.assignment() and other.assignment()):
                await asyncio.gather(one.poll(timeout_ms=100), other.poll(timeout_ms=100))
            assert len(set(one.assignment()) | set(other.assignment())) == 3
            await one.commit()
            assert await one.committed(sorted(one.assignment()))

    async def administrate(self) -> None:
        async with self.admin() as admin:
            assert len((await admin.cluster()).nodes) == 3
            assert "t" in await admin.topics()
            await admin.describe_topics(["t"])
            await admin.describe_configs("topic", "t")
            await admin.list_offsets(PARTITIONS)
            await admin.describe_log_dirs()
            await admin.describe_producers(PARTITIONS)
            assert await admin.list_transactions()
            await admin.describe_transactions(["before"])
            await admin.fence_producers(["before"])
            await admin.describe_features()
            assert await admin.list_groups()
            await admin.describe_groups(["before"])
            await admin.list_group_offsets("before")
            await admin.alter_group_offsets("before", {PARTITIONS[0]: 1})
            await admin.delete_group_offsets("before", [PARTITIONS[0]])
            await admin.delete_groups(["before"])
            await admin.delete_records({PARTITIONS[0]: 1})


ACTIVITIES: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "write": Scene.write,
    "transact": Scene.transact,
    "read": Scene.read,
    "read in a classic group": lambda scene: scene.read_in_a_group("new", "classic"),
    "read in a consumer group": lambda scene: scene.read_in_a_group("new", "consumer"),
    "administrate": Scene.administrate,
}


def run(scenario: Callable[[Scene], Awaitable[None]], version: int = 2) -> None:
    with World(seed=1) as world:
        scene = Scene(world)

        async def whole() -> None:
            with world.network.at("client"):
                await scene.begin(version)
                scene.cluster.controller.kill()
                await scenario(scene)
                scene.cluster.controller.start()
                async with asyncio.timeout(LIMIT_S), scene.admin() as admin:
                    await admin.create_topic("afterwards")
            await scene.cluster.close()

        world.run(whole())


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("later_s", [0, 600])
def test_brokers_serve_clients(version: int, later_s: float) -> None:
    async def scenario(scene: Scene) -> None:
        await asyncio.sleep(later_s)
        for name, activity in ACTIVITIES.items():
            try:
                async with asyncio.timeout(LIMIT_S):
                    await activity(scene)
            except (KafkaError, TimeoutError) as error:
                error.add_note(f"while clients {name}")
                raise

    run(scenario, version)


def test_a_thousand_producers_can_start_at_each_broker() -> None:
    async def scenario(scene: Scene) -> None:
        taken = set()
        for node in scene.cluster.brokers:
            assert node.broker is not None
            ids = node.broker.services.producer_ids
            taken |= {ids.take_producer_id() for _ in range(1000)}
        assert None not in taken
        assert len(taken) == 3000

    run(scenario)


def test_what_needs_the_controller_fails_in_time_and_says_so() -> None:
    async def scenario(scene: Scene) -> None:
        async with scene.admin() as admin:
            with pytest.raises(KafkaError, match="controller"):
                await admin.create_topic("u")

    run(scenario)
