"""Two brokers that keep Kafka's rules of transactions in virtual time, and fail on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.unit.client.scripted_broker import (
    HANG_UP,
    NO_ANSWER,
    RequestClass,
    ScriptedBroker,
    ScriptedCluster,
)
from trimtab.client.producer import AsyncProducer
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_cy import read_header, read_records
from trimtab.kafka.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from trimtab.kafka.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from trimtab.kafka.wire.messages.api_versions import ApiVersionsRequest, FinalizedFeatureKey
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from trimtab.kafka.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from trimtab.kafka.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from trimtab.kafka.wire.messages.metadata import MetadataRequest
from trimtab.kafka.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from trimtab.kafka.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from trimtab.sim.world import World

KAFKA_2_1 = {
    ProduceRequest: (0, 7),
    MetadataRequest: (0, 7),
    FindCoordinatorRequest: (0, 2),
    ApiVersionsRequest: (0, 2),
    InitProducerIdRequest: (0, 1),
    AddPartitionsToTxnRequest: (0, 1),
    AddOffsetsToTxnRequest: (0, 1),
    EndTxnRequest: (0, 1),
    TxnOffsetCommitRequest: (0, 2),
}
TOPIC = TopicPartition("topic", 0)
OTHER = TopicPartition("topic", 1)


@dataclass
class TransactionCluster:
    """Two brokers with a transaction coordinator and a group coordinator, which keep Kafka's rules.

    Attributes:
        level: of the feature `transaction.version`.
        transactional_id: whose the open transaction is; there is one at a time.
        coordinator: the node that coordinates transactions; others answer NOT_COORDINATOR.
        groups: the node that coordinates groups.
        script: answers given first, by API: codes, HANG_UP (done, and the response lost),
            NO_ANSWER (not done).
        fault: returns the answer if the script has none.
        committed: the values of each partition that a read_committed consumer reads, in order.
        offsets: those of committed transactions.
        decisions: whether each ended transaction was committed.
    """

    world: World
    cluster: ScriptedCluster
    level: int = 2
    transactional_id: str = "orders"
    coordinator: int = 0
    groups: int = 1
    script: dict[RequestClass, list[object]] = field(default_factory=dict)
    fault: Callable[[RequestClass], object] = lambda api: ErrorCode.NONE
    producer_id: int = 7
    epoch: int = -1
    added: set[TopicPartition] = field(default_factory=set)
    added_groups: set[str] = field(default_factory=set)
    is_open: bool = False
    begun_at: int = 0
    last_end: tuple[int, bool] | None = None
    raised_from: int | None = None
    pending: dict[TopicPartition, list[bytes | None]] = field(default_factory=dict)
    pending_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    sequences: dict[tuple[int, TopicPartition], int] = field(default_factory=dict)
    committed: dict[TopicPartition, list[bytes | None]] = field(default_factory=dict)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    decisions: list[bool] = field(default_factory=list)
    arrivals: dict[RequestClass, list[asyncio.Future[None]]] = field(default_factory=dict)

    def broker(self, node_id: int, versions: dict[RequestClass, tuple[int, int]]) -> ScriptedBroker:
        broker = self.cluster.broker(node_id, dict(versions))
        answer_plainly = broker.answer_api_versions

        def answer_api_versions(version: int) -> Any:
            response, served = answer_plainly(version)
            response.finalized_features = [
                FinalizedFeatureKey(
                    name="transaction.version", max_version_level=self.level, min_version_level=0
                )
            ]
            return response, served

        broker.answer_api_versions = answer_api_versions  # type: ignore[method-assign]
        answers: dict[RequestClass, Callable[[Any, ErrorCode], object]] = {
            FindCoordinatorRequest: self.find_coordinator,
            InitProducerIdRequest: self.init_producer_id,
            AddPartitionsToTxnRequest: self.add_partitions,
            AddOffsetsToTxnRequest: self.add_offsets,
            EndTxnRequest: self.end,
            TxnOffsetCommitRequest: self.commit_offsets,
            ProduceRequest: self.produce,
        }
        for api, answer in answers.items():
            broker.answers[api] = self._scripted(broker, api, answer)
        return broker

    def _scripted(
        self, broker: ScriptedBroker, api: RequestClass, answer: Callable[[Any, ErrorCode], object]
    ) -> Callable[[Any], object]:
        homes: dict[RequestClass, Callable[[], int]] = {
            FindCoordinatorRequest: lambda: broker.id,
            ProduceRequest: lambda: broker.id,
            TxnOffsetCommitRequest: lambda: self.groups,
        }
        home = homes.get(api, lambda: self.coordinator)

        def respond(request: Any) -> object:
            for arrival in self.arrivals.pop(api, []):
                arrival.set_result(None)
            if broker.id != home():
                return answer(request, ErrorCode.NOT_COORDINATOR)
            scripted = self.script.get(api)
            first = scripted.pop(0) if scripted else self.fault(api)
            if first is NO_ANSWER:
                return NO_ANSWER
            response = answer(request, first if isinstance(first, ErrorCode) else ErrorCode.NONE)
            return HANG_UP if first is HANG_UP else response

        return respond

    # the coordinator

    def find_coordinator(
        self, request: FindCoordinatorRequest, code: ErrorCode
    ) -> FindCoordinatorResponse:
        node = self.coordinator if request.key_type == 1 else self.groups
        host = self.cluster.brokers[node].host
        if not request.coordinator_keys:
            return FindCoordinatorResponse(error_code=code, node_id=node, host=host, port=9092)
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=node, host=host, port=9092, error_code=code)
                for key in request.coordinator_keys
            ]
        )

    def init_producer_id(
        self, request: InitProducerIdRequest, code: ErrorCode
    ) -> InitProducerIdResponse:
        is_repeated = self.raised_from == request.producer_epoch >= 0
        if code is ErrorCode.NONE and request.producer_id >= 0 and not is_repeated:
            code = self._fence(request)
        if code is not ErrorCode.NONE:
            return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
        if not is_repeated:
            self._close(commits=False)
            self.last_end = None
            self.raised_from = request.producer_epoch
            self.epoch += 1
        return InitProducerIdResponse(producer_id=self.producer_id, producer_epoch=self.epoch)

    def _fence(self, request: Any) -> ErrorCode:
        is_current = (request.producer_id, request.producer_epoch) == (self.producer_id, self.epoch)
        return ErrorCode.NONE if is_current else ErrorCode.PRODUCER_FENCED

    def add_partitions(
        self, request: AddPartitionsToTxnRequest, code: ErrorCode
    ) -> AddPartitionsToTxnResponse:
        if code is ErrorCode.NONE and request.v3_and_below_producer_epoch != self.epoch:
            code = ErrorCode.PRODUCER_FENCED
        if code is ErrorCode.NONE:
            self._open(min(self.level, 1))  # as clients ask, it is the older protocol
            self.added |= {
                TopicPartition(topic.name, partition)
                for topic in request.v3_and_below_topics
                for partition in topic.partitions
            }
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(
                            partition_index=partition,
                            # As Kafka: the partition at fault has the code, the others this one.
                            partition_error_code=code
                            if index == 0 or code is ErrorCode.NONE
                            else ErrorCode.OPERATION_NOT_ATTEMPTED,
                        )
                        for index, partition in enumerate(topic.partitions)
                    ],
                )
                for topic in request.v3_and_below_topics
            ]
        )

    def add_offsets(self, request: Any, code: ErrorCode) -> AddOffsetsToTxnResponse:
        code = code or self._fence(request)
        if code is ErrorCode.NONE:
            self._open()
            self.added_groups.add(request.group_id)
        return AddOffsetsToTxnResponse(error_code=code)

    def commit_offsets(
        self, request: TxnOffsetCommitRequest, code: ErrorCode
    ) -> TxnOffsetCommitResponse:
        code = code or self._fence(request)
        if self.version < 2 and request.group_id not in self.added_groups:
            code = code or ErrorCode.INVALID_TXN_STATE
        if code is ErrorCode.NONE:
            self._open()
            for topic in request.topics:
                for partition in topic.partitions:
                    key = TopicPartition(topic.name, partition.partition_index)
                    self.pending_offsets[key] = partition.committed_offset
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(
                            partition_index=partition.partition_index, error_code=code
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def end(self, request: EndTxnRequest, code: ErrorCode) -> EndTxnResponse:
        version = self.version
        if code is ErrorCode.NONE and self.last_end != (request.producer_epoch, request.committed):
            code = self._fence(request)
            if code is ErrorCode.NONE and self.last_end == (self.epoch, not request.committed):
                code = ErrorCode.INVALID_TXN_STATE
            # Version 2 lets an abort raise the epoch where nothing was begun (KIP-890).
            if code is ErrorCode.NONE and not self.is_open and (version < 2 or request.committed):
                code = ErrorCode.INVALID_TXN_STATE
            if code is ErrorCode.NONE:
                self._close(request.committed)
                self.last_end = (self.epoch, request.committed)
                self.epoch += version >= 2
        if code is not ErrorCode.NONE or version < 2:
            return EndTxnResponse(error_code=code)
        return EndTxnResponse(producer_id=self.producer_id, producer_epoch=self.epoch)

    @property
    def version(self) -> int:
        """Of the open transaction, or the next: a transaction keeps its version."""
        return self.begun_at if self.is_open else self.level

    def _open(self, version: int | None = None) -> None:
        if not self.is_open:
            self.begun_at = self.level if version is None else version
        self.is_open = True
        self.last_end = None

    def expire(self) -> None:
        """Abort transactions that were open for too long, as the coordinator does by itself."""
        self._close(commits=False)
        self.last_end = None
        self.epoch += 1

    def _close(self, commits: bool) -> None:
        if self.is_open:
            self.decisions.append(commits)
        if commits:
            for partition, values in self.pending.items():
                self.committed.setdefault(partition, []).extend(values)
            self.offsets.update(self.pending_offsets)
        self.is_open = False
        for kept in (self.pending, self.pending_offsets, self.added, self.added_groups):
            kept.clear()

    # the leaders

    def produce(self, request: ProduceRequest, scripted: ErrorCode) -> ProduceResponse:
        response = ProduceResponse(responses=[])
        for topic in request.topic_data:
            name = topic.name or self.cluster.topic_of(topic.topic_id)
            answers = [
                PartitionProduceResponse(
                    index=data.index,
                    error_code=scripted
                    or self._store(request, TopicPartition(name, data.index), data.records),
                    base_offset=0,
                )
                for data in topic.partition_data
            ]
            response.responses.append(
                TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=answers
                )
            )
        return response

    def _store(self, request: ProduceRequest, partition: TopicPartition, records: Any) -> ErrorCode:
        assert request.transactional_id == self.transactional_id
        header = read_header(records, 0)
        assert header.is_transactional
        if (header.producer_id, header.producer_epoch) != (self.producer_id, self.epoch):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if self.version < 2 and partition not in self.added:
            return ErrorCode.INVALID_TXN_STATE
        self._open()
        key = (self.epoch, partition)
        expected = self.sequences.get(key, 0)
        if header.base_sequence < expected:
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        if header.base_sequence > expected:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.sequences[key] = expected + header.record_count
        self.pending.setdefault(partition, []).extend(
            r.value for r in read_records(partition.topic, partition.partition, records, 0)
        )
        return ErrorCode.NONE

    # for assertions

    async def arrival(self, api: RequestClass) -> None:
        """Return when a broker has received the next request of this kind, before it answers."""
        arrived = self.world.loop.create_future()
        self.arrivals.setdefault(api, []).append(arrived)
        await arrived

    def asked(self, *apis: RequestClass) -> list[tuple[RequestClass, int, Any]]:
        """What all brokers were asked, in the order of time."""
        every = sorted(
            (
                asked
                for broker in self.cluster.brokers.values()
                for asked in broker.asked
                if asked.api in apis
            ),
            key=lambda asked: asked.at,
        )
        return [(asked.api, asked.version, asked.request) for asked in every]

    @asynccontextmanager
    async def producer(self, **options: Any) -> AsyncIterator[AsyncProducer]:
        producer = AsyncProducer(
            self.cluster.bootstrap,
            wall_clock=self.world.wall_clock,
            random=self.world.random("producer"),
            transactional_id="orders",
            **options,
        )
        try:
            yield producer
        finally:
            await producer.close(timeout=5)


def make_transaction_cluster(
    world: World, level: int, versions: dict[RequestClass, tuple[int, int]] | None = None
) -> TransactionCluster:
    made = TransactionCluster(world, ScriptedCluster(world, {"topic": [0, 1]}), level)
    for node in range(2):
        made.broker(node, versions or {})
        world.run(made.cluster.brokers[node].start())
    return made
