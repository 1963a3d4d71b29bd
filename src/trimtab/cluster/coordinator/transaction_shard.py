"""The transactional ids of one partition of `__transaction_state`: decides about each request.

    request ─▶ decision ─▶ record, replayed at once ─▶ response, once the record is committed
                              └─ a PREPARE state ─▶ markers, likewise ─▶ `complete`

Nothing here waits, reads clocks or sends. The rules are those of Kafka's `TransactionCoordinator`,
with these differences:

- A request is decided on the ground of all decisions before it, committed or not; so there is no
  pending state, and CONCURRENT_TRANSACTIONS is answered only while a transaction ends. It comes
  before every other check, as in Kafka: who asks then may have the identity of before or after.
- A transaction is aborted as soon as its time is over, not at the next round of ten seconds.
- An InitProducerId with an epoch that is not the current one does not abort an open transaction.
- `keepPreparedTxn` (KIP-939) is served.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from trimtab.cluster.coordinator.effects import (
    Caller,
    Effects,
    Ending,
    Now,
    RecordTooLarge,
    RequestRefused,
)
from trimtab.cluster.coordinator.room import MEMBER_SIZE, Admit, Usage
from trimtab.cluster.coordinator.timers import Timers
from trimtab.cluster.coordinator.transaction import (
    BUMPS_EPOCHS_SINCE,
    LAST_EPOCH,
    NO_TIMEOUT,
    NOBODY,
    ProducerIdAndEpoch,
    Transaction,
    make_transaction,
)
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from trimtab.kafka.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from trimtab.kafka.wire.messages.transaction_records import (
    TransactionLogValue,
    TransactionStatus,
    decode_transaction,
)
from trimtab.kafka.wire.sentinels import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP

_BUMPING_SINCE = 5
"""The version of EndTxn with which a producer speaks version 2 of transactions."""
_PARTITION_SIZE = 100
"""Bytes of memory for a partition of a transaction."""
_ENDED = (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)
_MAY_EXPIRE = (TransactionStatus.EMPTY, *_ENDED)
_END_BYTES = 18
"""By how much a record that ends a transaction may be larger than the one that began it: the next
producer's id and epoch, and the version, each with its tag and its size."""
_NO_ID_S = 1.0
_TOO_LARGE_S = 60.0
"""After a transaction could not be aborted: the option was made smaller since it began."""


class TransactionRules(NamedTuple):
    """The options of transactions.

    Attributes:
        max_timeout_ms: `transaction.max.timeout.ms`.
        two_phase: `transaction.two.phase.commit.enable`.
        expiration_ms: `transactional.id.expiration.ms`.
    """

    max_timeout_ms: int
    two_phase: bool
    expiration_ms: int


class TransactionShard:
    """The transactional ids of one partition.

    Args:
        version: the version of transactions that the cluster has finalized.
        new_producer_id: a producer id that no producer has had; None if there is none right now.
        max_batch: bytes of the largest batch that the log takes now.
        admit: whether there is room for another transactional id.

    Attributes:
        effects: of the decisions since it was last taken.
        transactions: by transactional id.
    """

    def __init__(
        self,
        rules: TransactionRules,
        version: Callable[[], int],
        new_producer_id: Callable[[], int | None],
        max_batch: Callable[[], int],
        admit: Admit,
    ) -> None:
        self._admit = admit
        self.effects = Effects(max_batch)
        self.transactions: dict[str, Transaction] = {}
        self._rules = rules
        self._version = version
        self._new_producer_id = new_producer_id
        self._timers: Timers[str] = Timers()

    def measure(self) -> Iterator[Usage]:
        """What is remembered, one thing after the other."""
        for known in list(self.transactions.values()):
            size = MEMBER_SIZE + len(known.id) + _PARTITION_SIZE * len(known.partitions)
            yield Usage(things=1, size=size)

    # InitProducerId

    def init(self, now: Now, caller: Caller, request: InitProducerIdRequest) -> None:
        """Give a producer its id and its next epoch; fence the one before it, and abort what that
        has left open, or keep it if it is prepared and the producer asks for it."""
        try:
            response = self._init(now, request)
        except RequestRefused as refused:
            response = refuse_init(self._tell(refused))
        self.effects.respond(caller, response)

    def _init(self, now: Now, request: InitProducerIdRequest) -> InitProducerIdResponse:
        transactional_id = request.transactional_id
        if not transactional_id:
            raise _refuse(ErrorCode.INVALID_REQUEST)
        is_two_phase = request.enable2_pc
        if (is_two_phase or request.keep_prepared_txn) and not self._rules.two_phase:
            raise _refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        timeout_ms = NO_TIMEOUT if is_two_phase else request.transaction_timeout_ms
        if not is_two_phase and not 0 < timeout_ms <= self._rules.max_timeout_ms:
            raise _refuse(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        known = self.transactions.get(transactional_id)
        if known is None:
            more = Usage(things=1, size=MEMBER_SIZE + len(transactional_id))
            if self._admit(more) is not None:
                raise _refuse(ErrorCode.POLICY_VIOLATION)
            known = make_transaction(transactional_id, self._take_id(), timeout_ms, now.ms)
        _check_is_over(known)
        if expected.producer_id != NO_PRODUCER_ID and not _may_continue(known, expected):
            raise _refuse(ErrorCode.PRODUCER_FENCED)
        if known.status is TransactionStatus.ONGOING:
            if expected.producer_id != NO_PRODUCER_ID and expected != known.caller:
                raise _refuse(ErrorCode.PRODUCER_FENCED)
            if request.keep_prepared_txn:
                return self._take_over(now, known)
            self._abort_and_fence(now, known)
            raise _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        return self._begin_epoch(now, known, expected, timeout_ms)

    def _begin_epoch(
        self, now: Now, known: Transaction, expected: ProducerIdAndEpoch, timeout_ms: int
    ) -> InitProducerIdResponse:
        producer, is_anew = known.producer, expected.producer_id == NO_PRODUCER_ID
        last_epoch = NO_PRODUCER_EPOCH if is_anew else producer.epoch
        if producer.is_exhausted and (is_anew or expected.epoch == producer.epoch):
            raised = ProducerIdAndEpoch(self._take_id(), 0)
        elif is_anew or producer.epoch in (NO_PRODUCER_EPOCH, expected.epoch):
            raised = producer._replace(epoch=producer.epoch + 1)
        elif expected.epoch == known.last_epoch:  # the response was lost
            raised, last_epoch = producer, known.last_epoch
        else:
            raise _refuse(ErrorCode.PRODUCER_FENCED)
        changed = self._write(
            known.id,
            known.write(
                now.ms,
                TransactionStatus.EMPTY,
                raised,
                partitions=(),
                timeout_ms=timeout_ms,
                started_ms=NO_TIMESTAMP,
            ),
        )
        changed.last_epoch = last_epoch
        return InitProducerIdResponse(producer_id=raised.producer_id, producer_epoch=raised.epoch)

    def _take_over(self, now: Now, known: Transaction) -> InitProducerIdResponse:
        """Fence the producer, but keep its transaction, which it has prepared (KIP-939)."""
        before = known.caller
        after = (
            ProducerIdAndEpoch(self._take_id(), 0)
            if before.is_exhausted
            else before._replace(epoch=before.epoch + 1)
        )
        changed = self._write(
            known.id, known.write(now.ms, TransactionStatus.ONGOING, next_producer=after)
        )
        self._watch(changed, now)
        return InitProducerIdResponse(
            producer_id=after.producer_id,
            producer_epoch=after.epoch,
            ongoing_txn_producer_id=known.producer.producer_id,
            ongoing_txn_producer_epoch=known.producer.epoch,
        )

    # AddPartitionsToTxn, AddOffsetsToTxn

    def add_partitions(
        self,
        now: Now,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        version: int,
    ) -> ErrorCode:
        """Make partitions part of a transaction, which begins if none is open.

        Args:
            version: of transactions, as the client speaks it.
        """
        try:
            known = self._find(transactional_id)
            _check_is_over(known)
            _check_caller(known, producer)
            if known.is_taken_over:  # it was prepared: nothing is added any more
                raise _refuse(ErrorCode.INVALID_TXN_STATE)
            is_open = known.status is TransactionStatus.ONGOING
            if is_open and known.partitions.issuperset(partitions):
                return ErrorCode.NONE
            changed = self._write(
                transactional_id,
                known.write(
                    now.ms,
                    TransactionStatus.ONGOING,
                    partitions=known.partitions.union(partitions) if is_open else partitions,
                    started_ms=known.started_ms if is_open else now.ms,
                    version=version,
                ),
                reserved=_END_BYTES,
            )
        except RequestRefused as refused:
            return self._tell(refused)
        self._watch(changed, now)
        return ErrorCode.NONE

    def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether partitions are part of the transaction that is open (KIP-890)."""
        try:
            known = self._find(transactional_id)
            _check_caller(known, producer)
            _check_is_over(known)
        except RequestRefused as refused:
            return dict.fromkeys(partitions, refused.code)
        is_open = known.status is TransactionStatus.ONGOING
        return {
            partition: ErrorCode.NONE
            if is_open and partition in known.partitions
            else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    # EndTxn

    def commit_or_abort(self, now: Now, caller: Caller, request: EndTxnRequest) -> None:
        """Commit or abort a transaction."""
        bumps = caller.version >= _BUMPING_SINCE
        try:
            answered = self._end(now, request, bumps)
            response = EndTxnResponse(
                producer_id=answered.producer_id, producer_epoch=answered.epoch
            )
        except RequestRefused as refused:
            response = EndTxnResponse(error_code=self._tell(refused))
        self.effects.respond(caller, response)

    def _end(self, now: Now, request: EndTxnRequest, bumps: bool) -> ProducerIdAndEpoch:
        """Returns whom the producer is from then on; `NOBODY` for version 1."""
        known = self._find(request.transactional_id)
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        if bumps:
            _check_is_over(known)
        is_retry = bumps and _is_retried(known, producer)
        if not is_retry:
            _check_caller(known, producer)
        elif known.status not in _ENDED:
            raise _refuse(ErrorCode.PRODUCER_FENCED)
        _check_is_over(known)
        version = BUMPS_EPOCHS_SINCE if bumps else 0
        is_commit, status = request.committed, known.status
        if status is TransactionStatus.ONGOING:
            return self._prepare(now, known, is_commit, version)
        ended = TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT
        if status is ended and (is_retry or not bumps):
            return known.producer if bumps else NOBODY
        if bumps and not is_commit and not is_retry:
            # The producer does not know whether a transaction was begun.
            return self._prepare(now, known, False, version, is_empty=True)
        raise _refuse(ErrorCode.INVALID_TXN_STATE)

    def _prepare(
        self,
        now: Now,
        known: Transaction,
        is_commit: bool,
        version: int,
        is_empty: bool = False,
        fences: bool = False,
    ) -> ProducerIdAndEpoch:
        """Decide the outcome. Returns whom the producer is after that; `NOBODY` for version 1.

        Args:
            is_empty: no transaction is open.
            fences: whether the producer has not asked for it, and must be told that it is fenced.
        """
        bumps = version >= BUMPS_EPOCHS_SINCE
        producer, caller = known.producer, known.caller
        follower = NOBODY
        if bumps and caller.is_exhausted:
            follower = ProducerIdAndEpoch(self._take_id(), 0)
        elif known.is_taken_over:
            follower = caller._replace(epoch=min(caller.epoch + (bumps or fences), LAST_EPOCH))
        if bumps or fences:
            producer = producer._replace(epoch=min(producer.epoch + 1, LAST_EPOCH))
        changed = self._write(
            known.id,
            known.write(
                now.ms,
                TransactionStatus.PREPARE_COMMIT if is_commit else TransactionStatus.PREPARE_ABORT,
                producer,
                next_producer=follower,
                started_ms=now.ms if is_empty else None,
                partitions=() if is_empty else None,
                version=version,
            ),
        )
        changed.last_epoch = (
            known.producer.epoch if bumps else NO_PRODUCER_EPOCH if fences else known.last_epoch
        )
        self._end_later(changed)
        if not bumps:
            return NOBODY
        return producer if follower is NOBODY else follower

    def _abort_and_fence(self, now: Now, known: Transaction) -> None:
        version = self._version()
        self._prepare(
            now,
            known,
            is_commit=False,
            version=version if version >= BUMPS_EPOCHS_SINCE else 0,
            fences=True,
        )

    def _end_later(self, known: Transaction) -> None:
        self.effects.endings.append(
            Ending(
                known.id,
                known.producer.producer_id,
                known.producer.epoch,
                known.status is TransactionStatus.PREPARE_COMMIT,
                known.partitions,
                known.version,
            )
        )

    def complete(self, now: Now, ending: Ending) -> None:
        """All markers of a transaction are written."""
        known = self.transactions.get(ending.transactional_id)
        producer = ProducerIdAndEpoch(ending.producer_id, ending.producer_epoch)
        if known is None or not known.is_ending or known.producer != producer:
            return  # completed before this coordinator loaded it once more
        follower = known.next
        if follower.producer_id != NO_PRODUCER_ID:
            producer = follower._replace(epoch=max(follower.epoch, 0))
        changed = self._write(
            known.id,
            known.write(
                now.ms,
                TransactionStatus.COMPLETE_COMMIT
                if ending.is_commit
                else TransactionStatus.COMPLETE_ABORT,
                producer,
                partitions=(),
            ),
        )
        changed.last_epoch = known.last_epoch

    # Time

    @property
    def next_due(self) -> float | None:
        """When `look` is to be called next, monotonic; None: never."""
        return self._timers.next_due

    def look(self, now: Now) -> None:
        """Abort the transactions whose time is over."""
        for transactional_id in self._timers.pop_due(now.s):
            known = self.transactions.get(transactional_id)
            due_ms = None if known is None else known.due_ms
            if known is None or due_ms is None:
                continue
            if due_ms > now.ms:
                self._watch(known, now)
                continue
            try:
                self._abort_and_fence(now, known)
            except RequestRefused as refused:
                self._tell(refused)
                is_too_large = isinstance(refused, RecordTooLarge)
                self._timers.set(
                    transactional_id, now.s + (_TOO_LARGE_S if is_too_large else _NO_ID_S)
                )

    def _watch(self, known: Transaction, now: Now) -> None:
        due_ms = known.due_ms
        if due_ms is not None:
            self._timers.set(known.id, now.s + max(0, due_ms - now.ms) / 1000)

    def expire(self, now: Callable[[], Now]) -> Iterator[None]:
        """Delete the ids that nobody has used for long; yields after each look at one."""
        for known in list(self.transactions.values()):
            is_same = self.transactions.get(known.id) is known
            old = known.updated_ms <= now().ms - self._rules.expiration_ms
            if is_same and old and known.status in _MAY_EXPIRE:
                self.effects.append_transaction(known.id, None)
                self.replay(known.id, None)
            yield

    # The log

    def load(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        """Take over a record of the log, where no record is part of a transaction.

        Raises:
            CorruptData: malformed.
        """
        decoded = decode_transaction(key, value)
        if decoded is not None:
            self.replay(*decoded)

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        """Nothing to do: no transaction has records in this log."""

    def replay(self, transactional_id: str, value: TransactionLogValue | None) -> None:
        """Take over a record."""
        if value is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = Transaction(transactional_id, value)

    def resume(self, now: Now) -> None:
        """After the log was replayed: go on to end what was ending, and watch what is open."""
        for known in self.transactions.values():
            if known.is_ending:
                self._end_later(known)
            self._watch(known, now)

    def _find(self, transactional_id: str) -> Transaction:
        if not transactional_id:
            raise _refuse(ErrorCode.INVALID_REQUEST)
        known = self.transactions.get(transactional_id)
        if known is None:
            raise _refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return known

    def _tell(self, refused: RequestRefused) -> ErrorCode:
        """Warn of what only the operator can change; returns the code for the client."""
        if isinstance(refused, RecordTooLarge):
            self.effects.warnings.append(refused.message)
        return refused.code

    def _write(
        self, transactional_id: str, value: TransactionLogValue, reserved: int = 0
    ) -> Transaction:
        self.effects.append_transaction(transactional_id, value, reserved)
        self.replay(transactional_id, value)
        return self.transactions[transactional_id]

    def _take_id(self) -> int:
        producer_id = self._new_producer_id()
        if producer_id is None:
            raise _refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return producer_id


def _may_continue(known: Transaction, expected: ProducerIdAndEpoch) -> bool:
    """Whether a producer that says who it was may go on; its epoch is checked later."""
    return (
        known.producer.epoch == NO_PRODUCER_EPOCH
        or expected.producer_id in (known.producer.producer_id, known.caller.producer_id)
        or (expected.producer_id == known.previous_id and expected.is_exhausted)
    )


def _check_is_over(known: Transaction) -> None:
    if known.is_ending:
        raise _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)


def _check_caller(known: Transaction, producer: ProducerIdAndEpoch) -> None:
    if known.caller.producer_id != producer.producer_id:
        raise _refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if known.caller.epoch != producer.epoch:
        raise _refuse(ErrorCode.PRODUCER_FENCED)


def _is_retried(known: Transaction, producer: ProducerIdAndEpoch) -> bool:
    """Whether this producer was followed by the present one when a transaction ended: its epoch
    was raised, or it got another id."""
    raised = producer._replace(epoch=producer.epoch + 1)
    return raised == known.producer or (
        raised == ProducerIdAndEpoch(known.previous_id, LAST_EPOCH) and known.producer.epoch == 0
    )


def refuse_init(code: ErrorCode) -> InitProducerIdResponse:
    """An InitProducerId response without an id."""
    return InitProducerIdResponse(
        error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )


def _refuse(code: ErrorCode) -> RequestRefused:
    return RequestRefused(code, "")
