"""A scripted cluster that stores produced batches, and checks them by a broker's own rules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Unpack

from tests.unit.client.scripted_broker import NO_ANSWER, ScriptedCluster
from trimtab.client.network.option_types import ProducerOptions
from trimtab.client.producer import AsyncProducer
from trimtab.cluster.storage.producer_state import ProducerState
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_cy import read_header, read_records
from trimtab.kafka.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from trimtab.kafka.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from trimtab.sim.world import World

Refuse = Callable[[TopicPartition, int, int], ErrorCode]


@dataclass
class ProduceCluster:
    """A scripted cluster that stores produced batches, and checks sequences as a broker does.

    Attributes:
        refuse: called for each batch with (partition, batches so far, broker); NONE stores it.
        refuse_records: called with the number of its records; likewise.
        stored: the values of each partition in order.
        batches: every received batch, stored or not: time, broker, partition, number of records.
        epochs: the producer epoch of each.
        producers: the producer state of each partition, by a broker's own rules.
    """

    world: World
    cluster: ScriptedCluster
    refuse: Refuse = lambda *_: ErrorCode.NONE
    refuse_records: Callable[[int], ErrorCode] = lambda _: ErrorCode.NONE
    stored: dict[TopicPartition, list[bytes | None]] = field(default_factory=dict)
    batches: list[tuple[float, int, TopicPartition, int]] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    producers: dict[TopicPartition, ProducerState] = field(default_factory=dict)
    producer_ids: int = 0

    def identify(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        self.producer_ids += 1
        return InitProducerIdResponse(producer_id=self.producer_ids, producer_epoch=0)

    def produce(self, broker: int, request: ProduceRequest) -> object:
        response = ProduceResponse(responses=[])
        for topic in request.topic_data:
            name = topic.name or self.cluster.topic_of(topic.topic_id)
            answers = []
            for data in topic.partition_data:
                partition = TopicPartition(name, data.index)
                code, offset = self._store(broker, partition, data.records)
                answers.append(
                    PartitionProduceResponse(index=data.index, error_code=code, base_offset=offset)
                )
            response.responses.append(
                TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=answers
                )
            )
        return response if request.acks else NO_ANSWER

    def _store(self, broker: int, partition: TopicPartition, records: Any) -> tuple[int, int]:
        header = read_header(records, 0)
        log = self.stored.setdefault(partition, [])
        self.batches.append((self.world.loop.time(), broker, partition, header.record_count))
        self.epochs.append(header.producer_epoch)
        code = self.refuse(partition, len(self.batches), broker)
        code = code or self.refuse_records(header.record_count)
        if code is not ErrorCode.NONE:
            return code, -1
        state = self.producers.setdefault(partition, ProducerState())
        verdict = state.check_batch(header)
        if verdict.duplicate is not None:
            return ErrorCode.NONE, verdict.duplicate.first_offset
        if verdict.error is not ErrorCode.NONE:
            return verdict.error, -1
        offset = len(log)
        log.extend(r.value for r in read_records(partition.topic, partition.partition, records, 0))
        if header.producer_id >= 0:
            state.note_stored(header, offset, 0)
        return ErrorCode.NONE, offset

    @asynccontextmanager
    async def producer(self, **options: Unpack[ProducerOptions]) -> AsyncIterator[AsyncProducer]:
        for broker in self.cluster.brokers.values():
            await broker.start()
        producer = AsyncProducer(
            self.cluster.bootstrap,
            wall_clock=self.world.wall_clock,
            random=self.world.random("producer"),
            **options,
        )
        try:
            yield producer
        finally:
            await producer.close(timeout=5)


def make_produce_cluster(world: World, *leaders: int) -> ProduceCluster:
    """A cluster whose brokers lead the partitions of "topic" as in `leaders`."""
    cluster = ScriptedCluster(world, {"topic": list(leaders)})
    made = ProduceCluster(world, cluster)
    for node in range(max(1, *leaders) + 1):
        broker = cluster.broker(node)
        broker.answers[InitProducerIdRequest] = made.identify
        broker.answers[ProduceRequest] = partial(made.produce, node)
    return made
