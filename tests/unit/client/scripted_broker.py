"""Brokers in virtual time that answer as a test specifies, and record their requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.kafka.wire.batch_header import restamp
from trimtab.kafka.wire.codec import decode
from trimtab.kafka.wire.framing import FrameProtocol, decode_request_header, encode_response
from trimtab.kafka.wire.messages import APIS
from trimtab.kafka.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from trimtab.kafka.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from trimtab.kafka.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from trimtab.kafka.wire.schema import Request
from trimtab.sim.world import World

PORT = 9092

R = TypeVar("R")
RequestClass = type[Request[Any]]
Versions = Mapping[RequestClass, tuple[int, int]]

NO_ANSWER = object()
"""In place of an answer: the broker does not answer the request."""
HANG_UP = object()
"""In place of an answer: the broker closes the connection."""

Answer = Callable[[Any], object]


def batch(base_offset: int, *values: bytes, **attributes: Any) -> bytes:
    """A stored record batch whose first record has the offset `base_offset`."""
    builder = BatchBuilder(1 << 20)
    for value in values:
        assert builder.append(1_000, None, value, ())
    built = bytearray(builder.build(**attributes))
    restamp(built, 0, base_offset, 0)
    return bytes(built)


@dataclass
class ReceivedRequest:
    """One request: its time, API, version and content."""

    at: float
    api: RequestClass
    version: int
    request: Any


@dataclass
class ScriptedCluster:
    """Brokers `broker-0`, `broker-1`, … that agree on a few topics.

    Attributes:
        leaders: by topic, the leader of each partition, -1 for none.
        logs: by partition, its batches with their base offsets, in order.
        topic_ids: whether topics have ids (Metadata version 10 and above).
    """

    world: World
    leaders: dict[str, list[int]] = field(default_factory=dict)
    logs: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    brokers: dict[int, ScriptedBroker] = field(default_factory=dict)
    controller: int = 0
    has_topic_ids: bool = True
    leader_epoch: int = 0

    def broker(self, node_id: int, versions: Versions | None = None) -> ScriptedBroker:
        made = ScriptedBroker(self, node_id, versions)
        self.brokers[node_id] = made
        return made

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{broker.host}:{PORT}" for broker in self.brokers.values())

    def topic_id(self, name: str) -> bytes:
        return name.encode().ljust(16, b"\1") if self.has_topic_ids else bytes(16)

    def topic_of(self, topic_id: bytes) -> str:
        return next(name for name in self.leaders if self.topic_id(name) == topic_id)

    def metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = (
            list(self.leaders)
            if request.topics is None
            else [topic.name or "" for topic in request.topics]
        )
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node_id, host=broker.host, port=PORT)
                for node_id, broker in self.brokers.items()
            ],
            cluster_id="scripted",
            controller_id=self.controller,
            topics=[self._describe(name) for name in names],
        )

    def _describe(self, name: str) -> MetadataResponseTopic:
        if name not in self.leaders:
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, partitions=[]
            )
        return MetadataResponseTopic(
            name=name,
            topic_id=self.topic_id(name),
            partitions=[
                MetadataResponsePartition(
                    error_code=ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=self.leader_epoch,
                    replica_nodes=[max(leader, 0)],
                    isr_nodes=[max(leader, 0)],
                )
                for index, leader in enumerate(self.leaders[name])
            ],
        )


class ScriptedBroker:
    """One broker: `await start()` it, `stop()` it, and change what it `answers`.

    Metadata, ListOffsets and Fetch are answered from the cluster's topics and logs; an idle fetch
    is answered after its `max_wait_ms`.
    """

    def __init__(self, cluster: ScriptedCluster, node_id: int, versions: Versions | None) -> None:
        self.cluster = cluster
        self.id = node_id
        self.host = f"broker-{node_id}"
        self.versions: dict[RequestClass, tuple[int, int]] = {
            api.request: (api.min_version, api.max_version) for api in APIS.values()
        }
        self.versions.update(versions or {})
        self.asked: list[ReceivedRequest] = []
        self.links: list[_Link] = []
        self.answers: dict[RequestClass, Answer] = {
            MetadataRequest: cluster.metadata,
            ListOffsetsRequest: self.list_offsets,
            FetchRequest: self.fetch,
        }
        self._server: Any = None

    async def start(self) -> None:
        loop = self.cluster.world.loop
        self._server = await loop.create_server(lambda: _Link(self), self.host, PORT)

    def stop(self) -> None:
        """Refuse connections from now on, and close the existing ones."""
        self._server.close()
        for link in self.links:
            if link.transport is not None:
                link.transport.abort()

    def requests(self, api: type[R]) -> list[R]:
        return [asked.request for asked in self.asked if asked.api is api]

    def answer_api_versions(self, version: int) -> tuple[ApiVersionsResponse, int]:
        """The answer, and the version it is in: 0 if the request's is not served (KIP-511)."""
        low, high = self.versions[ApiVersionsRequest]
        served = low <= version <= high
        response = ApiVersionsResponse(
            error_code=ErrorCode.NONE if served else ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[
                ApiVersion(api_key=api.api_key, min_version=least, max_version=most)
                for api, (least, most) in self.versions.items()
            ],
        )
        return response, version if served else 0

    def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Looks up only the earliest and the latest offset."""
        topics = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                log = self.cluster.logs.get(TopicPartition(topic.name, asked.partition_index), [])
                offset = end_of(log) if asked.timestamp == -1 else start_of(log)
                partitions.append(
                    ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index, timestamp=-1, offset=offset
                    )
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(topics=topics)

    def fetch(self, request: FetchRequest) -> FetchResponse:
        """Batches from the offsets on, by KIP-74's limits."""
        room, is_first = request.max_bytes, True
        responses = []
        for topic in request.topics:
            name = topic.topic or self.cluster.topic_of(topic.topic_id)
            partitions = []
            for asked in topic.partitions:
                log = self.cluster.logs.get(TopicPartition(name, asked.partition), [])
                taken: list[bytes] = []
                for stored in log:
                    if end_of([stored]) <= asked.fetch_offset:
                        continue
                    limit = min(room, asked.partition_max_bytes - sum(map(len, taken)))
                    if len(stored) > limit and not is_first:
                        break
                    taken.append(stored)
                    room -= len(stored)
                    is_first = False
                partitions.append(
                    PartitionData(
                        partition_index=asked.partition,
                        high_watermark=end_of(log),
                        records=b"".join(taken),
                    )
                )
            responses.append(
                FetchableTopicResponse(topic=name, topic_id=topic.topic_id, partitions=partitions)
            )
        return FetchResponse(responses=responses)


def start_of(log: Sequence[bytes]) -> int:
    return int.from_bytes(log[0][:8], "big") if log else 0


def end_of(log: Sequence[bytes]) -> int:
    if not log:
        return 0
    return int.from_bytes(log[-1][:8], "big") + int.from_bytes(log[-1][23:27], "big") + 1


def refuse_fetch(request: FetchRequest, code: ErrorCode) -> FetchResponse:
    """The answer that refuses every partition of a fetch with one code."""
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(
                        partition_index=asked.partition, error_code=code, high_watermark=-1
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


class _Link(FrameProtocol):
    """One client's connection, answered one request at a time as Kafka does."""

    def __init__(self, broker: ScriptedBroker) -> None:
        super().__init__()
        self._broker = broker
        self._free_at = 0.0
        broker.links.append(self)

    def frame_received(self, frame: memoryview) -> None:
        broker = self._broker
        header = decode_request_header(frame)
        api = APIS[header.api_key].request
        now = broker.cluster.world.loop.time()
        if api is ApiVersionsRequest:
            broker.asked.append(ReceivedRequest(now, api, header.api_version, None))
            response, version = broker.answer_api_versions(header.api_version)
            self._send(response, version, header.correlation_id, now)
            return
        request: Any = decode(api, header.api_version, frame, header.body)
        broker.asked.append(ReceivedRequest(now, api, header.api_version, request))
        answer = broker.answers[api](request)
        if answer is HANG_UP:
            assert self.transport is not None
            self.transport.abort()
        if answer in (HANG_UP, NO_ANSWER):
            return
        begin = max(now, self._free_at)
        is_idle = isinstance(answer, FetchResponse) and not any(
            data.records or data.error_code
            for topic in answer.responses
            for data in topic.partitions
        )
        at = begin + request.max_wait_ms / 1000 if is_idle else begin
        self._send(answer, header.api_version, header.correlation_id, at)

    def _send(self, response: object, version: int, correlation_id: int, at: float) -> None:
        self._free_at = at
        parts = encode_response(response, version, correlation_id)

        def write() -> None:
            if self.transport is not None:
                self.transport.writelines(parts)

        self._broker.cluster.world.loop.call_at(at, write)
