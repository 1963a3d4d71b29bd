"""What the sender makes of refusals, silence, slowness and change, in virtual time.

Long because it is a list of what may go wrong, one case by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import pytest

from tests.unit.client.scripted_broker import HANG_UP, NO_ANSWER
from tests.unit.client.scripted_produce import ProduceCluster
from trimtab.client.metrics_cy import ProducerMetrics
from trimtab.client.producer import AsyncProducer
from trimtab.client.sender.identity import LAST_EPOCH
from trimtab.client.sender.node_record import NodeRecord
from trimtab.kafka.errors import AuthenticationFailed, BrokerError, ErrorCode, Unavailable
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    ProduceRequest,
    ProduceResponse,
)

ZERO = TopicPartition("topic", 0)
ONE = TopicPartition("topic", 1)
NOTHING = ErrorCode.NONE


def values(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def intercept(
    kafka: ProduceCluster, change: Callable[[Any, ProduceResponse], object], broker: int = 0
) -> None:
    """Have a broker's produce responses changed on their way: `change(request, response)`."""
    answers = kafka.cluster.brokers[broker].answers
    produce = answers[ProduceRequest]
    answers[ProduceRequest] = lambda request: change(request, produce(request))  # type: ignore[arg-type]


async def send_each(producer: AsyncProducer, count: int, pause: float = 0.0005) -> list[Any]:
    """One batch for each record, to partition 0."""
    deliveries = []
    for value in values(count):
        deliveries.append(await producer.send("topic", value, partition=0))
        await asyncio.sleep(pause)
    return deliveries


# order


async def test_a_partition_that_opens_between_two_batches_does_not_wedge(
    kafka: ProduceCluster,
) -> None:
    """Kafka's own producer sends both; the second is stored, and the first never can be."""
    kafka.refuse = lambda _, count, __: (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if count == 1 else NOTHING
    )
    async with kafka.producer(linger_ms=0) as producer:
        for delivery in await send_each(producer, 20):
            await delivery
    assert kafka.stored[ZERO] == values(20)
    assert kafka.world.loop.time() < 1
    assert max(kafka.epochs) == 0


async def test_order_survives_a_leader_that_moves_with_five_in_flight(
    kafka: ProduceCluster,
) -> None:
    leads = [0]
    kafka.refuse = lambda _, __, broker: (
        NOTHING if broker == leads[0] else ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    async with kafka.producer(linger_ms=0, retry_backoff_ms=10) as producer:
        deliveries = []
        for i, value in enumerate(values(300)):
            deliveries.append(await producer.send("topic", value, partition=0))
            await asyncio.sleep(0.0002)
            if i % 60 == 30:
                leads[0] = 1 - leads[0]
                kafka.cluster.leaders["topic"] = [leads[0], 1]
                kafka.cluster.leader_epoch += 1
        for delivery in deliveries:
            await delivery
    assert kafka.stored[ZERO] == values(300)
    assert {broker for _, broker, _, _ in kafka.batches} == {0, 1}


async def test_the_new_leader_gets_nothing_while_the_old_one_has_not_answered(
    kafka: ProduceCluster,
) -> None:
    held: list[Any] = []

    def hold(request: Any, _: ProduceResponse) -> object:
        held.append(request)
        return NO_ANSWER

    async with kafka.producer(linger_ms=0, metadata_max_age_ms=100) as producer:
        await (await producer.send("topic", b"first", partition=0))
        intercept(kafka, hold)
        await producer.send("topic", b"second", partition=0)
        await asyncio.sleep(0.05)
        kafka.cluster.leaders["topic"] = [1, 1]
        kafka.cluster.leader_epoch = 1
        await asyncio.sleep(0.2)
        await producer.send("topic", b"third", partition=0)
        await asyncio.sleep(1)
        assert len(held) == 1
        assert kafka.cluster.brokers[1].requests(ProduceRequest) == []
        for link in kafka.cluster.brokers[0].links:
            if link.transport is not None:
                link.transport.abort()
        await producer.flush()
    # The old leader stored the second, and its answer was lost: its sequence number shows that.
    assert kafka.stored[ZERO] == [b"first", b"second", b"third"]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    ],
)
async def test_a_broker_that_has_forgotten_the_producer_gets_everything_once(
    kafka: ProduceCluster, code: ErrorCode
) -> None:
    kafka.refuse = lambda _, count, __: code if count == 10 else NOTHING
    async with kafka.producer(linger_ms=0, retry_backoff_ms=10) as producer:
        for delivery in await send_each(producer, 50):
            await delivery
    assert kafka.stored[ZERO] == values(50)
    assert max(kafka.epochs) == 1
    assert kafka.producer_ids == 1


async def test_without_idempotence_one_in_flight_keeps_the_order(kafka: ProduceCluster) -> None:
    kafka.refuse = lambda _, count, __: ErrorCode.NOT_ENOUGH_REPLICAS if count % 5 == 2 else NOTHING
    async with kafka.producer(
        acks="1", linger_ms=0, max_in_flight_requests_per_connection=1, retry_backoff_ms=10
    ) as producer:
        for delivery in await send_each(producer, 50):
            await delivery
    assert kafka.stored[ZERO] == values(50)
    assert set(kafka.epochs) == {-1}


async def test_one_in_flight_is_one_also_while_the_leader_moves(kafka: ProduceCluster) -> None:
    kafka.cluster.brokers[0].answers[ProduceRequest] = lambda _: NO_ANSWER
    async with kafka.producer(
        acks="1",
        linger_ms=0,
        max_in_flight_requests_per_connection=1,
        metadata_max_age_ms=100,
        request_timeout_ms=2000,
    ) as producer:
        await producer.send("topic", b"first", partition=0)
        await asyncio.sleep(0.05)
        kafka.cluster.leaders["topic"] = [1, 1]
        await asyncio.sleep(0.2)
        await producer.send("topic", b"second", partition=0)
        await asyncio.sleep(1)
        assert kafka.cluster.brokers[1].requests(ProduceRequest) == []
        await producer.flush()
    assert kafka.stored[ZERO] == [b"first", b"second"]


async def test_what_was_refused_for_another_batch_goes_right_behind_it(
    kafka: ProduceCluster,
) -> None:
    kafka.refuse = lambda _, count, __: ErrorCode.NOT_ENOUGH_REPLICAS if count == 2 else NOTHING
    async with kafka.producer(linger_ms=0, retry_backoff_ms=800) as producer:
        await (await producer.send("topic", b"first", partition=0))
        await send_each(producer, 5, 0.0001)
        await producer.flush()
    assert kafka.stored[ZERO] == [b"first", *values(5)]
    at = [when for when, *_ in kafka.batches]
    again = next(i for i, (earlier, later) in enumerate(pairwise(at), 1) if later - earlier > 0.5)
    assert len(at[again:]) == 5
    assert at[-1] - at[again] < 0.02


async def test_epochs_that_are_used_up_go_on_with_another_producer_id(
    kafka: ProduceCluster,
) -> None:
    identify = kafka.identify

    def with_the_last_epoch(request: Any) -> Any:
        return replace(
            identify(request), producer_epoch=LAST_EPOCH if kafka.producer_ids == 1 else 0
        )

    for broker in kafka.cluster.brokers.values():
        broker.answers[InitProducerIdRequest] = with_the_last_epoch
    kafka.refuse = lambda _, count, __: ErrorCode.INVALID_RECORD if count == 2 else NOTHING
    async with kafka.producer(linger_ms=0) as producer:
        await (await producer.send("topic", b"first", partition=0))
        refused = await producer.send("topic", b"refused", partition=0)
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            await refused
        await (await producer.send("topic", b"second", partition=0))
        assert kafka.world.loop.time() < 1
    assert kafka.stored[ZERO] == [b"first", b"second"]
    assert kafka.epochs == [LAST_EPOCH, LAST_EPOCH, 0]
    assert kafka.producer_ids == 2


async def test_a_topic_that_is_deleted_is_asked_for_no_more_and_named(
    kafka: ProduceCluster,
) -> None:
    async with kafka.producer(
        linger_ms=0, delivery_timeout_ms=5000, request_timeout_ms=1000
    ) as producer:
        await (await producer.send("topic", b"first", partition=0))
        kafka.refuse = lambda *_: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        del kafka.cluster.leaders["topic"]
        kafka.cluster.topic_of = lambda topic_id: "topic"  # type: ignore[method-assign]
        delivery = await producer.send("topic", b"second", partition=0)
        with pytest.raises(Unavailable, match=r"leader is unknown: topic topic: UNKNOWN_TOPIC"):
            await delivery
    assert len(kafka.batches) == 2


async def test_a_topic_that_is_created_again_is_written_to_from_its_beginning(
    kafka: ProduceCluster,
) -> None:
    generation = [1]
    cluster = kafka.cluster
    original = cluster.topic_id
    cluster.topic_id = lambda name: original(name)[:-1] + bytes(generation)  # type: ignore[method-assign]

    def produce(request: Any, answer: Any = kafka.produce) -> object:
        if request.topic_data[0].topic_id != cluster.topic_id("topic"):
            response = kafka.produce(0, replace(request, topic_data=[]))
            assert isinstance(response, ProduceResponse)
            return _refuse_all(request, response, ErrorCode.UNKNOWN_TOPIC_ID)
        return answer(0, request)

    cluster.brokers[0].answers[ProduceRequest] = produce
    async with kafka.producer(linger_ms=0) as producer:
        for i in range(3):
            await (await producer.send("topic", b"old %d" % i, partition=0))
        generation[0] = 2
        kafka.stored.clear()
        kafka.producers.clear()
        deliveries = [await producer.send("topic", value, partition=0) for value in values(3)]
        assert [(await delivery).offset for delivery in deliveries] == [0, 1, 2]
    assert kafka.stored[ZERO] == values(3)
    assert kafka.epochs[-1] == 1


def _refuse_all(request: Any, response: ProduceResponse, code: ErrorCode) -> ProduceResponse:
    from trimtab.kafka.wire.messages.produce import PartitionProduceResponse, TopicProduceResponse

    return replace(
        response,
        responses=[
            TopicProduceResponse(
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ],
    )


# time


async def test_delivery_timeout_ends_what_is_in_flight_and_later_records_go_on(
    kafka: ProduceCluster,
) -> None:
    """The request has until 3.6 s; the records have until 3 s."""
    async with kafka.producer(
        linger_ms=0, delivery_timeout_ms=3000, request_timeout_ms=2900, retry_backoff_ms=700
    ) as producer:
        await (await producer.send("topic", b"first", partition=0))
        calls = [0]

        def refuse_then_be_silent(request: Any, response: Any) -> object:
            calls[0] += 1
            if calls[0] == 1:
                return _refuse_all(request, response, ErrorCode.NOT_ENOUGH_REPLICAS)
            return NO_ANSWER if calls[0] == 2 else response

        kafka.refuse = lambda *_: ErrorCode.NOT_ENOUGH_REPLICAS if calls[0] < 2 else NOTHING
        intercept(kafka, refuse_then_be_silent)
        begin = kafka.world.loop.time()
        lost = await producer.send("topic", b"lost", partition=0)
        with pytest.raises(Unavailable, match=r"3 s .* after 2 attempts: last came .*NOT_ENOUGH"):
            await lost
        assert 3 <= kafka.world.loop.time() - begin < 3.01
        later = [await producer.send("topic", b"later %d" % i, partition=0) for i in range(3)]
        for delivery in later:
            await delivery
    assert [value for value in kafka.stored[ZERO] if value != b"lost"] == [
        b"first",
        *(b"later %d" % i for i in range(3)),
    ]
    assert kafka.epochs[-1] == 1
    assert kafka.producer_ids == 1


async def test_a_broker_that_does_not_answer_is_named_as_such(kafka: ProduceCluster) -> None:
    kafka.cluster.brokers[0].answers[ProduceRequest] = lambda _: NO_ANSWER
    async with kafka.producer(
        linger_ms=100, delivery_timeout_ms=3000, request_timeout_ms=2900, acks="1"
    ) as producer:
        delivery = await producer.send("topic", b"x", partition=0)
        with pytest.raises(Unavailable, match=r"after 1 attempt: broker 0 .* has not answered"):
            await delivery


async def test_a_partition_without_leader_says_so_when_time_is_up_and_is_sent_once_it_has_one(
    kafka: ProduceCluster,
) -> None:
    kafka.cluster.leaders["topic"] = [-1, 1]
    async with kafka.producer(delivery_timeout_ms=2000, request_timeout_ms=1000) as producer:
        delivery = await producer.send("topic", b"x", partition=0)
        with pytest.raises(Unavailable, match=r"after 0 attempts: its leader is unknown"):
            await delivery
        second = await producer.send("topic", b"y", partition=0)
        await asyncio.sleep(0.5)
        assert not second.done()
        kafka.cluster.leaders["topic"] = [1, 1]
        assert (await second).offset == 0


async def test_back_off_doubles_with_each_attempt_and_retries_end(kafka: ProduceCluster) -> None:
    kafka.refuse = lambda *_: ErrorCode.NOT_ENOUGH_REPLICAS
    async with kafka.producer(linger_ms=0, retries=4, retry_backoff_max_ms=300) as producer:
        delivery = await producer.send("topic", b"x", partition=0)
        with pytest.raises(BrokerError, match=r"topic-0 on broker 0 .*, attempt 5: NOT_ENOUGH"):
            await delivery
    at = [when for when, *_ in kafka.batches]
    waits = [later - earlier for earlier, later in pairwise(at)]
    for wait, expected in zip(waits, (0.1, 0.2, 0.3, 0.3), strict=True):
        assert expected * 0.79 < wait < min(expected * 1.21, 0.31)


async def test_a_broker_that_throttles_gets_nothing_for_so_long_and_others_do(
    kafka: ProduceCluster,
) -> None:
    intercept(kafka, lambda _, response: replace(response, throttle_time_ms=700))
    async with kafka.producer(linger_ms=0) as producer:
        for _ in range(3):
            await producer.send("topic", b"x", partition=0)
            await producer.send("topic", b"x", partition=1)
            await asyncio.sleep(0.1)
        await producer.flush()
    first, *later = [when for when, broker, *_ in kafka.batches if broker == 0]
    assert [0.7 <= when - first < 0.71 for when in later[:1]] == [True]
    assert max(when for when, broker, *_ in kafka.batches if broker == 1) - first < 0.3


# leaders that brokers name


@pytest.mark.kip(951)
async def test_a_leader_that_the_answer_names_is_asked_without_back_off(
    kafka: ProduceCluster,
) -> None:
    """Metadata still names the old leader; the new one is a broker that was not known before."""
    third = kafka.cluster.broker(2)
    third.answers[ProduceRequest] = lambda request: kafka.produce(2, request)
    hidden = kafka.cluster.brokers.pop(2)
    moved = [False]

    def name_the_leader(request: Any, response: ProduceResponse) -> object:
        if moved[0]:
            for answer in response.responses[0].partition_responses:
                answer.current_leader = LeaderIdAndEpoch(leader_id=2, leader_epoch=5)
            response.node_endpoints = [NodeEndpoint(node_id=2, host=hidden.host, port=9092)]
            kafka.cluster.brokers[2] = hidden
        return response

    intercept(kafka, name_the_leader)
    kafka.refuse = lambda _, __, broker: (
        ErrorCode.NOT_LEADER_OR_FOLLOWER if moved[0] and broker == 0 else NOTHING
    )
    await hidden.start()
    async with kafka.producer(linger_ms=0, retry_backoff_ms=1000) as producer:
        await (await producer.send("topic", b"first", partition=0))
        moved[0] = True
        begin = kafka.world.loop.time()
        await (await producer.send("topic", b"second", partition=0))
        assert kafka.world.loop.time() - begin < 0.1
    assert kafka.stored[ZERO] == [b"first", b"second"]
    assert kafka.batches[-1][1] == 2


async def test_a_leader_found_by_metadata_ends_the_back_off(kafka: ProduceCluster) -> None:
    kafka.refuse = lambda _, __, broker: (
        ErrorCode.NOT_LEADER_OR_FOLLOWER if broker == 0 else NOTHING
    )
    async with kafka.producer(linger_ms=0, retry_backoff_ms=1000) as producer:
        await producer.partitions_for("topic")
        kafka.cluster.leaders["topic"] = [1, 1]
        await (await producer.send("topic", b"x", partition=0))
        assert kafka.world.loop.time() < 0.1


# size


@pytest.mark.kip(126)
@pytest.mark.parametrize("largest", [1, 7])
def test_batches_that_are_too_large_are_split_and_keep_their_order(
    kafka: ProduceCluster, largest: int
) -> None:
    kafka.refuse_records = lambda count: ErrorCode.MESSAGE_TOO_LARGE if count > largest else NOTHING

    async def run() -> list[int]:
        async with kafka.producer(
            linger_ms=20, retries=1, batch_size=150 if largest > 1 else 16_384
        ) as producer:
            await (await producer.send("topic", b"first", partition=0))
            deliveries = [await producer.send("topic", value, partition=0) for value in values(60)]
            await producer.flush()
            return [(await delivery).offset for delivery in deliveries]

    assert kafka.world.run(run()) == list(range(1, 61))
    assert kafka.stored[ZERO] == [b"first", *values(60)]
    assert max(kafka.epochs) == 0
    assert max(count for *_, count in kafka.batches) > largest


async def test_a_flush_waits_for_the_parts_of_a_split_batch(kafka: ProduceCluster) -> None:
    kafka.refuse_records = lambda count: ErrorCode.MESSAGE_TOO_LARGE if count > 1 else NOTHING
    async with kafka.producer(linger_ms=20, acks="1") as producer:
        deliveries = [await producer.send("topic", value, partition=0) for value in values(10)]
        await producer.flush()
        assert all(delivery.done() for delivery in deliveries)
    assert kafka.stored[ZERO] == values(10)


# the order of batches


async def test_a_partition_that_found_no_room_is_first_in_the_next_request(
    kafka: ProduceCluster,
) -> None:
    kafka.cluster.leaders["topic"] = [0] * 5
    async with kafka.producer(
        acks="1",
        linger_ms=0,
        max_request_size=2500,
        batch_size=1000,
        max_in_flight_requests_per_connection=1,
    ) as producer:
        for _ in range(6):
            for partition in range(5):
                await producer.send("topic", b"x" * 1000, partition=partition)
        await producer.flush()
    counts = [0] * 5
    for _, _, stored_in, _ in kafka.batches:
        counts[stored_in.partition] += 1
        assert max(counts) - min(counts) <= 2, "nobody is left behind"
    assert counts == [6] * 5
    sizes = [
        len(request.topic_data[0].partition_data)
        for request in kafka.cluster.brokers[0].requests(ProduceRequest)
    ]
    assert max(sizes) == 2, "what max.request.size has room for"


async def test_records_that_wait_for_memory_end_the_lingering(kafka: ProduceCluster) -> None:
    async with kafka.producer(
        linger_ms=60_000, buffer_memory=4_000, batch_size=100_000, acks="1"
    ) as producer:
        for _ in range(30):
            await producer.send("topic", b"x" * 400, partition=0)
        assert kafka.world.loop.time() < 1
        await producer.flush()
    assert len(kafka.stored[ZERO]) == 30


async def test_a_flush_ends_the_lingering(kafka: ProduceCluster) -> None:
    async with kafka.producer(linger_ms=60_000) as producer:
        await producer.send("topic", b"x", partition=0)
        await producer.flush()
        assert kafka.world.loop.time() < 1


async def test_refused_credentials_fail_the_waiting_batches_at_once(
    kafka: ProduceCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kafka.producer(acks="1") as producer:
        await producer.partitions_for("topic")
        kafka.cluster.brokers[0].stop()
        refused = AuthenticationFailed("broker 0 does not accept the password of user ada")
        monkeypatch.setattr(
            producer._core.connections,
            "last_error",
            lambda node: refused if node == 0 else None,
        )
        monkeypatch.setattr(producer._core.connections, "ready", lambda node: None)
        delivery = await producer.send("topic", b"x", partition=0)
        with pytest.raises(AuthenticationFailed, match="user ada"):
            await delivery
        monkeypatch.undo()
        assert (await (await producer.send("topic", b"x", partition=1))).offset == 0
        assert kafka.world.loop.time() < 1


# loads and metrics


@pytest.mark.kip(794)
async def test_idle_time_makes_no_broker_unavailable_but_by_javas_rule(
    kafka: ProduceCluster,
) -> None:
    """After ten idle minutes the connection is opened again, which takes a moment (D4)."""
    seen: list[frozenset[int]] = []
    async with kafka.producer(
        acks="1", linger_ms=0, partitioner_availability_timeout_ms=5000
    ) as producer:
        sender = producer._core.sender
        for pause in (600, 0):
            await (await producer.send("topic", b"x", partition=0))
            await asyncio.sleep(pause)
        for link in kafka.cluster.brokers[0].links:
            if link.transport is not None:
                link.transport.abort()
        await asyncio.sleep(600)
        delivery = await producer.send("topic", b"x", partition=0)
        await asyncio.sleep(0)
        for is_java in (False, True):
            sender._options = replace(sender._options, is_idle_time_counted=is_java)
            seen.append(sender.unavailable_nodes())
        await delivery
        seen.append(sender.unavailable_nodes())
    assert seen == [frozenset(), {0}, frozenset()]


@pytest.mark.kip(794)
async def test_a_broker_that_is_slow_but_takes_is_available_and_one_with_nothing_due_too(
    kafka: ProduceCluster,
) -> None:
    answer_after(kafka, 0.04)
    seen: set[frozenset[int]] = set()
    async with kafka.producer(
        acks="1",
        linger_ms=0,
        partitioner_availability_timeout_ms=100,
        max_in_flight_requests_per_connection=1,
        delivery_timeout_ms=3000,
        request_timeout_ms=2900,
        batch_size=100,
    ) as producer:
        sender = producer._core.sender
        for _ in range(10):
            await producer.send("topic", b"x" * 100, partition=0)
        for _ in range(30):
            await asyncio.sleep(0.01)
            seen.add(sender.unavailable_nodes())
        assert seen == {frozenset()}
        kafka.cluster.brokers[0].stop()
        await producer.send("topic", b"x" * 100, partition=0)
        await asyncio.sleep(0.5)
        assert sender.unavailable_nodes() == {0}
        await asyncio.sleep(3)
        assert sender.unavailable_nodes() == frozenset(), "what waited was given up"


def answer_after(kafka: ProduceCluster, seconds: float) -> None:
    """Have broker 0 take so long for each produce request, one after the other."""
    broker = kafka.cluster.brokers[0]
    produce = broker.answers[ProduceRequest]

    def late(request: Any) -> object:
        for link in broker.links:
            link._free_at = max(link._free_at, kafka.world.loop.time()) + seconds
        return produce(request)

    broker.answers[ProduceRequest] = late


async def test_a_brokers_answers_are_measured_for_partitioners_that_use_that(
    kafka: ProduceCluster,
) -> None:
    answer_after(kafka, 0.05)
    async with kafka.producer(
        linger_ms=0, batch_size=10_000, partitioner_balance="free"
    ) as producer:
        for _ in range(50):
            await (await producer.send("topic", b"x" * 10_000, partition=0))
        load = producer._core.accumulator.node(0)
    assert load.alone == pytest.approx(0.051, rel=0.1)
    assert load.drain_rate == pytest.approx(10_080 / 0.051, rel=0.1)
    assert load.moved_at > 2
    assert load.requests == 0
    assert load.not_ready_since == -1


async def test_a_brokers_rate_is_the_same_with_several_requests_under_way(
    kafka: ProduceCluster,
) -> None:
    answer_after(kafka, 0.05)
    async with kafka.producer(
        linger_ms=0, batch_size=10_000, partitioner_balance="free"
    ) as producer:
        for _ in range(50):
            await producer.send("topic", b"x" * 10_000, partition=0)
        await producer.flush()
        load = producer._core.accumulator.node(0)
    assert load.behind == pytest.approx(0.05, rel=0.1), "complete batches wait for no room"
    assert load.drain_rate == pytest.approx(10_080 / 0.05, rel=0.1)


async def test_batches_gather_while_their_broker_works(kafka: ProduceCluster) -> None:
    answer_after(kafka, 0.05)
    async with kafka.producer(linger_ms=0, partitioner_balance="free") as producer:
        for _ in range(200):
            await producer.send("topic", b"x", partition=0)
            await asyncio.sleep(0.005)
        await producer.flush()
    counts = [count for *_, count in kafka.batches]
    assert sum(counts) == 200
    assert 20 <= len(counts) <= 25, "one for each answer that a second has time for"


async def test_without_balance_nothing_is_measured_and_nothing_gathers(
    kafka: ProduceCluster,
) -> None:
    async with kafka.producer(linger_ms=0) as producer:
        await (await producer.send("topic", b"x", partition=0))
        load = producer._core.accumulator.node(0)
    assert (load.alone, load.behind, load.drain_rate, load.requests) == (0, 0, 0, 0)


async def test_a_lost_connection_leaves_no_open_requests(kafka: ProduceCluster) -> None:
    calls = [0]

    def hang_up_sometimes(_: Any, response: Any) -> object:
        calls[0] += 1
        return HANG_UP if calls[0] % 3 == 0 else response

    intercept(kafka, hang_up_sometimes)
    async with kafka.producer(
        linger_ms=0, retry_backoff_ms=5, partitioner_balance="strict"
    ) as producer:
        for delivery in await send_each(producer, 100, 0.0003):
            await delivery
        assert producer._core.accumulator.node(0).requests == 0
    assert kafka.stored[ZERO] == values(100)


@pytest.mark.parametrize("usual_before", [None, 3.0], ids=["always quick", "slow before"])
async def test_a_broker_that_becomes_silent_is_noticed_in_twice_its_usual_time(
    kafka: ProduceCluster, usual_before: float | None
) -> None:
    async with kafka.producer(linger_ms=0, partitioner_balance="strict") as producer:
        accumulator = producer._core.accumulator
        if usual_before is not None:
            answers = kafka.cluster.brokers[0].answers
            quick = answers[ProduceRequest]
            answer_after(kafka, usual_before)
            await (await producer.send("topic", b"x", partition=0))
            answers[ProduceRequest] = quick
            await asyncio.sleep(1.1)  # a measured time counts for a second
        for _ in range(5):
            await (await producer.send("topic", b"x", partition=0))
        load = accumulator.node(0)
        answer_after(kafka, 60.0)
        await producer.send("topic", b"x", partition=0)
        await asyncio.sleep(0.0005)
        assert load.requests == 1
        before = accumulator.load_changes
        await asyncio.sleep(2 * max(load.alone, 0.001) + 0.001)
        assert accumulator.load_changes > before


class Recorder:
    """Metrics that record their calls."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *facts: self.told.append((name, *facts))

    def count(self, name: str) -> int:
        return sum(1 for what, *_ in self.told if what == name)


async def test_each_event_is_recorded_in_the_metrics(kafka: ProduceCluster) -> None:
    kafka.refuse = lambda _, count, __: {
        2: ErrorCode.NOT_ENOUGH_REPLICAS,
        4: ErrorCode.MESSAGE_TOO_LARGE,
        5: ErrorCode.INVALID_RECORD,
    }.get(count, NOTHING)
    recorder = Recorder()
    async with kafka.producer(acks="1", linger_ms=10) as producer:
        producer._core.sender._metrics = cast("ProducerMetrics", recorder)
        for _ in range(3):
            for value in values(2):
                await producer.send("topic", value, partition=0)
            await producer.flush()
    # Stored; refused and stored; too large, of whose two parts one is refused for good.
    assert len(kafka.batches) == 6
    assert recorder.count("request_sent") == recorder.count("response_received") == 6
    sent = [facts for name, *facts in recorder.told if name == "batch_sent"]
    assert [is_first for *_, is_first in sent] == [True, True, False, True, True, True]
    assert all(topic == "topic" and size > 61 for topic, _, size, _ in sent)
    assert [recorder.count(f"batch_{what}") for what in ("retried", "split", "failed")] == [1, 1, 1]
    assert [facts for name, *facts in recorder.told if name == "throttled"] == [[0.0]] * 6


async def test_only_chosen_waiting_batches_are_dropped(kafka: ProduceCluster) -> None:
    async with kafka.producer(linger_ms=1000) as producer:
        kept = await producer.send("topic", b"kept", partition=0)
        dropped = await producer.send("topic", b"dropped", partition=1)
        sender = producer._core.sender
        sender.drop(lambda batch: batch.queue.partition == 1, Unavailable("not wanted"))
        with pytest.raises(Unavailable, match="not wanted"):
            await dropped
        await kept
    assert kafka.stored == {ZERO: [b"kept"]}


def test_a_node_is_unavailable_by_the_time_that_something_waits_for_it() -> None:
    class Load:
        not_ready_since = -1.0

    node: Any = NodeRecord(Load(), None, 0.0)  # type: ignore[arg-type]
    node.take(0.0)
    node.wait(10.0)
    node.wait(11.0)
    assert not node.is_unavailable(12.0, 2.0, False), "exactly two seconds"
    assert node.is_unavailable(12.001, 2.0, False)
    assert node.is_unavailable(11.0, 2.0, True), "Java: eleven seconds since it took something"
    node.rest()
    assert not node.is_unavailable(99.0, 2.0, False)
    node.take(99.0)
    assert not node.is_unavailable(99.0, 2.0, True)


async def test_a_connection_that_is_cut_within_an_answer_loses_and_doubles_nothing(
    kafka: ProduceCluster,
) -> None:
    calls = [0]

    def hang_up_sometimes(_: Any, response: Any) -> object:
        calls[0] += 1
        return HANG_UP if calls[0] % 5 == 0 else response

    intercept(kafka, hang_up_sometimes)
    async with kafka.producer(linger_ms=0, retry_backoff_ms=5) as producer:
        for delivery in await send_each(producer, 100, 0.0003):
            await delivery
    assert kafka.stored[ZERO] == values(100)
    assert max(kafka.epochs) == 0, "nothing was given up"
    assert ONE not in kafka.stored


RETRIABLE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
)


def disturb(kafka: ProduceCluster, seed: int, refusals: float) -> None:
    """Refuse, split, lose, cut and move at random."""
    random = kafka.world.random(f"disturbance {seed}")
    kafka.refuse = lambda *_: random.choice(RETRIABLE) if random.random() < refusals else NOTHING
    largest = random.randint(1, 12)
    kafka.refuse_records = lambda count: ErrorCode.MESSAGE_TOO_LARGE if count > largest else NOTHING

    def answer(broker: int, request: Any) -> object:
        if random.random() < 0.05:
            leader = random.randrange(2)
            kafka.cluster.leaders["topic"] = [leader, 1 - leader]
            kafka.cluster.leader_epoch += 1
        chance = random.random()
        if chance < 0.05:
            return HANG_UP
        response = kafka.produce(broker, request)
        return HANG_UP if chance < 0.1 else NO_ANSWER if chance < 0.12 else response

    for broker in kafka.cluster.brokers.values():
        broker.answers[ProduceRequest] = partial(answer, broker.id)


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_happens_nothing_is_lost_doubled_or_out_of_order(
    kafka: ProduceCluster, seed: int
) -> None:
    disturb(kafka, seed, 0.2)
    random = kafka.world.random(f"records {seed}")
    async with kafka.producer(
        linger_ms=1, retry_backoff_ms=5, request_timeout_ms=500, reconnect_backoff_ms=5
    ) as producer:
        deliveries = []
        for i in range(400):
            deliveries.append(await producer.send("topic", b"%d" % i, partition=i % 2))
            if random.random() < 0.3:
                await asyncio.sleep(random.random() * 0.01)
        for delivery in deliveries:
            await delivery
    for partition in range(2):
        assert kafka.stored[TopicPartition("topic", partition)] == [
            b"%d" % i for i in range(partition, 400, 2)
        ]


@pytest.mark.parametrize("seed", range(8))
async def test_acknowledged_records_are_stored_once_also_if_others_fail(
    kafka: ProduceCluster, seed: int
) -> None:
    disturb(kafka, seed, 0.4)
    random = kafka.world.random(f"records {seed}")
    async with kafka.producer(
        linger_ms=1,
        retry_backoff_ms=50,
        request_timeout_ms=200,
        delivery_timeout_ms=300,
        reconnect_backoff_ms=5,
    ) as producer:
        deliveries = []
        for i in range(400):
            deliveries.append((b"%d" % i, await producer.send("topic", b"%d" % i, partition=0)))
            if random.random() < 0.3:
                await asyncio.sleep(random.random() * 0.02)
        await producer.flush()
        acknowledged = [value for value, delivery in deliveries if delivery.exception() is None]
    stored = kafka.stored[ZERO]
    assert 5 < len(acknowledged) < 400
    assert len(set(stored)) == len(stored), "nothing twice"
    kept = set(acknowledged)
    assert [value for value in stored if value in kept] == acknowledged, "all of it, in order"
