"""The sender: takes complete batches from the accumulator to their leaders, and the answers back.

    accumulator ─▶ ready batches, by leader ─▶ one Produce request each ═▶ broker
         ▲                                                                    │
         └── acknowledged, to be sent again, or given up ◀════════════════════┘

It runs on the loop when something happened: a batch is complete or has lingered, a response or a
connection came, metadata changed. Nothing polls.

Order: a partition's batches go out in order with up to `max.in.flight.requests.per.connection`
requests under way. With idempotence a batch that must be sent again goes before all later ones,
alone; brokers refuse those that overtook it (KIP-98).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from trimtab.client.accumulator_cy import Accumulator, Batch, PartitionQueue
from trimtab.client.connections import ApiKey, Connection, Connections
from trimtab.client.metadata import ZERO_UUID, Metadata
from trimtab.errors import BrokerError, ErrorCode, KafkaError, Unavailable, error_code
from trimtab.wire.batch_cy import HEADER_BYTES
from trimtab.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from trimtab.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

logger = logging.getLogger("trimtab.client")

NO_PRODUCER_ID = -1
_LAST_SEQUENCE = 2**31 - 1
_LAST_VERSION_BY_NAME = 12
"""Produce names topics up to this version, and gives their ids from the next on (KIP-516)."""


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """Times are in seconds, sizes in bytes."""

    acks: int
    linger: float
    delivery_timeout: float
    request_timeout: float
    retries: int
    retry_backoff: float
    retry_backoff_max: float
    max_in_flight: int
    max_request_size: int
    is_idempotent: bool
    availability_timeout: float


@dataclass(slots=True)
class NodeTraffic:
    """What was sent to one broker."""

    requests: int = 0
    batches: int = 0
    bytes: int = 0
    records: int = 0


class Sender:
    """One producer's sender. All methods run on its loop, but for `unavailable_nodes`.

    Args:
        now: the loop's time in seconds, right on every thread.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        connections: Connections,
        metadata: Metadata,
        options: SenderOptions,
        now: Callable[[], float],
        random: Random,
    ) -> None:
        self._now = now
        self._accumulator = accumulator
        self._connections = connections
        self._metadata = metadata
        self._options = options
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = math.inf
        self._scheduled = False
        self._closed = False
        self._flushing = 0
        self._rooms: list[tuple[int, asyncio.Future[None]]] = []
        self._flushes: list[tuple[set[Batch], asyncio.Future[None]]] = []
        self._producer_id = NO_PRODUCER_ID
        self._producer_epoch = -1
        self._identifying: asyncio.Task[None] | None = None
        self._must_reidentify = False
        self._not_ready_since: dict[int, float] = {}
        self._turn = 0
        self.traffic: dict[int, NodeTraffic] = {}
        self.retries = 0
        self.errors = 0
        connections.on_change(self.wake)
        metadata.on_update(self._update_topics)
        accumulator.unavailable = self.unavailable_nodes

    # what others ask of it

    def wake(self) -> None:
        """Something is new: look at the queues soon."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.look)

    def unavailable_nodes(self) -> frozenset[int]:
        """Brokers that took nothing for `partitioner.availability.timeout.ms` (KIP-794).

        Called by the partitioner, on the sending thread: reads only, and not the loop's clock.
        """
        timeout = self._options.availability_timeout
        if timeout <= 0 or not self._not_ready_since:
            return frozenset()
        now = self._now()
        return frozenset(
            node for node, since in list(self._not_ready_since.items()) if now - since > timeout
        )

    async def flush(self) -> None:
        """Send everything that waits now, and return when all of it is acknowledged or given up."""
        pending = set(self._accumulator.incomplete_batches())
        if not pending:
            return
        done = self._loop.create_future()
        self._flushes.append((pending, done))
        self._flushing += 1
        self.wake()
        try:
            await done
        finally:
            self._flushing -= 1

    async def wait_for_room(self, size: int) -> None:
        """Return when the buffer memory takes `size` bytes more, first come first served."""
        if not self._rooms and self._accumulator.has_room(size):
            return
        room = self._loop.create_future()
        self._rooms.append((size, room))
        self.wake()
        await room

    def fail_all(self, error: KafkaError) -> None:
        """Give up everything that is not acknowledged."""
        for batch in self._accumulator.incomplete_batches():
            self._fail(batch, error)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._identifying is not None:
            self._identifying.cancel()
            await asyncio.gather(self._identifying, return_exceptions=True)
        self._closed = True

    def look(self) -> None:
        """Send what is ready, and plan the next look."""
        if self._closed:
            return
        self._scheduled = False
        now = self._loop.time()
        next_look = math.inf
        ready: dict[int, list[PartitionQueue]] = {}
        for queue in self._accumulator.active_queues():
            expiry = self._expire(queue, now)
            next_look = min(next_look, expiry)
            if not queue.batches:
                continue
            due = self._due(queue)
            if due > now:
                next_look = min(next_look, due)
                continue
            leader = self._metadata.leader(queue.topic, queue.partition)
            if leader < 0:
                self._metadata.request_update()
                continue
            ready.setdefault(leader, []).append(queue)
        for node_id in [n for n in self._not_ready_since if n not in ready]:
            del self._not_ready_since[node_id]
        if ready and (not self._options.is_idempotent or self._is_identified()):
            self._turn += 1
            for node_id, queues in ready.items():
                self._send_to(node_id, queues, now)
        # Not the timer's when(): uvloop's handles have none where the delay rounds to nothing.
        self._look_again_at(next_look)

    # one look at the queues

    def _look_again_at(self, when: float) -> None:
        if self._next_look <= when:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._next_look = when
        self._timer = self._loop.call_at(when, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._next_look = math.inf
        self.look()

    def _due(self, queue: PartitionQueue) -> float:
        """Loop time from which the queue's oldest batch may be sent."""
        head: Batch = queue.batches[0]
        if self._is_blocked(queue, head):
            return math.inf
        if head.attempts > 0:
            return float(head.not_before)
        if (
            queue.head_is_complete
            or self._flushing
            or self._rooms
            or self._accumulator.closed
            or self._options.linger <= 0
        ):
            return -math.inf
        return float(head.created) + self._options.linger

    def _is_blocked(self, queue: PartitionQueue, head: Batch) -> bool:
        """Whether order demands that what is in flight of this partition comes back first."""
        if not queue.in_flight or not self._options.is_idempotent:
            return False
        return bool(head.attempts > 0 or queue.in_flight[0].attempts > 1)

    def _expire(self, queue: PartitionQueue, now: float) -> float:
        """Give up batches older than `delivery.timeout.ms`; returns when the next one would be."""
        timeout = self._options.delivery_timeout
        while queue.batches:
            head = queue.batches[0]
            expiry: float = head.created + timeout
            if expiry > now:
                return expiry
            leader = self._metadata.leader(queue.topic, queue.partition)
            why = self._connections.last_error(leader) if leader >= 0 else None
            reason = (
                str(why) if why else "its leader is unknown" if leader < 0 else "it is too slow"
            )
            if head.base_sequence >= 0:
                self._must_reidentify = True
            self._fail(
                head,
                Unavailable(
                    f"{queue}: {head.count} records were not acknowledged within {timeout:g} s"
                    f" (delivery.timeout.ms) after {head.attempts} attempts: {reason}"
                ),
            )
        return math.inf

    def _send_to(self, node_id: int, queues: list[PartitionQueue], now: float) -> None:
        connection = self._connections.ready(node_id)
        if connection is None:
            self._connections.open_soon(node_id)
            self._not_ready_since.setdefault(node_id, now)
            return
        if len(queues) > 1:
            # Whoever came last in one full request comes first in another.
            start = self._turn % len(queues)
            queues = queues[start:] + queues[:start]
        while queues:
            if connection.in_flight >= self._options.max_in_flight or not connection.is_open:
                self._not_ready_since.setdefault(node_id, now)
                return
            taken: list[tuple[Batch, Any]] = []
            size = 0
            later: list[PartitionQueue] = []
            for queue in queues:
                estimate = queue.batches[0].size
                if taken and size + estimate > self._options.max_request_size:
                    later.append(queue)
                    continue
                batch = self._accumulator.take(queue)
                records = self._build(queue, batch)
                taken.append((batch, records))
                size += len(records)
                if queue.batches and self._due(queue) <= now:
                    later.append(queue)
            self._send(connection, taken)
            queues = later
        self._not_ready_since.pop(node_id, None)

    def _build(self, queue: PartitionQueue, batch: Batch) -> Any:
        if self._options.is_idempotent and batch.base_sequence < 0:
            batch.base_sequence = queue.next_sequence
            queue.next_sequence = _sequence_after(queue.next_sequence, batch.count)
        batch.attempts += 1
        records = batch.builder.build(self._producer_id, self._producer_epoch, batch.base_sequence)
        if batch.attempts == 1 and batch.size > HEADER_BYTES:
            self._observe_compression(queue, len(records) / batch.size)
        return records

    def _observe_compression(self, queue: PartitionQueue, observed: float) -> None:
        """Kafka's running estimate: quick to grow, slow to shrink (`CompressionRatioEstimator`)."""
        topic = queue.topic_queues
        ratio = topic.compression_ratio
        if observed > ratio:
            topic.compression_ratio = max(ratio + 0.05, observed)
        elif observed < ratio:
            topic.compression_ratio = max(ratio - 0.005, observed)

    def _send(self, connection: Connection, taken: list[tuple[Batch, Any]]) -> None:
        try:
            version = self._version_for(connection, taken)
        except BrokerError as error:
            for batch, _ in taken:
                self._fail(batch, error)
            return
        topics: dict[str, TopicProduceData] = {}
        by_id: dict[bytes, str] = {}
        traffic = self.traffic.setdefault(connection.node.id, NodeTraffic())
        for batch, records in taken:
            queue = batch.queue
            data = topics.get(queue.topic)
            if data is None:
                view = self._metadata.topic(queue.topic)
                topic_id = view.topic_id if view is not None else ZERO_UUID
                if version > _LAST_VERSION_BY_NAME:
                    by_id[topic_id] = queue.topic
                    data = TopicProduceData(topic_id=topic_id, partition_data=[])
                else:
                    data = TopicProduceData(name=queue.topic, partition_data=[])
                topics[queue.topic] = data
            data.partition_data.append(PartitionProduceData(index=queue.partition, records=records))
            traffic.records += batch.count
        traffic.batches += len(taken)
        traffic.requests += 1
        request = ProduceRequest(
            acks=self._options.acks,
            timeout_ms=int(self._options.request_timeout * 1000),
            topic_data=list(topics.values()),
        )
        batches = {(b.queue.topic, b.queue.partition): b for b, _ in taken}
        before = connection.bytes_sent
        if self._options.acks == 0:
            connection.send(request, ApiKey.PRODUCE, version, None)
            for batch in batches.values():
                self._complete(batch, -1, -1)
        else:

            def answered(response: Any, error: KafkaError | None) -> None:
                self._answered(connection, batches, by_id, response, error)

            connection.send(request, ApiKey.PRODUCE, version, answered)
        traffic.bytes += connection.bytes_sent - before

    def _version_for(self, connection: Connection, taken: list[tuple[Batch, Any]]) -> int:
        for batch, _ in taken:
            view = self._metadata.topic(batch.queue.topic)
            if view is None or view.topic_id == ZERO_UUID:
                return connection.version_of(ApiKey.PRODUCE, _LAST_VERSION_BY_NAME)
        return connection.version_of(ApiKey.PRODUCE)

    # answers

    def _answered(
        self,
        connection: Connection,
        batches: dict[tuple[str, int], Batch],
        by_id: dict[bytes, str],
        response: ProduceResponse | None,
        error: KafkaError | None,
    ) -> None:
        if response is None:
            for batch in batches.values():
                self._retry_or_fail(batch, error or Unavailable("no response"), None)
            self.wake()
            return
        for topic in response.responses:
            name = by_id.get(topic.topic_id, topic.name)
            for answer in topic.partition_responses:
                batch = batches.pop((name, answer.index), None)  # type: ignore[arg-type]
                if batch is None:
                    continue
                code = error_code(answer.error_code)
                if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    self._complete(batch, answer.base_offset, answer.log_append_time_ms)
                    continue
                refused = BrokerError(
                    code,
                    _hint(code, batch, answer.error_message),
                    f"{batch.queue} on {connection.node}, attempt {batch.attempts}",
                )
                self._retry_or_fail(batch, refused, code)
        for batch in batches.values():
            missing = Unavailable(f"{connection.node} did not answer for {batch.queue}")
            self._retry_or_fail(batch, missing, None)
        self.wake()

    def _retry_or_fail(self, batch: Batch, error: KafkaError, code: ErrorCode | None) -> None:
        if batch.is_done:
            return
        queue = batch.queue
        if code is None or code.refreshes_metadata:
            self._metadata.request_update()
        may_retry = code is None or code.retriable
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # Expected of what was under way behind a batch that has to be sent again, or that was
            # given up: then it goes under a new producer id.
            may_retry = self._must_reidentify or any(
                earlier.base_sequence < batch.base_sequence
                for earlier in (*queue.in_flight, *queue.batches)
                if earlier.base_sequence >= 0
            )
        now = self._loop.time()
        if (
            may_retry
            and batch.attempts <= self._options.retries
            and now < batch.created + self._options.delivery_timeout
        ):
            self.retries += 1
            logger.debug("sending again: %s: %s", queue, error)
            wait = min(
                self._options.retry_backoff * 2.0 ** min(batch.attempts - 1, 20),
                self._options.retry_backoff_max,
            )
            batch.not_before = now + wait * (0.8 + 0.4 * self._random.random())
            self._accumulator.put_back(batch)
            return
        if batch.base_sequence >= 0:
            # Its sequence numbers are lost to the broker, so the producer begins anew.
            self._must_reidentify = True
        self._fail(batch, error)

    def _complete(self, batch: Batch, base_offset: int, log_append_time: int) -> None:
        if not batch.is_done:
            self._accumulator.complete(batch, base_offset, log_append_time)
            self._settled(batch)

    def _fail(self, batch: Batch, error: KafkaError) -> None:
        if not batch.is_done:
            self.errors += batch.count
            self._accumulator.fail(batch, error)
            self._settled(batch)

    def _settled(self, batch: Batch) -> None:
        for pending, done in self._flushes:
            pending.discard(batch)
            if not pending and not done.done():
                done.set_result(None)
        if self._flushes:
            self._flushes = [entry for entry in self._flushes if entry[0]]
        while self._rooms:
            size, room = self._rooms[0]
            if not room.done():
                if not self._accumulator.has_room(size):
                    break
                room.set_result(None)
            self._rooms.pop(0)

    # identity

    def _is_identified(self) -> bool:
        """Whether batches may be sent under the producer id; if not, getting one is under way."""
        if self._must_reidentify:
            queues = self._accumulator.all_queues()
            if any(queue.in_flight for queue in queues):
                return False
            for queue in queues:
                queue.next_sequence = 0
                for batch in queue.batches:
                    batch.base_sequence = -1
            self._producer_id = NO_PRODUCER_ID
            self._must_reidentify = False
        if self._producer_id != NO_PRODUCER_ID:
            return True
        if self._identifying is None:
            self._identifying = self._loop.create_task(self._identify())
        return False

    async def _identify(self) -> None:
        attempt = 0
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=2**31 - 1,
            producer_id=-1,
            producer_epoch=-1,
        )
        try:
            while True:
                try:
                    connection = await self._connections.connect_any()
                    response: InitProducerIdResponse = await connection.request(
                        request, ApiKey.INIT_PRODUCER_ID
                    )
                    code = error_code(response.error_code)
                    if code is ErrorCode.NONE:
                        self._producer_id = response.producer_id
                        self._producer_epoch = response.producer_epoch
                        return
                    error: KafkaError = BrokerError(code, "asked for a producer id")
                    if not code.retriable:
                        self.fail_all(error)
                        return
                except KafkaError as raised:
                    error = raised
                logger.debug("no producer id yet: %s", error)
                wait = min(
                    self._options.retry_backoff * 2.0 ** min(attempt, 20),
                    self._options.retry_backoff_max,
                )
                attempt += 1
                await asyncio.sleep(wait * (0.8 + 0.4 * self._random.random()))
        finally:
            self._identifying = None
            self.wake()

    def _update_topics(self) -> None:
        for view in self._metadata.views():
            self._accumulator.update_topic(view)
        self.wake()


def _sequence_after(sequence: int, count: int) -> int:
    """Sequence numbers wrap to 0 after 2^31 - 1."""
    return (sequence + count) & _LAST_SEQUENCE


def _hint(code: ErrorCode, batch: Batch, message: str | None) -> str:
    if code is ErrorCode.MESSAGE_TOO_LARGE:
        return (
            f"a batch of {batch.count} records, {batch.size} bytes uncompressed, is larger than the"
            " topic's max.message.bytes; raise that or lower batch.size"
        )
    if message:
        return message
    return ""
