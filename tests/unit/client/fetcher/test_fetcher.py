"""The fetcher's requests, against brokers that answer by script, in virtual time: sessions, and the
confirmation of positions by leader epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.unit.client.scripted_broker import (
    NO_ANSWER,
    ScriptedBroker,
    ScriptedCluster,
    batch,
)
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.kafka.errors import ErrorCode, LogTruncation, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_header import restamp
from trimtab.kafka.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from trimtab.kafka.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from trimtab.sim.world import World

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


@dataclass
class Sessions:
    """Has a scripted broker keep one fetch session (KIP-227). `id` 0: it keeps none."""

    broker: ScriptedBroker
    id: int = 0
    epoch: int = 0
    made: int = 0
    held: dict[tuple[bytes, int], FetchPartition] = field(default_factory=dict)

    def fetch(self, request: FetchRequest) -> FetchResponse:
        if request.session_epoch in (0, -1):
            self.held = {}
            self.made += 1
            self.id = 100 * self.made if request.session_epoch == 0 else 0
            self.epoch = 1
        elif request.session_id != self.id:
            return self.refuse(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        elif request.session_epoch != self.epoch:
            return self.refuse(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        else:
            self.epoch += 1
        for topic in request.topics:
            for asked in topic.partitions:
                self.held[topic.topic_id, asked.partition] = asked
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                del self.held[forgotten.topic_id, index]
        whole = replace(
            request,
            topics=[
                FetchTopic(topic_id=topic_id, partitions=[asked])
                for (topic_id, _), asked in self.held.items()
            ],
        )
        response = self.broker.fetch(whole)
        response.session_id = self.id
        if request.session_epoch > 0:
            response.responses = [t for t in response.responses if t.partitions[0].records]
        return response

    def refuse(self, code: ErrorCode) -> FetchResponse:
        return FetchResponse(error_code=code, session_id=0, responses=[])


@pytest.fixture
def cluster(world: World) -> ScriptedCluster:
    """Two brokers: the first leads three partitions of `t`, which hold three batches each."""
    cluster = ScriptedCluster(world, leaders={"t": [0, 0, 0]}, leader_epoch=3)
    for node_id in range(2):
        cluster.broker(node_id)
    for partition in (T0, T1, T2):
        cluster.logs[partition] = [stored(offset, 3) for offset in (0, 2, 4)]
    return cluster


def stored(offset: int, epoch: int) -> bytes:
    made = bytearray(batch(offset, b"%d" % offset, b"%d" % (offset + 1)))
    restamp(made, 0, offset, epoch)
    return bytes(made)


def keep_sessions(broker: ScriptedBroker) -> Sessions:
    sessions = Sessions(broker)
    broker.answers[FetchRequest] = sessions.fetch
    return sessions


async def consume(cluster: ScriptedCluster, **options: Any) -> AsyncConsumer:
    for broker in cluster.brokers.values():
        await broker.start()
    options = {"auto_offset_reset": "earliest", **options}
    return AsyncConsumer(cluster.bootstrap, random=cluster.world.random("consumer"), **options)


async def read(consumer: AsyncConsumer, count: int) -> list[tuple[int, int]]:
    """Partition and offset of the next records."""
    seen: list[tuple[int, int]] = []
    while len(seen) < count:
        records = await consumer.poll(60_000)
        assert records
        seen += [(record.partition, record.offset) for record in records]
    return seen


def named(request: FetchRequest) -> list[tuple[int, int]]:
    return [(p.partition, p.fetch_offset) for topic in request.topics for p in topic.partitions]


def session_of(request: FetchRequest) -> tuple[int, int]:
    return request.session_id, request.session_epoch


# sessions (KIP-227)


@pytest.mark.kip(227)
async def test_an_idle_consumer_names_no_partition(world: World, cluster: ScriptedCluster) -> None:
    broker = cluster.brokers[0]
    keep_sessions(broker)
    async with await consume(cluster) as consumer:
        consumer.assign([T0, T1, T2])
        assert len(await read(consumer, 18)) == 18
        assert await consumer.poll(5_000) == []
        requests = broker.requests(FetchRequest)
        assert session_of(requests[0]) == (0, 0)
        assert named(requests[0]) == [(0, 0), (1, 0), (2, 0)]
        assert {request.session_id for request in requests[1:]} == {100}
        assert [request.session_epoch for request in requests[1:]] == list(range(1, len(requests)))
        assert [named(request) for request in requests[-5:]] == [[]] * 5
        cluster.logs[T1].append(stored(6, 3))
        assert await read(consumer, 2) == [(1, 6), (1, 7)]
        await asyncio.sleep(0.01)
        assert named(broker.requests(FetchRequest)[-1]) == [(1, 8)]


@pytest.mark.kip(227)
async def test_partitions_that_are_not_wanted_are_forgotten(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.brokers[0]
    sessions = keep_sessions(broker)
    async with await consume(cluster) as consumer:
        consumer.assign([T0, T1, T2])
        await read(consumer, 18)
        await asyncio.sleep(1)
        consumer.pause(T0)
        consumer.assign([T0, T1])
        await consumer.poll(2_000)
        assert [index for _, index in sessions.held] == [1]
        consumer.resume(T0)
        await consumer.poll(2_000)
        assert [index for _, index in sessions.held] == [1, 0]


@pytest.mark.kip(227)
@pytest.mark.parametrize("lost", ["evicted", "out of step", "response lost"])
async def test_a_session_that_is_lost_begins_again_with_all_partitions(
    world: World, cluster: ScriptedCluster, lost: str
) -> None:
    broker = cluster.brokers[0]
    sessions = keep_sessions(broker)
    async with await consume(cluster, request_timeout_ms=2_000) as consumer:
        consumer.assign([T0, T1, T2])
        await read(consumer, 18)
        await asyncio.sleep(0.1)
        if lost == "evicted":
            sessions.id = -1
        elif lost == "out of step":
            sessions.epoch += 1
        else:
            broker.answers[FetchRequest] = lambda request: NO_ANSWER
            await consumer.poll(4_000)
            broker.answers[FetchRequest] = sessions.fetch
        for partition in (T0, T1, T2):
            cluster.logs[partition].append(stored(6, 3))
        before = world.loop.time()
        assert sorted(await read(consumer, 6)) == [(p, o) for p in range(3) for o in (6, 7)]
        assert world.loop.time() - before < 3
        again = next(
            request for request in reversed(broker.requests(FetchRequest)) if named(request)[2:]
        )
        assert session_of(again) == (0 if lost == "evicted" else 100, 0)


@pytest.mark.kip(227)
async def test_sessions_are_closed_with_the_consumer(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.brokers[0]
    sessions = keep_sessions(broker)
    for offset, waits in ((5, False), (6, True)):
        async with AsyncConsumer(cluster.bootstrap, random=world.random("c")) as consumer:
            if not broker.links:
                for each in cluster.brokers.values():
                    await each.start()
            consumer.assign([T0])
            consumer.seek(T0, offset, end=6 if not waits else None)
            await consumer.poll(700)
            assert sessions.id > 0
            before = world.loop.time()
        assert world.loop.time() - before < 0.01
        await asyncio.sleep(0.1)  # the request is on its way
        last = broker.requests(FetchRequest)[-1]
        assert session_of(last) == (sessions.made * 100 - 100, -1)
        assert (last.max_wait_ms, last.topics) == (0, [])
        assert sessions.id == 0


@pytest.mark.kip(227)
async def test_a_broker_that_does_not_answer_does_not_hold_up_closing(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.brokers[0]
    keep_sessions(broker)
    consumer = await consume(cluster)
    consumer.assign([T0])
    consumer.seek(T0, 5, end=6)
    await consumer.poll(200)
    broker.answers[FetchRequest] = lambda request: NO_ANSWER
    before = world.loop.time()
    await consumer.close()
    assert world.loop.time() - before <= 1.1


# prefetching (KIP-74)


@pytest.mark.kip(74)
async def test_prefetching_stays_within_the_limits(world: World, cluster: ScriptedCluster) -> None:
    """A reader that reads nothing: each broker has sent one full response, and no more."""
    partitions = [TopicPartition("wide", number) for number in range(40)]
    cluster.leaders["wide"] = [number % 2 for number in range(40)]
    size = len(batch(0, bytes(900)))
    for partition in partitions:
        cluster.logs[partition] = [batch(offset, bytes(900)) for offset in range(5)]
    sent: list[int] = []
    for broker in cluster.brokers.values():
        broker.answers[FetchRequest] = counting(broker, sent)
    options = {"max_partition_fetch_bytes": size, "fetch_max_bytes": 8 * size}
    async with await consume(cluster, **options) as consumer:
        consumer.assign(partitions)
        handed_out = 0
        for _ in range(len(partitions) * 5):
            batches = await consumer.fetch_batches(60_000)
            assert batches is not None
            handed_out += len(batches.data)
            await asyncio.sleep(1)
            assert sum(sent) - handed_out <= 2 * 8 * size
        assert handed_out == sum(sent) == len(partitions) * 5 * size


def counting(broker: ScriptedBroker, sent: list[int]) -> Callable[[FetchRequest], FetchResponse]:
    def fetch(request: FetchRequest) -> FetchResponse:
        response = broker.fetch(request)
        for topic in response.responses:
            sent.extend(len(data.records or b"") for data in topic.partitions)
        return response

    return fetch


async def test_a_partition_at_its_end_does_not_hold_up_the_others(
    world: World, cluster: ScriptedCluster
) -> None:
    """T1 and T2 have no more; the fetches of T0 must not wait for them."""
    cluster.logs[T0] = [stored(2 * number, 3) for number in range(100)]
    limits = {"max_partition_fetch_bytes": 1, "fetch_max_wait_ms": 500}
    async with await consume(cluster, **limits) as consumer:
        consumer.assign([T0, T1, T2])
        before = world.loop.time()
        await read(consumer, 212)
        assert world.loop.time() - before < 0.5


# truncation (KIP-320)


@dataclass
class Epochs:
    """Has a scripted broker answer where leader epochs end."""

    broker: ScriptedBroker
    ends: dict[int, tuple[int, int]]
    """By the epoch that is asked for: the epoch in the answer, and its end."""
    code: ErrorCode = ErrorCode.NONE

    def __post_init__(self) -> None:
        self.broker.answers[OffsetForLeaderEpochRequest] = self.answer

    def answer(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        def end(partition: int, epoch: int) -> EpochEndOffset:
            found = self.ends.get(epoch, (-1, -1))
            return EpochEndOffset(
                partition=partition,
                error_code=self.code,
                leader_epoch=found[0],
                end_offset=found[1],
            )

        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[end(p.partition, p.leader_epoch) for p in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def asked(self) -> list[tuple[int, int, int]]:
        """Partition, its epoch, and the position's, of each question."""
        return [
            (p.partition, p.current_leader_epoch, p.leader_epoch)
            for request in self.broker.requests(OffsetForLeaderEpochRequest)
            for topic in request.topics
            for p in topic.partitions
        ]


def elect(cluster: ScriptedCluster, leader: int, epoch: int) -> None:
    """Another leader of all partitions; the old one refuses fetches, as Kafka's brokers do."""
    old = cluster.brokers[1 - leader]
    cluster.leaders["t"] = [leader] * 3
    cluster.leader_epoch = epoch

    def refuse(request: FetchRequest) -> FetchResponse:
        response = old.fetch(request)
        for topic in response.responses:
            for data in topic.partitions:
                data.error_code, data.records = ErrorCode.NOT_LEADER_OR_FOLLOWER, b""
        return response

    old.answers[FetchRequest] = refuse


@pytest.mark.kip(320)
async def test_a_new_leader_confirms_the_position_before_it_is_read_from(
    world: World, cluster: ScriptedCluster
) -> None:
    new = cluster.brokers[1]
    epochs = Epochs(new, {3: (3, 6)})
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        await read(consumer, 6)
        elect(cluster, 1, epoch=4)
        cluster.logs[T0].append(stored(6, 4))
        assert await read(consumer, 2) == [(0, 6), (0, 7)]
        assert epochs.asked() == [(0, 4, 3)]
        apis = [asked.api for asked in new.asked]
        assert apis.index(OffsetForLeaderEpochRequest) < apis.index(FetchRequest)
        first = new.requests(FetchRequest)[0].topics[0].partitions[0]
        assert (first.current_leader_epoch, first.last_fetched_epoch) == (4, 3)


@pytest.mark.kip(320)
@pytest.mark.parametrize("reset", ["earliest", "latest"])
async def test_with_a_reset_reading_goes_on_where_the_logs_part(
    world: World, cluster: ScriptedCluster, reset: str
) -> None:
    Epochs(cluster.brokers[1], {3: (3, 4)})
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        await read(consumer, 6)
        elect(cluster, 1, epoch=4)
        cluster.logs[T0][2:] = [stored(4, 4)]
        assert await consumer.poll(2_000) == []
        assert await consumer.position(T0) == 4
        assert await read(consumer, 2) == [(0, 4), (0, 5)]


@pytest.mark.kip(320)
async def test_without_a_reset_truncation_is_raised_until_the_application_seeks(
    world: World, cluster: ScriptedCluster
) -> None:
    epochs = Epochs(cluster.brokers[1], {3: (3, 4)})
    async with await consume(cluster, auto_offset_reset="none") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        await read(consumer, 6)
        elect(cluster, 1, epoch=4)
        cluster.logs[T0][2:] = [stored(4, 4), stored(6, 4)]
        for _ in range(2):
            with pytest.raises(LogTruncation, match=r"t-0: .*position is 6, .*seek to 4") as caught:
                await read(consumer, 1)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert await consumer.position(T0) == 6
        consumer.seek(T0, caught.value.divergence)
        assert await read(consumer, 4) == [(0, 4), (0, 5), (0, 6), (0, 7)]
        assert len(epochs.asked()) >= 2


@pytest.mark.kip(320)
async def test_a_position_with_a_leader_epoch_is_confirmed_before_the_first_fetch(
    world: World, cluster: ScriptedCluster
) -> None:
    epochs = Epochs(cluster.brokers[0], {2: (2, 3)})
    async with await consume(cluster, auto_offset_reset="none") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, OffsetAndMetadata(4, leader_epoch=2))
        with pytest.raises(LogTruncation, match="seek to 3"):
            await consumer.poll(2_000)
        assert epochs.asked() == [(0, 3, 2)]
        with pytest.raises(UsageError, match="leader epoch=-2"):
            consumer.seek(T0, OffsetAndMetadata(4, leader_epoch=-2))


@pytest.mark.kip(320)
async def test_an_old_broker_is_not_asked(world: World, cluster: ScriptedCluster) -> None:
    new = cluster.brokers[1]
    new.versions[OffsetForLeaderEpochRequest] = (0, 2)
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        await read(consumer, 6)
        elect(cluster, 1, epoch=4)
        cluster.logs[T0].append(stored(6, 4))
        assert await read(consumer, 2) == [(0, 6), (0, 7)]
        assert new.requests(OffsetForLeaderEpochRequest) == []


@pytest.mark.kip(320)
async def test_a_leader_that_cannot_confirm_yet_is_asked_again(
    world: World, cluster: ScriptedCluster
) -> None:
    epochs = Epochs(cluster.brokers[1], {3: (3, 6)}, code=ErrorCode.UNKNOWN_LEADER_EPOCH)
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        await read(consumer, 6)
        elect(cluster, 1, epoch=4)
        cluster.logs[T0].append(stored(6, 4))
        assert await consumer.poll(3_000) == []
        assert 2 <= len(epochs.asked()) < 20, "with back-offs"
        epochs.code = ErrorCode.NONE
        assert await read(consumer, 2) == [(0, 6), (0, 7)]


@pytest.mark.kip(320)
async def test_a_fetch_that_tells_where_the_logs_part_moves_the_position(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.brokers[0]
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        await read(consumer, 6)

        def parted(request: FetchRequest) -> FetchResponse:
            response = broker.fetch(request)
            (asked,) = request.topics[0].partitions
            if asked.last_fetched_epoch == 3 and asked.fetch_offset == 6:
                (data,) = response.responses[0].partitions
                data.diverging_epoch.epoch, data.diverging_epoch.end_offset = 2, 4
            return response

        broker.answers[FetchRequest] = parted
        cluster.logs[T0][2:] = [stored(4, 4), stored(6, 4)]
        assert await consumer.poll(2_000) == []
        assert await consumer.position(T0) == 4
        assert await read(consumer, 4) == [(0, 4), (0, 5), (0, 6), (0, 7)]


# the nearest replica (KIP-392)


def name_nearest(broker: ScriptedBroker, nearest: int) -> None:
    """Have a leader name the replica on `nearest` to every consumer that tells its rack."""

    def fetch(request: FetchRequest) -> FetchResponse:
        if not request.rack_id:
            return broker.fetch(request)
        return FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic_id=topic.topic_id,
                    partitions=[
                        PartitionData(
                            partition_index=asked.partition,
                            high_watermark=6,
                            preferred_read_replica=nearest,
                        )
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    broker.answers[FetchRequest] = fetch


def _silence(broker: ScriptedBroker) -> None:
    broker.answers[FetchRequest] = lambda _: NO_ANSWER


@pytest.mark.kip(392)
@pytest.mark.parametrize("lose", [ScriptedBroker.stop, _silence])
async def test_without_the_nearest_replica_the_leader_is_read_though_it_names_it_again(
    world: World, cluster: ScriptedCluster, lose: Callable[[ScriptedBroker], None]
) -> None:
    leader, nearest = cluster.brokers[0], cluster.brokers[1]
    name_nearest(leader, nearest.id)
    async with await consume(
        cluster, client_rack="b", max_partition_fetch_bytes=1, request_timeout_ms=1_000
    ) as consumer:
        consumer.assign([T0])
        assert await read(consumer, 2) == [(0, 0), (0, 1)]
        assert nearest.requests(FetchRequest)
        lose(nearest)
        before = world.loop.time()
        assert await read(consumer, 4) == [(0, offset) for offset in range(2, 6)]
        assert world.loop.time() - before < 2.5
        assert consumer.problem(T0) is None
        if lose is not _silence:
            await nearest.start()
        nearest.answers[FetchRequest] = nearest.fetch
        nearest.asked.clear()
        assert await consumer.poll(3_000) == []
        assert nearest.requests(FetchRequest), "it is read again once it is there again"


@pytest.mark.kip(392)
async def test_a_replica_that_metadata_do_not_show_is_not_waited_for(
    world: World, cluster: ScriptedCluster
) -> None:
    name_nearest(cluster.brokers[0], 7)
    async with await consume(cluster, client_rack="b") as consumer:
        consumer.assign([T0])
        assert len(await read(consumer, 6)) == 6
