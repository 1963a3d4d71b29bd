"""The settings of KIP-480 and KIP-794 with the real producer and brokers, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, cast

import pytest

from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.client.admin import AsyncAdmin
from trimtab.client.producer import AsyncProducer
from trimtab.cluster import Cluster
from trimtab.sim.world import World


class Setting(NamedTuple):
    """`late` are milliseconds by broker."""

    late: Mapping[int, float]
    partitions: int
    rate: int
    size: int
    records: int = 8192


SERIES_1 = Setting({0: 20}, 3, 2048, 512)
SERIES_2 = Setting({0: 20}, 3, 4096, 512)
KIP_480 = Setting({0: 5, 1: 5, 2: 5}, 16, 1000, 100)


class Measured(NamedTuple):
    """Latencies are in milliseconds, sorted; `bytes_` by partition."""

    latencies: list[float]
    bytes_: list[int]
    records_per_batch: float

    @property
    def average(self) -> float:
        return sum(self.latencies) / len(self.latencies)

    @property
    def p99(self) -> float:
        return self.latencies[int(0.99 * len(self.latencies))]

    @property
    def deviation(self) -> float:
        """The largest difference from the mean, over the mean."""
        mean = sum(self.bytes_) / len(self.bytes_)
        return max(abs(size - mean) for size in self.bytes_) / mean


async def _produce(world: World, setting: Setting, balance: object) -> Measured:
    loop = world.loop
    latencies: list[float] = []

    def acknowledged(sent: float, delivery: Delivery) -> None:
        assert delivery.exception() is None
        latencies.append(1000 * (loop.time() - sent))

    cluster = Cluster(
        brokers=3, storage=world.disk, now_ms=world.now_ms, random=world.random("cluster")
    )
    async with cluster:
        with world.network.at("client"):
            async with AsyncAdmin(cluster.bootstrap_servers, random=world.random("admin")) as admin:
                await admin.create_topic("foo", partitions=setting.partitions)
            for broker, late in setting.late.items():
                cluster.slow(broker=broker, produce_ms=late)
            async with AsyncProducer(
                cluster.bootstrap_servers,
                wall_clock=world.wall_clock,
                random=world.random("producer"),
                linger_ms=0,
                partitioner_balance=balance,
            ) as producer:
                begin = loop.time()
                for number in range(setting.records):
                    await asyncio.sleep(max(0.0, begin + number / setting.rate - loop.time()))
                    sent = loop.time()
                    delivery = await producer.send("foo", bytes(setting.size))
                    delivery.add_done_callback(lambda d, sent=sent: acknowledged(sent, d))
                await producer.flush()
                partitions = producer.partitioning("foo").partitions
                nodes = producer.metrics()["producer-node-metrics"]
    batches = sum(cast(Mapping[str, float], node)["batch-total"] for node in nodes.values())
    return Measured(
        sorted(latencies), [p.chosen_bytes for p in partitions], setting.records / batches
    )


def measure(setting: Setting, balance: object) -> Measured:
    with World(7) as world:
        measured = world.run(_produce(world, setting, balance))
    assert len(measured.latencies) == setting.records
    return measured


@pytest.mark.kip(480)
@pytest.mark.parametrize("balance", ["strict", 0.1, "free"])
def test_no_record_waits_for_a_busy_broker_while_another_is_free(balance: object) -> None:
    """KIP-480's setting: KIP-794's logic 26.7 ms on average."""
    measured = measure(KIP_480, balance)
    assert measured.average < 8
    assert measured.p99 < 10
    assert measured.records_per_batch > 2.5
    if balance == "strict":
        assert measured.deviation < 0.1


@pytest.mark.kip(794)
@pytest.mark.parametrize("setting", [SERIES_1, SERIES_2], ids=["series 1", "series 2"])
def test_a_slow_broker_costs_its_own_records_and_no_others(setting: Setting) -> None:
    default, strict = measure(setting, None), measure(setting, "strict")
    bounded, free = measure(setting, 0.1), measure(setting, "free")
    assert default.average > 25
    assert strict.average < 12
    assert strict.p99 < 50
    assert strict.deviation < 0.05
    assert bounded.average < strict.average
    assert bounded.deviation < 0.15
    assert free.average < 1.5
    assert free.p99 < 2
