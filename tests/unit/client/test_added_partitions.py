"""A partition that is asked for before it is known: `KafkaProducer.waitOnMetadata`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from threading import Timer

import pytest

from tests.unit.client.scripted_produce import ProduceCluster
from trimtab import Admin, Cluster, Producer
from trimtab.kafka.errors import Unavailable, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.metadata import MetadataRequest


def add_partition(kafka: ProduceCluster) -> None:
    kafka.cluster.leaders["topic"].append(1)


def asked_at(kafka: ProduceCluster) -> list[float]:
    brokers = kafka.cluster.brokers.values()
    return sorted(a.at for broker in brokers for a in broker.asked if a.api is MetadataRequest)


async def test_a_partition_that_was_added_is_found(kafka: ProduceCluster) -> None:
    began = kafka.world.loop.time()
    async with kafka.producer() as producer:
        await producer.send("topic", b"before", partition=0)
        asyncio.get_running_loop().call_later(3.0, add_partition, kafka)
        deliveries = await asyncio.gather(
            *(producer.send("topic", b"%d" % n, partition=2) for n in range(3))
        )
        assert [(await each).partition for each in deliveries] == [2, 2, 2]
        assert 3.0 <= asyncio.get_running_loop().time() - began < 5.0
    assert kafka.stored[TopicPartition("topic", 2)] == [b"0", b"1", b"2"]


async def test_a_partition_that_never_comes_is_named_with_the_way_out(
    kafka: ProduceCluster,
) -> None:
    async with kafka.producer(max_block_ms=5000) as producer:
        began = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable) as raised:
            await producer.send("topic", b"", partition=2)
        assert asyncio.get_running_loop().time() - began == pytest.approx(5.0, abs=0.01)
        assert str(raised.value) == (
            "partition 2 of topic topic is not there after 5 s (max.block.ms): the topic has"
            " 2 partitions, 0 to 1; give one of these, or add partitions to the topic first"
        )
        await (await producer.send("topic", b"", partition=1))


async def test_many_waiting_sends_cause_one_request_with_back_off(kafka: ProduceCluster) -> None:
    """A thousand tasks, and 300 partitions: the cluster is asked a few times, and then no more."""
    async with kafka.producer(max_block_ms=20_000) as producer:
        await producer.partitions_for("topic")
        waiting = [producer.send("topic", b"", partition=2 + n % 300) for n in range(1000)]
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(error) for error in errors} == {Unavailable}
        await asyncio.sleep(60)
    times = asked_at(kafka)
    assert len(times) < 35
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(waits) <= 1.2 + 0.01
    assert times[-1] < kafka.world.loop.time() - 50


async def test_waiting_sends_end_when_the_producer_is_closed(kafka: ProduceCluster) -> None:
    async with kafka.producer() as producer:
        await producer.partitions_for("topic")
        waiting = asyncio.ensure_future(producer.send("topic", b"", partition=9))
        await asyncio.sleep(1)
        await producer.close()
        with pytest.raises(UsageError, match="the producer is closed"):
            await waiting


async def test_a_negative_partition_is_refused_at_once(kafka: ProduceCluster) -> None:
    async with kafka.producer() as producer:
        await producer.partitions_for("topic")
        asked = len(asked_at(kafka))
        with pytest.raises(UsageError, match="partition"):
            await producer.send("topic", b"", partition=-1)
        assert len(asked_at(kafka)) == asked


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as made:
        with Admin(made.bootstrap_servers) as admin:
            admin.create_topic("topic", 1)
        yield made


def test_a_thread_and_a_table_wait_as_well(cluster: Cluster) -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"value": [b"a", b"b", b"c"], "to": [0, 2, 1]})
    with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers) as producer:
        producer.send("topic", b"").result(30)
        for count, send in (
            (2, lambda: producer.send("topic", b"", partition=1).result(30).partition == 1),
            (
                3,
                lambda: len(producer.send_table("topic", table, partition="to").result(30)[2]) == 3,
            ),
        ):
            adding = Timer(0.2, admin.create_partitions, ["topic", count])
            adding.start()
            assert send()
            adding.join()
    with Producer(cluster.bootstrap_servers, max_block_ms=200) as producer:
        with pytest.raises(
            Unavailable, match=r"partition 7 of topic topic is not there after 0\.[12]"
        ):
            producer.send("topic", b"", partition=7)
        with pytest.raises(Unavailable, match=r"the topic has 3 partitions, 0 to 2; give one"):
            producer.send_table("topic", table.slice(0, 1), partition=arrow.array([3]))
