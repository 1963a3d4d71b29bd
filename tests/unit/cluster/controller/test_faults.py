"""Brokers and the controller crash at random, a seed each: answered changes stay, no broker's image
differs, and a leader has what was committed unless it was elected in spite of that.

A model of the brokers' logs goes along: how many records each replica has, and how many are
committed. `SEEDS=1000` runs so many, from `FIRST_SEED` on.
"""

from __future__ import annotations

import asyncio
import os
from inspect import isawaitable
from random import Random
from typing import Any

import pytest

from tests.unit.cluster.controller.conftest import content_of
from trimtab.cluster.config import BROKER
from trimtab.cluster.controller.controller import Controller
from trimtab.cluster.controller.topic_rules import TopicRules
from trimtab.cluster.metadata.batches import TOPIC, TOPIC_ID, read_batches, read_snapshot
from trimtab.cluster.metadata.image import (
    CONFIG_TOPIC,
    RECOVERED,
    ClusterImage,
    PartitionRegistration,
)
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.options import read
from trimtab.kafka.wire.batch_cy import read_headers
from trimtab.kafka.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from trimtab.kafka.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from trimtab.kafka.wire.messages.broker_registration import BrokerRegistrationRequest, Listener
from trimtab.kafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest
from trimtab.kafka.wire.messages.elect_leaders import ElectLeadersRequest
from trimtab.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from trimtab.kafka.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    PartitionSnapshot,
    SnapshotId,
    TopicSnapshot,
)
from trimtab.kafka.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from trimtab.kafka.wire.sentinels import NO_LEADER
from trimtab.sim.world import World

FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("SEEDS", "12")))
BROKERS = 4
STEPS = 250


class Follower:
    """Replays what it fetches, and survives the controller."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.offset = 0
        self.snapshots = 0

    async def catch_up(self, controller: Controller) -> None:
        while True:
            answer = controller.feed.fetch(
                FetchRequest(
                    max_wait_ms=0,
                    min_bytes=1,
                    topics=[
                        FetchTopic(
                            topic_id=TOPIC_ID,
                            partitions=[
                                FetchPartition(
                                    partition=0, fetch_offset=self.offset, partition_max_bytes=500
                                )
                            ],
                        )
                    ],
                )
            )
            response: Any = await answer if isawaitable(answer) else answer
            (data,) = response.responses[0].partitions
            assert data.error_code == 0
            if data.snapshot_id.end_offset >= 0:
                self.take_snapshot(controller, data.snapshot_id)
            elif data.records:
                for _, record in read_batches(data.records, self.offset):
                    self.image.replay(record)
                self.offset = read_headers(data.records)[-1].next_offset
            else:
                return

    def take_snapshot(self, controller: Controller, snapshot: Any) -> None:
        partition = PartitionSnapshot(
            partition=0,
            current_leader_epoch=-1,
            snapshot_id=SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
            position=0,
        )
        response = controller.feed.fetch_snapshot(
            FetchSnapshotRequest(topics=[TopicSnapshot(name=TOPIC, partitions=[partition])])
        )
        (piece,) = response.topics[0].partitions
        assert (piece.error_code, len(piece.unaligned_records)) == (0, piece.size)
        self.image = ClusterImage()
        for record in read_snapshot(piece.unaligned_records):
            self.image.replay(record)
        self.offset = snapshot.end_offset
        self.snapshots += 1


class Broker:
    """A broker's process, and how many records its replicas have."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.is_up = False
        self.ends = False
        self.epoch = -1
        self.clean_epoch = -1
        self.connection = object()
        self.logs: dict[tuple[bytes, int], int] = {}


class Run:
    """One seed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = Random(world.seed)
        self.brokers = [Broker(number) for number in range(BROKERS)]
        self.follower = Follower()
        self.committed: dict[tuple[bytes, int], int] = {}
        self.answered: dict[str, None] = {}
        self.lives = 0
        self.counts: dict[str, int] = {}

    async def probe(self, host: str, port: int) -> bool:
        return not self.brokers[port].is_up

    async def start_controller(self) -> None:
        self.lives += 1
        self.controller = Controller(
            self.world.disk("c"),
            3000,
            "lab",
            {**read(BROKER, {}), "metadata.log.max.record.bytes.between.snapshots": 1500},
            self.world.now_ms,
            Random(self.random.random()),
            self.probe,
        )
        await self.controller.start()
        assert self.controller.journal.epoch == self.lives
        assert self.answered.keys() <= self.controller.image.topics.keys()

    async def crash_controller(self) -> None:
        journal = self.controller.journal
        journal.failure = RuntimeError("crashed")
        self.controller._sessions.close()
        for task in [*self.controller._upkeep, journal._writer, journal._snapshotter]:
            if task is not None:
                task.cancel()
        await asyncio.sleep(0)
        self.world.disk("c").crash(self.random)
        for broker in self.brokers:
            broker.connection = object()
        await self.start_controller()

    # Actions of brokers

    async def start_broker(self, broker: Broker) -> None:
        broker.connection = object()
        if broker.clean_epoch < 0:
            for key, end in broker.logs.items():
                broker.logs[key] = self.random.randint(0, end)
        response = await self.controller.register_broker(
            BrokerRegistrationRequest(
                broker_id=broker.id,
                cluster_id="lab",
                incarnation_id=self.random.randbytes(16),
                listeners=[Listener(name="P", host="h", port=broker.id, security_protocol=0)],
                rack=None,
                previous_broker_epoch=broker.clean_epoch,
            )
        )
        if response.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            return
        assert response.error_code == 0
        broker.is_up, broker.ends = True, False
        broker.clean_epoch = -1
        broker.epoch = response.broker_epoch

    async def beat(self, broker: Broker) -> None:
        response = await self.controller.heartbeat(
            BrokerHeartbeatRequest(
                broker_id=broker.id,
                broker_epoch=broker.epoch,
                current_metadata_offset=self.controller.journal.end_offset,
                want_fence=False,
                want_shut_down=broker.ends,
            ),
            broker.connection,
        )
        assert response.error_code == 0
        if response.should_shut_down:
            broker.clean_epoch = broker.epoch
            self.stop(broker)

    def stop(self, broker: Broker) -> None:
        broker.is_up = False
        self.controller.connection_lost(broker.connection)

    async def alter_isr(self, key: tuple[bytes, int], partition: PartitionRegistration) -> None:
        """The leader removes dead brokers from the ISR and adds live ones that have its records."""
        leader = self.brokers[partition.leader]
        isr = [
            number
            for number in partition.replicas
            if number == leader.id or (self.brokers[number].is_up and self.random.random() < 0.8)
        ]
        for number in isr:
            self.brokers[number].logs[key] = leader.logs.get(key, 0)
        await self.controller.alter_partition(
            AlterPartitionRequest(
                broker_id=leader.id,
                broker_epoch=leader.epoch,
                topics=[
                    TopicData(
                        topic_id=key[0],
                        partitions=[
                            PartitionData(
                                partition_index=key[1],
                                leader_epoch=partition.leader_epoch,
                                partition_epoch=partition.partition_epoch,
                                new_isr_with_epochs=[
                                    BrokerState(
                                        broker_id=number, broker_epoch=self.brokers[number].epoch
                                    )
                                    for number in isr
                                ],
                            )
                        ],
                    )
                ],
            )
        )

    def produce(self, key: tuple[bytes, int], partition: PartitionRegistration, name: str) -> None:
        """With acks=all: on every member of the ISR, or not committed."""
        rules = TopicRules(self.controller.image, self.controller._config)
        enough = min(rules.min_isr(name), len(partition.replicas))
        members = [self.brokers[number] for number in partition.isr]
        if len(members) < enough or not all(member.is_up for member in members):
            return
        end = self.brokers[partition.leader].logs.get(key, 0) + 1
        for member in members:
            member.logs[key] = end
        self.committed[key] = end
        self.count("commits")

    # One thing after the other

    async def step(self) -> None:
        random = self.random
        broker = random.choice(self.brokers)
        choice = random.random()
        if choice < 0.03:
            self.count("controller crashes")
            await self.crash_controller()
        elif choice < 0.16:
            if not broker.is_up:
                self.count("starts")
                await self.start_broker(broker)
        elif choice < 0.24:
            if broker.is_up:
                self.count("crashes")
                self.stop(broker)
        elif choice < 0.28:
            broker.ends = broker.is_up
        elif choice < 0.34:
            name = f"t{random.randrange(6)}"
            request = CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name=name,
                        num_partitions=2,
                        replication_factor=random.randint(1, 3),
                        assignments=[],
                        configs=[],
                    )
                ],
                timeout_ms=0,
            )
            response: Any = await self.controller.create_topics(request)
            if not response.topics[0].error_code:
                self.answered[name] = None
        elif choice < 0.36:
            name = f"t{random.randrange(6)}"
            self.answered.pop(name, None)
            await self.controller.delete_topics(
                DeleteTopicsRequest(topics=[], topic_names=[name], timeout_ms=0)
            )
        elif choice < 0.40:
            config = AlterableConfig(
                name="min.insync.replicas", config_operation=0, value=str(random.randint(1, 3))
            )
            await self.controller.incremental_alter_configs(
                IncrementalAlterConfigsRequest(
                    resources=[
                        AlterConfigsResource(
                            resource_type=CONFIG_TOPIC,
                            resource_name=f"t{random.randrange(6)}",
                            configs=[config],
                        )
                    ]
                )
            )
        elif choice < 0.43:
            await self.controller.elect_leaders(
                ElectLeadersRequest(
                    election_type=random.choice([0, 0, 1]), topic_partitions=None, timeout_ms=0
                )
            )
        else:
            for topic in list(self.controller.image.topics.values()):
                for partition in list(topic.partitions):
                    key = topic.id, partition.id
                    if partition.leader != NO_LEADER and self.brokers[partition.leader].is_up:
                        if random.random() < 0.5:
                            await self.alter_isr(key, partition)
                        else:
                            self.produce(key, partition, topic.name)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    async def check(self) -> None:
        image = self.controller.image
        for topic in image.topics.values():
            for partition in topic.partitions:
                self.check_partition((topic.id, partition.id), partition)
        await self.controller.journal.reach(self.controller.journal.next_offset)
        if self.random.random() < 0.02:
            await self.follower.catch_up(self.controller)
            if self.follower.offset == self.controller.journal.next_offset:
                assert content_of(self.follower.image) == content_of(image)

    def check_partition(self, key: tuple[bytes, int], partition: PartitionRegistration) -> None:
        isr, elr, leader = partition.isr, partition.elr, partition.leader
        assert not set(isr) & set(elr)
        assert set(isr) | set(elr) <= set(partition.replicas)
        assert all(self.controller.image.brokers[number].is_active for number in isr)
        if leader == NO_LEADER:
            assert isr == ()
            assert elr or partition.last_known_elr
            return
        assert leader in isr
        assert partition.last_known_elr == ()
        has = self.brokers[leader].logs.get(key, 0)
        if partition.leader_recovery_state == RECOVERED:
            assert has >= self.committed.get(key, 0)
        else:
            self.count("recovering")
            self.committed[key] = min(has, self.committed.get(key, 0))

    async def run(self) -> None:
        await self.start_controller()
        for broker in self.brokers:
            await self.start_broker(broker)
        for _ in range(STEPS):
            await self.step()
            await self.check()
            await asyncio.sleep(self.random.random())
            for broker in self.brokers:
                if broker.is_up and self.random.random() < 0.7:
                    await self.beat(broker)
                    await self.check()
        await self.follower.catch_up(self.controller)
        assert content_of(self.follower.image) == content_of(self.controller.image)
        self.counts["snapshots"] = self.follower.snapshots
        await self.controller.close()


def play(seed: int) -> Run:
    with World(seed=seed) as world:
        run = Run(world)
        world.run(run.run())
        return run


@pytest.mark.parametrize("seed", SEEDS)
def test_brokers_and_the_controller_crash(seed: int) -> None:
    run = play(seed)
    print(run.counts, run.follower.offset)
    assert run.counts["crashes"]


def test_a_seed_runs_the_same_way_again() -> None:
    def outcome() -> tuple[Any, ...]:
        run = play(FIRST_SEED)
        return run.counts, run.follower.offset, content_of(run.follower.image), run.committed

    assert outcome() == outcome()
