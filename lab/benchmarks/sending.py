"""The sender alone: CPU per batch, from complete to acknowledged, for 10 to 10,000 partitions.

Each partition has a batch that waits for linger.ms, as with slow writes to many partitions. In
turn, each partition gets records that complete its batch and one more; then a new batch waits. A
substitute for the broker answers the requests; its CPU, encoding and the network are not counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from random import Random
from typing import Any

from lab.benchmarks.report import progress, report
from trimtab.client.accumulator.accumulator_cy import Accumulator
from trimtab.client.metrics_cy import ProducerMetrics
from trimtab.client.network.backoff import Backoff
from trimtab.client.network.connection import Node
from trimtab.client.sender.identity import Identity
from trimtab.client.sender.sender import Sender, SenderOptions
from trimtab.client.topic_view import PartitionView, TopicView
from trimtab.kafka.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

PARTITIONS = (10, 100, 1_000, 10_000)
PER_REQUEST = (1, 20)
BATCH_BYTES = 16_384
STEPS = 20_000


class Broker:
    """Replaces connections, metadata and one connection, for a sender with one broker."""

    def __init__(self, partitions: int) -> None:
        self.node = Node(0, "broker-0", 9092)
        self.nodes = {0: self.node}
        self.is_open = True
        self.transport = None
        self.bytes_sent = 0
        self.response_bytes = 100
        self.unanswered: deque[tuple[ProduceRequest, Any]] = deque()
        self.view = TopicView(
            name="topic",
            topic_id=b"\1" * 16,
            is_internal=False,
            partitions=(PartitionView(0, 0, (0,), (0,), ()),) * partitions,
            leaders=(0,) * partitions,
            racks=(None,) * partitions,
            available=tuple(range(partitions)),
        )

    @property
    def in_flight(self) -> int:
        return len(self.unanswered)

    def on_change(self, callback: object) -> None: ...

    def on_update(self, callback: Any) -> None:
        self.announce = callback

    def ready(self, node_id: int) -> Broker:
        return self

    def version_of(self, request: type[ProduceRequest], at_most: int | None) -> int:
        return 13

    def topic(self, name: str) -> TopicView:
        return self.view

    def views(self) -> list[TopicView]:
        return [self.view]

    def leader(self, topic: str, partition: int) -> int:
        return 0

    def send(self, request: ProduceRequest, version: int, answered: Any) -> None:
        self.bytes_sent += BATCH_BYTES
        self.unanswered.append((request, answered))

    def answer(self) -> tuple[Any, ProduceResponse]:
        """The callback of the oldest request, and the response to call it with."""
        request, answered = self.unanswered.popleft()
        responses = [
            TopicProduceResponse(
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=data.index, base_offset=0)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
        return answered, ProduceResponse(responses=responses)


class NoLock:
    def acquire(self) -> None: ...

    def release(self) -> None: ...

    def _is_owned(self) -> bool:
        return True


def run(runs: int, records: int) -> None:
    for per_request in PER_REQUEST:
        for partitions in PARTITIONS:
            progress(f"sending: {partitions} partitions, {per_request} due at a time")
            report(
                "sending",
                f"cpu_us_per_batch, {partitions} partitions, {per_request} due at a time",
                "us",
                [asyncio.run(measure(partitions, per_request)) for _ in range(runs)],
                "none",
                [],
                more_is_better=False,
            )


async def measure(partitions: int, per_request: int) -> float:
    """Microseconds of CPU per batch."""
    now = asyncio.get_running_loop().time
    broker: Any = Broker(partitions)
    accumulator = Accumulator(
        batch_size=BATCH_BYTES,
        buffer_memory=1 << 40,
        max_request_size=1 << 20,
        compression=0,
        ignores_keys=False,
        make_partitioner=object,
        now=now,
        wall_clock=now,
        lock=NoLock(),
        wake=lambda: None,
        on_callback_error=lambda error: None,
    )
    identity = Identity(broker, Backoff(0.1, 1.0), Random(1))
    identity.renew(1, 0)
    options = SenderOptions(
        acks=-1,
        linger=3600.0,
        delivery_timeout=7200.0,
        request_timeout=30.0,
        retries=10,
        backoff=Backoff(0.1, 1.0),
        max_in_flight=5,
        max_request_size=1 << 20,
        availability_timeout=0.0,
    )
    metrics = ProducerMetrics(now, window=30.0, samples=2)
    sender = Sender(accumulator, broker, broker, identity, metrics, options, now, Random(1))
    broker.announce()
    small, large = bytes(10), bytes(BATCH_BYTES)
    for partition in range(partitions):
        accumulator.append("topic", small, None, None, partition, 0)
    sender.look()

    clock = time.thread_time
    spent = 0.0
    partition = 0
    per_request = min(per_request, partitions)
    for _ in range(STEPS // per_request):
        for _ in range(per_request):
            accumulator.append("topic", large, None, None, partition, 0)
            accumulator.append("topic", small, None, None, partition, 0)
            partition = (partition + 1) % partitions
        begin = clock()
        sender.look()
        spent += clock() - begin
        while broker.unanswered:
            answered, response = broker.answer()
            begin = clock()
            answered(response, None)
            sender.look()
            spent += clock() - begin
    await sender.close()
    return spent / (2 * (STEPS // per_request) * per_request) * 1e6
