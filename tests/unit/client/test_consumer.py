"""The consumer, with its fetcher (`trimtab.client.fetcher.fetcher`), against brokers that answer by
script, in virtual time.

Long because the cases share one script of brokers, and stand in the order of a consumer's life.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.client.scripted_broker import (
    NO_ANSWER,
    RequestClass,
    ScriptedBroker,
    ScriptedCluster,
    batch,
    refuse_fetch,
)
from trimtab.client.consumer import AsyncConsumer
from trimtab.kafka.errors import BrokerError, CorruptData, ErrorCode, Unavailable, UsageError
from trimtab.kafka.records import Record, TopicPartition
from trimtab.kafka.wire.batch_cy import read_records
from trimtab.kafka.wire.messages.fetch import FetchRequest, FetchResponse
from trimtab.kafka.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from trimtab.kafka.wire.messages.metadata import MetadataRequest
from trimtab.sim.world import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def cluster(world: World) -> ScriptedCluster:
    """Two brokers; each leads one partition of `t`, which hold 6 records in 3 batches each."""
    cluster = ScriptedCluster(world, leaders={"t": [0, 1]})
    for node_id in range(2):
        cluster.broker(node_id)
    for partition in (T0, T1):
        name = str(partition).encode()
        cluster.logs[partition] = [
            batch(offset, name + b"/%d" % offset, name + b"/%d" % (offset + 1))
            for offset in (0, 2, 4)
        ]
    return cluster


async def consume(cluster: ScriptedCluster, **options: Any) -> AsyncConsumer:
    for broker in cluster.brokers.values():
        await broker.start()
    options = {"auto_offset_reset": "earliest", **options}
    return AsyncConsumer(cluster.bootstrap, random=cluster.world.random("consumer"), **options)


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


def fetches(broker: ScriptedBroker) -> list[list[tuple[int, int]]]:
    """Partition and offset, in order, of each fetch."""
    return [
        [(p.partition, p.fetch_offset) for topic in request.topics for p in topic.partitions]
        for request in broker.requests(FetchRequest)
    ]


def versions(broker: ScriptedBroker, api: RequestClass) -> set[int]:
    return {asked.version for asked in broker.asked if asked.api is api}


async def test_records_come_in_order_with_everything_they_have(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        records = await consumer.poll()
        assert offsets(records) == [0, 1, 2, 3, 4, 5]
        assert records[0] == Record("t", 0, 0, 1_000, 0, None, b"t-0/0", ())  # type: ignore[arg-type]
        assert [record.value for record in records] == [b"t-0/%d" % n for n in range(6)]


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 6)])
async def test_where_reading_begins_without_a_position(
    world: World, cluster: ScriptedCluster, reset: str, first: int
) -> None:
    async with await consume(cluster, auto_offset_reset=reset) as consumer:
        consumer.assign([T0])
        assert await consumer.position(T0) == first
        cluster.logs[T0].append(batch(6, b"new"))
        assert offsets(await consumer.poll(2_000)) == list(range(first, 7))
        assert await consumer.position(T0) == 7


async def test_latest_counts_from_the_first_poll(world: World, cluster: ScriptedCluster) -> None:
    """What is written after a poll that found nothing is read, whatever `position` is asked."""
    async with await consume(cluster, auto_offset_reset="latest") as consumer:
        consumer.assign([T0])
        assert await consumer.poll(100) == []
        cluster.logs[T0].append(batch(6, b"new"))
        assert await consumer.position(T0) == 6
        assert offsets(await consumer.poll(2_000)) == [6]


async def test_without_reset_and_position_there_is_nothing_to_begin_at(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster, auto_offset_reset="none") as consumer:
        consumer.assign([T0, T1])
        consumer.seek(T0, 0)
        with pytest.raises(UsageError, match=r"t-1 has no position .*none; seek"):
            await consumer.poll()
        consumer.seek(T1, 5)
        assert len(await consumer.poll()) > 0


@pytest.mark.kip(516)
@pytest.mark.parametrize(
    ("has_ids", "newest", "used"), [(True, 18, 18), (True, 13, 13), (True, 11, 11), (False, 18, 12)]
)
async def test_topics_go_by_id_where_they_have_one(
    world: World, cluster: ScriptedCluster, has_ids: bool, newest: int, used: int
) -> None:
    cluster.has_topic_ids = has_ids
    for broker in cluster.brokers.values():
        broker.versions[FetchRequest] = (4, newest)
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        assert len(await consumer.poll()) == 6
        assert versions(cluster.brokers[0], FetchRequest) == {used}


@pytest.mark.parametrize("version", range(4, 19))
async def test_every_version_of_fetch(world: World, cluster: ScriptedCluster, version: int) -> None:
    cluster.brokers[0].versions[FetchRequest] = (version, version)
    async with await consume(cluster, client_rack="a") as consumer:
        consumer.assign([T0])
        assert len(await consumer.poll()) == 6
        cluster.logs[T0].append(batch(6, b"next"))
        assert offsets(await consumer.poll(2_000)) == [6]
        assert versions(cluster.brokers[0], FetchRequest) == {version}


async def test_a_request_contains_the_options(world: World, cluster: ScriptedCluster) -> None:
    cluster.leader_epoch = 7
    options = {
        "fetch.max.bytes": 5_000,
        "max.partition.fetch.bytes": 600,
        "fetch.min.bytes": 3,
        "fetch.max.wait.ms": 250,
        "client.rack": "b",
        "isolation.level": "read_committed",
    }
    async with await consume(cluster, **options) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 2)
        await consumer.poll()
    request: FetchRequest = cluster.brokers[0].requests(FetchRequest)[0]
    partition = request.topics[0].partitions[0]
    assert (request.max_bytes, request.min_bytes, request.max_wait_ms) == (5_000, 3, 250)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert (request.isolation_level, request.rack_id, request.replica_id) == (1, "b", -1)
    assert (partition.partition_max_bytes, partition.fetch_offset) == (600, 2)
    assert partition.current_leader_epoch == 7


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UsageError, match=r"did you mean fetch\.max\.bytes"):
        AsyncConsumer({"bootstrap.servers": "a:1", "fetch_max_byte": 1})
    with pytest.raises(UsageError, match=r"bootstrap\.servers is missing"):
        AsyncConsumer()
    twice: dict[str, Any] = {"bootstrap.servers": "b:1"}
    with pytest.raises(UsageError, match=r"bootstrap\.servers is given twice"):
        AsyncConsumer("a:1", **twice)


async def test_max_records_cuts_inside_batches_and_the_position_follows(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        seen: list[int] = []
        for expected in (1, 2, 3, 4, 5, 6):
            seen += offsets(await consumer.poll(max_records=1))
            assert await consumer.position(T0) == expected
        assert seen == [0, 1, 2, 3, 4, 5]
        consumer.seek(T0, 1)
        assert offsets(await consumer.poll(max_records=4)) == [1, 2, 3, 4]
        with pytest.raises(UsageError, match="max_records=0"):
            await consumer.poll(max_records=0)


async def test_max_poll_records_is_the_default_limit(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster, max_poll_records=4) as consumer:
        consumer.assign([T0])
        assert [offsets(await consumer.poll()) for _ in range(2)] == [[0, 1, 2, 3], [4, 5]]


async def test_iteration_continues_when_more_is_written(
    world: World, cluster: ScriptedCluster
) -> None:
    async def write_later() -> None:
        await asyncio.sleep(30)
        cluster.logs[T0].append(batch(6, b"late"))

    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        writing = asyncio.create_task(write_later())
        seen = []
        async for record in consumer:
            seen.append(record.value)
            if record.value == b"late":
                break
        await writing
        assert len(seen) == 7


async def test_polling_nothing_takes_as_long_as_it_may(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 6)
        begin = world.loop.time()
        assert await consumer.poll(1_700) == []
        assert world.loop.time() - begin == pytest.approx(1.7)
        assert await consumer.poll(0) == []
        assert world.loop.time() - begin == pytest.approx(1.7)


async def test_an_idle_partition_is_long_polled(world: World, cluster: ScriptedCluster) -> None:
    async with await consume(cluster, fetch_max_wait_ms=500) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 6)
        assert await consumer.poll(10_000) == []
        assert 18 <= len(fetches(cluster.brokers[0])) <= 21


async def test_the_next_data_is_under_way_while_the_reader_works(
    world: World, cluster: ScriptedCluster
) -> None:
    one_batch = {"max_partition_fetch_bytes": 1}
    async with await consume(cluster, **one_batch) as consumer:
        consumer.assign([T0])
        assert offsets(await consumer.poll()) == [0, 1]
        await asyncio.sleep(10)  # the reader works
        assert fetches(cluster.brokers[0]) == [[(0, 0)], [(0, 2)]]
        begin = world.loop.time()
        assert offsets(await consumer.poll()) == [2, 3]
        assert world.loop.time() == begin
        await asyncio.sleep(10)
        assert fetches(cluster.brokers[0]) == [[(0, 0)], [(0, 2)], [(0, 4)]]


@pytest.mark.kip(74)
async def test_a_batch_that_exceeds_every_limit_still_arrives(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.logs[T0] = [batch(0, bytes(100_000)), batch(1, b"next")]
    async with await consume(cluster, max_partition_fetch_bytes=10, fetch_max_bytes=10) as consumer:
        consumer.assign([T0])
        assert [len(r.value or b"") for r in await consumer.poll()] == [100_000]
        assert [r.value for r in await consumer.poll()] == [b"next"]


@pytest.mark.kip(74)
async def test_partitions_take_turns_where_a_response_has_room_for_one(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.leaders["t"] = [0, 0, 0]
    partitions = [TopicPartition("t", number) for number in range(3)]
    for partition in partitions:
        cluster.logs[partition] = [batch(offset, b"v") for offset in range(3)]
    async with await consume(cluster, fetch_max_bytes=1) as consumer:
        consumer.assign(partitions)
        turns = [(await consumer.poll())[0].partition for _ in range(9)]
        assert turns == [0, 1, 2] * 3


async def test_seek_changes_the_position_and_drops_fetched_batches(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        await consumer.poll(max_records=1)
        consumer.seek(T0, 4)
        assert await consumer.position(T0) == 4
        assert offsets(await consumer.poll()) == [4, 5]
        consumer.seek_to_beginning()
        assert offsets(await consumer.poll(2_000)) == [0, 1, 2, 3, 4, 5]
        consumer.seek_to_end(T0)
        assert await consumer.position(T0) == 6
        assert await consumer.poll(2_000) == []
        consumer.seek(T0, 3)
        consumer.seek(T0, 5)
        assert offsets(await consumer.poll(2_000)) == [5]


async def test_invalid_arguments_of_seek_are_refused(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(UsageError, match="offset=-1: must be from 0"):
            consumer.seek(T0, -1)
        with pytest.raises(UsageError, match="end=-1: must be from 0"):
            consumer.seek(T0, 0, end=-1)
        calls: list[Callable[[], object]] = [
            lambda: consumer.seek(T1, 0),
            lambda: consumer.seek_to_end(T1),
            lambda: consumer.pause(T1),
            lambda: consumer.resume(T1),
        ]
        for call in calls:
            with pytest.raises(UsageError, match="t-1 is not assigned"):
                call()
        for name in ("t", ("t",), ("t", -1), ("", 0), (0, "t")):
            with pytest.raises(UsageError, match=r"is no partition|partition=|topic="):
                consumer.assign([name])  # type: ignore[list-item]


async def test_assign_keeps_the_position_of_kept_partitions(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        with pytest.raises(UsageError, match="no partitions"):
            await consumer.poll()
        consumer.assign([T0])
        assert offsets(await consumer.poll(max_records=2)) == [0, 1]
        consumer.assign([T0, T1])
        assert consumer.assignment() == {T0, T1}
        seen: list[tuple[int, int]] = []
        while len(seen) < 10:
            seen += [(r.partition, r.offset) for r in await consumer.poll()]
        assert sorted(seen) == [(0, n) for n in range(2, 6)] + [(1, n) for n in range(6)]
        consumer.assign([T1])
        consumer.seek(T1, 5)
        assert [(r.partition, r.offset) for r in await consumer.poll(2_000)] == [(1, 5)]
        with pytest.raises(UsageError, match="t-0 is not assigned"):
            await consumer.position(T0)


async def test_a_paused_partition_keeps_its_fetched_batches(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        consumer.assign([T0, T1])
        first = await consumer.poll(max_records=1)
        consumer.pause((first[0].topic, first[0].partition))
        paused = TopicPartition("t", first[0].partition)
        assert consumer.paused() == {paused}
        others: list[Record] = []
        for _ in range(4):
            others += await consumer.poll(1_000)
        assert {r.partition for r in others} == {1 - paused.partition}
        assert len(others) == 6
        consumer.resume(paused)
        assert offsets(await consumer.poll(0)) == [1, 2, 3, 4, 5]


async def test_a_leader_that_moved_is_found(world: World, cluster: ScriptedCluster) -> None:
    old, new = cluster.brokers[0], cluster.brokers[1]
    async with await consume(cluster, max_partition_fetch_bytes=1) as consumer:
        consumer.assign([T0])
        assert offsets(await consumer.poll()) == [0, 1]
        cluster.leaders["t"][0] = 1
        old.answers[FetchRequest] = lambda request: refuse_fetch(
            request, ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
        seen: list[int] = []
        while len(seen) < 4:
            seen += offsets(await consumer.poll())
        assert seen == [2, 3, 4, 5]
        assert fetches(new)[-1] in ([(0, 4)], [(0, 6)])
        assert world.loop.time() < 1


async def test_a_broker_that_is_gone_for_a_while_is_ridden_out(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.brokers[0]
    async with await consume(cluster, max_partition_fetch_bytes=1) as consumer:
        consumer.assign([T0])
        assert offsets(await consumer.poll()) == [0, 1]
        await asyncio.sleep(0.1)
        broker.stop()
        seen: list[int] = []
        while records := await consumer.poll(5_000):
            seen += offsets(records)
        assert seen == [2, 3]  # fetched before the broker went
        assert "(broker-0:9092) cannot be reached" in str(consumer.problem(T0))
        await broker.start()
        while len(seen) < 4:
            seen += offsets(await consumer.poll())
        assert seen == [2, 3, 4, 5]
        assert consumer.problem(T0) is None
        attempts = len(cluster.brokers[1].requests(MetadataRequest))
        assert attempts < 15, "metadata was asked for in a tight loop"


async def test_a_fetch_that_is_never_answered_is_sent_again(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.brokers[0]
    broker.answers[FetchRequest] = lambda request: NO_ANSWER
    async with await consume(cluster, request_timeout_ms=5_000) as consumer:
        consumer.assign([T0])
        assert await consumer.poll(4_000) == []
        broker.answers[FetchRequest] = broker.fetch
        assert offsets(await consumer.poll(4_000)) == [0, 1, 2, 3, 4, 5]
        assert len(broker.links) == 2


async def test_a_topic_that_does_not_exist_yet_is_waited_for(
    world: World, cluster: ScriptedCluster
) -> None:
    partition = TopicPartition("late", 0)
    async with await consume(cluster) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        assert await consumer.poll(5_000) == []
        assert "UNKNOWN_TOPIC_OR_PARTITION" in str(consumer.problem(partition))
        cluster.leaders["late"] = [1]
        cluster.logs[partition] = [batch(0, b"v")]
        assert offsets(await consumer.poll(5_000)) == [0]


async def test_a_partition_that_does_not_exist_is_explained(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster, default_api_timeout_ms=3_000) as consumer:
        consumer.assign([("t", 9)])
        with pytest.raises(BrokerError, match=r"t-9: .*topic t has 2 partitions"):
            await consumer.position(("t", 9))
        assert world.loop.time() == pytest.approx(3.0, abs=0.1)
        assert len(cluster.brokers[0].asked) + len(cluster.brokers[1].asked) < 30


def refuse_beyond(broker: ScriptedBroker, end: int) -> None:
    def fetch(request: FetchRequest) -> FetchResponse:
        if request.topics[0].partitions[0].fetch_offset > end:
            return refuse_fetch(request, ErrorCode.OFFSET_OUT_OF_RANGE)
        return broker.fetch(request)

    broker.answers[FetchRequest] = fetch


async def test_a_position_outside_the_log_is_reset(world: World, cluster: ScriptedCluster) -> None:
    refuse_beyond(cluster.brokers[0], 6)
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 100)
        assert offsets(await consumer.poll()) == [0, 1, 2, 3, 4, 5]


async def test_a_position_outside_the_log_is_an_error_without_a_reset(
    world: World, cluster: ScriptedCluster
) -> None:
    refuse_beyond(cluster.brokers[0], 6)
    async with await consume(cluster, auto_offset_reset="none") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 100)
        with pytest.raises(BrokerError, match="offset 100 is not in the log") as caught:
            await consumer.poll()
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert await consumer.position(T0) == 100
        consumer.seek(T0, 5)
        assert offsets(await consumer.poll()) == [5]


async def test_a_damaged_batch_raises_until_the_position_is_past_it(
    world: World, cluster: ScriptedCluster
) -> None:
    damaged = bytearray(cluster.logs[T0][1])
    damaged[-1] ^= 1
    cluster.logs[T0][1] = bytes(damaged)
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        assert offsets(await consumer.poll()) == [0, 1]
        for _ in range(2):
            with pytest.raises(CorruptData, match=r"t-0 at offset 2: .*CRC"):
                await consumer.poll(2_000)
            assert await consumer.position(T0) == 2
        consumer.seek(T0, 4)
        assert offsets(await consumer.poll(2_000)) == [4, 5]


async def test_batches_that_cannot_be_decoded_are_raised_where_they_lie(
    world: World, cluster: ScriptedCluster
) -> None:
    """As with a codec's stream that is broken although the checksum is right."""
    broken = bytearray(cluster.logs[T0][1])
    broken[61] = 0x7F  # the first record's length
    cluster.logs[T0][1] = bytes(broken)
    async with await consume(cluster, check_crcs=False) as consumer:
        consumer.assign([T0])
        assert offsets(await consumer.poll(max_records=2)) == [0, 1]
        for _ in range(2):
            with pytest.raises(CorruptData, match=r"t-0 at offset 2: .*seek past it"):
                await consumer.poll()
        consumer.seek(T0, 4)
        assert offsets(await consumer.poll(2_000)) == [4, 5]


async def test_records_that_were_read_are_not_lost_to_an_error_behind_them(
    world: World, cluster: ScriptedCluster
) -> None:
    damaged = bytearray(cluster.logs[T1][0])
    damaged[-1] ^= 1
    cluster.logs[T1][0] = bytes(damaged)
    async with await consume(cluster) as consumer:
        consumer.assign([T0, T1])
        await asyncio.sleep(1)
        seen: list[tuple[int, int]] = []
        errors = 0
        for _ in range(4):
            try:
                seen += [(r.partition, r.offset) for r in await consumer.poll(1_000)]
            except CorruptData:
                errors += 1
        assert seen == [(0, offset) for offset in range(6)]
        assert errors > 0


async def test_whole_batches_are_returned(world: World, cluster: ScriptedCluster) -> None:
    async with await consume(cluster, max_partition_fetch_bytes=1) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 1)
        pieces = []
        position = 1
        while position < 6:
            batches = await consumer.fetch_batches()
            assert batches is not None
            assert (batches.partition, batches.start) == (T0, position)
            pieces.append(bytes(batches.data))
            position = batches.next_offset
            assert await consumer.position(T0) == position
            assert batches.high_watermark == 6
        assert pieces == cluster.logs[T0]
        assert await consumer.fetch_batches(100) is None


async def test_batches_after_records_begin_where_those_ended(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        await consumer.poll(max_records=3)
        batches = await consumer.fetch_batches()
        assert batches is not None
        assert (batches.start, batches.next_offset) == (3, 6)
        records = read_records("t", 0, batches.data, batches.start)
        assert offsets(records) == [3, 4, 5]
        assert await consumer.poll(100) == []


async def test_the_ends_of_partitions(world: World, cluster: ScriptedCluster) -> None:
    cluster.logs[T1] = cluster.logs[T1][1:]
    async with await consume(cluster) as consumer:
        assert await consumer.beginning_offsets([T0, ("t", 1)]) == {T0: 0, T1: 2}
        assert await consumer.end_offsets([T1, T0]) == {T0: 6, T1: 6}
        for broker in cluster.brokers.values():
            assert len(broker.requests(ListOffsetsRequest)) == 2


async def test_offsets_for_times(world: World, cluster: ScriptedCluster) -> None:
    def answer(request: Any) -> ListOffsetsResponse:
        response = cluster.brokers[0].list_offsets(request)
        for topic in response.topics:
            for partition in topic.partitions:
                found = partition.partition_index == 0
                partition.offset, partition.timestamp = (4, 1_234) if found else (-1, -1)
        return response

    for broker in cluster.brokers.values():
        broker.answers[ListOffsetsRequest] = answer
    async with await consume(cluster) as consumer:
        found = await consumer.offsets_for_times({T0: 1_000, T1: 1_000})
        at = found[T0]
        assert at is not None
        assert at[:2] == (4, 1_234)
        assert found[T1] is None
        with pytest.raises(UsageError, match=r"the time of .*=-1: must be from 0"):
            await consumer.offsets_for_times({T0: -1})


async def test_offsets_are_asked_of_the_new_leader(world: World, cluster: ScriptedCluster) -> None:
    old = cluster.brokers[0]

    def refuse(request: Any) -> ListOffsetsResponse:
        cluster.leaders["t"] = [1, 1]
        response = old.list_offsets(request)
        for topic in response.topics:
            for partition in topic.partitions:
                partition.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return response

    old.answers[ListOffsetsRequest] = refuse
    async with await consume(cluster) as consumer:
        assert await consumer.end_offsets([T0, T1]) == {T0: 6, T1: 6}
        assert len(old.requests(ListOffsetsRequest)) == 1


async def test_without_any_broker_a_call_says_which_were_tried(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster, default_api_timeout_ms=5_000) as consumer:
        for broker in cluster.brokers.values():
            broker.stop()
        with pytest.raises(Unavailable) as caught:
            await consumer.end_offsets([T0])
        assert world.loop.time() == pytest.approx(5.0, abs=0.1)
        assert "broker-0:9092" in str(caught.value)
        assert "broker-1:9092" in str(caught.value)


async def test_a_refused_topic_is_raised(world: World, cluster: ScriptedCluster) -> None:
    def refuse(request: Any) -> Any:
        response = cluster.metadata(request)
        for topic in response.topics:
            topic.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            topic.partitions = []
        return response

    for broker in cluster.brokers.values():
        broker.answers[MetadataRequest] = refuse
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await consumer.poll(5_000)


async def test_a_closed_consumer_says_so(world: World, cluster: ScriptedCluster) -> None:
    consumer = await consume(cluster)
    consumer.assign([T0])
    await consumer.poll()
    await consumer.close()
    await consumer.close()
    for call in (consumer.poll, consumer.fetch_batches, lambda: consumer.end_offsets([T0])):
        with pytest.raises(UsageError, match="the consumer is closed"):
            await call()
    await asyncio.sleep(1)
    for broker in cluster.brokers.values():
        assert [link for link in broker.links if link.transport is not None] == []
    assert world.loop.tasks() == [asyncio.current_task()]


async def test_a_poll_that_is_cancelled_loses_nothing(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await consume(cluster, fetch_max_wait_ms=5_000) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 6)
        polling = asyncio.create_task(consumer.poll(60_000))
        await asyncio.sleep(3)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        cluster.logs[T0].append(batch(6, b"later"))
        assert offsets(await consumer.poll(20_000)) == [6]


async def test_a_cluster_that_cannot_be_reached_is_a_warning_and_a_problem(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncConsumer("nowhere:1", random=world.random("consumer")) as consumer:
        consumer.assign([T0])
        assert await consumer.poll(2_500) == []
        assert "nowhere:1" in str(consumer.problem())
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert await consumer.poll(600_000) == []
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert all("nowhere:1" in record.getMessage() for record in warnings)
        assert 2 <= len(warnings) < 12, "seldom"


async def test_a_partition_that_does_not_exist_is_a_problem(
    world: World, cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with await consume(cluster) as consumer:
        consumer.assign([T0])
        assert await consumer.poll(1_000)
        assert consumer.problem() is None
        consumer.assign([("typo", 0)])
        consumer.seek(("typo", 0), 1)
        assert await consumer.poll(8_000) == []
        assert "create it first" in str(consumer.problem())
        assert any(
            "topic typo" in record.getMessage()
            for record in caplog.records
            if record.levelno == logging.WARNING
        )
