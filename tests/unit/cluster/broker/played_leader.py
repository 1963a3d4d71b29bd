"""A follower without its broker, and a leader whose responses the test gives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from tests.unit.cluster.broker.replica_stand import TOPIC_ID, Stand
from tests.unit.secret import SECRET
from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.replication import Replication
from trimtab.cluster.broker.replication_quota import ReplicationQuota
from trimtab.cluster.config import BROKER
from trimtab.cluster.metadata.image import BrokerRegistration, ClusterImage
from trimtab.cluster.server.cluster_secret import name_broker
from trimtab.cluster.server.faults import BrokerFaults
from trimtab.cluster.server.listener import Listener
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.options import read
from trimtab.kafka.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from trimtab.kafka.wire.sentinels import EARLIEST
from trimtab.sim.world import World

LEADER, OTHER = 2, 3
OPTIONS = {"replica.socket.timeout.ms": 5000, "replica.fetch.backoff.ms": 100}


class Leader:
    """A broker that answers as the test says.

    Attributes:
        fetches: that came and are not answered yet, each with what answers it.
        ends: its log's start and end, as ListOffsets tells them; None not to answer.
    """

    def __init__(self, broker_id: int = LEADER) -> None:
        self.listener = Listener(
            broker_id,
            {1: self._fetch, 2: self._list_offsets},
            read(BROKER, {}),
            secret=SECRET,
            name=name_broker(broker_id),
        )
        self.fetches: asyncio.Queue[tuple[FetchRequest, asyncio.Future[FetchResponse]]] = (
            asyncio.Queue()
        )
        self.ends: tuple[int, int] | None = (0, 0)

    async def listen(self, host: str) -> None:
        await self.listener.bind(host, 9092)
        await self.listener.start()

    def _fetch(self, header: Any, request: FetchRequest) -> asyncio.Future[FetchResponse]:
        answer: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        self.fetches.put_nowait((request, answer))
        return answer

    def _list_offsets(self, header: Any, request: Any) -> Any:
        if self.ends is None:
            return asyncio.get_running_loop().create_future()
        wanted = request.topics[0].partitions[0]
        assert request.replica_id == 1
        found = ListOffsetsPartitionResponse(
            partition_index=wanted.partition_index,
            error_code=0,
            timestamp=-1,
            offset=self.ends[0 if wanted.timestamp == EARLIEST else 1],
            leader_epoch=wanted.current_leader_epoch,
        )
        topic = ListOffsetsTopicResponse(name=request.topics[0].name, partitions=[found])
        return ListOffsetsResponse(throttle_time_ms=0, topics=[topic])

    async def next(self, *data: PartitionData, session_id: int = 77, code: int = 0) -> FetchRequest:
        """Answer the next fetch of t; returns the request."""
        request, answer = await self.fetches.get()
        answer.set_result(respond(*data, session_id=session_id, code=code))
        await asyncio.sleep(0.01)  # so that the next one is under way
        return request

    async def skip_to(
        self, is_wanted: Callable[[FetchRequest], Any]
    ) -> tuple[FetchRequest, asyncio.Future[FetchResponse]]:
        """The next fetch that fulfils the condition; earlier ones get empty responses."""
        while True:
            request, answer = await self.fetches.get()
            if is_wanted(request):
                return request, answer
            await asyncio.sleep(0.001)
            answer.set_result(respond())


def respond(*data: PartitionData, session_id: int = 77, code: int = 0) -> FetchResponse:
    topic = FetchableTopicResponse(topic="", topic_id=TOPIC_ID, partitions=list(data))
    return FetchResponse(error_code=code, session_id=session_id, responses=[topic] if data else [])


def data(index: int, records: bytes | bytearray = b"", **changed: Any) -> PartitionData:
    given: dict[str, Any] = {"error_code": 0, "high_watermark": 0, "log_start_offset": 0}
    return PartitionData(partition_index=index, records=records, **{**given, **changed})


def named(request: FetchRequest) -> dict[int, int]:
    """The offset of each partition that the request names."""
    return {
        each.partition: each.fetch_offset for topic in request.topics for each in topic.partitions
    }


def forgotten(request: FetchRequest) -> list[int]:
    return [each for topic in request.forgotten_topics_data for each in topic.partitions]


class Follower:
    """The parts of broker 1 that its fetchers use.

    Attributes:
        is_too_fast: whether it has had what it may take of throttled replicas.
        noted: how often it was asked to note where its logs begin.
    """

    id = 1
    secret = SECRET

    def __init__(self) -> None:
        self.config = read(BROKER, OPTIONS)
        self.image = ClusterImage()
        self.faults = BrokerFaults()
        self.is_too_fast = False
        self.taken = 0
        self.disk_failures: list[StorageError] = []
        self.disk_failed = self.disk_failures.append
        self.noted = 0
        self.move("leader")
        self.replication = Replication(self, cast(ClusterView, self), lambda: 11)
        self.replication.quota = cast(ReplicationQuota, self)

    def move(self, host: str) -> None:
        self.image.brokers[LEADER] = BrokerRegistration(LEADER, 12, bytes(16), host, 9092, None)

    def checkpoint_starts(self) -> bool:
        self.noted += 1
        return True

    def is_exceeded(self, limit: int, now_s: float) -> bool:
        return self.is_too_fast

    def record(self, size: int, now_s: float) -> None:
        self.taken += size


class Play:
    """A leader, a follower and the partitions 0, 1 and 2 of t."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stands = [Stand(index) for index in range(3)]

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            self.leader = Leader()
            await self.leader.listen("leader")
            self.follower = Follower()
            self.replication = self.follower.replication
            async with asyncio.timeout(30):
                await scenario()
            await asyncio.gather(*self.replication.abort(), return_exceptions=True)
            await self.leader.listener.close()

        self.world.run(run())
        for stand in self.stands:
            stand.log.abandon()

    def follow(self, *indexes: int, **changed: Any) -> None:
        for index in indexes:
            self.replication.follow(self.stands[index].follow(**changed))

    def end(self, index: int) -> int:
        return self.stands[index].log.log_end_offset
