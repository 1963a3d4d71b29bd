"""The controller on a virtual disk, in virtual time, with broker failures and restarts.

Long because the cases share one controller, with its disk and its brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from errno import EIO
from random import Random
from typing import Any, TypeVar

import pytest

from tests.steps import finish
from tests.unit.cluster.controller.conftest import content_of
from trimtab.cluster.config import BROKER
from trimtab.cluster.controller.controller import Controller
from trimtab.cluster.metadata.features import SUPPORTED
from trimtab.cluster.metadata.image import CONFIG_BROKER, CONFIG_TOPIC
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.options import read
from trimtab.kafka.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from trimtab.kafka.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from trimtab.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from trimtab.kafka.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from trimtab.kafka.wire.messages.broker_registration import BrokerRegistrationRequest, Listener
from trimtab.kafka.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from trimtab.kafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest
from trimtab.kafka.wire.messages.elect_leaders import ElectLeadersRequest
from trimtab.kafka.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from trimtab.kafka.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from trimtab.kafka.wire.messages.unregister_broker import UnregisterBrokerRequest
from trimtab.kafka.wire.sentinels import NO_LEADER
from trimtab.sim.world import World

T = TypeVar("T")


class Broker:
    """A fake broker: sends requests to the controller on one connection."""

    def __init__(self, lab: Lab, number: int) -> None:
        self.lab = lab
        self.id = number
        self.epoch = -1
        self.beating: asyncio.Task[None] | None = None
        self.begin_anew()

    def begin_anew(self) -> None:
        self.incarnation = self.lab.random.randbytes(16)
        self.connection = object()

    async def register(self, previous: int = -1) -> int:
        """The error code."""
        response = await self.lab.controller.register_broker(
            BrokerRegistrationRequest(
                broker_id=self.id,
                cluster_id="lab",
                incarnation_id=self.incarnation,
                listeners=[
                    Listener(
                        name="PLAINTEXT", host=f"host{self.id}", port=9092, security_protocol=0
                    )
                ],
                rack=None,
                previous_broker_epoch=previous,
            )
        )
        if not response.error_code:
            self.epoch = response.broker_epoch
        return int(response.error_code)

    async def beat(self, end: bool = False, offset: int | None = None) -> Any:
        return await self.lab.controller.heartbeat(
            BrokerHeartbeatRequest(
                broker_id=self.id,
                broker_epoch=self.epoch,
                current_metadata_offset=(
                    self.lab.controller.journal.end_offset - 1 if offset is None else offset
                ),
                want_fence=False,
                want_shut_down=end,
            ),
            self.connection,
        )

    async def start(self, previous: int = -1) -> None:
        """Register, and send heartbeats until it is killed."""
        assert await self.register(previous) == 0
        assert not (await self.beat()).is_fenced

        async def beat() -> None:
            while True:
                await asyncio.sleep(2)
                await self.beat()

        self.beating = asyncio.create_task(beat())

    def kill(self) -> None:
        """Stop sending; the connection is not lost yet."""
        assert self.beating is not None
        self.beating.cancel()


class Lab:
    """Controllers on the same disk, one after the other."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = Random(7)
        self.refused: set[str] = set()
        self.controller: Controller

    async def _probe(self, host: str, port: int) -> bool:
        return host in self.refused

    def run(self, scenario: Callable[[], Awaitable[T]], brokers: int = 0, **options: Any) -> T:
        """One run of a controller, with this number of brokers started first."""

        async def run() -> T:
            self.controller = Controller(
                self.world.disk("controller"),
                3000,
                "lab",
                {**read(BROKER, {}), **options},
                self.world.now_ms,
                Random(1),
                self._probe,
            )
            await self.controller.start()
            self.brokers = [Broker(self, number) for number in range(brokers)]
            for broker in self.brokers:
                await broker.start()
            result = await scenario()
            for broker in self.brokers:
                if broker.beating is not None:
                    broker.beating.cancel()
            await self.controller.close()
            return result

        return self.world.run(run())

    async def create(
        self, *names: str, partitions: int = 3, factor: int = 1, timeout_ms: int = 0
    ) -> list[int]:
        response = await self.controller.create_topics(
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name=name,
                        num_partitions=partitions,
                        replication_factor=factor,
                        assignments=[],
                        configs=[],
                    )
                    for name in names
                ],
                timeout_ms=timeout_ms,
            )
        )
        return [topic.error_code for topic in response.topics]

    def leaders(self, name: str) -> list[int]:
        return [partition.leader for partition in self.controller.image.topics[name].partitions]


@pytest.fixture
def lab() -> Iterator[Lab]:
    with World(seed=1) as world:
        yield Lab(world)


def test_a_cluster_begins_with_its_features(lab: Lab) -> None:
    async def scenario() -> None:
        assert lab.controller.image.features == {
            name: highest for name, (_, highest) in SUPPORTED.items()
        }
        assert lab.controller.journal.end_offset == len(SUPPORTED)

    lab.run(scenario)
    lab.run(scenario)


def test_decisions_survive_a_restart(lab: Lab) -> None:
    async def first() -> dict[str, object]:
        assert await lab.create("a", "b", factor=2) == [0, 0]
        await lab.controller.delete_topics(
            DeleteTopicsRequest(topics=[], topic_names=["a"], timeout_ms=0)
        )
        return content_of(lab.controller.image)

    async def second() -> dict[str, object]:
        assert lab.controller.journal.epoch == 2
        return content_of(lab.controller.image)

    before = lab.run(first, brokers=2)
    assert lab.run(second) == before
    assert list(lab.controller.image.topics) == ["b"]


def test_producer_ids_are_assigned_once(lab: Lab) -> None:
    async def allocate() -> list[int]:
        (broker,) = lab.brokers
        starts = []
        for _ in range(2):
            response = await lab.controller.allocate_producer_ids(
                AllocateProducerIdsRequest(broker_id=0, broker_epoch=broker.epoch)
            )
            starts.append(response.producer_id_start)
            assert (response.error_code, response.producer_id_len) == (0, 1000)
        stale = AllocateProducerIdsRequest(broker_id=0, broker_epoch=broker.epoch - 1)
        response = await lab.controller.allocate_producer_ids(stale)
        assert response.error_code == ErrorCode.STALE_BROKER_EPOCH
        return starts

    assert lab.run(allocate, brokers=1) == [0, 1000]
    assert lab.run(allocate, brokers=1) == [2000, 3000]


# Brokers


@pytest.mark.run(brokers=2)
async def test_a_brokers_epoch_is_the_offset_of_its_record(lab: Lab) -> None:
    first = len(SUPPORTED)  # records before
    assert [broker.epoch for broker in lab.brokers] == [first, first + 2]


async def test_a_broker_is_fenced_until_it_has_caught_up(lab: Lab) -> None:
    broker = Broker(lab, 0)
    await broker.register()
    assert (await broker.beat(offset=broker.epoch - 1)).is_fenced
    assert await lab.create("a") == [ErrorCode.INVALID_REPLICATION_FACTOR]
    assert not (await broker.beat(offset=broker.epoch)).is_fenced
    assert await lab.create("a") == [0]


@pytest.mark.run(brokers=3)
async def test_a_silent_broker_is_fenced_after_the_session_timeout_and_others_lead(
    lab: Lab,
) -> None:
    await lab.create("a", partitions=6, factor=2)
    assert set(lab.leaders("a")) == {0, 1, 2}
    lab.brokers[1].kill()
    await asyncio.sleep(6.9)
    assert not lab.controller.image.brokers[1].fenced
    await asyncio.sleep(2.2)
    assert lab.controller.image.brokers[1].fenced
    assert set(lab.leaders("a")) == {0, 2}
    assert not any(1 in partition.isr for partition in lab.controller.image.topics["a"].partitions)
    assert not (await lab.brokers[1].beat()).is_fenced
    assert set(lab.leaders("a")) == {0, 2}


def test_the_session_timeout_is_an_option(lab: Lab) -> None:
    async def scenario() -> None:
        lab.brokers[0].kill()
        await asyncio.sleep(3.1)
        assert lab.controller.image.brokers[0].fenced

    lab.run(scenario, brokers=1, **{"broker.session.timeout.ms": 3000})


@pytest.mark.run(brokers=3)
async def test_a_broker_whose_process_is_gone_is_fenced_at_once(lab: Lab) -> None:
    await lab.create("a", partitions=6, factor=2)
    lab.brokers[1].kill()
    lab.controller.connection_lost(lab.brokers[1].connection)
    await asyncio.sleep(0.3)
    assert not lab.controller.image.brokers[1].fenced
    lab.refused.add("host1")
    await asyncio.sleep(0.3)
    assert lab.controller.image.brokers[1].fenced
    assert set(lab.leaders("a")) == {0, 2}


@pytest.mark.run(brokers=1)
async def test_a_broker_that_only_lost_its_connection_is_not_fenced(lab: Lab) -> None:
    lab.controller.connection_lost(lab.brokers[0].connection)
    await asyncio.sleep(1)
    lab.brokers[0].connection = object()
    await asyncio.sleep(2)
    lab.refused.add("host0")
    await asyncio.sleep(20)
    assert not lab.controller.image.brokers[0].fenced


@pytest.mark.run(brokers=1)
async def test_two_brokers_cannot_have_one_id(lab: Lab) -> None:
    (broker,) = lab.brokers
    twin = Broker(lab, 0)
    assert await twin.register() == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    broker.kill()
    lab.controller.connection_lost(broker.connection)
    # The connected broker keeps the id; the other gets a stale epoch error.
    assert await twin.register() == 0
    assert (await broker.beat()).error_code == ErrorCode.STALE_BROKER_EPOCH
    await twin.beat()
    assert await broker.register() == ErrorCode.DUPLICATE_BROKER_REGISTRATION


@pytest.mark.run(brokers=1)
async def test_a_repeated_registration_is_idempotent(lab: Lab) -> None:
    (broker,) = lab.brokers
    epoch = broker.epoch
    assert await broker.register() == 0
    assert broker.epoch == epoch
    assert not (await broker.beat()).is_fenced


@pytest.mark.kip(966)
@pytest.mark.run(brokers=1)
async def test_a_partition_waits_for_its_only_replica_and_recovers_if_that_crashed(
    lab: Lab,
) -> None:
    (broker,) = lab.brokers
    await lab.create("a", partitions=1)
    for clean, state in ((True, 0), (False, 1)):
        broker.kill()
        lab.controller.connection_lost(broker.connection)
        lab.refused.add("host0")
        await asyncio.sleep(1)
        assert lab.leaders("a") == [NO_LEADER]
        lab.refused.clear()
        broker.begin_anew()
        await broker.start(previous=broker.epoch if clean else -1)
        (partition,) = lab.controller.image.topics["a"].partitions
        assert (partition.leader, partition.isr) == (0, (0,))
        assert (partition.leader_recovery_state, partition.last_known_elr) == (state, ())


@pytest.mark.kip(966)
@pytest.mark.run(brokers=1)
async def test_a_broker_that_ends_before_it_knows_its_epoch_has_lost_nothing(lab: Lab) -> None:
    """Its next process registers with the same incarnation id."""
    (broker,) = lab.brokers
    await lab.create("a", partitions=1)
    broker.kill()
    lab.controller.connection_lost(broker.connection)
    lab.refused.add("host0")
    await asyncio.sleep(1)
    previous = broker.epoch
    broker.begin_anew()
    assert await broker.register(previous) == 0
    epoch = broker.epoch
    assert await broker.register(previous) == 0
    assert epoch == broker.epoch > previous
    (partition,) = lab.controller.image.topics["a"].partitions
    assert (partition.elr, partition.last_known_elr) == ((0,), (0,))
    broker.begin_anew()
    assert await broker.register(previous) == 0
    (partition,) = lab.controller.image.topics["a"].partitions
    assert (partition.elr, partition.last_known_elr) == ((), (0,))


@pytest.mark.kip(841)
@pytest.mark.run(brokers=2)
async def test_a_broker_may_shut_down_when_others_have_replayed_it(lab: Lab) -> None:
    await lab.create("a", partitions=6, factor=2)
    ending, other = lab.brokers
    ending.kill()
    other.kill()
    reply = await ending.beat(end=True)
    assert (reply.is_fenced, reply.should_shut_down) == (False, False)
    assert set(lab.leaders("a")) == {1}
    reply = await ending.beat(end=True)
    assert not reply.should_shut_down
    await other.beat()
    reply = await ending.beat(end=True)
    assert (reply.is_fenced, reply.should_shut_down) == (True, True)
    # Its id is free at once.
    assert await Broker(lab, 0).register(previous=ending.epoch) == 0


@pytest.mark.run(brokers=1)
async def test_an_unregistered_broker_must_register_again(lab: Lab) -> None:
    (broker,) = lab.brokers
    response = await lab.controller.unregister_broker(UnregisterBrokerRequest(broker_id=0))
    assert response.error_code == 0
    broker.kill()
    assert (await broker.beat()).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert await broker.register() == 0


def test_after_a_restart_brokers_have_a_full_session_timeout(lab: Lab) -> None:
    async def first() -> list[int]:
        return [broker.epoch for broker in lab.brokers]

    epochs = lab.run(first, brokers=2)

    async def second() -> None:
        heard = Broker(lab, 0)
        heard.epoch = epochs[0]
        for _ in range(5):
            await asyncio.sleep(2)
            assert not (await heard.beat()).is_fenced
        brokers = lab.controller.image.brokers
        assert [brokers[number].fenced for number in range(2)] == [False, True]

    lab.run(second)


def test_a_broker_that_crashed_while_the_controller_was_away_may_return_at_once(lab: Lab) -> None:
    async def nothing() -> None:
        pass

    lab.run(nothing, brokers=1)

    async def scenario() -> None:
        await Broker(lab, 0).start()

    lab.run(scenario)


# Partitions


async def shrink(lab: Lab, broker: Broker, name: str, *isr: int) -> Any:
    topic = lab.controller.image.topics[name]
    partition = topic.partitions[0]
    return await lab.controller.alter_partition(
        AlterPartitionRequest(
            broker_id=broker.id,
            broker_epoch=broker.epoch,
            topics=[
                TopicData(
                    topic_id=topic.id,
                    partitions=[
                        PartitionData(
                            partition_index=0,
                            leader_epoch=partition.leader_epoch,
                            partition_epoch=partition.partition_epoch,
                            new_isr_with_epochs=[BrokerState(broker_id=each) for each in isr],
                        )
                    ],
                )
            ],
        )
    )


@pytest.mark.run(brokers=3)
async def test_an_isr_is_altered_and_answered_when_it_is_on_disk(lab: Lab) -> None:
    await lab.create("a", partitions=1, factor=3)
    (leader,) = lab.leaders("a")
    response = await shrink(lab, lab.brokers[leader], "a", leader)
    assert response.topics[0].partitions[0].isr == [leader]
    assert lab.controller.journal.end_offset == lab.controller.journal.next_offset


@pytest.mark.run(brokers=3)
async def test_leaders_are_balanced_from_time_to_time(lab: Lab) -> None:
    await lab.create("a", partitions=6, factor=2)
    before = lab.leaders("a")
    lab.brokers[0].kill()
    await asyncio.sleep(12)
    assert 0 not in lab.leaders("a")
    lab.brokers[0].begin_anew()
    await lab.brokers[0].start()
    for partition in lab.controller.image.topics["a"].partitions:
        if 0 in partition.replicas:  # its leader takes it into the ISR again
            isr = partition.replicas[::-1]
            lab.controller.image.topics["a"].partitions[partition.id] = partition._replace(isr=isr)
    await asyncio.sleep(300)
    assert lab.leaders("a") == before


@pytest.mark.parametrize("enabled", [True, False])
def test_balancing_can_be_switched_off(lab: Lab, enabled: bool) -> None:
    async def scenario() -> None:
        await lab.create("a", partitions=1, factor=2)
        partitions = lab.controller.image.topics["a"].partitions
        preferred = partitions[0].leader
        partitions[0] = partitions[0]._replace(leader=1 - preferred)
        await asyncio.sleep(61)
        assert (lab.leaders("a") == [preferred]) == enabled

    options = {
        "auto.leader.rebalance.enable": enabled,
        "leader.imbalance.check.interval.seconds": 60,
    }
    lab.run(scenario, brokers=2, **options)


@pytest.mark.run(brokers=2)
async def test_a_preferred_leader_is_elected_on_request(lab: Lab) -> None:
    await lab.create("a", partitions=1, factor=2)
    partitions = lab.controller.image.topics["a"].partitions
    preferred = partitions[0].leader
    partitions[0] = partitions[0]._replace(leader=1 - preferred)
    response = await lab.controller.elect_leaders(
        ElectLeadersRequest(topic_partitions=None, timeout_ms=0)
    )
    (result,) = response.replica_election_results[0].partition_result
    assert (result.error_code, lab.leaders("a")) == (0, [preferred])


@pytest.mark.run(brokers=2)
async def test_partitions_are_added_and_moved(lab: Lab) -> None:
    controller = lab.controller
    await lab.create("a", partitions=1, factor=1)
    response: Any = await controller.create_partitions(
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="a", count=2, assignments=None)], timeout_ms=0
        )
    )
    assert (response.results[0].error_code, len(lab.leaders("a"))) == (0, 2)
    before = controller.image.topics["a"].partitions[0]
    (target,) = {0, 1} - set(before.replicas)
    response = await controller.alter_partition_reassignments(
        AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name="a",
                    partitions=[ReassignablePartition(partition_index=0, replicas=[target])],
                )
            ]
        )
    )
    assert response.responses[0].partitions[0].error_code == 0
    response = await finish(
        controller.list_partition_reassignments(ListPartitionReassignmentsRequest(topics=None))
    )
    (moving,) = response.topics[0].partitions
    assert (moving.adding_replicas, moving.removing_replicas) == ([target], [1 - target])
    response = await shrink(lab, lab.brokers[1 - target], "a", 1 - target, target)
    assert response.topics[0].partitions[0].error_code == ErrorCode.NEW_LEADER_ELECTED
    after = controller.image.topics["a"].partitions[0]
    assert (after.replicas, after.isr, after.leader) == ((target,), (target,), target)


@pytest.mark.parametrize("topic", ["a", ""])
@pytest.mark.run(brokers=2)
async def test_an_unclean_leader_is_elected_as_soon_as_it_is_allowed(lab: Lab, topic: str) -> None:
    await lab.create("a", partitions=1, factor=2)
    leader, other = lab.controller.image.topics["a"].partitions[0].replicas
    await shrink(lab, lab.brokers[leader], "a", leader)
    lab.brokers[leader].kill()
    await asyncio.sleep(10)
    assert lab.leaders("a") == [NO_LEADER]
    response = await lab.controller.incremental_alter_configs(
        IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=CONFIG_TOPIC if topic else CONFIG_BROKER,
                    resource_name=topic,
                    configs=[
                        AlterableConfig(
                            name="unclean.leader.election.enable",
                            config_operation=0,
                            value="true",
                        )
                    ],
                )
            ]
        )
    )
    assert (response.responses[0].error_code, lab.leaders("a")) == (0, [other])


# Answers


@pytest.mark.run(brokers=2)
async def test_a_creation_is_answered_when_brokers_have_replayed_it(lab: Lab) -> None:
    loop = lab.world.loop
    feed = lab.controller.feed
    started = loop.time()
    creating = asyncio.ensure_future(lab.create("a", timeout_ms=30_000))
    await asyncio.sleep(0.2)
    feed.note(0, lab.controller.journal.end_offset)
    await asyncio.sleep(0.2)
    assert not creating.done()
    feed.note(1, lab.controller.journal.end_offset)
    await creating
    assert loop.time() - started == pytest.approx(0.4)
    for timeout_ms, waited in ((30_000, 1), (300, 0.3), (0, 0)):
        for broker in lab.brokers:
            feed.note(broker.id, 0)
        started = loop.time()
        await lab.create(f"b{timeout_ms}", timeout_ms=timeout_ms)
        assert loop.time() - started == pytest.approx(waited)
    started = loop.time()
    assert await lab.create("a", timeout_ms=30_000) == [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert loop.time() == started


@pytest.mark.run(brokers=1)
async def test_a_refusal_based_on_a_decision_waits_until_that_is_on_disk(lab: Lab) -> None:
    ends = []

    async def create() -> list[int]:
        codes = await lab.create("a")
        ends.append(lab.controller.journal.end_offset)
        return codes

    first, second = await asyncio.gather(create(), create())
    assert (first, second) == ([0], [ErrorCode.TOPIC_ALREADY_EXISTS])
    assert ends == [lab.controller.journal.next_offset] * 2


def test_nothing_is_answered_once_the_disk_has_failed(lab: Lab) -> None:
    failures: list[BaseException] = []

    async def scenario() -> None:
        lab.controller.journal.on_failure = failures.append
        disk = lab.world.disk("controller")
        disk.fault = lambda action, path: EIO if action == "flush" else 0
        with pytest.raises(StorageError):
            await lab.create("a")
        lab.brokers[0].kill()
        with pytest.raises(StorageError):
            await lab.create("b")
        with pytest.raises(StorageError):
            await lab.brokers[0].beat()
        await asyncio.sleep(400)  # sessions end, leaders would be balanced
        disk.fault = None

    lab.run(scenario, brokers=1)
    assert len(failures) == 1
