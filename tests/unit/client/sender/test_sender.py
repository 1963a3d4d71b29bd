"""The producer with scripted brokers: requests (`trimtab.client.sender.produce_request`), responses
and their order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.client.scripted_broker import HANG_UP, NO_ANSWER
from tests.unit.client.scripted_produce import ProduceCluster
from trimtab.client.producer import AsyncProducer
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from trimtab.kafka.wire.messages.produce import ProduceRequest


async def test_records_arrive_in_order_with_their_offsets(kafka: ProduceCluster) -> None:
    async with kafka.producer(batch_size=200) as producer:
        deliveries = [await producer.send("topic", b"%d" % i, partition=i % 2) for i in range(1000)]
        await producer.flush()
        offsets = [(await delivery).offset for delivery in deliveries]
    assert offsets == [i // 2 for i in range(1000)]
    for partition in range(2):
        assert kafka.stored[TopicPartition("topic", partition)] == [
            b"%d" % i for i in range(partition, 1000, 2)
        ]
    assert kafka.producer_ids == 1


async def test_a_batch_lingers_for_more_records(kafka: ProduceCluster) -> None:
    async with kafka.producer(linger_ms=100, acks="1") as producer:
        await producer.partitions_for("topic")
        begin = kafka.world.loop.time()
        first = await producer.send("topic", b"1", partition=0)
        await asyncio.sleep(0.05)
        await producer.send("topic", b"2", partition=0)
        await first
        (sent_at, _, _, count), *others = kafka.batches
        assert not others
        assert count == 2
        assert 0.1 <= sent_at - begin < 0.12


async def test_a_full_batch_does_not_linger(kafka: ProduceCluster) -> None:
    async with kafka.producer(linger_ms=10_000, batch_size=1000, acks="1") as producer:
        begin = kafka.world.loop.time()
        for _ in range(11):
            last = await producer.send("topic", b"x" * 90, partition=0)
        assert not last.done()
        await asyncio.sleep(1)
        assert [count for *_, count in kafka.batches] == [9]
        assert kafka.batches[0][0] - begin < 1


async def test_the_requests_in_flight_are_limited(kafka: ProduceCluster) -> None:
    async with kafka.producer(linger_ms=0, max_in_flight_requests_per_connection=3) as producer:
        await (await producer.send("topic", b"x", partition=0))
        kafka.cluster.brokers[0].answers[ProduceRequest] = lambda _: NO_ANSWER
        for _ in range(10):
            await producer.send("topic", b"x", partition=0)
            await asyncio.sleep(0.1)
        assert len(kafka.cluster.brokers[0].requests(ProduceRequest)) == 1 + 3


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
async def test_a_leader_that_moved_is_found(kafka: ProduceCluster, code: ErrorCode) -> None:
    kafka.refuse = lambda partition, count, broker: code if broker == 0 else ErrorCode.NONE
    async with kafka.producer() as producer:
        delivery = await producer.send("topic", b"x", partition=0)
        await asyncio.sleep(0.05)
        kafka.cluster.leaders["topic"] = [1, 1]
        assert (await delivery).offset == 0
    assert kafka.stored[TopicPartition("topic", 0)] == [b"x"]


async def test_order_survives_refusals_with_five_in_flight(kafka: ProduceCluster) -> None:
    """Every seventh batch is refused once; the batches in flight behind it arrive out of order."""
    kafka.refuse = lambda _, count, __: (
        ErrorCode.NOT_ENOUGH_REPLICAS if count % 7 == 3 else ErrorCode.NONE
    )
    async with kafka.producer(linger_ms=0, retry_backoff_ms=10) as producer:
        deliveries = []
        for i in range(300):
            deliveries.append(await producer.send("topic", b"%d" % i, partition=0))
            if i % 3 == 0:
                await asyncio.sleep(0.0005)
        await producer.flush()
        for delivery in deliveries:
            await delivery
    assert kafka.stored[TopicPartition("topic", 0)] == [b"%d" % i for i in range(300)]
    assert kafka.producer_ids == 1


async def test_a_connection_that_breaks_loses_and_doubles_nothing(kafka: ProduceCluster) -> None:
    answer = kafka.cluster.brokers[0].answers[ProduceRequest]
    calls = [0]

    def stores_then_sometimes_hangs_up(request: Any) -> object:
        calls[0] += 1
        response = answer(request)
        return HANG_UP if calls[0] % 4 == 0 else response

    kafka.cluster.brokers[0].answers[ProduceRequest] = stores_then_sometimes_hangs_up
    async with kafka.producer(linger_ms=0, retry_backoff_ms=10) as producer:
        for i in range(100):
            await producer.send("topic", b"%d" % i, partition=0)
            await asyncio.sleep(0.001)
        await producer.flush()
    assert kafka.stored[TopicPartition("topic", 0)] == [b"%d" % i for i in range(100)]


async def test_batches_in_flight_on_a_broken_connection_keep_their_order(
    kafka: ProduceCluster,
) -> None:
    """Without idempotence nothing but the order of putting back keeps it."""
    answer = kafka.cluster.brokers[0].answers[ProduceRequest]
    asked = [0]

    def hangs_up_after_three(request: Any) -> object:
        asked[0] += 1
        return NO_ANSWER if asked[0] < 3 else HANG_UP if asked[0] == 3 else answer(request)

    kafka.cluster.brokers[0].answers[ProduceRequest] = hangs_up_after_three
    async with kafka.producer(acks="1", linger_ms=0, retry_backoff_ms=10) as producer:
        for i in range(6):
            await producer.send("topic", b"%d" % i, partition=0)
            await asyncio.sleep(0.005)
        await producer.flush()
    assert kafka.stored[TopicPartition("topic", 0)] == [b"%d" % i for i in range(6)]


async def test_a_failed_batch_does_not_fail_others(kafka: ProduceCluster) -> None:
    kafka.refuse = lambda _, count, __: ErrorCode.INVALID_RECORD if count == 2 else ErrorCode.NONE
    async with kafka.producer(linger_ms=0, retry_backoff_ms=10) as producer:
        await (await producer.send("topic", b"first", partition=0))
        deliveries = []
        for i in range(5):
            deliveries.append(await producer.send("topic", b"%d" % i, partition=0))
            await asyncio.sleep(0.0001)
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            await deliveries[0]
        for delivery in deliveries[1:]:
            await delivery
    assert kafka.stored[TopicPartition("topic", 0)] == [b"first", b"1", b"2", b"3", b"4"]
    assert len(kafka.batches) > 6  # some were sent twice
    assert kafka.producer_ids == 1
    assert max(kafka.epochs) == 1


async def test_a_broker_that_cannot_be_produced_to_is_named(kafka: ProduceCluster) -> None:
    kafka.cluster.brokers[0].versions[ProduceRequest] = (0, 2)
    async with kafka.producer() as producer:
        delivery = await producer.send("topic", b"x", partition=0)
        with pytest.raises(BrokerError, match="serves Produce 0 to 2; this client needs 3"):
            await delivery


async def test_a_too_large_batch_names_the_options_to_raise(kafka: ProduceCluster) -> None:
    kafka.refuse = lambda *_: ErrorCode.MESSAGE_TOO_LARGE
    async with kafka.producer() as producer:
        delivery = await producer.send("topic", b"x" * 100, partition=1)
        said = r"topic-1 on broker 1 .*: a record of 1\d\d bytes.* topic's max\.message\.bytes"
        with pytest.raises(BrokerError, match=said):
            await delivery


async def test_after_a_batch_failed_the_producer_begins_a_new_sequence(
    kafka: ProduceCluster,
) -> None:
    kafka.refuse = lambda _, count, __: ErrorCode.INVALID_RECORD if count == 1 else ErrorCode.NONE
    async with kafka.producer() as producer:
        refused = await producer.send("topic", b"refused", partition=0)
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            await refused
        assert (await (await producer.send("topic", b"next", partition=0))).offset == 0
    assert kafka.producer_ids == 1
    assert kafka.epochs == [0, 1]


async def test_a_batch_that_no_broker_accepts_fails_in_time(kafka: ProduceCluster) -> None:
    async with kafka.producer(delivery_timeout_ms=3000, request_timeout_ms=1000) as producer:
        await producer.partitions_for("topic")
        for broker in kafka.cluster.brokers.values():
            broker.stop()
        begin = kafka.world.loop.time()
        delivery = await producer.send("topic", b"x", partition=0)
        with pytest.raises(Unavailable, match=r"not acknowledged within 3 s"):
            await delivery
        assert 3 <= kafka.world.loop.time() - begin < 3.2


async def test_without_acknowledgements_deliveries_do_not_wait(kafka: ProduceCluster) -> None:
    async with kafka.producer(acks="0", linger_ms=0) as producer:
        metadata = await (await producer.send("topic", b"x", partition=0))
        assert metadata.offset == -1
        await asyncio.sleep(1)
    assert kafka.stored[TopicPartition("topic", 0)] == [b"x"]
    assert kafka.producer_ids == 0


async def test_send_waits_for_buffer_memory_and_drops_nothing(kafka: ProduceCluster) -> None:
    async with kafka.producer(buffer_memory=5000, batch_size=1000) as producer:
        for i in range(500):
            await producer.send("topic", b"%100d" % i, partition=0)
        await producer.flush()
    assert kafka.stored[TopicPartition("topic", 0)] == [b"%100d" % i for i in range(500)]


async def test_send_stops_waiting_for_buffer_memory(kafka: ProduceCluster) -> None:
    kafka.cluster.brokers[0].answers[ProduceRequest] = lambda _: NO_ANSWER
    async with kafka.producer(buffer_memory=1000, max_block_ms=2000) as producer:

        async def send_many() -> None:
            for _ in range(100):
                await producer.send("topic", b"x" * 100, partition=0)

        with pytest.raises(Unavailable, match=r"buffer memory is full .* for 2 s"):
            await send_many()


async def test_a_topic_that_does_not_exist_is_named(kafka: ProduceCluster) -> None:
    async with kafka.producer(max_block_ms=1000) as producer:
        with pytest.raises(BrokerError, match=r"topic nowhere: .* create it first"):
            await producer.send("nowhere", b"x")


async def test_only_idempotence_asks_for_a_producer_id(kafka: ProduceCluster) -> None:
    async with kafka.producer(acks="1") as producer:
        await (await producer.send("topic", b"x"))
    assert kafka.producer_ids == 0


@pytest.mark.kip(794)
async def test_a_broker_that_takes_nothing_is_unavailable_until_it_takes_again(
    kafka: ProduceCluster,
) -> None:
    kafka.cluster.brokers[0].answers[ProduceRequest] = lambda _: NO_ANSWER
    async with kafka.producer(
        linger_ms=0,
        acks="1",
        partitioner_availability_timeout_ms=50,
        max_in_flight_requests_per_connection=1,
    ) as producer:
        sender = producer._core.sender
        await producer.send("topic", b"1", partition=0)
        await asyncio.sleep(0.2)
        assert sender.unavailable_nodes() == frozenset()  # nothing is ready for it
        await producer.send("topic", b"2", partition=0)
        await asyncio.sleep(0.04)
        assert sender.unavailable_nodes() == frozenset()
        await asyncio.sleep(0.02)
        assert sender.unavailable_nodes() == {0}
        for _ in range(20):
            await producer.send("topic", b"x" * 20_000)
        await asyncio.sleep(0.1)
        assert len(kafka.stored[TopicPartition("topic", 1)]) == 20


async def test_closing_sends_the_waiting_batches(kafka: ProduceCluster) -> None:
    async with kafka.producer(linger_ms=60_000) as producer:
        await producer.send("topic", b"x", partition=0)
        await producer.close()
        with pytest.raises(UsageError, match="is closed"):
            await producer.send("topic", b"y", partition=0)
    assert kafka.stored[TopicPartition("topic", 0)] == [b"x"]


async def test_closing_in_time_fails_unacknowledged_batches(kafka: ProduceCluster) -> None:
    kafka.cluster.brokers[0].answers[ProduceRequest] = lambda _: NO_ANSWER
    async with kafka.producer() as producer:
        delivery = await producer.send("topic", b"x", partition=0)
        await producer.close(timeout=1)
        with pytest.raises(Unavailable, match="closed before this was acknowledged"):
            await delivery


async def test_without_a_producer_id_the_error_says_so(kafka: ProduceCluster) -> None:
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for broker in kafka.cluster.brokers.values():
        broker.answers[InitProducerIdRequest] = lambda request: InitProducerIdResponse(
            error_code=code, producer_id=-1, producer_epoch=-1
        )
    async with kafka.producer(delivery_timeout_ms=2000, request_timeout_ms=1000) as producer:
        delivery = await producer.send("topic", b"x", partition=0)
        with pytest.raises(Unavailable, match=f"this producer has no id yet: .*{code.name}"):
            await delivery


async def test_topics_without_ids_are_named(kafka: ProduceCluster) -> None:
    kafka.cluster.has_topic_ids = False
    async with kafka.producer() as producer:
        await (await producer.send("topic", b"x", partition=0))
    versions = [a.version for a in kafka.cluster.brokers[0].asked if a.api is ProduceRequest]
    assert versions == [12]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable_idempotence": True, "acks": "1"}, "needs acks=all"),
        (
            {"enable_idempotence": True, "max_in_flight_requests_per_connection": 6},
            "of at most 5",
        ),
        ({"partitioner_class": "random"}, r"partitioner\.class='random' is not known"),
        ({"lingerms": 5}, r"did you mean linger\.ms"),
        ({"batch_size": "many"}, r"batch\.size='many'"),
    ],
)
async def test_options_that_contradict_or_are_unknown_are_refused(
    kafka: ProduceCluster, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        AsyncProducer("broker-0:9092", **options)
