"""Closing a client takes a bounded time, whatever its servers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.unit.client.scripted_broker import NO_ANSWER, RequestClass, ScriptedCluster
from tests.unit.client.scripted_transactions import TransactionCluster
from trimtab import Admin, Consumer, Producer
from trimtab.client.admin import AsyncAdmin
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.producer import AsyncProducer
from trimtab.kafka.errors import ErrorCode, KafkaError, Unavailable
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest
from trimtab.kafka.wire.messages.find_coordinator import FindCoordinatorRequest
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.produce import ProduceRequest
from trimtab.sim.world import World

MOST_S = 3
LIMITS: dict[str, Any] = {
    "max_block_ms": MOST_S * 1000,
    "delivery_timeout_ms": 2000,
    "request_timeout_ms": 1000,
}
CALLS: dict[str, Any] = {"default_api_timeout_ms": MOST_S * 1000, "request_timeout_ms": 1000}


async def close(client: Any, most_s: float = MOST_S) -> None:
    closing = asyncio.create_task(client.close())
    done, _ = await asyncio.wait([closing], timeout=most_s + 0.1)
    if not done:
        closing.cancel()
    assert done, f"it is not closed after {most_s} virtual seconds"
    await closing


async def initialize(servers: str, **more: Any) -> Any:
    producer = AsyncProducer(servers, transactional_id="x", **LIMITS, **more)
    with pytest.raises(Unavailable, match=r"init_transactions\(\) is not done after 3 s"):
        await producer.init_transactions()
    return producer


async def send(servers: str, **more: Any) -> Any:
    producer = AsyncProducer(servers, **LIMITS, **more)
    with suppress(KafkaError):
        await producer.send("t", b"v")
    return producer


async def subscribe(servers: str, **more: Any) -> Any:
    consumer = AsyncConsumer(servers, group_id="g", **CALLS, **more)
    consumer.subscribe(["t"])
    await consumer.poll(timeout_ms=100)
    return consumer


async def assign(servers: str, **more: Any) -> Any:
    consumer = AsyncConsumer(servers, **CALLS, **more)
    consumer.assign([("t", 0)])
    await consumer.poll(timeout_ms=100)
    return consumer


async def ask(servers: str, **more: Any) -> Any:
    admin = AsyncAdmin(servers, **CALLS, **more)
    with suppress(KafkaError):
        await admin.topics()
    return admin


@pytest.mark.parametrize("use", [initialize, send, subscribe, assign, ask])
@pytest.mark.parametrize("server", ["none", "mute", "without a coordinator"])
async def test_at_a_server_that_does_not_serve(
    world: World, use: Callable[..., Any], server: str
) -> None:
    cluster = ScriptedCluster(world)
    broker = cluster.broker(0)
    if server == "mute":
        loop = asyncio.get_running_loop()
        with world.network.at("broker-0"):
            await loop.create_server(asyncio.Protocol, "broker-0", 9092)
    elif server == "without a coordinator":
        broker.answers[FindCoordinatorRequest] = lambda request: NO_ANSWER
        await broker.start()
    client = await use(cluster.bootstrap, random=world.random("client"))
    await close(client)


@pytest.mark.parametrize(
    ("silent", "call"),
    [(EndTxnRequest, "commit"), (EndTxnRequest, "abort"), (ProduceRequest, "commit")],
)
async def test_while_a_transaction_ends(
    brokers: TransactionCluster, silent: RequestClass, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.fault = lambda api: NO_ANSWER if api is silent else ErrorCode.NONE
    async with brokers.producer(**{**LIMITS, "delivery_timeout_ms": 10_000}) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send("topic", b"v", partition=0)
        await asyncio.sleep(0.1)
        end = producer.commit_transaction if call == "commit" else producer.abort_transaction
        with pytest.raises(Unavailable, match="is not done after 3 s"):
            await end()
        await close(producer, MOST_S if silent is EndTxnRequest else 10)
    assert f"closed before the outcome of {call}_transaction() was known" in caplog.text


async def test_a_close_waits_for_a_commit_that_goes_on(brokers: TransactionCluster) -> None:
    brokers.script[EndTxnRequest] = [NO_ANSWER]
    async with brokers.producer(**{**LIMITS, "max_block_ms": 800}) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send("topic", b"v", partition=0)
        with pytest.raises(Unavailable, match="it goes on"):
            await producer.commit_transaction()
        await producer.close()
    assert brokers.decisions == [True]


async def test_an_initialization_that_goes_on_ends_with_the_producer(
    brokers: TransactionCluster,
) -> None:
    brokers.fault = lambda api: NO_ANSWER if api is InitProducerIdRequest else ErrorCode.NONE
    async with brokers.producer(max_block_ms=600_000) as producer:
        initializing = asyncio.create_task(producer.init_transactions())
        await asyncio.sleep(1)
        await close(producer, 1)
    with pytest.raises(Unavailable, match="closed meanwhile"):
        await initializing


async def test_a_second_close_hastens_a_commit(brokers: TransactionCluster) -> None:
    brokers.fault = lambda api: NO_ANSWER if api is EndTxnRequest else ErrorCode.NONE
    async with brokers.producer(max_block_ms=600_000) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send("topic", b"v", partition=0)
        committing = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(1)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(1)
        began = brokers.world.loop.time()
        await producer._core.close(2)
        assert brokers.world.loop.time() - began <= 2.1
        await closing
    with pytest.raises(Unavailable, match="closed meanwhile"):
        await committing


@pytest.mark.timeout(60)
@pytest.mark.parametrize("listens", [False, True])
def test_the_synchronous_clients(silent: str, listens: bool) -> None:
    servers = silent if listens else "127.0.0.1:1"
    limits: dict[str, Any] = {"max_block_ms": 200}
    with Producer(servers, transactional_id="x", **limits) as one, pytest.raises(Unavailable):
        one.init_transactions()
    with Producer(servers, **limits) as producer, pytest.raises(Unavailable):
        producer.send("t", b"v")
    with Consumer(servers, group_id="g", default_api_timeout_ms=200) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(timeout_ms=100)
    with Admin(servers, default_api_timeout_ms=200) as admin, pytest.raises(KafkaError):
        admin.topics()
