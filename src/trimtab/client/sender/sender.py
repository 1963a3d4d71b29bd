"""The sender: sends complete batches to their leaders, and processes the responses.

    accumulator ─▶ schedule: due queues, by broker ─▶ identity: allowed? ─▶ Produce ═▶ broker
         ▲                                                                            │
         └── acknowledge, retry, split or fail the batch ◀════════════════════════════┘

It runs on the loop after an event: a batch is complete or has lingered, a response or a connection
arrived, metadata changed. Nothing polls, and the cost of an event does not grow with the number of
partitions: a batch is handled when it becomes due, when it is sent and when it is answered.

The sender also updates each broker's load (`NodeLoad`), for the partitioners, and the metrics. For
partitioners that use them it measures windows: then small batches gather while a broker is busy.

Source: `org.apache.kafka.clients.producer.internals.Sender`; KIP-91 (delivery.timeout.ms), KIP-126
(splitting), KIP-219 (throttling), KIP-516 (topic ids), KIP-580 (back-off), KIP-794, KIP-951.

Long because a batch's sending, retry, split and failure change the same queues and loads.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from trimtab.client.accumulator.accumulator_cy import Accumulator
from trimtab.client.accumulator.queues_cy import Batch, PartitionQueue
from trimtab.client.metrics_cy import ProducerMetrics
from trimtab.client.network.backoff import Backoff
from trimtab.client.network.connection import Connection, Node
from trimtab.client.network.connections import Connections
from trimtab.client.network.metadata import Metadata
from trimtab.client.partitioner.protocol import silent_after
from trimtab.client.sender.identity import Anonymous
from trimtab.client.sender.node_record import NodeRecord
from trimtab.client.sender.produce_request import (
    LAST_VERSION_BY_NAME,
    TOO_LARGE,
    SentBatches,
    read_refusal,
)
from trimtab.client.sender.schedule import Schedule
from trimtab.client.sender.window import RecordRate, Window, gather_time
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import (
    AuthenticationFailed,
    BrokerError,
    ErrorCode,
    KafkaError,
    Unavailable,
)
from trimtab.kafka.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
)
from trimtab.kafka.wire.sentinels import NO_LEADER, NO_OFFSET, NO_TIMESTAMP
from trimtab.kafka.wire.types import ZERO_UUID

logger = logging.getLogger("trimtab.client")

_FIRST_VERSION_THAT_CLIENTS_THROTTLE = 6
"""From here on a throttling broker answers at once, and the client has to wait (KIP-219)."""

_STORED = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})

_NOBODY: frozenset[int] = frozenset()

_CLOGGED_WAIT = 0.001
"""Seconds until a connection with a full write buffer is checked again."""


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """Times are in seconds, sizes in bytes.

    Attributes:
        acks: 0, 1, or -1 for all in-sync replicas.
        availability_timeout: `partitioner.availability.timeout.ms`; with 0 no broker is ever
            unavailable.
        has_windows: whether small batches gather while their broker is busy (`window.py`).
        is_idle_time_counted: whether a broker's availability follows Java's rule, which also counts
            time in which nothing was sent to it (defect D4): `partitioner.compat=java`.
    """

    acks: int
    linger: float
    delivery_timeout: float
    request_timeout: float
    retries: int
    backoff: Backoff
    max_in_flight: int
    max_request_size: int
    availability_timeout: float
    has_windows: bool = False
    is_idle_time_counted: bool = False


class Sender:
    """One producer's sender. All methods run on its loop, except `unavailable_nodes`.

    Args:
        identity: the producer's identity: `Anonymous`, `Identity` or `TransactionManager`.
        metrics: records each event.
        now: the loop's time in seconds, correct on every thread.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        connections: Connections,
        metadata: Metadata,
        identity: Anonymous,
        metrics: ProducerMetrics,
        options: SenderOptions,
        now: Callable[[], float],
        random: Random,
    ) -> None:
        self._now = now
        self._accumulator = accumulator
        self._connections = connections
        self._metadata = metadata
        self._identity = identity
        self._metrics = metrics
        self._options = options
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._schedule = Schedule(options.linger, self._leader_of, options.has_windows)
        self._rate = RecordRate() if options.has_windows else None
        self._views: dict[str, TopicView] = {}
        self._has_topic_without_id = False
        self._timeout_ms = int(options.request_timeout * 1000)
        self._nodes: dict[int, NodeRecord] = {}
        self._waiting: dict[int, NodeRecord] = {}
        self._refusals: dict[Batch, KafkaError] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = math.inf
        self._scheduled = False
        self._closed = False
        self._flushing = 0
        self._flushes: list[tuple[set[Batch], asyncio.Future[None]]] = []
        identity.wake = self._identified
        identity.fail = self.fail_all
        connections.on_change(self.wake)
        metadata.on_update(self._update_topics)
        accumulator.unavailable = self.unavailable_nodes

    # calls from other parts of the producer

    def wake(self) -> None:
        """Schedule `look` on the loop: something changed."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.look)

    def unavailable_nodes(self) -> frozenset[int]:
        """Brokers that accepted no batch for `partitioner.availability.timeout.ms` (KIP-794).

        Partitioners call it on the sending thread: it changes nothing, and does not use the loop's
        clock.
        """
        timeout = self._options.availability_timeout
        if timeout <= 0:
            return _NOBODY
        now, is_idle_time_counted = self._now(), self._options.is_idle_time_counted
        return frozenset(
            node_id
            for node_id, node in list(self._nodes.items())
            if node.is_unavailable(now, timeout, is_idle_time_counted)
        )

    async def flush(self) -> None:
        """Send all waiting batches, and return when each is acknowledged or has failed."""
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

    def drop(self, which: Callable[[Batch], bool], error: KafkaError) -> int:
        """Fail the batches, not in flight, for which `which` is true.

        Returns: the number of their records.
        """
        records = 0
        for batch in self._accumulator.incomplete_batches():
            # A delivery callback may have ended it meanwhile.
            if not batch.is_done and batch not in batch.queue.in_flight and which(batch):
                records += batch.count
                self._fail(batch, error)
        return records

    def fail_all(self, error: KafkaError) -> None:
        """Fail all batches that are not acknowledged."""
        for batch in self._accumulator.incomplete_batches():
            self._fail(batch, error)

    async def close(self) -> None:
        for timer in (self._timer, *(node.watch for node in self._nodes.values())):
            if timer is not None:
                timer.cancel()
        self._closed = True
        await self._identity.close()

    def look(self) -> None:
        """Send the batches that are due, and schedule the next look."""
        if self._closed:
            return
        self._scheduled = False
        now = self._now()  # not the loop's, which may be a millisecond behind
        accumulator, schedule = self._accumulator, self._schedule
        accumulator.publish_load(self.unavailable_nodes())
        if self._rate is not None and self._rate.count(accumulator.records, now):
            schedule.linger(gather_time(self._rate.per_second, self._nodes.values()))
        schedule.hurry(bool(self._flushing or accumulator.is_waited_for or accumulator.closed))
        for queue in accumulator.take_changed():
            schedule.review(queue, now)
        next_look = min(self._expire(now), schedule.advance(now))
        due_brokers = schedule.due_brokers
        if due_brokers and self._identity.is_ready():
            for node_id in due_brokers:
                next_look = min(next_look, self._send_to(node_id, now))
        if self._waiting:
            for node_id in [n for n in self._waiting if not schedule.length(n)]:
                self._waiting.pop(node_id).rest()
        # Not the timer's when(): uvloop's handles have none if the delay rounds to 0.
        self._look_again_at(next_look)

    # one look

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

    def _expire(self, now: float) -> float:
        """Fail batches older than `delivery.timeout.ms`; returns when the next one would expire."""
        accumulator, timeout = self._accumulator, self._options.delivery_timeout
        while (batch := accumulator.oldest()) is not None:
            expiry: float = batch.created + timeout
            if expiry > now:
                return expiry
            self._fail(
                batch,
                Unavailable(
                    f"{batch.queue}: {batch.count} records were not acknowledged within"
                    f" {timeout:g} s (delivery.timeout.ms) after {_attempts(batch)}:"
                    f" {self._obstacle(batch, now)}"
                ),
            )
        return math.inf

    def _obstacle(self, batch: Batch, now: float) -> str:
        """The known reason why a batch is not acknowledged yet, for an error message."""
        queue = batch.queue
        leader = self._leader_of(queue)
        refusal = self._refusals.get(batch)
        if leader == NO_LEADER:
            error = self._metadata.error(queue.topic)
            view = self._metadata.topic(queue.topic)
            if error is not None:
                return f"its leader is unknown: {error}"
            if view is not None and queue.partition >= view.partition_count:
                return f"the topic has {view.partition_count} partitions only, by now"
            return "its leader is unknown" + (f"; last came {refusal}" if refusal else "")
        connecting = self._connections.last_error(leader)
        if connecting is not None:
            return str(connecting)
        if refusal is not None:
            return f"last came {refusal}"
        subject = str(self._metadata.nodes.get(leader, f"broker {leader}"))
        if batch in queue.in_flight:
            return f"{subject} has not answered"
        node = self._nodes.get(leader)
        if node is not None and node.throttled_until > now:
            return f"{subject} throttles this client: it is over its quota"
        return self._identity.trouble or f"{subject} is too slow"

    def _send_to(self, node_id: int, now: float) -> float:
        """Send a broker its due batches; returns when to try again if no event comes before."""
        if node_id == NO_LEADER:
            self._metadata.request_update()
            return math.inf
        schedule = self._schedule
        node = self._nodes.get(node_id)
        if node is None:
            load = self._accumulator.node(node_id)
            window = (
                Window(load, self._options.max_in_flight) if self._options.has_windows else None
            )
            node = self._nodes[node_id] = NodeRecord(load, window, now)
        again = math.inf
        connection = self._connections.ready(node_id)
        if connection is None:
            error = self._connections.last_error(node_id)
            if isinstance(error, AuthenticationFailed):
                self._fail_due(node_id, error)
            self._connections.open_soon(node_id)
        elif node.throttled_until > now:
            again = node.throttled_until
        elif self._is_clogged(connection):
            again = now + _CLOGGED_WAIT
        else:
            most = self._options.max_in_flight
            if connection.in_flight < most:
                node.take(now)
            while connection.in_flight < most and self._send_one(node_id, node, connection, now):
                if not schedule.length(node_id, node.has_room(now)):
                    return math.inf
                if self._is_clogged(connection):
                    again = now + _CLOGGED_WAIT
                    break
                if not connection.is_open:
                    break
        if schedule.length(node_id, node.has_room(now)):
            node.wait(now)
            self._waiting[node_id] = node
        return again

    def _is_clogged(self, connection: Connection) -> bool:
        """With acks=0, where no responses limit the requests: whether the write buffer is full."""
        transport = connection.transport
        return (
            self._options.acks == 0
            and transport is not None
            and transport.get_write_buffer_size() > self._options.max_request_size
        )

    def _fail_due(self, node_id: int, error: KafkaError) -> None:
        """Fail all due batches for a broker that refused this producer's authentication."""
        while self._schedule.length(node_id):
            for batch in list(next(self._schedule.due(node_id)).batches):
                self._fail(batch, error)

    def _send_one(self, node_id: int, node: NodeRecord, connection: Connection, now: float) -> bool:
        """Send one request with one batch of each due queue, as many as fit.

        Returns:
            False if identity allowed none of the batches.
        """
        schedule, identity, limit = self._schedule, self._identity, self._options.max_request_size
        is_one_at_a_time = self._options.max_in_flight == 1
        batches: list[Batch] = []
        size = 0
        for queue in schedule.due(node_id, node.has_room(now)):
            if not identity.may_send(queue) or (is_one_at_a_time and queue.in_flight):
                schedule.hold(queue)
                continue
            estimate = queue.batches[0].size
            if batches and size + estimate > limit:
                break
            batches.append(self._accumulator.take_batch(queue))
            size += estimate
            schedule.served(queue, now)
        if not batches:
            return False
        node.rest()
        self._send(node, connection, batches, now)
        return True

    def _send(
        self, node: NodeRecord, connection: Connection, batches: list[Batch], now: float
    ) -> None:
        newest = self._identity.last_produce_version
        if newest is None and self._has_topic_without_id:
            newest = LAST_VERSION_BY_NAME
        try:
            version = node.version_for(connection, newest)
        except BrokerError as error:
            for batch in batches:
                self._fail(batch, error)
            return
        sent = SentBatches(connection, version, now)
        request = ProduceRequest(
            transactional_id=self._identity.transactional_id,
            acks=self._options.acks,
            timeout_ms=self._timeout_ms,
            topic_data=sent.build(batches, self._identity, self._views, self._metrics),
        )
        before = connection.bytes_sent
        if self._options.acks == 0:
            connection.send(request, version, None)
            for batch in batches:
                self._complete(batch, NO_OFFSET, NO_TIMESTAMP)
        else:
            if node.window is not None:
                # Not by the loop's time, which may be as coarse as a millisecond.
                sent.exactly_at = self._now()
                sent.was_alone = node.window.sent(sent.exactly_at)
                self._accumulator.load_changed()
                self._watch(node)
            connection.send(request, version, partial(self._answered, sent))
        self._metrics.request_sent(
            connection.node.id, connection.bytes_sent - before, sent.records, len(batches)
        )

    def _watch(self, node: NodeRecord) -> None:
        """Have the partitioners notice if a broker becomes silent, as no event tells them."""
        load = node.load
        if not load.requests:
            return
        silent_at = load.moved_at + silent_after(load)
        if silent_at < node.watched_until:  # which may be late, if the broker was slow until now
            self._watch_until(node, silent_at)

    def _watch_until(self, node: NodeRecord, silent_at: float) -> None:
        if node.watch is not None:
            node.watch.cancel()
        node.watched_until = silent_at
        node.watch = self._loop.call_later(silent_at - self._now(), self._look_at, node)

    def _look_at(self, node: NodeRecord) -> None:
        node.watch, node.watched_until = None, math.inf
        if not node.load.requests:
            return
        silent_at = node.load.moved_at + silent_after(node.load)
        if silent_at > self._now():
            self._watch_until(node, silent_at)
        else:
            self._accumulator.load_changed()

    def _leader_of(self, queue: PartitionQueue) -> int:
        return self._metadata.leader(queue.topic, queue.partition)

    # responses

    def _answered(
        self, sent: SentBatches, response: ProduceResponse | None, error: KafkaError | None
    ) -> None:
        now = self._loop.time()
        node_id = sent.connection.node.id
        window = self._nodes[node_id].window
        if response is None:
            if window is not None:
                window.lost(self._now())
                self._accumulator.load_changed()
            reason = error or Unavailable(f"{sent.connection.node} did not answer")
            self._metadata.request_update()
            for batch in sent.unanswered.values():
                self._came_back(batch, None, reason, node_id, now)
            self.wake()
            return
        node = self._nodes[node_id]
        if window is not None:
            window.answered(self._now(), sent.exactly_at, sent.was_alone, sent.size)
            self._accumulator.load_changed()
            self._watch(node)
        throttle = response.throttle_time_ms / 1000
        if throttle > 0 and sent.version >= _FIRST_VERSION_THAT_CLIENTS_THROTTLE:
            node.throttled_until = now + throttle
        metrics = self._metrics
        metrics.response_received(node_id, sent.connection.response_bytes, now - sent.at)
        metrics.throttled(throttle)
        refused: list[tuple[Batch, PartitionProduceResponse]] = []
        for batch, answer in sent.answers(response):
            if answer.error_code in _STORED:
                self._complete(batch, answer.base_offset, answer.log_append_time_ms)
            else:
                refused.append((batch, answer))
        if refused:
            self._refused(sent, response, refused, now)
        for batch in sent.unanswered.values():
            missing = Unavailable(f"{sent.connection.node} did not answer for {batch.queue}")
            self._came_back(batch, None, missing, node_id, now)
        self.wake()

    def _refused(
        self,
        sent: SentBatches,
        response: ProduceResponse,
        refused: list[tuple[Batch, PartitionProduceResponse]],
        now: float,
    ) -> None:
        self._learn_leaders(response, refused)
        node = sent.connection.node
        for batch, answer in refused:
            error = read_refusal(batch, answer, node)
            if error.code.refreshes_metadata:
                self._metadata.request_update()
            self._came_back(batch, error.code, error, node.id, now, answer.log_start_offset)

    def _learn_leaders(
        self, response: ProduceResponse, refused: list[tuple[Batch, PartitionProduceResponse]]
    ) -> None:
        """Store the leaders that a response names with its errors (KIP-951)."""
        by_topic: dict[str, dict[int, tuple[int, int]]] = {}
        for batch, answer in refused:
            leader = answer.current_leader
            if leader.leader_id >= 0:
                by_topic.setdefault(batch.queue.topic, {})[batch.queue.partition] = (
                    leader.leader_id,
                    leader.leader_epoch,
                )
        if not by_topic:
            return
        self._metadata.learn_nodes(
            Node(at.node_id, at.host, at.port, at.rack) for at in response.node_endpoints
        )
        if any([self._metadata.learn_leaders(*item) for item in by_topic.items()]):
            self._update_topics()

    def _came_back(
        self,
        batch: Batch,
        code: ErrorCode | None,
        error: KafkaError,
        node_id: int,
        now: float,
        log_start_offset: int = NO_OFFSET,
    ) -> None:
        """A batch was not stored, or it is unknown whether it was: retry, split or fail it."""
        if batch.is_done:
            return
        queue, options = batch.queue, self._options
        may_retry = self._identity.refused(batch, code, log_start_offset)
        if code in TOO_LARGE and batch.count > 1:
            self._split(batch, now)
            return
        if may_retry is None:
            # A retry that identity decides does not count: another batch caused the error.
            may_retry = (code is None or code.retriable) and batch.attempts <= options.retries
        if not may_retry or now >= batch.created + options.delivery_timeout:
            self._fail(batch, error)
            return
        logger.debug("sending again: %s: %s", queue, error)
        self._metrics.batch_retried(queue.topic, batch)
        self._refusals[batch] = error
        self._accumulator.put_back(batch)
        has_moved = self._leader_of(queue) not in (NO_LEADER, node_id)
        if has_moved or (code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and _is_behind(batch)):
            batch.not_before = now
        else:
            batch.not_before = now + options.backoff.wait(batch.attempts - 1, self._random)
        self._schedule.review(queue, now)

    def _split(self, batch: Batch, now: float) -> None:
        queue, first = batch.queue, batch.serial
        logger.debug("splitting: %s: %d records, %d bytes", queue, batch.count, batch.size)
        self._accumulator.split(batch)
        # The parts need not be first: parts of an earlier batch may be in the queue before them.
        parts = [part for part in queue.batches if first <= part.serial < first + batch.count]
        self._identity.split(parts, batch.base_sequence)
        for pending, _ in self._flushes:
            if batch in pending:
                pending.update(parts)
                pending.discard(batch)
        self._metrics.batch_split()
        self._refusals.pop(batch, None)
        self._schedule.review(queue, now)

    def _complete(self, batch: Batch, base_offset: int, log_append_time: int) -> None:
        if not batch.is_done:
            self._accumulator.complete(batch, base_offset, log_append_time)
            self._settled(batch, None)

    def _fail(self, batch: Batch, error: KafkaError) -> None:
        if batch.is_done:
            return
        self._metrics.batch_failed(batch.queue.topic, batch)
        self._identity.lost(batch)
        self._accumulator.fail(batch, error)
        self._settled(batch, error)

    def _settled(self, batch: Batch, error: KafkaError | None) -> None:
        self._identity.settled(batch, error)
        self._schedule.review(batch.queue, self._loop.time())
        if self._refusals:
            self._refusals.pop(batch, None)
        if self._flushes:
            for pending, done in self._flushes:
                pending.discard(batch)
                if not pending and not done.done():
                    done.set_result(None)
            self._flushes = [entry for entry in self._flushes if entry[0]]

    # changes of identity and metadata

    def _identified(self) -> None:
        """Identity allows held queues to be sent."""
        self._schedule.release()
        self.wake()

    def _update_topics(self) -> None:
        now = self._loop.time()
        for name, known in list(self._views.items()):
            if known.leaders and self._metadata.topic(name) is None:
                # Deleted, or idle for long. A new topic of that name would have another id.
                self._views[name] = replace(known, leaders=())
                if self._accumulator.topic(name) is None:
                    self._schedule.forget(name)
                else:
                    self._move(self._queues_of(name), now)
        for view in self._metadata.views():
            before = self._views.get(view.name)
            if view is before:
                continue
            self._views[view.name] = view
            self._has_topic_without_id = self._has_topic_without_id or view.topic_id == ZERO_UUID
            self._accumulator.update_topic(view)
            if before is None:
                continue
            queues = self._queues_of(view.name)
            ids = before.topic_id, view.topic_id
            if ids[0] != ids[1] and ZERO_UUID not in ids:
                logger.info("topic %s was deleted and created again", view.name)
                for queue in queues:
                    self._identity.recreated(queue)
            if len(before.leaders) != len(view.leaders):
                self._move(queues, now)
            elif before.leaders != view.leaders:
                leaders = zip(queues, before.leaders, view.leaders, strict=False)
                self._move((queue for queue, old, new in leaders if old != new), now)
        self.wake()

    def _queues_of(self, topic: str) -> list[PartitionQueue]:
        return list(self._accumulator.topic(topic).queues)

    def _move(self, queues: Iterable[PartitionQueue], now: float) -> None:
        for queue in queues:
            leader = self._leader_of(queue)
            if not self._schedule.move(queue, leader):
                continue
            self._identity.moved(queue)
            if leader == NO_LEADER:
                continue
            for batch in queue.batches:
                if not batch.attempts:
                    break
                batch.not_before = now  # no back-off: the cause was the old leader
            self._schedule.review(queue, now)


def _is_behind(batch: Batch) -> bool:
    """Whether other batches of the queue are in flight, or were sent and wait to be sent again."""
    queue = batch.queue
    waiting = queue.batches
    return bool(
        queue.in_flight or waiting[0] is not batch or (len(waiting) > 1 and waiting[1].attempts)
    )


def _attempts(batch: Batch) -> str:
    return "1 attempt" if batch.attempts == 1 else f"{batch.attempts} attempts"
