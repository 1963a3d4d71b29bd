"""The load of Apache Kafka, measured from outside, and probes of its broker."""

from __future__ import annotations

import asyncio

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.measure.probe import PROBE_TOPIC, BrokerProbe
from trimtab.client.measure.rates import LoadMeter
from trimtab.client.measure.sample import take_sample
from trimtab.client.producer import AsyncProducer
from trimtab.kafka.options import LONG_MAX
from trimtab.kafka.records import TopicPartition

T = "measured"
ROUNDS, SIZE = 200, 1000


def test_growth_and_commits_of_apache_kafka_are_measured(apache_kafka: ApacheKafka) -> None:
    asyncio.run(_measure(apache_kafka.address))


async def _measure(servers: str) -> None:
    async with AsyncAdmin(servers) as admin, AsyncProducer(servers, linger_ms=0) as producer:
        await admin.create_topic(T, partitions=2, replication_factor=1)
        await admin.alter_group_offsets("measured", {(T, 0): 0})
        before = await take_sample(admin)
        for _ in range(ROUNDS):
            await (await producer.send(T, bytes(SIZE), partition=0))
        await admin.alter_group_offsets("measured", {(T, 0): ROUNDS})
        after = await take_sample(admin, before)
    assert (after.silent, after.refused, after.missing_rights) == ({}, {}, ())
    assert after.compacted[T, after.topics.value[T].topic_id] is False
    meter = LoadMeter()
    meter.add(before)
    meter.add(after)
    measured = meter.measure()
    seconds = after.logs[0].at - before.logs[0].at
    first, second = (each for each in measured.load.partitions if each.partition.topic == T)
    stored = after.logs[0].value.sizes[TopicPartition(T, 0)]
    assert ROUNDS * SIZE < stored < 1.1 * ROUNDS * SIZE
    assert first.bytes_in * seconds == pytest.approx(stored)
    assert first.bytes_out == pytest.approx(first.bytes_in)
    assert (second.bytes_in, second.bytes_out, second.size) == (0.0, 0.0, 0)
    state = measured.load.brokers[0]
    assert state.disk is not None
    assert state.disk > 1 << 30
    assert (state.is_alive, state.takes_replicas) == (True, True)
    assert state.free > LONG_MAX // 2  # Kafka has no limit


def test_a_broker_of_apache_kafka_is_probed(apache_kafka: ApacheKafka) -> None:
    asyncio.run(_probe(apache_kafka.address))


async def _probe(servers: str) -> None:
    async with AsyncAdmin(servers) as admin:
        probe = BrokerProbe(admin, interval_s=0.05)
        await probe.start()
        async with asyncio.timeout(60):
            while len(probe.times()[0].recent if probe.times() else ()) < 8:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert probe.troubles == {}
        await probe.remove()
        async with asyncio.timeout(60):  # a broker learns a while later what the controller did
            while PROBE_TOPIC in await admin.topics():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
