"""A producer that keeps what the one before it has prepared, against trimtab's broker (KIP-939)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.unit.client.scripted_transactions import make_transaction_cluster
from trimtab.client.admin import AsyncAdmin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.producer import AsyncProducer
from trimtab.client.sender.prepared import PreparedTransaction, ProducerIdentity
from trimtab.kafka.errors import BrokerError, ErrorCode, TransactionError, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from trimtab.sim.virtual_cluster import VirtualCluster
from trimtab.sim.world import World

pytestmark = pytest.mark.kip(939)

OPTIONS = {
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.two.phase.commit.enable": True,
}
PARTITION = TopicPartition("t", 0)


class Scene:
    """One broker, and producers with one transactional id."""

    def __init__(self, world: World, servers: str) -> None:
        self.world = world
        self.servers = servers
        self._producers: list[AsyncProducer] = []

    def producer(self, endless: bool = True) -> AsyncProducer:
        made = AsyncProducer(
            self.servers,
            wall_clock=self.world.wall_clock,
            random=self.world.random(f"producer {len(self._producers)}"),
            transactional_id="orders",
            transaction_two_phase_commit_enable=endless,
        )
        self._producers.append(made)
        return made

    async def close(self) -> None:
        for each in self._producers:
            await each.close()

    async def committed(self) -> list[bytes | None]:
        values: list[bytes | None] = []
        async with (
            AsyncAdmin(self.servers, random=self.world.random("ends")) as admin,
            AsyncConsumer(
                self.servers,
                random=self.world.random("reader"),
                isolation_level="read_committed",
                auto_offset_reset="earliest",
            ) as consumer,
        ):
            end = (await admin.list_offsets([PARTITION], "latest"))[PARTITION].offset
            consumer.assign([PARTITION])
            while await consumer.position(PARTITION) < end:
                values += [each.value for each in await consumer.poll(100)]
        return values


def play(
    scenario: Callable[[Scene], Awaitable[None]], config: dict[str, object] | None = None
) -> None:
    with World(seed=1) as world:
        cluster = VirtualCluster(world, 1, {**OPTIONS, **(config or {})})

        async def run() -> None:
            cluster.start()
            scene = Scene(world, cluster.bootstrap_servers)
            async with AsyncAdmin(scene.servers, random=world.random("admin")) as admin:
                await admin.create_topic("t", 1, 1)
            await scenario(scene)
            await scene.close()
            await cluster.close()

        world.run(run())


async def prepare(producer: AsyncProducer, value: bytes) -> PreparedTransaction:
    await producer.begin_transaction(two_phase=True)
    await producer.send("t", value, partition=0)
    return await producer.prepare_transaction()


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("endless", [True, False])
def test_it_is_kept_fences_the_one_before_and_is_ended_by_the_newest(
    commit: bool, times: int, endless: bool
) -> None:
    async def scenario(scene: Scene) -> None:
        old = scene.producer(endless)
        await old.init_transactions()
        assert old.prepared() is None
        stored = str(await prepare(old, b"1"))
        for _ in range(times):
            new = scene.producer(endless)
            await new.init_transactions(keep_prepared=True)
        kept = new.prepared()
        assert kept is not None
        assert kept == PreparedTransaction.parse(stored)
        with pytest.raises(UsageError, match="has prepared its transaction; end it first"):
            await new.begin_transaction()
        with pytest.raises(TransactionError, match="PRODUCER_FENCED"):
            await old.complete_transaction(kept, not commit)
        await new.complete_transaction(kept, commit)
        assert new.prepared() is None
        await new.complete_transaction(await prepare(new, b"2"), True)
        assert await scene.committed() == [b"1", b"2"][not commit :]

    play(scenario)


def test_without_a_transaction_there_is_nothing_to_keep() -> None:
    async def scenario(scene: Scene) -> None:
        producer = scene.producer()
        identity = await producer.init_transactions(keep_prepared=True)
        assert producer.prepared() is None
        await producer.complete_transaction(await prepare(producer, b"1"), True)
        new = scene.producer()
        after = await new.init_transactions(after=identity, keep_prepared=True)
        assert after > identity
        assert new.prepared() is None
        assert await scene.committed() == [b"1"]

    play(scenario)


def test_what_was_open_and_not_prepared_is_kept_too_and_can_be_aborted() -> None:
    async def scenario(scene: Scene) -> None:
        old = scene.producer()
        await old.init_transactions()
        await old.begin_transaction()
        await (await old.send("t", b"1", partition=0))
        new = scene.producer()
        await new.init_transactions(keep_prepared=True)
        assert new.prepared() is not None
        await new.abort_transaction()
        await new.complete_transaction(await prepare(new, b"2"), True)
        assert await scene.committed() == [b"2"]

    play(scenario)


def test_an_older_identity_keeps_nothing_and_fences_nobody() -> None:
    async def scenario(scene: Scene) -> None:
        first, second, third = (scene.producer() for _ in range(3))
        identity = await first.init_transactions()
        await second.init_transactions()
        kept = await prepare(second, b"1")
        with pytest.raises(BrokerError) as refused:
            await third.init_transactions(after=identity, keep_prepared=True)
        assert refused.value.code is ErrorCode.PRODUCER_FENCED
        await second.complete_transaction(kept, True)
        assert await scene.committed() == [b"1"]

    play(scenario)


def test_brokers_must_allow_it() -> None:
    async def scenario(scene: Scene) -> None:
        with pytest.raises(BrokerError, match=r"transaction\.two\.phase\.commit\.enable=true"):
            await scene.producer(endless=False).init_transactions(keep_prepared=True)

    play(scenario, {"transaction.two.phase.commit.enable": False})


@pytest.mark.parametrize("newest", [5, 6])
def test_a_broker_that_does_not_keep_it_says_what_to_do(newest: int) -> None:
    """Kafka 4.3 has no version 6, or refuses the flag in it."""
    with World(1) as world:
        brokers = make_transaction_cluster(world, 2, {InitProducerIdRequest: (0, newest)})

        def refuse(request: InitProducerIdRequest) -> InitProducerIdResponse:
            return InitProducerIdResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION, producer_id=-1, producer_epoch=-1
            )

        for each in brokers.cluster.brokers.values():
            each.answers[InitProducerIdRequest] = refuse

        async def run() -> None:
            async with brokers.producer() as producer:
                with pytest.raises(BrokerError, match=r"without keep_prepared") as refused:
                    await producer.init_transactions(keep_prepared=True)
                assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION

        world.run(run())


def test_the_flag_is_checked() -> None:
    async def scenario(scene: Scene) -> None:
        with pytest.raises(UsageError, match="keep_prepared"):
            await scene.producer().init_transactions(keep_prepared="yes")  # type: ignore[arg-type]
        assert isinstance(await scene.producer().init_transactions(), ProducerIdentity)

    play(scenario)
