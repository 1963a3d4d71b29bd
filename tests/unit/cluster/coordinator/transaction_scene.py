"""One partition of `__transaction_state`, its log, and what waits for its markers."""

from __future__ import annotations

from itertools import count
from typing import Any

from trimtab.cluster.coordinator.effects import Caller, Ending, Now
from trimtab.cluster.coordinator.transaction import NOBODY, ProducerIdAndEpoch, Transaction
from trimtab.cluster.coordinator.transaction_shard import TransactionRules, TransactionShard
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.transaction_records import TransactionStatus, decode_transaction

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NAME = "id"
MAX = 32767
NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
BAD_STATE = ErrorCode.INVALID_TXN_STATE
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
TIMEOUT_MS = 60_000


class Scene:
    """One shard, its log, and the endings that wait for their markers."""

    def __init__(self, version: int = 2, **rules: Any) -> None:
        self.version = version
        self.rules = TransactionRules(
            **{"max_timeout_ms": 900_000, "two_phase": True, "expiration_ms": 10**9, **rules}
        )
        self.max_batch = 1 << 20
        self.now_ms = 1_000_000
        self.ids: Any = count(100)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.endings: list[Ending] = []
        self.warnings: list[str] = []
        self.begin()

    def begin(self) -> None:
        self.shard = TransactionShard(
            self.rules,
            lambda: self.version,
            lambda: next(self.ids, None),
            lambda: self.max_batch,
            lambda _: None,
        )

    def move(self) -> None:
        """Another broker coordinates from now on."""
        self.begin()
        self.endings = []
        for key, value in self.log:
            decoded = decode_transaction(key, value)
            assert decoded is not None
            self.shard.replay(*decoded)
        self.shard.resume(self.now)
        self.take()

    @property
    def now(self) -> Now:
        return Now(self.now_ms / 1000, self.now_ms)

    def take(self) -> list[Any]:
        effects = self.shard.effects.take()
        self.log += [(each.encoded_key, each.encoded_value) for each in effects.records]
        self.endings += effects.endings
        self.warnings += effects.warnings
        return [response for _, response in effects.responses]

    def init(
        self,
        expected: ProducerIdAndEpoch = NOBODY,
        two_phase: bool = False,
        keep: bool = False,
        **more: Any,
    ) -> Any:
        request = {
            "transactional_id": NAME,
            "transaction_timeout_ms": TIMEOUT_MS,
            "producer_id": expected.producer_id,
            "producer_epoch": expected.epoch,
            "enable2_pc": two_phase,
            "keep_prepared_txn": keep,
        }
        self.shard.init(
            self.now, Caller(None, 6, "c", "/h"), InitProducerIdRequest(**{**request, **more})
        )
        (response,) = self.take()
        return response

    def producer(self, expected: ProducerIdAndEpoch = NOBODY, **more: Any) -> ProducerIdAndEpoch:
        response = self.init(expected, **more)
        assert response.error_code == NONE
        return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    def add(
        self, producer: ProducerIdAndEpoch, *partitions: TopicPartition, name: str = NAME
    ) -> ErrorCode:
        code = self.shard.add_partitions(
            self.now, name, producer, partitions or (T0,), self.version
        )
        self.take()
        return code

    def end(self, producer: ProducerIdAndEpoch, commit: bool = True, version: int = 0) -> Any:
        request = EndTxnRequest(
            transactional_id=NAME,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )
        caller = Caller(None, version or (5 if self.version == 2 else 4), "c", "/h")
        self.shard.commit_or_abort(self.now, caller, request)
        (response,) = self.take()
        return response

    def ended(self, producer: ProducerIdAndEpoch, commit: bool = True) -> ProducerIdAndEpoch:
        """Whom the producer is after its transaction."""
        response = self.end(producer, commit)
        assert response.error_code == NONE
        self.write_markers()
        if self.version < 2:
            return producer
        return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    def write_markers(self) -> None:
        endings, self.endings = self.endings, []
        for each in endings:
            self.shard.complete(self.now, each)
        self.take()

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        due = self.shard.next_due
        if due is not None and due <= self.now.s:
            self.shard.look(self.now)
            self.take()

    @property
    def known(self) -> Transaction:
        return self.shard.transactions[NAME]

    @property
    def status(self) -> str:
        return self.known.status.name

    def at_epoch(self, epoch: int) -> ProducerIdAndEpoch:
        """A producer that has come to this epoch."""
        producer = self.producer()
        self.known.producer = producer._replace(epoch=epoch)
        value = self.known.write(self.now_ms, TransactionStatus.EMPTY)
        self.shard._write(NAME, value)
        self.take()
        return self.known.producer
