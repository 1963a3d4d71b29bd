"""The producer of an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.unit.client.scripted_produce import ProduceCluster
from trimtab.client.partitioner.partitioning import Partitioning
from trimtab.client.producer import AsyncProducer
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError
from trimtab.kafka.records import RecordMetadata, TopicPartition
from trimtab.threads.waiting import refuse_waiting


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster


async def test_awaiting_sends_lets_the_sender_run(kafka: ProduceCluster) -> None:
    async with kafka.producer(batch_size=1000, buffer_memory=1 << 30) as producer:
        for partition in (0, 1):
            await (await producer.send("topic", b"first", partition=partition))
        for _ in range(5000):
            await producer.send("topic", b"x" * 90)
        queues = producer._core.accumulator.topic("topic").queues
        assert any(queue.in_flight for queue in queues)
        await producer.flush(timeout=10)
    assert sum(map(len, kafka.stored.values())) == 5002


async def test_send_and_wait_returns_the_place_of_the_record(kafka: ProduceCluster) -> None:
    async with kafka.producer(linger_ms=0) as producer:
        for offset in range(2):
            found = await producer.send_and_wait(
                "topic", b"v", key=b"k", headers=[("h", b"1")], partition=1, timestamp=7
            )
            assert found == RecordMetadata("topic", 1, offset, 7)


async def test_send_and_wait_lingers_as_long_as_it_may_and_no_longer(kafka: ProduceCluster) -> None:
    async with kafka.producer(linger_ms=500) as producer:
        await producer.send_and_wait("topic", b"first", partition=0)
        began = kafka.world.loop.time()
        calls = (producer.send_and_wait("topic", b"%d" % n, partition=0) for n in range(3))
        assert [each.offset for each in await asyncio.gather(*calls)] == [1, 2, 3]
        assert 0.5 <= kafka.world.loop.time() - began < 0.6
        assert kafka.batches[-1][3] == 3


async def test_send_and_wait_raises_the_errors_of_send_and_of_the_delivery(
    kafka: ProduceCluster,
) -> None:
    kafka.refuse = lambda *_: ErrorCode.INVALID_RECORD
    told: list[object] = []
    async with kafka.producer(linger_ms=0) as producer:
        with pytest.raises(UsageError, match="timestamp"):
            await producer.send_and_wait("topic", b"v", timestamp=-2)
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            await producer.send_and_wait("topic", b"v", on_delivery=told.append)
    assert len(told) == 1


async def test_a_cancelled_send_and_wait_leaves_the_record_on_its_way(
    kafka: ProduceCluster,
) -> None:
    async with kafka.producer(linger_ms=100) as producer:
        await producer.partitions_for("topic")
        waiting = asyncio.ensure_future(producer.send_and_wait("topic", b"v", partition=0))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await producer.send_and_wait("topic", b"w", partition=0)).offset == 1
    assert kafka.stored[TopicPartition("topic", 0)] == [b"v", b"w"]


class HomeLoop(asyncio.SelectorEventLoop):
    """As uvloop's, its time is that of its last events: on other threads it may be minutes old."""

    def time(self) -> float:
        is_here = asyncio._get_running_loop() is self
        return super().time() - (0 if is_here else 1000)


@pytest.fixture
def home() -> Iterator[HomeLoop]:
    """A loop that runs in a thread of its own, and refuses `call_soon` on other threads."""
    loop = HomeLoop()
    loop.set_debug(True)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_record_sent_on_another_loop_is_delivered(cluster: Cluster, home: HomeLoop) -> None:
    async def make() -> AsyncProducer:
        producer = AsyncProducer(cluster.bootstrap_servers, linger_ms=0)
        await (await producer.send("abroad", b"at home"))
        return producer

    async def send() -> int:
        delivery = await producer.send("abroad", b"abroad")
        metadata: RecordMetadata = await asyncio.wait_for(asyncio.shield(delivery), 10)
        return metadata.offset

    producer = asyncio.run_coroutine_threadsafe(make(), home).result(10)
    assert asyncio.run(send()) == 1
    asyncio.run_coroutine_threadsafe(producer.close(), home).result(10)


def test_an_asynchronous_producers_partitioner_must_not_wait(cluster: Cluster) -> None:
    """It is called under the lock that loops on other threads would wait for."""

    def choose(
        topic: str, key: object, value: object, partitions: object, available: object
    ) -> int:
        with pytest.raises(
            UsageError, match="a partitioner is called while its producer is locked"
        ):
            refuse_waiting(None)
        return 0

    async def send() -> None:
        async with AsyncProducer(cluster.bootstrap_servers, partitioner_class=choose) as producer:
            await (await producer.send("chosen", b"x"))

    asyncio.run(send())


def test_an_asynchronous_producer_is_refused_on_another_loop(cluster: Cluster) -> None:
    def use(state: str) -> None:
        async def refused() -> None:
            for call in (
                lambda: producer.send("not known", b"abroad"),
                lambda: producer.send_table("elsewhere", pa.table({"value": [b"abroad"]})),
                lambda: producer.flush(),
                lambda: producer.partitions_for("elsewhere"),
                lambda: producer.init_transactions(),
            ):
                with pytest.raises(UsageError, match=f"created on, and that is {state}: create"):
                    await call()
            with pytest.raises(UsageError, match="or use a Producer"):
                producer.purge()
            assert len(producer) == 0

        asyncio.run(refused())

    async def make() -> AsyncProducer:
        producer = AsyncProducer(cluster.bootstrap_servers)
        await (await producer.send("elsewhere", b"at home"))
        return producer

    home = asyncio.new_event_loop()
    producer = home.run_until_complete(make())
    use("another one")
    with pytest.raises(UsageError, match="another one"):
        asyncio.run(producer.close())
    home.run_until_complete(producer.close())
    home.close()
    use("closed")
    asyncio.run(producer.close())


async def test_the_live_view_shows_how_records_are_spread(kafka: ProduceCluster) -> None:
    async with kafka.producer(linger_ms=60_000, batch_size=1000, acks="1") as producer:
        with pytest.raises(UsageError, match="not known to this producer yet"):
            producer.partitioning("topic")
        await producer.partitions_for("topic")
        for _ in range(100):
            await producer.send("topic", b"x" * 90)
        await producer.send("topic", b"keyed", key=b"k")
        view: Partitioning = producer.partitioning("topic")
        assert view.topic == "topic"
        assert view.partitioner == "BuiltInPartitioner"
        assert view.current in (0, 1)
        assert view.in_rack_share is None
        first, second = view.partitions
        assert (first.leader, second.leader) == (0, 1)
        assert first.queued_batches + second.queued_batches >= 10
        assert first.turns + second.turns >= view.switches >= 3
        assert sum(p.weight or 0 for p in view.partitions) == pytest.approx(1)
        assert first.excluded_because is None
        keyed = 61 + 5 + 1 + 9
        queued = first.queued_bytes + second.queued_bytes
        assert queued - keyed <= first.chosen_bytes + second.chosen_bytes <= queued
        await producer.flush()
        after = producer.partitioning("topic").partitions
        assert [p.queued_bytes + p.in_flight_bytes for p in after] == [0, 0]
        assert after[0].chosen_bytes == first.chosen_bytes


async def test_cancelling_a_send_that_waits_for_memory_leaves_the_line(
    kafka: ProduceCluster,
) -> None:
    async with kafka.producer(buffer_memory=1000, batch_size=1000, acks="1") as producer:
        await producer.partitions_for("topic")
        for broker in kafka.cluster.brokers.values():
            broker.stop()

        async def send_many() -> None:
            for _ in range(100):
                await producer.send("topic", b"x" * 100)

        task = asyncio.create_task(send_many())
        await asyncio.sleep(1)
        memory = producer._core.accumulator.memory
        assert memory.waiting == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert memory.waiting == 0
