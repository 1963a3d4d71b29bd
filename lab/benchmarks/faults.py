"""A simulated cluster before one real broker, with seeded random faults of network and brokers.

    client ═▶ face 0 ═╗
    client ═▶ face 1 ═╬═▶ one real broker, of any make, which keeps the logs
    client ═▶ face 2 ═╝

Each face is a proxy that clients see as a broker. This module decides which face leads which
partition, and changes leaders during the run, as in a cluster whose replicas are all in sync: a
former leader rejects requests, and the log continues under the next leader. Requests and responses
are delayed, arrive in pieces, get lost or are cut in the middle; connections break and are refused.
Some answers are errors made up here, without asking the broker; others report an error although
the broker stored the batch. A cluster of Apache Kafka could do all of this.

It runs on any event loop; on a virtual one the same seed gives the same faults.

Long because the faces and their faults act on the same connections and answers.
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

from lab.benchmarks.proxy import (
    BUFFER_BYTES,
    PRODUCE,
    Exchange,
    Proxy,
    read_frame,
    write,
    write_frame,
)
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.codec import decode
from trimtab.kafka.wire.framing import (
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from trimtab.kafka.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from trimtab.kafka.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
)
from trimtab.kafka.wire.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

M = TypeVar("M")

METADATA: Final = MetadataRequest.api_key
INIT_PRODUCER_ID: Final = InitProducerIdRequest.api_key
NOBODY: Final = -1

REFUSALS: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Errors answered instead of asking the broker: nothing was stored."""

DOUBTS: Final = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)
"""Errors for a batch that the broker has stored, but its followers may not have."""

FINAL: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_RECORD)
"""Errors answered instead of asking the broker that clients do not retry."""


@dataclass(frozen=True)
class FaultRates:
    """How often each fault happens, and how long it lasts at most.

    Shares, 0 to 1, are of requests or responses; those of `refused`, `doubted` and `final` are of
    the batches in Produce requests. Rates are per second. Durations are random, up to the maximum
    in seconds.

    Attributes:
        late: share delayed by up to `longest_delay`.
        held: share of requests delayed by up to `longest_hold`, longer than clients' timeouts.
        unheard: share of requests lost before the broker, with their connection.
        cut_there: the same, but the first part of the request arrives.
        unanswered: share of responses lost before the client, with their connection.
        cut_back: the same, but the first part of the response arrives.
        silenced: share of requests never answered, on connections that stay open.
        trickling: share of requests and responses that arrive in pieces.
        refused: share of batches answered with one of `REFUSALS` without asking the broker.
        final: share of batches answered with one of `FINAL` without asking the broker.
        doubted: share of stored batches answered with one of `DOUBTS`.
        throttled: share of responses with a throttle time of up to `longest_delay`.
        stale: share of Metadata responses that name former leaders.
        unidentified: share of InitProducerId requests answered with an error.
        elections: rate of leader changes; a partition may have no leader for `longest_spell`.
        breakdowns: rate at which a face refuses connections, or forwards nothing, for up to
            `longest_spell`.
        resets: rate at which all connections of a face break.
        is_outliving: whether a received request reaches the broker, however late, even if its
            client has disconnected meanwhile.
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


_SHARES: Final = tuple(item.name for item in fields(FaultRates) if item.default == 0)
_RATES: Final = frozenset({"elections", "breakdowns", "resets"})


def draw_fault_rates(random: Random, pace: float = 1.0, **given: Any) -> FaultRates:
    """Choose some of the faults at random, each with a random share.

    Args:
        pace: factor on durations, and divisor of rates, relative to a run of some seconds.
        given: attributes that are not random.
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
    return FaultRates(**{**drawn, **times, **given})


class _Loss(Enum):
    """How much of a frame arrives before its connection ends."""

    NOTHING = "lost"
    PART = "cut"


@dataclass
class _ExchangeFaults:
    """The faults chosen for one request and its response."""

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
class _Leader:
    """The leader of a partition: a face's number, or `NOBODY`."""

    node_id: int
    epoch: int


class _Ended(Exception):
    """A fault ended a connection."""


class FaultyCluster:
    """Proxies of one broker, which run during the `async with` block.

    Args:
        to: host and port of the real broker.
        faces: number of brokers that clients see.
        rates: the faults; `calm` ends them.
        random: the source of all random choices.
        is_virtual: whether the loop's network is virtual.

    Attributes:
        seen: counts of events, by kind.
        log: the last events, with the loop's time.
        failures: errors of this module itself; tests require that there are none.
    """

    def __init__(
        self,
        to: tuple[str, int],
        faces: int,
        rates: FaultRates,
        random: Random,
        is_virtual: bool = False,
    ) -> None:
        self.rates = rates
        self.random: Final = random
        self.seen: Counter[str] = Counter()
        self.log: deque[str] = deque(maxlen=200)
        self.failures: list[Exception] = []
        self.topic_names: dict[bytes, str] = {}
        self._leaders: dict[TopicPartition, _Leader] = {}
        self._led_before: dict[TopicPartition, _Leader] = {}
        self._faces: Final = [_Face(self, node_id, to, is_virtual) for node_id in range(faces)]
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in (face.address for face in self._faces))

    async def __aenter__(self) -> Self:
        for face in self._faces:
            await face.__aenter__()
        rates = self.rates
        self._begin(self._happen(rates.elections, self._elect))
        self._begin(self._happen(rates.breakdowns, self._break_down))
        self._begin(self._happen(rates.resets, self._reset))
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
        """End all faults; messages already delayed stay delayed."""
        self.rates = FaultRates(is_outliving=self.rates.is_outliving)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for face in self._faces:
            face.is_flowing.set()
            await face.stand_up()
        for partition, leader in self._leaders.items():
            if leader.node_id == NOBODY:
                self._set_leader(partition, 0)

    async def drain(self) -> None:
        """Wait until the connections of disconnected clients have forwarded delayed requests."""
        await asyncio.gather(*(face.drain() for face in self._faces))

    def note(self, what: str, detail: str = "") -> None:
        self.seen[what] += 1
        now = asyncio.get_running_loop().time()
        self.log.append(f"{now:.6f} {what} {detail}".rstrip())

    # faults of one exchange

    def happens(self, share: float) -> bool:
        return share > 0 and self.random.random() < share

    def draw_faults(self, exchange: Exchange) -> _ExchangeFaults:
        rates, random, happens = self.rates, self.random, self.happens
        faults = _ExchangeFaults()
        if happens(rates.late):
            faults.hold = random.random() * rates.longest_delay
        if happens(rates.held):
            faults.hold = random.random() * rates.longest_hold
        if happens(rates.unheard):
            faults.there = _Loss.NOTHING
        elif happens(rates.cut_there):
            faults.there = _Loss.PART
        if happens(rates.late):
            faults.delay = random.random() * rates.longest_delay
        if happens(rates.unanswered):
            faults.back = _Loss.NOTHING
        elif happens(rates.cut_back):
            faults.back = _Loss.PART
        faults.is_silenced = happens(rates.silenced)
        faults.trickles = happens(rates.trickling), happens(rates.trickling)
        if exchange.api_key == PRODUCE and happens(rates.throttled):
            faults.throttle = random.random() * rates.longest_delay
        return faults

    # leaders

    def leader_of(self, partition: TopicPartition) -> _Leader:
        return self._leaders.get(partition) or self._set_leader(
            partition, partition.partition % len(self._faces)
        )

    def visible_leader_of(self, partition: TopicPartition) -> _Leader:
        """The leader, or a former one, as some brokers learn of elections late."""
        leader = self.leader_of(partition)
        before = self._led_before.get(partition)
        if before is None or not self.happens(self.rates.stale):
            return leader
        self.note("stale metadata", f"{partition} {before}")
        return before

    def endpoints(self) -> Iterable[tuple[int, str, int]]:
        return ((face.node_id, *face.address) for face in self._faces)

    def _set_leader(self, partition: TopicPartition, node_id: int) -> _Leader:
        before = self._leaders.get(partition)
        if before is not None:
            self._led_before[partition] = before
        leader = self._leaders[partition] = _Leader(
            node_id, 0 if before is None else before.epoch + 1
        )
        return leader

    # faults independent of requests

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
        return self.random.random() * self.rates.longest_spell

    async def _elect(self) -> None:
        if not self._leaders:
            return
        random = self.random
        partition = random.choice(list(self._leaders))
        if random.random() < 0.3:
            self._set_leader(partition, NOBODY)
            self.note("lost its leader", str(partition))
            await asyncio.sleep(self._draw_spell())
        leader = self._set_leader(partition, random.randrange(len(self._faces)))
        self.note("elected", f"{partition} {leader}")

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

    A connection has three tasks: one reads requests at once, to notice when the client disconnects;
    one forwards them to the broker after their delay; one sends the answers back in order.
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
        unanswered: asyncio.Queue[tuple[Exchange, _ExchangeFaults, bool]] = asyncio.Queue()
        reading = asyncio.create_task(self._read(reader, connection, arrived))
        sending = asyncio.create_task(self._send_on(arrived, broker, unanswered))
        answering = asyncio.create_task(self._answer(unanswered, broker_reader, writer))
        try:
            await asyncio.wait([reading, sending, answering], return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and self._cluster.rates.is_outliving:
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
        unanswered: asyncio.Queue[tuple[Exchange, _ExchangeFaults, bool]],
    ) -> None:
        cluster = self._cluster
        while (exchange := await arrived.get()) is not None:
            faults = cluster.draw_faults(exchange)
            if faults.hold:
                self._note(exchange, "held", f"for {faults.hold:.3f} s")
                await asyncio.sleep(faults.hold)
            await self.is_flowing.wait()
            frame = self._treat_request(exchange, faults)
            if frame is not None:
                await self._pour(exchange, broker, frame, faults.there, faults.trickles[0])
            unanswered.put_nowait((exchange, faults, frame is not None))

    async def _answer(
        self,
        unanswered: asyncio.Queue[tuple[Exchange, _ExchangeFaults, bool]],
        broker: asyncio.StreamReader,
        client: asyncio.StreamWriter,
    ) -> None:
        while True:
            exchange, faults, is_sent = await unanswered.get()
            response = await read_frame(broker) if is_sent else None
            if faults.delay:
                self._note(exchange, "late", f"by {faults.delay:.3f} s")
                await asyncio.sleep(faults.delay)
            await self.is_flowing.wait()
            if faults.is_silenced:
                self._note(exchange, "silenced")
                await asyncio.Event().wait()
            frame = self._treat_response(exchange, faults, response)
            await self._pour(exchange, client, frame, faults.back, faults.trickles[1], True)

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
                await asyncio.sleep(self._random.random() * self._cluster.rates.longest_delay)
            write(target, data[start : start + step])
            await target.drain()
        if loss is not None:
            raise _Ended

    def _note(self, exchange: Exchange, what: str, detail: str = "") -> None:
        place = f"{self.node_id}/{exchange.connection}/{exchange.number}"
        self._cluster.note(what, f"{place} api {exchange.api_key} {detail}")

    # changes to messages

    def _treat_request(self, exchange: Exchange, faults: _ExchangeFaults) -> bytes | None:
        """The frame to forward to the broker; None to forward nothing."""
        if exchange.api_key == INIT_PRODUCER_ID:
            is_refused = self._cluster.happens(self._cluster.rates.unidentified)
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
                if not self._refuse(partition, faults):
                    rest.append(data)
            if rest:
                kept.append(replace(topic, partition_data=rest))
        if not faults.refused:
            return exchange.request
        if not kept:
            return None
        request.topic_data = kept
        parts = encode_request(
            request, exchange.api_version, exchange.correlation_id, header.client_id
        )
        return b"".join(parts)[4:]

    def _refuse(self, partition: TopicPartition, faults: _ExchangeFaults) -> bool:
        """Whether to reject a batch; notes if its answer will be one of `DOUBTS`."""
        cluster, rates = self._cluster, self._cluster.rates
        leader = cluster.leader_of(partition)
        code = ErrorCode.NONE
        if leader.node_id != self.node_id:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif cluster.happens(rates.refused):
            code = self._random.choice(REFUSALS)
        elif cluster.happens(rates.final):
            code = self._random.choice(FINAL)
        elif cluster.happens(rates.doubted):
            faults.doubted[partition] = self._random.choice(DOUBTS)
        if code is ErrorCode.NONE:
            return False
        refused = faults.refused[partition] = PartitionProduceResponse(
            index=partition.partition, error_code=code, base_offset=-1
        )
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER and leader.node_id != self.node_id:
            refused.current_leader = LeaderIdAndEpoch(
                leader_id=leader.node_id, leader_epoch=leader.epoch
            )
        cluster.note(f"refused: {code.name}", str(partition))
        return True

    def _treat_response(
        self, exchange: Exchange, faults: _ExchangeFaults, frame: bytes | None
    ) -> bytes:
        """The frame to send to the client; `frame` is the broker's response, None if none."""
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
            faults.refused or faults.doubted or faults.throttle or frame is None
        ):
            assert frame is not None
            return frame
        response = ProduceResponse(responses=[])
        if frame is not None:
            response = decode_response(ProduceResponse, version, memoryview(frame))
        self._rewrite_produce(exchange, faults, response)
        return self._encode(exchange, response)

    def _rewrite_metadata(self, metadata: MetadataResponse) -> None:
        """Replace brokers by faces, and leaders by those that this module has chosen."""
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
                leader = cluster.visible_leader_of(place)
                partition.leader_id, partition.leader_epoch = leader.node_id, leader.epoch
                if leader.node_id == NOBODY:
                    partition.error_code = ErrorCode.LEADER_NOT_AVAILABLE
                partition.replica_nodes = partition.isr_nodes = nodes

    def _rewrite_produce(
        self, exchange: Exchange, faults: _ExchangeFaults, response: ProduceResponse
    ) -> None:
        cluster = self._cluster
        topics = {topic.name or bytes(topic.topic_id): topic for topic in response.responses}
        for topic in response.responses:
            name = topic.name or cluster.topic_names[bytes(topic.topic_id)]
            for answer in topic.partition_responses:
                doubt = faults.doubted.get(TopicPartition(name, answer.index))
                if doubt is not None and answer.error_code == ErrorCode.NONE:
                    self._note(exchange, f"doubted: {doubt.name}")
                    answer.error_code, answer.base_offset = doubt, -1
        by_id = exchange.api_version > _LAST_VERSION_BY_NAME
        ids = {name: topic_id for topic_id, name in cluster.topic_names.items()}
        for partition, refusal in faults.refused.items():
            key = ids[partition.topic] if by_id else partition.topic
            if key not in topics:
                topics[key] = TopicProduceResponse(partition_responses=[])
                if by_id:
                    topics[key].topic_id = ids[partition.topic]
                else:
                    topics[key].name = partition.topic
                response.responses.append(topics[key])
            topics[key].partition_responses.append(refusal)
        leaders = {refusal.current_leader.leader_id for refusal in faults.refused.values()}
        response.node_endpoints = [
            NodeEndpoint(node_id=node_id, host=host, port=port)
            for node_id, host, port in cluster.endpoints()
            if node_id in leaders
        ]
        if faults.throttle:
            self._note(exchange, "throttled")
            response.throttle_time_ms = int(faults.throttle * 1000)

    def _encode(self, exchange: Exchange, message: object) -> bytes:
        parts = encode_response(message, exchange.api_version, exchange.correlation_id)
        return b"".join(parts)[4:]


_ENDS = (_Ended, OSError, asyncio.IncompleteReadError)
"""Errors that end a connection's tasks, besides cancellation."""
_LAST_VERSION_BY_NAME = 12
"""The last version of Produce with topic names; later versions have topic ids."""
