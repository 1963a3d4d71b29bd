"""Stores the decisions of `exactly_once.py` in a compacted topic, one topic for each sink.

    partition 0   decisions, of which the last one counts; written in the driver's transactions
    partition 1   claims: which run of the first task writes under the driver's epoch

Sinks do not share a topic, because an open transaction hides the records behind it from readers of
committed records.

The clients stay open between batches, in the processes that Spark reuses (`resident.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.consumer import Consumer
from trimtab.client.blocking.producer import Producer
from trimtab.client.options import ADMIN, CONSUMER
from trimtab.client.sender.prepared import PreparedTransaction, ProducerIdentity
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.spark.resident import Residents
from trimtab.spark.write.exactly_once import CommitDecision, Plan

_DECISIONS: Final = 0
_CLAIMS: Final = 1
_KEY: Final = b"decision"
_WINDOW: Final = 32
"""Offsets to read from the end to find the last decision; doubled until one is found."""
_AT_ONCE: Final = 32
"""Requests to end transactions that are in flight at the same time."""
_PATIENCE_MS: Final = 60_000
_LARGEST: Final = 16 * 2**20
"""Maximum size in bytes of a decision, which names every transaction, before compression."""

_GONE: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)
_CLOSE_SECONDS: Final = 5.0
"""Time to close a producer; one that failed aborts its open transaction, so that readers do not
wait behind it."""

_producers: Residents[Producer] = Residents(lambda producer: producer.close(_CLOSE_SECONDS))
_admins: Residents[Admin] = Residents(Admin.close)
_consumers: Residents[Consumer] = Residents(Consumer.close)


class KafkaLedger:
    """A `Ledger` on a cluster that supports transactions.

    Args:
        client: the producer's options.
        topic: the topic of decisions; created if it does not exist.
    """

    def __init__(self, plan: Plan, client: Mapping[str, str], topic: str) -> None:
        self._plan = plan
        self._client = dict(client)
        self._topic = topic

    def take_over(self, after: ProducerIdentity | None = None) -> ProducerIdentity:
        with self._driver() as producer:
            if after is not None:
                # Coordinators differ in what InitProducerId does while a transaction is open.
                try:
                    producer.complete_transaction(PreparedTransaction(*after), commit=False)
                except BrokerError as error:
                    if error.code is not ErrorCode.INVALID_TXN_STATE:
                        raise
            return producer.init_transactions(after)

    def last_decision(self) -> CommitDecision | None:
        partition = TopicPartition(self._topic, _DECISIONS)
        with self._admin() as admin:
            if self._create_topic(admin):
                return None
            first = admin.list_offsets([partition], "earliest")[partition].offset
            end = admin.list_offsets([partition], isolation="read_committed")[partition].offset
        with _consumer(self._client, "read_committed") as consumer:
            window = _WINDOW
            while True:
                start = max(first, end - window)
                found = [
                    value
                    for key, value in _read(consumer, partition, start, end)
                    if key == _KEY and value is not None
                ]
                if found:
                    return CommitDecision.from_json(found[-1])
                if start == first:
                    return None
                window *= 2

    def complete(
        self, prepared: Sequence[PreparedTransaction], commit: bool
    ) -> list[BrokerError | None]:
        if not prepared:
            return []
        with self._driver() as producer:

            def complete(each: PreparedTransaction) -> BrokerError | None:
                try:
                    producer.complete_transaction(each, commit)
                except BrokerError as error:
                    if error.code not in _GONE:
                        raise
                    return error
                return None

            # The block ends when all requests have; then the first failure is raised.
            with ThreadPoolExecutor(min(_AT_ONCE, len(prepared))) as threads:
                ending = [threads.submit(complete, each) for each in prepared]
            return [each.result() for each in ending]

    def gone(self, prepared: Sequence[PreparedTransaction]) -> list[PreparedTransaction]:
        with self._admin() as admin:
            known = admin.describe_transactions(each.transactional_id for each in prepared)
        found = []
        for transaction in prepared:
            described = known.get(transaction.transactional_id)
            if (
                described is None
                or described.state != "Ongoing"
                or (described.producer_id, described.epoch)
                != (transaction.producer_id, transaction.epoch)
            ):
                found.append(transaction)
        return found

    def open_ids(self) -> Sequence[str]:
        with self._admin() as admin:
            listed = admin.list_transactions(self._plan.prefix, ["Ongoing"])
        return [each.transactional_id for each in listed]

    def fence(self, transactional_ids: Sequence[str]) -> None:
        with self._admin() as admin:
            admin.fence_producers(transactional_ids)

    @contextmanager
    def deciding(self, identity: ProducerIdentity) -> Iterator[_Decider]:
        with self._driver() as producer:
            producer.resume_transactions(identity)
            yield _Decider(producer, self._topic, identity)

    def _driver(self) -> AbstractContextManager[Producer]:
        options = {
            **self._client,
            "compression.type": "gzip",
            "max.request.size": str(_LARGEST),
            "linger.ms": "0",
        }
        return borrow_producer(options, self._plan.driver_id)

    def _admin(self) -> AbstractContextManager[Admin]:
        return _admins.borrow(_known(self._client, ADMIN), Admin)

    def _create_topic(self, admin: Admin) -> bool:
        """Create the topic of decisions; False if it exists."""
        try:
            view = admin.describe_topics([self._topic])[self._topic]
        except BrokerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        else:
            if view.partition_count <= _CLAIMS:
                raise UsageError(
                    f"decisionTopic={self._topic!r} has {view.partition_count} partition, and needs"
                    " 2: name a topic that does not exist, which the sink then creates, or create"
                    " one with 2 partitions and cleanup.policy=compact"
                )
            return False
        try:
            admin.create_topic(self._topic, partitions=2, config={"cleanup.policy": "compact"})
        except BrokerError as refusal:
            # A broker that has just started does not know every topic yet.
            if refusal.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True


@contextmanager
def borrow_producer(client: Mapping[str, str], transactional_id: str) -> Iterator[Producer]:
    """A producer with this transactional id, and no producer id yet. After a task has prepared its
    transaction, the next task uses the same producer, with any transactional id."""
    with _producers.borrow(
        client, lambda client: Producer({**client, "transactional.id": transactional_id})
    ) as producer:
        producer.change_transactional_id(transactional_id)
        yield producer


class _Decider:
    def __init__(self, producer: Producer, topic: str, identity: ProducerIdentity) -> None:
        self._producer = producer
        self._topic = topic
        self.identity = identity

    def write(self, decision: CommitDecision) -> None:
        self._producer.begin_transaction(two_phase=True)
        text = decision.to_json().encode()
        self._producer.send(self._topic, text, key=_KEY, partition=_DECISIONS)
        self._producer.commit_transaction()


def claim(producer: Producer, client: Mapping[str, str], topic: str, token: bytes) -> bool:
    """Claim the open transaction's epoch for one run; whether this claim was stored first.

    A broker stores the first batch of an epoch only once. It takes the first batch of a second run
    for a repeat, and answers with the offset where the first run's claim is stored.

    Args:
        token: names the run.

    Raises:
        KafkaError: the outcome is unknown; the producer can only be closed.
    """
    stored = producer.send(topic, token, key=b"claim", partition=_CLAIMS)
    producer.flush()
    offset = stored.result().offset
    partition = TopicPartition(topic, _CLAIMS)
    with _consumer(client, "read_uncommitted") as consumer:
        for _, value in _read(consumer, partition, offset, offset + 1):
            return value == token
    raise Unavailable(f"{partition}: the claim at offset {offset} cannot be read")


def _consumer(client: Mapping[str, str], isolation: str) -> AbstractContextManager[Consumer]:
    options = {
        **_known(client, CONSUMER),
        "isolation.level": isolation,
        "auto.offset.reset": "earliest",
    }
    return _consumers.borrow(options, Consumer)


def _read(
    consumer: Consumer, partition: TopicPartition, start: int, end: int
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Key and value of the records from offset `start` up to `end`, exclusive."""
    consumer.assign([])  # drop the state of an earlier read
    consumer.assign([partition])
    consumer.seek(partition, start, end)
    while (position := consumer.position(partition)) < end:
        records = consumer.poll(_PATIENCE_MS)
        if consumer.position(partition) == position:
            raise consumer.problem(partition) or Unavailable(
                f"{partition}: no record from offset {position} on arrived within"
                f" {_PATIENCE_MS / 1000:g} s; the end is {end}"
            )
        for record in records:
            if record.offset < end:
                yield record.key, record.value


def _known(client: Mapping[str, str], table: object) -> dict[str, str]:
    """The producer's options that another kind of client (`table`) has too."""
    return {name: value for name, value in client.items() if name in table}  # type: ignore[operator]
