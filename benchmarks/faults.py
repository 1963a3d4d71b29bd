"""A cluster seen through bad weather: everything that may go wrong on the way to it, from a seed.

    client ═▶ face 0 ═╗
    client ═▶ face 1 ═╬═▶ one real broker, of any make, which keeps the logs
    client ═▶ face 2 ═╝

Clients see as many brokers as there are faces; each is a proxy. Who leads which partition is made
up here and changes under way, as in a cluster whose replicas are all in sync: a leader that is
none any more refuses what comes, and the log goes on under the next one. Requests and responses are
late, trickle, get lost or are cut in the middle; connections break and are refused; answers are
refusals in the broker's place, or say of something stored that it may not be. Nothing happens that
a cluster of Apache Kafka's could not do.

It runs on any event loop, a virtual one included: there the same seed brings the same weather.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from benchmarks.proxy import BUFFER_BYTES, PRODUCE, Exchange, Proxy, read_frame, write, write_frame
from trimtab.errors import ErrorCode
from trimtab.records import TopicPartition
from trimtab.wire.codec import decode
from trimtab.wire.framing import (
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from trimtab.wire.messages.init_producer_id import InitProducerIdResponse
from trimtab.wire.messages.metadata import MetadataResponse, MetadataResponseBroker
from trimtab.wire.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

M = TypeVar("M")

METADATA: Final = 3
INIT_PRODUCER_ID: Final = 22
NOBODY: Final = -1

REFUSALS: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""In a broker's place: nothing was stored."""

DOUBTS: Final = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)
"""What a broker says of a batch that it has stored, and that its followers may not have."""

FINAL: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_RECORD)
"""In a broker's place, and a client gives up for it."""


@dataclass(frozen=True)
class Weather:
    """How often what goes wrong, and for how long.

    Shares are of requests or responses, 0 to 1, and of partitions' batches in Produce requests for
    `refused`, `doubted` and `final`. Rates are a second. Times are in seconds; each is drawn up to
    the longest.

    Attributes:
        late: requests and responses that are held for up to `longest_delay`.
        held: requests that are held for up to `longest_hold`, which clients do not wait for.
        unheard: requests that are lost with their connection, on the way there.
        cut_there: likewise, but their beginning arrives.
        unanswered: responses that are lost with their connection, on the way back.
        cut_back: likewise, but their beginning arrives.
        silenced: requests that are never answered, on connections that stay open.
        trickling: requests and responses that come in pieces.
        refused: batches that are refused in the broker's place, with one of `REFUSALS`.
        final: batches that are refused with one of `FINAL`.
        doubted: stored batches for which the answer is one of `DOUBTS`.
        throttled: responses that ask the client to wait, up to `longest_delay`.
        stale: Metadata responses that name leaders of before.
        unidentified: InitProducerId requests that are refused.
        elections: partitions that change their leader, which some lack for up to `longest_spell`.
        breakdowns: faces that for up to `longest_spell` refuse connections, or pass nothing on.
        resets: faces whose connections break at once.
        is_outliving: whether a request that was received reaches the broker even if its client has
            gone away meanwhile, and however late.
    """

    late: float = 0
    held: float = 0
    unheard: float = 0
    cut_there: float = 0
    unanswered: float = 0
    cut_back: float = 0
    silenced: float = 0
    trickling: float = 0
    refused: float = 0
    final: float = 0
    doubted: float = 0
    throttled: float = 0
    stale: float = 0
    unidentified: float = 0
    elections: float = 0
    breakdowns: float = 0
    resets: float = 0
    longest_delay: float = 0.05
    longest_hold: float = 1.0
    longest_spell: float = 1.0
    is_outliving: bool = False


_SHARES: Final = tuple(item.name for item in fields(Weather) if item.default == 0)
_RATES: Final = frozenset({"elections", "breakdowns", "resets"})


def draw_weather(random: Random, pace: float = 1.0, **given: Any) -> Weather:
    """Some of the faults, each seldom or often: what one hides another run shows.

    Args:
        pace: how long times are, and how rarely things happen by themselves, against those of a
            run of some seconds.
        given: what is not left to chance.
    """
    drawn: dict[str, Any] = {}
    for name in _SHARES:
        share = 0.005 * 30 ** random.random()  # 0.5 % to 15 %
        if random.random() < 0.5:
            drawn[name] = share * 20 / pace if name in _RATES else share
    times = {
        "longest_delay": pace * random.choice([0.005, 0.05, 0.3]),
        "longest_hold": pace * random.choice([0.5, 2.0]),
        "longest_spell": pace * random.choice([0.1, 0.5, 1.5]),
    }
    return Weather(**{**drawn, **times, **given})


class _Loss(Enum):
    """How much of a frame arrives before its connection ends."""

    NOTHING = "lost"
    PART = "cut"


@dataclass
class _Fate:
    """What is in store for one exchange."""

    hold: float = 0.0
    there: _Loss | None = None
    delay: float = 0.0
    back: _Loss | None = None
    is_silenced: bool = False
    trickles: tuple[bool, bool] = (False, False)
    throttle: float = 0.0
    refused: dict[TopicPartition, PartitionProduceResponse] = field(default_factory=dict)
    doubted: dict[TopicPartition, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True)
class _Lead:
    """Who leads a partition: a face's number, or `NOBODY`."""

    node_id: int
    epoch: int


class _Ended(Exception):
    """The weather ended a connection."""


class FaultyCluster:
    """Faces of a broker, while its `async with` block lasts.

    Args:
        to: host and port of the real broker.
        faces: how many brokers clients see.
        weather: what goes wrong; `calm` ends it.
        random: of everything that is drawn.
        is_virtual: whether the loop's network is virtual.

    Attributes:
        seen: how often what happened.
        log: the last things that happened, with the loop's time.
        failures: errors of this module's own, of which there are none.
    """

    def __init__(
        self,
        to: tuple[str, int],
        faces: int,
        weather: Weather,
        random: Random,
        is_virtual: bool = False,
    ) -> None:
        self.weather = weather
        self.random: Final = random
        self.seen: Counter[str] = Counter()
        self.log: deque[str] = deque(maxlen=200)
        self.failures: list[Exception] = []
        self.topic_names: dict[bytes, str] = {}
        self._leads: dict[TopicPartition, _Lead] = {}
        self._led_before: dict[TopicPartition, _Lead] = {}
        self._faces: Final = [_Face(self, node_id, to, is_virtual) for node_id in range(faces)]
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in (face.address for face in self._faces))

    async def __aenter__(self) -> Self:
        for face in self._faces:
            await face.__aenter__()
        weather = self.weather
        self._begin(self._happen(weather.elections, self._elect))
        self._begin(self._happen(weather.breakdowns, self._break_down))
        self._begin(self._happen(weather.resets, self._reset))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.calm()
        for face in self._faces:
            await face.__aexit__(kind, error, trace)

    async def calm(self) -> None:
        """Nothing goes wrong from now on; what is held already goes on being held."""
        self.weather = Weather(is_outliving=self.weather.is_outliving)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for face in self._faces:
            face.is_flowing.set()
            await face.stand_up()
        for partition, lead in self._leads.items():
            if lead.node_id == NOBODY:
                self._lead(partition, 0)

    async def drain(self) -> None:
        """Wait until the connections of clients that went away have passed on what they held."""
        await asyncio.gather(*(face.drain() for face in self._faces))

    def note(self, what: str, detail: str = "") -> None:
        self.seen[what] += 1
        now = asyncio.get_running_loop().time()
        self.log.append(f"{now:.6f} {what} {detail}".rstrip())

    # what is in store

    def happens(self, share: float) -> bool:
        return share > 0 and self.random.random() < share

    def draw_fate(self, exchange: Exchange) -> _Fate:
        weather, random, happens = self.weather, self.random, self.happens
        fate = _Fate()
        if happens(weather.late):
            fate.hold = random.random() * weather.longest_delay
        if happens(weather.held):
            fate.hold = random.random() * weather.longest_hold
        if happens(weather.unheard):
            fate.there = _Loss.NOTHING
        elif happens(weather.cut_there):
            fate.there = _Loss.PART
        if happens(weather.late):
            fate.delay = random.random() * weather.longest_delay
        if happens(weather.unanswered):
            fate.back = _Loss.NOTHING
        elif happens(weather.cut_back):
            fate.back = _Loss.PART
        fate.is_silenced = happens(weather.silenced)
        fate.trickles = happens(weather.trickling), happens(weather.trickling)
        if exchange.api_key == PRODUCE and happens(weather.throttled):
            fate.throttle = random.random() * weather.longest_delay
        return fate

    # who leads

    def lead_of(self, partition: TopicPartition) -> _Lead:
        return self._leads.get(partition) or self._lead(
            partition, partition.partition % len(self._faces)
        )

    def seen_lead_of(self, partition: TopicPartition) -> _Lead:
        """The leader, or a former one: some brokers learn late of elections."""
        lead = self.lead_of(partition)
        before = self._led_before.get(partition)
        if before is None or not self.happens(self.weather.stale):
            return lead
        self.note("stale metadata", f"{partition} {before}")
        return before

    def endpoints(self) -> Iterable[tuple[int, str, int]]:
        return ((face.node_id, *face.address) for face in self._faces)

    def _lead(self, partition: TopicPartition, node_id: int) -> _Lead:
        before = self._leads.get(partition)
        if before is not None:
            self._led_before[partition] = before
        lead = self._leads[partition] = _Lead(node_id, 0 if before is None else before.epoch + 1)
        return lead

    # what happens by itself

    def _begin(self, something: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(something)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.failures.append(error)

    async def _happen(self, rate: float, what: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while rate > 0:
            await asyncio.sleep(self.random.expovariate(rate))
            self._begin(what())

    def _draw_spell(self) -> float:
        return self.random.random() * self.weather.longest_spell

    async def _elect(self) -> None:
        if not self._leads:
            return
        random = self.random
        partition = random.choice(list(self._leads))
        if random.random() < 0.3:
            self._lead(partition, NOBODY)
            self.note("lost its leader", str(partition))
            await asyncio.sleep(self._draw_spell())
        lead = self._lead(partition, random.randrange(len(self._faces)))
        self.note("elected", f"{partition} {lead}")

    async def _break_down(self) -> None:
        face, spell = self.random.choice(self._faces), self._draw_spell()
        if self.random.random() < 0.5:
            self.note("froze", f"{face.node_id} for {spell:.3f} s")
            face.is_flowing.clear()
            await asyncio.sleep(spell)
            face.is_flowing.set()
        else:
            self.note("is down", f"{face.node_id} for {spell:.3f} s")
            face.fall_down()
            await asyncio.sleep(spell)
            await face.stand_up()

    async def _reset(self) -> None:
        face = self.random.choice(self._faces)
        self.note("reset", str(face.node_id))
        face.break_connections()


class _Face(Proxy):
    """One broker, as clients see it.

    A connection has three tasks: what comes is read at once, so that a client's going away is
    noticed; it goes on to the broker after its time; and answers come back in order.
    """

    def __init__(
        self, cluster: FaultyCluster, node_id: int, to: tuple[str, int], is_virtual: bool
    ) -> None:
        super().__init__(to, is_virtual=is_virtual)
        self.node_id = node_id
        self.is_flowing = asyncio.Event()
        self.is_flowing.set()
        self._cluster = cluster
        self._random = cluster.random

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
    ) -> None:
        try:
            broker_reader, broker = await asyncio.open_connection(*self._to, limit=BUFFER_BYTES)
        except OSError:
            writer.transport.abort()
            return
        arrived: asyncio.Queue[Exchange | None] = asyncio.Queue()
        unanswered: asyncio.Queue[tuple[Exchange, _Fate, bool]] = asyncio.Queue()
        reading = asyncio.create_task(self._read(reader, connection, arrived))
        sending = asyncio.create_task(self._send_on(arrived, broker, unanswered))
        answering = asyncio.create_task(self._answer(unanswered, broker_reader, writer))
        try:
            await asyncio.wait([reading, sending, answering], return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and self._cluster.weather.is_outliving:
                await asyncio.wait([sending, answering], return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = [reading, sending, answering]
            for task in tasks:
                task.cancel()
            writer.close()
            broker.close()
            for end in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(end, Exception) and not isinstance(end, _ENDS):
                    self._cluster.failures.append(end)

    async def _read(
        self,
        reader: asyncio.StreamReader,
        connection: int,
        arrived: asyncio.Queue[Exchange | None],
    ) -> None:
        number = 0
        try:
            while True:
                arrived.put_nowait(Exchange(connection, number, await read_frame(reader)))
                number += 1
        finally:
            arrived.put_nowait(None)

    async def _send_on(
        self,
        arrived: asyncio.Queue[Exchange | None],
        broker: asyncio.StreamWriter,
        unanswered: asyncio.Queue[tuple[Exchange, _Fate, bool]],
    ) -> None:
        cluster = self._cluster
        while (exchange := await arrived.get()) is not None:
            fate = cluster.draw_fate(exchange)
            if fate.hold:
                self._note(exchange, "held", f"for {fate.hold:.3f} s")
                await asyncio.sleep(fate.hold)
            await self.is_flowing.wait()
            frame = self._treat_request(exchange, fate)
            if frame is not None:
                await self._pour(exchange, broker, frame, fate.there, fate.trickles[0])
            unanswered.put_nowait((exchange, fate, frame is not None))

    async def _answer(
        self,
        unanswered: asyncio.Queue[tuple[Exchange, _Fate, bool]],
        broker: asyncio.StreamReader,
        client: asyncio.StreamWriter,
    ) -> None:
        while True:
            exchange, fate, is_sent = await unanswered.get()
            response = await read_frame(broker) if is_sent else None
            if fate.delay:
                self._note(exchange, "late", f"by {fate.delay:.3f} s")
                await asyncio.sleep(fate.delay)
            await self.is_flowing.wait()
            if fate.is_silenced:
                self._note(exchange, "silenced")
                await asyncio.Event().wait()
            frame = self._treat_response(exchange, fate, response)
            await self._pour(exchange, client, frame, fate.back, fate.trickles[1], True)

    async def _pour(
        self,
        exchange: Exchange,
        target: asyncio.StreamWriter,
        frame: bytes,
        loss: _Loss | None,
        trickles: bool,
        is_response: bool = False,
    ) -> None:
        data = write_frame(frame)
        if loss is not None:
            way = "response" if is_response else "request"
            self._note(exchange, f"{way} {loss.value}")
        if loss is _Loss.NOTHING:
            raise _Ended
        if loss is _Loss.PART:
            data = data[: self._random.randrange(1, len(data))]
        step = max(1, len(data) // 5) if trickles else len(data)
        if trickles:
            self._note(exchange, "trickles")
        for start in range(0, len(data), step):
            if start:
                await asyncio.sleep(self._random.random() * self._cluster.weather.longest_delay)
            write(target, data[start : start + step])
            await target.drain()
        if loss is not None:
            raise _Ended

    def _note(self, exchange: Exchange, what: str, detail: str = "") -> None:
        place = f"{self.node_id}/{exchange.connection}/{exchange.number}"
        self._cluster.note(what, f"{place} api {exchange.api_key} {detail}")

    # what is done to messages

    def _treat_request(self, exchange: Exchange, fate: _Fate) -> bytes | None:
        """The frame that goes to the broker; None if it is to learn of nothing."""
        if exchange.api_key == INIT_PRODUCER_ID:
            is_refused = self._cluster.happens(self._cluster.weather.unidentified)
            return None if is_refused else exchange.request
        if exchange.api_key != PRODUCE:
            return exchange.request
        header = decode_request_header(exchange.request)
        request = decode(
            ProduceRequest, exchange.api_version, memoryview(exchange.request), header.body
        )
        kept: list[TopicProduceData] = []
        for topic in request.topic_data:
            name = topic.name or self._cluster.topic_names.get(topic.topic_id, "")
            rest = []
            for data in topic.partition_data:
                partition = TopicPartition(name, data.index)
                if not self._refuse(partition, fate):
                    rest.append(data)
            if rest:
                kept.append(replace(topic, partition_data=rest))
        if not fate.refused:
            return exchange.request
        if not kept:
            return None
        request.topic_data = kept
        parts = encode_request(
            request, exchange.api_version, exchange.correlation_id, header.client_id
        )
        return b"".join(parts)[4:]

    def _refuse(self, partition: TopicPartition, fate: _Fate) -> bool:
        """Refuse a batch, or doubt it later, if that is its fate."""
        cluster, weather = self._cluster, self._cluster.weather
        lead = cluster.lead_of(partition)
        code = ErrorCode.NONE
        if lead.node_id != self.node_id:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif cluster.happens(weather.refused):
            code = self._random.choice(REFUSALS)
        elif cluster.happens(weather.final):
            code = self._random.choice(FINAL)
        elif cluster.happens(weather.doubted):
            fate.doubted[partition] = self._random.choice(DOUBTS)
        if code is ErrorCode.NONE:
            return False
        refused = fate.refused[partition] = PartitionProduceResponse(
            index=partition.partition, error_code=code, base_offset=-1
        )
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER and lead.node_id != self.node_id:
            refused.current_leader = LeaderIdAndEpoch(
                leader_id=lead.node_id, leader_epoch=lead.epoch
            )
        cluster.note(f"refused: {code.name}", str(partition))
        return True

    def _treat_response(self, exchange: Exchange, fate: _Fate, frame: bytes | None) -> bytes:
        """The frame that goes to the client; `frame` is the broker's, None if none."""
        version = exchange.api_version
        if exchange.api_key == METADATA and frame is not None:
            metadata = decode_response(MetadataResponse, version, memoryview(frame))
            self._rewrite_metadata(metadata)
            return self._encode(exchange, metadata)
        if exchange.api_key == INIT_PRODUCER_ID and frame is None:
            self._note(exchange, "no producer id yet")
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return self._encode(
                exchange,
                InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1),
            )
        if exchange.api_key != PRODUCE or not (
            fate.refused or fate.doubted or fate.throttle or frame is None
        ):
            assert frame is not None
            return frame
        response = ProduceResponse(responses=[])
        if frame is not None:
            response = decode_response(ProduceResponse, version, memoryview(frame))
        self._rewrite_produce(exchange, fate, response)
        return self._encode(exchange, response)

    def _rewrite_metadata(self, metadata: MetadataResponse) -> None:
        """Have it tell of faces instead of brokers, and of who leads at the moment."""
        cluster = self._cluster
        nodes = [node_id for node_id, _, _ in cluster.endpoints()]
        metadata.brokers = [
            MetadataResponseBroker(node_id=node_id, host=host, port=port)
            for node_id, host, port in cluster.endpoints()
        ]
        metadata.controller_id = nodes[0]
        for topic in metadata.topics:
            if topic.name is None:
                continue
            cluster.topic_names[bytes(topic.topic_id)] = topic.name
            for partition in topic.partitions:
                place = TopicPartition(topic.name, partition.partition_index)
                lead = cluster.seen_lead_of(place)
                partition.leader_id, partition.leader_epoch = lead.node_id, lead.epoch
                if lead.node_id == NOBODY:
                    partition.error_code = ErrorCode.LEADER_NOT_AVAILABLE
                partition.replica_nodes = partition.isr_nodes = nodes

    def _rewrite_produce(self, exchange: Exchange, fate: _Fate, response: ProduceResponse) -> None:
        cluster = self._cluster
        topics = {topic.name or bytes(topic.topic_id): topic for topic in response.responses}
        for topic in response.responses:
            name = topic.name or cluster.topic_names[bytes(topic.topic_id)]
            for answer in topic.partition_responses:
                doubt = fate.doubted.get(TopicPartition(name, answer.index))
                if doubt is not None and answer.error_code == ErrorCode.NONE:
                    self._note(exchange, f"doubted: {doubt.name}")
                    answer.error_code, answer.base_offset = doubt, -1
        by_id = exchange.api_version > _LAST_VERSION_BY_NAME
        ids = {name: topic_id for topic_id, name in cluster.topic_names.items()}
        for partition, refusal in fate.refused.items():
            key = ids[partition.topic] if by_id else partition.topic
            if key not in topics:
                topics[key] = TopicProduceResponse(partition_responses=[])
                if by_id:
                    topics[key].topic_id = ids[partition.topic]
                else:
                    topics[key].name = partition.topic
                response.responses.append(topics[key])
            topics[key].partition_responses.append(refusal)
        leaders = {refusal.current_leader.leader_id for refusal in fate.refused.values()}
        response.node_endpoints = [
            NodeEndpoint(node_id=node_id, host=host, port=port)
            for node_id, host, port in cluster.endpoints()
            if node_id in leaders
        ]
        if fate.throttle:
            self._note(exchange, "throttled")
            response.throttle_time_ms = int(fate.throttle * 1000)

    def _encode(self, exchange: Exchange, message: object) -> bytes:
        parts = encode_response(message, exchange.api_version, exchange.correlation_id)
        return b"".join(parts)[4:]


_ENDS = (_Ended, OSError, asyncio.IncompleteReadError)
"""What ends a connection's tasks besides being cancelled."""
_LAST_VERSION_BY_NAME = 12
"""Produce names topics up to this version, and gives their ids from the next on."""
