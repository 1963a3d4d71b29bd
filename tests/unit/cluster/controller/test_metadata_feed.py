"""Serving the metadata log to brokers, and tracking their progress."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable
from typing import Any, TypeVar

import pytest

from trimtab.cluster.controller.journal import Journal
from trimtab.cluster.controller.metadata_feed import MetadataFeed
from trimtab.cluster.metadata.batches import TOPIC, TOPIC_ID, read_batches, read_snapshot
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from trimtab.kafka.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    PartitionSnapshot,
    SnapshotId,
    TopicSnapshot,
)
from trimtab.kafka.wire.messages.metadata_records import TopicRecord
from trimtab.sim.world import World

T = TypeVar("T")
NODE = 3000


class FeedCase:
    """A journal that takes a snapshot every 1000 bytes, and its feed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.journal = Journal(world.disk("c"), NODE, world.now_ms, 1000)
        self.feed = MetadataFeed(self.journal, NODE, "lab", world.now_ms)
        self.written = 0

    def run(self, scenario: Callable[[], Awaitable[T]]) -> T:
        async def run() -> T:
            return await scenario()

        return self.world.run(run())

    async def write(self, count: int = 1) -> None:
        for _ in range(count):
            number = self.written
            self.written += 1
            record = TopicRecord(name=f"t{number}", topic_id=number.to_bytes(16, "big"))
            await self.journal.reach(self.journal.append([record]))
            await asyncio.sleep(0.01)

    async def fetch(
        self,
        offset: int,
        wait_ms: int = 0,
        follower: int = -1,
        topic: Any = TOPIC_ID,
        partition: int = 0,
        epoch: int = -1,
        max_bytes: int = 1 << 20,
        cluster: str | None = None,
    ) -> Any:
        request = FetchRequest(
            cluster_id=cluster,
            replica_state=ReplicaState(replica_id=follower),
            max_wait_ms=wait_ms,
            min_bytes=1,
            topics=[
                FetchTopic(
                    topic=topic if isinstance(topic, str) else "",
                    topic_id=topic if isinstance(topic, bytes) else bytes(16),
                    partitions=[
                        FetchPartition(
                            partition=partition,
                            current_leader_epoch=epoch,
                            fetch_offset=offset,
                            partition_max_bytes=max_bytes,
                        )
                    ],
                )
            ],
        )
        answer = self.feed.fetch(request)
        response = await answer if isawaitable(answer) else answer
        return response.responses[0].partitions[0] if response.responses else response


@pytest.fixture
def case() -> Iterator[FeedCase]:
    with World(seed=1) as world:
        yield FeedCase(world)


async def test_batches_come_from_the_offset_on(case: FeedCase) -> None:
    await case.write(4)
    for topic in (TOPIC, TOPIC_ID):
        data = await case.fetch(2, topic=topic)
        assert [offset for offset, _ in read_batches(data.records)] == [2, 3]
        assert (data.error_code, data.high_watermark, data.log_start_offset) == (0, 4, 0)
        assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (NODE, 1)
    data = await case.fetch(0, max_bytes=1)
    assert [offset for offset, _ in read_batches(data.records)] == [0]


async def test_a_fetch_at_the_end_waits_for_more(case: FeedCase) -> None:
    await case.write(1)
    started = case.world.loop.time()
    waiting = asyncio.ensure_future(case.fetch(1, wait_ms=5000))
    await asyncio.sleep(1)
    assert not waiting.done()
    await case.write(1)
    data = await waiting
    assert [offset for offset, _ in read_batches(data.records)] == [1]
    assert case.world.loop.time() - started < 1.1
    data = await case.fetch(2, wait_ms=500)
    assert (bytes(data.records), data.error_code) == (b"", 0)
    assert case.world.loop.time() - started > 1.5


async def test_records_not_on_disk_are_not_served(case: FeedCase) -> None:
    case.journal.append([TopicRecord(name="x", topic_id=bytes(16))])
    data = await case.fetch(0)
    assert (bytes(data.records), data.high_watermark) == (b"", 0)
    assert [o for o, _ in read_batches((await case.fetch(0, wait_ms=9)).records)] == [0]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"topic": "other"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic": b"o" * 16}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"offset": -1}, ErrorCode.INVALID_REQUEST),
        ({"offset": -(2**63)}, ErrorCode.INVALID_REQUEST),
        ({"offset": 3}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"cluster": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"cluster": "lab", "epoch": 1}, ErrorCode.NONE),
    ],
)
async def test_fetches_that_are_refused(
    case: FeedCase, asked: dict[str, Any], code: ErrorCode
) -> None:
    await case.write(2)
    answer = await case.fetch(**{"offset": 0, "wait_ms": 1000, **asked})
    assert answer.error_code == code
    assert case.world.loop.time() < 0.5


async def test_a_fetch_records_how_far_a_broker_is(case: FeedCase) -> None:
    await case.write(3)
    await case.fetch(1, follower=7)
    first = case.feed.positions[7]
    assert (first.offset, first.caught_up_ms, case.feed.position(8)) == (1, -1, 0)
    await asyncio.sleep(1)
    await case.fetch(3, follower=7)
    second = case.feed.positions[7]
    assert (second.offset, second.caught_up_ms) == (3, second.fetched_ms)
    assert second.fetched_ms >= first.fetched_ms + 1000
    await case.write(1)
    await case.fetch(3, follower=7)
    assert case.feed.positions[7].caught_up_ms == second.caught_up_ms
    await case.fetch(0)
    assert list(case.feed.positions) == [7]


async def test_a_broker_that_follows_a_growing_log_was_caught_up_a_fetch_ago(
    case: FeedCase,
) -> None:
    await case.write(3)
    await case.fetch(1, follower=7)
    first = case.feed.positions[7]
    await case.write(2)
    await case.fetch(2, follower=7)
    assert case.feed.positions[7].caught_up_ms == -1
    await case.write(1)
    await case.fetch(5, follower=7)
    third = case.feed.positions[7]
    assert first.fetched_ms < third.caught_up_ms < third.fetched_ms
    await case.write(1)
    await case.fetch(5, follower=7)
    assert case.feed.positions[7].caught_up_ms == third.caught_up_ms


async def test_brokers_are_waited_for_but_not_for_ever(case: FeedCase) -> None:
    loop = case.world.loop
    brokers = [7, 8]
    await case.write(2)
    case.feed.note(7, 2)

    async def catch_up() -> None:
        await asyncio.sleep(0.3)
        case.feed.note(8, 1)
        await asyncio.sleep(0.3)
        case.feed.note(8, 2)

    started = loop.time()
    task = asyncio.ensure_future(catch_up())
    await case.feed.reach(2, lambda: brokers, 5)
    await task
    assert loop.time() - started == pytest.approx(0.6)
    started = loop.time()
    await case.feed.reach(3, lambda: brokers, 1)
    assert loop.time() - started == pytest.approx(1)
    case.feed.note(7, 3)
    waiting = asyncio.ensure_future(case.feed.reach(3, lambda: brokers, 5))
    await asyncio.sleep(0.1)
    brokers.remove(8)  # fenced meanwhile
    case.feed.recheck_positions()
    await waiting
    assert loop.time() - started == pytest.approx(1.1)


async def test_a_request_is_about_one_partition(case: FeedCase) -> None:
    """As with Kafka's quorum, all other requests are refused."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topic = FetchTopic(topic_id=TOPIC_ID, partitions=[partition] * 2)
    one = FetchTopic(topic_id=TOPIC_ID, partitions=[partition])
    piece = TopicSnapshot(name=TOPIC, partitions=[])
    for topics in ([], [topic], [one, one]):
        response = case.feed.fetch(FetchRequest(topics=topics, max_wait_ms=9, min_bytes=1))
        assert isinstance(response, FetchResponse)
        assert (response.error_code, response.responses) == (ErrorCode.INVALID_REQUEST, [])
    for pieces in ([], [piece]):
        refused = case.feed.fetch_snapshot(FetchSnapshotRequest(topics=pieces))
        assert (refused.error_code, refused.topics) == (ErrorCode.INVALID_REQUEST, [])


# Snapshots


async def fetch_snapshot(
    case: FeedCase, position: int = 0, max_bytes: int = 300, **asked: Any
) -> Any:
    snapshot = case.journal.snapshot
    assert snapshot is not None
    request = FetchSnapshotRequest(
        cluster_id=asked.get("cluster"),
        max_bytes=max_bytes,
        topics=[
            TopicSnapshot(
                name=asked.get("topic", TOPIC),
                partitions=[
                    PartitionSnapshot(
                        partition=0,
                        current_leader_epoch=asked.get("epoch", -1),
                        snapshot_id=SnapshotId(
                            end_offset=asked.get("end_offset", snapshot.end_offset),
                            epoch=snapshot.epoch,
                        ),
                        position=position,
                    )
                ],
            )
        ],
    )
    response = case.feed.fetch_snapshot(request)
    return response.topics[0].partitions[0] if response.topics else response


async def test_a_broker_too_far_behind_fetches_a_snapshot_and_continues_after_it(
    case: FeedCase,
) -> None:
    await case.write(40)
    data = await case.fetch(0, wait_ms=1000, follower=7)
    assert case.feed.position(7) == 0
    end_offset = data.snapshot_id.end_offset
    assert (data.error_code, bytes(data.records)) == (0, b"")
    assert (end_offset, data.snapshot_id.epoch) == case.journal.snapshot
    content = b""
    while True:
        piece = await fetch_snapshot(case, len(content))
        assert (piece.error_code, piece.position) == (0, len(content))
        content += piece.unaligned_records
        if len(content) == piece.size:
            break
    names = [record.name for record in read_snapshot(content)]
    assert names == [f"t{number}" for number in range(end_offset)]
    data = await case.fetch(end_offset)
    assert data.snapshot_id.end_offset == -1
    names += [record.name for _, record in read_batches(data.records, end_offset)]
    assert names == [f"t{number}" for number in range(40)]
    # A broker that is a little behind needs no snapshot.
    start = data.log_start_offset
    assert 0 < start < end_offset
    assert next(n for n, _ in read_batches((await case.fetch(start)).records)) == start


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"topic": "other"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"end_offset": 3}, ErrorCode.SNAPSHOT_NOT_FOUND),
        ({"position": -1}, ErrorCode.POSITION_OUT_OF_RANGE),
        ({"position": 1 << 40}, ErrorCode.POSITION_OUT_OF_RANGE),
        ({"cluster": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
    ],
)
async def test_pieces_of_snapshots_that_are_refused(
    case: FeedCase, asked: dict[str, Any], code: ErrorCode
) -> None:
    await case.write(40)
    assert (await fetch_snapshot(case, **asked)).error_code == code
