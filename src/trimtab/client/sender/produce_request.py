"""Produce requests: built from batches, and matched with the broker's answers.

Source: KIP-467 (errors of single records), KIP-516 (topic ids).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trimtab.client.accumulator.queues_cy import Batch, PartitionQueue
from trimtab.client.metrics_cy import ProducerMetrics
from trimtab.client.network.connection import Connection, Node
from trimtab.client.sender.identity import Anonymous
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import BatchRefused, BrokerError, ErrorCode, error_code
from trimtab.kafka.wire.batch_cy import HEADER_BYTES
from trimtab.kafka.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceData,
)
from trimtab.kafka.wire.sentinels import NO_EPOCH

LAST_VERSION_BY_NAME = 12
"""Produce requests name topics up to this version, and use topic ids from the next (KIP-516)."""

TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class SentBatches:
    """The batches of one Produce request in flight.

    Attributes:
        unanswered: those without an answer, by topic (its name or id, depending on the version) and
            partition.
        records: their records.
        size: their bytes.
        at: loop time at which it was sent.
        exactly_at: the same, not rounded, if windows are measured.
        was_alone: whether no other request to the broker was open when it was sent.
    """

    __slots__ = (
        "at",
        "connection",
        "exactly_at",
        "records",
        "size",
        "unanswered",
        "version",
        "was_alone",
    )

    def __init__(self, connection: Connection, version: int, at: float) -> None:
        self.connection = connection
        self.unanswered: dict[tuple[str | bytes, int], Batch] = {}
        self.records = 0
        self.size = 0
        self.version = version
        self.at = at
        self.exactly_at = at
        self.was_alone = True

    def build(
        self,
        batches: Sequence[Batch],
        identity: Anonymous,
        views: Mapping[str, TopicView],
        metrics: ProducerMetrics,
    ) -> list[TopicProduceData]:
        """Number and encode the batches, and count them as sent."""
        is_transactional = identity.is_transactional
        by_id = self.version > LAST_VERSION_BY_NAME
        topics: dict[str, TopicProduceData] = {}
        for batch in batches:
            queue = batch.queue
            name, partition = queue.topic, queue.partition
            producer_id, epoch, sequence = identity.number(batch)
            built = batch.builder.build(producer_id, epoch, sequence, NO_EPOCH, is_transactional)
            size = len(built)
            attempts = batch.attempts = batch.attempts + 1
            if attempts == 1 and size != batch.size:
                _observe_compression(queue, size, batch.size)
            metrics.batch_sent(name, batch, size, attempts == 1)
            self.size += size
            self.records += batch.count
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = (
                    TopicProduceData(topic_id=views[name].topic_id, partition_data=[])
                    if by_id
                    else TopicProduceData(name=name, partition_data=[])
                )
            topic.partition_data.append(PartitionProduceData(index=partition, records=built))
            self.unanswered[topic.topic_id if by_id else name, partition] = batch
        return list(topics.values())

    def answers(
        self, response: ProduceResponse
    ) -> Iterator[tuple[Batch, PartitionProduceResponse]]:
        """Each batch that a response answers, with its answer; it is then no longer unanswered."""
        by_id = self.version > LAST_VERSION_BY_NAME
        unanswered = self.unanswered
        for topic in response.responses:
            name = topic.topic_id if by_id else topic.name
            for answer in topic.partition_responses:
                batch = unanswered.pop((name, answer.index), None)
                if batch is not None:
                    yield batch, answer


def _observe_compression(queue: PartitionQueue, built: int, size: int) -> None:
    """Kafka's running estimate: rises fast, falls slowly (`CompressionRatioEstimator`)."""
    if built == size or size <= HEADER_BYTES:
        return
    topic = queue.topic_queues
    ratio, observed = topic.compression_ratio, built / size
    if observed > ratio:
        topic.compression_ratio = max(ratio + 0.05, observed)
    elif observed < ratio:
        topic.compression_ratio = max(ratio - 0.005, observed)


def read_refusal(batch: Batch, answer: PartitionProduceResponse, node: Node) -> BrokerError:
    """The error of a refused batch, with the records that caused it (KIP-467)."""
    code = error_code(answer.error_code)
    subject = f"{batch.queue} on {node}, attempt {batch.attempts}"
    message = answer.error_message or ""
    if code in TOO_LARGE:
        message = (
            f"a record of {batch.size} bytes, its batch's header included, is larger than the topic"
            " accepts; raise the topic's max.message.bytes, or the brokers' message.max.bytes, and"
            " this producer's max.request.size if that is smaller"
        )
    elif answer.record_errors:
        at_fault = {
            record_error.batch_index: record_error.batch_index_error_message or message
            for record_error in answer.record_errors
        }
        return BatchRefused(code, message, subject, at_fault)
    return BrokerError(code, message, subject)
