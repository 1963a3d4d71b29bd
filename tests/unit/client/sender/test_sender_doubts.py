"""Batches that are stored but not acknowledged, in virtual time. Found by the fault runs.

`tests/simulation/test_producer_faults.py` meets them by chance.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.client.scripted_broker import NO_ANSWER
from tests.unit.client.scripted_produce import ProduceCluster
from trimtab.client.producer import AsyncProducer
from trimtab.kafka.errors import ErrorCode, Unavailable
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_cy import read_records
from trimtab.kafka.wire.messages.produce import ProduceRequest, ProduceResponse

ZERO = TopicPartition("topic", 0)


def first_value(request: ProduceRequest) -> bytes | None:
    records: Any = request.topic_data[0].partition_data[0].records
    first: bytes | None = read_records("topic", 0, records, 0)[0].value
    return first


async def send(producer: AsyncProducer, number: int) -> Any:
    return await producer.send("topic", b"%d" % number, partition=0)


async def test_what_was_stored_behind_a_batch_that_is_given_up_is_not_stored_again(
    kafka: ProduceCluster,
) -> None:
    """Under new numbers its broker would not know it again."""
    broker = kafka.cluster.brokers[0]
    is_mute = False

    def answer(request: ProduceRequest) -> object:
        response = kafka.produce(0, request)
        return NO_ANSWER if is_mute else response

    broker.answers[ProduceRequest] = answer
    async with kafka.producer(
        linger_ms=0, request_timeout_ms=400, delivery_timeout_ms=1000, retry_backoff_ms=10
    ) as producer:
        await (await send(producer, 0))
        is_mute = True
        given_up = await send(producer, 1)
        await asyncio.sleep(0.3)
        behind = await send(producer, 2)
        with pytest.raises(Unavailable, match=r"delivery\.timeout\.ms"):
            await given_up
        is_mute = False
        last = await send(producer, 3)
        assert [(await each).offset for each in (behind, last)] == [2, 3]
    assert kafka.stored[ZERO] == [b"0", b"1", b"2", b"3"]


async def test_no_more_is_sent_behind_a_batch_than_its_broker_knows_again(
    kafka: ProduceCluster,
) -> None:
    """Five: a stored batch without answer, with five stored behind it, would be out of order."""
    broker = kafka.cluster.brokers[0]
    doubts: list[object] = []

    def answer(request: ProduceRequest) -> object:
        response: Any = kafka.produce(0, request)
        assert isinstance(response, ProduceResponse)
        if first_value(request) != b"10" or len(doubts) == 2:
            return response
        doubts.append(request)
        if len(doubts) == 2:
            return NO_ANSWER
        response.responses[0].partition_responses[0].error_code = ErrorCode.REQUEST_TIMED_OUT
        return response

    broker.answers[ProduceRequest] = answer
    async with kafka.producer(
        batch_size=0, linger_ms=0, request_timeout_ms=300, retry_backoff_ms=1
    ) as producer:
        deliveries = []
        for number in range(200):
            deliveries.append(await send(producer, number))
            await asyncio.sleep(0.0001)
        for delivery in deliveries:
            await delivery
    assert len(doubts) == 2
    assert kafka.stored[ZERO] == [b"%d" % number for number in range(200)]
    assert max(kafka.epochs) == 0
