"""Following the controller's log (`trimtab.cluster.broker.metadata_follower`), which the test
writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import pytest

from trimtab.cluster.broker.link import link_to_controller
from trimtab.cluster.broker.metadata_follower import MetadataFollower
from trimtab.cluster.config import BROKER
from trimtab.cluster.metadata.batches import (
    TOPIC,
    TOPIC_ID,
    SnapshotId,
    build_batch,
    write_snapshot,
)
from trimtab.cluster.metadata.replayed import NOTHING, Replayed
from trimtab.cluster.server.listener import Listener
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.options import read
from trimtab.kafka.wire.batch_cy import verify
from trimtab.kafka.wire.messages import fetch_snapshot
from trimtab.kafka.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from trimtab.kafka.wire.messages.fetch import SnapshotId as FetchedSnapshotId
from trimtab.kafka.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    PartitionSnapshotResponse,
    TopicSnapshotResponse,
)
from trimtab.kafka.wire.messages.metadata_records import TopicRecord, encode_record
from trimtab.sim.world import World

FETCH, FETCH_SNAPSHOT = 1, 59
SNAPSHOT = SnapshotId(10, 3)


class Replica:
    """Records what it is asked to replay."""

    id = 1

    def __init__(self) -> None:
        self.replayed: list[tuple[str, list[str]]] = []

    async def replay(self, records: list[Any]) -> None:
        self.replayed.append(("log", [record.name for record in records]))

    async def replay_snapshot(self, records: list[Any]) -> None:
        self.replayed.append(("snapshot", [record.name for record in records]))


class FakeController:
    """A controller, whose answers the test gives.

    Attributes:
        fetches: that came and are not answered yet, each with what answers it.
        snapshot: what FetchSnapshot reads, `piece` bytes at a time.
        pieces: the positions that were asked for.
        breaks_at: the position at which the connection breaks, once.
        last: what an earlier run of the follower replayed last.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.replica = Replica()
        self.fetches: asyncio.Queue[tuple[FetchRequest, asyncio.Future[FetchResponse]]] = (
            asyncio.Queue()
        )
        self.snapshot = b""
        self.size = 0
        self.piece = 100
        self.pieces: list[int] = []
        self.breaks_at = -1
        self.snapshot_error = 0
        self.last = NOTHING
        self.listener = Listener(
            3000,
            {FETCH: self._fetch, FETCH_SNAPSHOT: self._fetch_snapshot},
            read(BROKER, {}),
        )

    def _fetch(self, header: Any, request: FetchRequest) -> asyncio.Future[FetchResponse]:
        answer: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        self.fetches.put_nowait((request, answer))
        return answer

    def _fetch_snapshot(self, header: Any, request: FetchSnapshotRequest) -> Any:
        (asked,) = request.topics[0].partitions
        assert (request.topics[0].name, request.replica_id) == (TOPIC, 1)
        assert (asked.snapshot_id.end_offset, asked.snapshot_id.epoch) == SNAPSHOT
        self.pieces.append(asked.position)
        if asked.position == self.breaks_at:
            self.breaks_at = -1
            self.world.network.reset()
        found = PartitionSnapshotResponse(
            index=0,
            error_code=self.snapshot_error,
            snapshot_id=fetch_snapshot.SnapshotId(end_offset=10, epoch=3),
            size=self.size or len(self.snapshot),
            position=asked.position,
            unaligned_records=self.snapshot[asked.position : asked.position + self.piece],
        )
        topic = TopicSnapshotResponse(name=TOPIC, partitions=[found])
        return FetchSnapshotResponse(topics=[topic])

    async def listen(self) -> None:
        await self.listener.bind("controller", 9093)
        await self.listener.start()

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            await self.listen()
            link = link_to_controller("controller", 9093, "broker-1")
            self.follower = MetadataFollower(cast(Any, self.replica), link, self.last)
            self.running = asyncio.ensure_future(self.follower.run())
            async with asyncio.timeout(100):
                await scenario()
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
            link.close()
            await self.listener.close()

        self.world.run(run())

    async def next(self, **data: Any) -> int:
        """Answer the next fetch; returns its fetch offset."""
        request, answer = await self.fetches.get()
        (topic,) = request.topics
        (asked,) = topic.partitions
        assert (topic.topic_id, request.replica_state.replica_id) == (TOPIC_ID, 1)
        answer.set_result(respond(**data))
        await asyncio.sleep(0.01)
        return int(asked.fetch_offset)


def respond(code: int = 0, **data: Any) -> FetchResponse:
    given = {"partition_index": 0, "error_code": 0, "high_watermark": 0, "records": b""}
    topic = FetchableTopicResponse(
        topic="", topic_id=TOPIC_ID, partitions=[PartitionData(**{**given, **data})]
    )
    return FetchResponse(error_code=code, responses=[topic])


def topic_record(name: str) -> TopicRecord:
    return TopicRecord(name=name, topic_id=bytes(16))


def batch(offset: int, *names: str) -> bytes:
    return bytes(build_batch([encode_record(topic_record(each)) for each in names], offset, 3, 0))


def snapshot_of(*names: str) -> bytes:
    return b"".join(write_snapshot([topic_record(each) for each in names], SNAPSHOT, 0, 0))


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with World(seed=1) as world:
        yield FakeController(world)


@pytest.mark.kip(595)
async def test_each_fetch_begins_after_the_last_replayed_record(controller: FakeController) -> None:
    assert await controller.next(records=batch(0, "a", "b")) == 0
    assert await controller.next() == 2
    assert await controller.next(records=batch(2, "c") + batch(3, "d")) == 2
    assert await controller.next() == 4
    assert controller.replica.replayed == [("log", ["a", "b"]), ("log", ["c"]), ("log", ["d"])]


async def test_only_the_unknown_records_of_a_batch_are_replayed(controller: FakeController) -> None:
    await controller.next(records=batch(0, "a", "b"))
    await controller.next(records=batch(1, "b", "c"))
    assert controller.replica.replayed[-1] == ("log", ["c"])
    assert controller.follower.next_offset == 3


async def test_reach_returns_when_its_offset_is_replayed(controller: FakeController) -> None:
    waiting = [asyncio.ensure_future(controller.follower.reach(offset)) for offset in (2, 1, 3, 2)]
    advancing = asyncio.ensure_future(controller.follower.advance())
    await asyncio.sleep(0.01)
    waiting[3].cancel()
    await controller.next(records=batch(0, "a", "b"))
    assert [each.done() for each in waiting] == [True, True, False, True]
    assert advancing.done()
    await controller.next(records=batch(2, "c"))
    assert waiting[2].done()
    await controller.follower.reach(3)


@pytest.mark.kip(630)
async def test_a_snapshot_is_fetched_if_the_log_begins_later(controller: FakeController) -> None:
    controller.snapshot = snapshot_of(*"abcdefgh")
    assert await controller.next(snapshot_id=FetchedSnapshotId(end_offset=10, epoch=3)) == 0
    assert await controller.next(records=batch(10, "i")) == 10
    assert controller.replica.replayed == [("snapshot", [*"abcdefgh"]), ("log", ["i"])]
    assert controller.pieces == list(range(0, len(controller.snapshot), 100))


@pytest.mark.parametrize("how", ["replaced", "cut short", "lost"])
async def test_a_snapshot_that_disappears_is_fetched_again(
    controller: FakeController, how: str
) -> None:
    controller.snapshot = snapshot_of("a", "b")
    whole = len(controller.snapshot)
    wanted = FetchedSnapshotId(end_offset=10, epoch=3)
    if how == "replaced":
        controller.snapshot_error = ErrorCode.SNAPSHOT_NOT_FOUND
    elif how == "cut short":  # where a batch ends
        *batches, _ = write_snapshot([topic_record("a")], SNAPSHOT, 0, 0)
        controller.snapshot, controller.size = b"".join(batches), whole
    else:
        controller.breaks_at = controller.piece
    await controller.next(snapshot_id=wanted)
    await asyncio.sleep(2)
    assert controller.replica.replayed == []
    controller.snapshot, controller.size, controller.snapshot_error = (
        snapshot_of("a", "b"),
        0,
        0,
    )
    assert await controller.next(snapshot_id=wanted) == 0
    assert await controller.next() == 10
    assert controller.replica.replayed == [("snapshot", ["a", "b"])]


async def test_retries_of_an_unreachable_controller_back_off(controller: FakeController) -> None:
    await controller.next(records=batch(0, "a"))
    await controller.fetches.get()
    await controller.listener.close()
    await asyncio.sleep(20)
    refused = [line for line in controller.world.trace.lines if "refused" in line]
    assert 20 <= len(refused) <= 26
    await controller.listen()
    assert await controller.next(records=batch(0, "a")) == 0  # it is still the same log
    assert await controller.next(records=batch(1, "b")) == 1
    assert controller.replica.replayed == [("log", ["a"]), ("log", ["b"])]
    assert not controller.running.done()


async def test_a_fetch_without_a_response_times_out(controller: FakeController) -> None:
    await controller.fetches.get()
    began = controller.world.loop.time()
    assert await controller.next(records=batch(0, "a")) == 0
    assert controller.world.loop.time() - began == pytest.approx(10.05, abs=0.05)


@pytest.mark.parametrize(
    "answer",
    [
        respond(ErrorCode.UNKNOWN_SERVER_ERROR),
        respond(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        FetchResponse(error_code=0, responses=[]),
    ],
    ids=["an error", "an error of the log", "nothing"],
)
async def test_an_empty_response_is_fetched_again(controller: FakeController, answer: Any) -> None:
    (await controller.fetches.get())[1].set_result(answer)
    assert await controller.next(records=batch(0, "a")) == 0
    await controller.next()
    assert controller.replica.replayed == [("log", ["a"])]


async def test_a_controller_that_lost_replayed_records_is_an_error(
    controller: FakeController,
) -> None:
    await controller.next(records=batch(0, "a", "b"))
    await controller.next(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    with pytest.raises(CorruptData, match="does not have offset 2"):
        await controller.running


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ({"records": batch(2, "other")}, "another at 2"),
        ({"records": batch(1, "x", "y", "z")}, "offsets 1 to 3"),
        ({}, "does not have offset 2"),
        ({"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}, "does not have offset 2"),
    ],
    ids=["another batch", "other bounds", "its end", "an end before"],
)
async def test_a_controller_that_returns_with_another_log_is_an_error(
    controller: FakeController, answer: dict[str, Any], what: str
) -> None:
    await controller.next(records=batch(0, "a", "b") + batch(2, "c"))
    await controller.next(code=ErrorCode.UNKNOWN_SERVER_ERROR)
    assert await controller.next(**answer) == 2
    with pytest.raises(CorruptData, match=f"{what}.*trimtab recover"):
        await controller.running
    assert controller.replica.replayed == [("log", ["a", "b"]), ("log", ["c"])]


def test_the_last_batch_of_an_earlier_run_is_compared(controller: FakeController) -> None:
    async def scenario() -> None:
        await controller.next(records=batch(0, "a"))
        await controller.next(records=batch(1, "other"))
        with pytest.raises(CorruptData, match="another at 1"):
            await controller.running
        assert controller.replica.replayed == [("log", ["a"])]
        assert controller.follower.last == controller.last

    controller.last = Replayed(1, verify(memoryview(batch(1, "b"))).crc)
    controller.run(scenario)


def test_a_lost_controller_does_not_skip_what_is_before_the_last_batch_of_an_earlier_run(
    controller: FakeController,
) -> None:
    async def scenario() -> None:
        await controller.next(records=batch(0, "a"))
        await controller.next(code=ErrorCode.UNKNOWN_SERVER_ERROR)
        assert await controller.next(records=batch(1, "b") + batch(2, "c")) == 1
        assert controller.replica.replayed == [("log", ["a"]), ("log", ["b"]), ("log", ["c"])]

    controller.last = Replayed(2, verify(memoryview(batch(2, "c"))).crc)
    controller.run(scenario)


async def test_a_log_with_a_gap_is_an_error(controller: FakeController) -> None:
    await controller.next(records=batch(0, "a"))
    await controller.next(records=batch(2, "c"))
    with pytest.raises(CorruptData, match=r"broker 1.*continues at offset 2.*before 1"):
        await controller.running
    assert controller.replica.replayed == [("log", ["a"])]


def test_a_snapshot_that_contains_the_last_batch_is_trusted(controller: FakeController) -> None:
    async def scenario() -> None:
        controller.snapshot = snapshot_of("a")
        wanted = FetchedSnapshotId(end_offset=10, epoch=3)
        await controller.next(snapshot_id=wanted)
        assert await controller.next(records=batch(10, "i")) == 10
        assert controller.follower.last.base_offset == 10
        await controller.next(code=ErrorCode.UNKNOWN_SERVER_ERROR)
        assert await controller.next(snapshot_id=wanted) == 10
        assert await controller.next(records=batch(11, "j")) == 11
        assert controller.replica.replayed == [("snapshot", ["a"]), ("log", ["i"]), ("log", ["j"])]

    controller.last = Replayed(1, 1)
    controller.run(scenario)


def test_what_a_snapshot_contains_is_compared_and_not_replayed_again(
    controller: FakeController,
) -> None:
    """The controller's disk fails once, after the snapshot was read."""

    async def scenario() -> None:
        controller.snapshot = snapshot_of("a")
        await controller.next(snapshot_id=FetchedSnapshotId(end_offset=10, epoch=3))
        await controller.next(code=ErrorCode.KAFKA_STORAGE_ERROR)
        known = batch(7, "x") + batch(8, "y") + batch(9, "z")
        assert await controller.next(records=known) == 7
        assert controller.follower.next_offset == 10
        assert await controller.next(records=batch(10, "i")) == 10
        assert controller.replica.replayed == [("snapshot", ["a"]), ("log", ["i"])]

    controller.last = Replayed(7, verify(memoryview(batch(7, "x"))).crc)
    controller.run(scenario)


async def test_damaged_records_are_an_error(controller: FakeController) -> None:
    damaged = bytearray(batch(0, "a"))
    damaged[-1] ^= 1
    await controller.next(records=damaged)
    with pytest.raises(CorruptData):
        await controller.running
    assert controller.replica.replayed == []
