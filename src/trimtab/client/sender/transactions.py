"""Transactions: records to several partitions, and offsets, visible together or not at all.

    init ─▶ begin ─▶ send, send_offsets ─▶ (prepare ─▶) commit | abort ─▶ begin ─▶ …
                        │                       │
      a partition's first batch:           every batch acknowledged, then
      AddPartitionsToTxn ─▶ Produce        EndTxn ─▶ the coordinator writes markers

`transaction_state` decides which call is allowed when, and how severe an error is;
`transaction_requests` sends the requests. All of it runs on the producer's loop.

**Two protocols.** Until Kafka 4.0 the producer adds partitions and groups to its transaction at the
coordinator before it uses them. If the cluster's `transaction.version` is 2 (KIP-890), leaders and
group coordinators add them, and each transaction has its own epoch, so that no late batch becomes
part of the next one. A transaction keeps one protocol from begin to end.

**Partitions are added when used.** A partition is added when its first batch is about to be sent,
so never one that the partitioner merely considered (KAFKA-13782). Partitions that are needed at the
same time are added in one request.

**Prepared transactions.** A prepared transaction is flushed and left open: see `prepared.py`. It
uses the older protocol, in which its epoch still identifies it after it has ended.

**Sent but unacknowledged batches.** An abort drops batches that were never sent. Under the older
protocol it waits for the sent ones: a late one would become part of the next transaction, or remain
open for ever. If a batch is lost, so that later ones cannot be stored, the epoch is raised before
the next transaction begins (KIP-360).

Source: KIP-98, KIP-360, KIP-447, KIP-588, KIP-890;
`org.apache.kafka.clients.producer.internals.TransactionManager`.

Long because the calls, the sender's questions and all errors change one state.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trimtab.client.group_offsets import (
    ConsumerGroup,
    OffsetAndMetadata,
    checked_group,
    checked_offsets,
)
from trimtab.client.network.backoff import Backoff
from trimtab.client.network.connections import Connections
from trimtab.client.sender.identity import Identity
from trimtab.client.sender.prepared import PreparedTransaction, ProducerIdentity, checked_identity
from trimtab.client.sender.transaction_requests import MemberUnsupported, TransactionRequests
from trimtab.client.sender.transaction_state import (
    ABORT,
    BEGIN,
    COMMIT,
    INIT,
    PREPARE,
    RENAME,
    SEND,
    SEND_OFFSETS,
    State,
    TransactionLifecycle,
    explain,
    is_fatal_from_coordinator,
    is_fatal_to_produce,
)
from trimtab.kafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    TransactionError,
    Unavailable,
    UsageError,
)
from trimtab.kafka.records import NO_OFFSET, TopicPartition
from trimtab.kafka.wire.sentinels import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from trimtab.client.accumulator.queues_cy import Batch, PartitionQueue

logger = logging.getLogger("trimtab.client")

_OLDER_PRODUCE = 11
"""The newest version of Produce in the older protocol."""

_MARKER_WRITE_SECONDS = 0.003
"""Seconds that brokers usually need to write a transaction's markers, or as long as EndTxn took if
that is less. A producer that begins the next one earlier under `transaction.version` 2 has to wait
for 20 ms on Apache Kafka (KIP-890, `add.partitions.to.txn.retry.backoff.ms`)."""

_FORGOTTEN = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING})
_OPEN = frozenset({State.IN_TRANSACTION, State.PREPARING, State.COMMITTING})
_FAILED = frozenset({State.ABORTABLE_ERROR, State.ABORTING})


@dataclass(frozen=True, slots=True)
class TransactionOptions:
    """Times are in seconds.

    Attributes:
        transactional_id: names the producer across restarts (`transactional.id`).
        timeout: how long a transaction may be open before the coordinator aborts it
            (`transaction.timeout.ms`); None: for ever (`transaction.two.phase.commit.enable`).
        max_block: how long each call waits (`max.block.ms`).
    """

    transactional_id: str
    timeout: float | None
    max_block: float
    backoff: Backoff


class Outbox(Protocol):
    """The sender's methods that transactions call."""

    async def flush(self) -> None:
        """Send all waiting batches, and return when each is acknowledged or has failed."""

    def drop(self, which: Callable[[Batch], bool], error: KafkaError) -> int:
        """Fail the batches, not in flight, for which `which` is true."""


class _Pending(NamedTuple):
    call: str
    task: asyncio.Task[None]


class _OffsetCommit(NamedTuple):
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    group: ConsumerGroup
    task: asyncio.Task[None]


class TransactionManager(Identity):
    """The identity of a transactional producer: its transactions, and when a batch may be sent.

    The calls are those of `ProducerCalls`, which has their arguments and errors. `init`,
    `send_offsets`, `prepare`, `commit` and `abort` wait up to `max.block.ms`, then raise
    Unavailable while the work goes on: a second call waits for the outcome of the same work.

    Args:
        connections: to the coordinators.
        options: the id, and times.

    Attributes:
        outbox: the sender; set before the first call.
        on_refuse: called with the error that `send` has to raise from now on, or None, whenever it
            changes. It is `Accumulator.refuse`, which returns when no further record is appended,
            so that none is added once a commit or abort has begun. The code that sets it also calls
            it once.
        last_produce_version: the newest version of Produce for the current transaction; None for no
            limit.
    """

    is_transactional = True
    outbox: Outbox

    def __init__(
        self, connections: Connections, options: TransactionOptions, random: Random
    ) -> None:
        super().__init__(connections, options.backoff, random)
        self.on_refuse: Callable[[KafkaError | None], object] = lambda error: None
        self.last_produce_version: int | None = _OLDER_PRODUCE
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._lifecycle = TransactionLifecycle()
        self.transactional_id: str = options.transactional_id
        self._requests = TransactionRequests(
            connections, options.transactional_id, options.timeout, options.backoff, random
        )
        self._is_two_phase = False
        self._is_shared = False
        self._is_epoch_used = False  # by a transaction that has ended
        self._has_prepared = False  # a transaction in this epoch
        self._markers_written_at = -math.inf
        self._pending: _Pending | None = None
        self._offset_commits: list[_OffsetCommit] = []
        self._adding: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._forget_transaction()

    def _forget_transaction(self) -> None:
        self._added: set[PartitionQueue] = set()
        self._wanted: dict[PartitionQueue, None] = {}
        # Whether the coordinator may know of the transaction, and whether it certainly does.
        self._may_have_begun = False
        self._has_begun = False
        self._must_raise_epoch = False
        # Of another producer, whose epoch was another one.
        self._kept: PreparedTransaction | None = None

    # calls

    @property
    def state(self) -> State:
        return self._lifecycle.state

    def refusal(self) -> KafkaError | None:
        """The error that `send` has to raise now; None while it may accept records."""
        return self._lifecycle.refusal(SEND)

    async def init(
        self, after: ProducerIdentity | None = None, keep_prepared: bool = False
    ) -> ProducerIdentity:
        """Take over the transactional id (`ProducerCalls.init_transactions`)."""
        before = (
            ProducerIdentity(self.transactional_id, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            if after is None
            else self._checked_own(after)
        )
        await self._run_call(INIT, lambda: self._init(before, keep_prepared))
        return self._own

    @property
    def _own(self) -> ProducerIdentity:
        return ProducerIdentity(self.transactional_id, self.producer_id, self.producer_epoch)

    async def resume(self, identity: ProducerIdentity) -> None:
        """Use an identity that another process got from `init`.

        Sends no request: the coordinator refuses the first one if there is a newer producer.
        """
        numbers = self._checked_own(identity).numbers
        self._check(INIT)
        self._move(State.INITIALIZING)
        self.renew(*numbers)
        self._is_shared = True
        self._move(State.READY)

    def _checked_own(self, identity: ProducerIdentity) -> ProducerIdentity:
        checked_identity(identity)
        if identity.transactional_id != self.transactional_id:
            raise UsageError(
                f"the identity is that of {identity.transactional_id!r}, this producer's"
                f" transactional.id is {self.transactional_id!r}"
            )
        return identity

    def change_id(self, transactional_id: str) -> None:
        """Be what a new producer with this id is; what is prepared stays prepared."""
        self._check(RENAME)
        self.transactional_id = transactional_id
        self._requests.change_id(transactional_id)
        self._is_shared = self._is_epoch_used = self._has_prepared = False
        self._forget_transaction()
        self._move(State.UNINITIALIZED)

    async def begin(self, two_phase: bool = False) -> None:
        """Begin a transaction, which all records sent from now on belong to."""
        self._check(BEGIN)
        self._is_two_phase = two_phase or self._options.timeout is None
        in_version_2 = self._requests.supports_version_2 and not self._is_two_phase
        if self._is_epoch_used and (
            in_version_2
            or (self._requests.can_renew and (self._has_prepared or self._requests.may_be_late))
        ):
            await self._renew_epoch()
            self._check(BEGIN)
        self._requests.in_version_2 = in_version_2
        self.last_produce_version = None if self._requests.in_version_2 else _OLDER_PRODUCE
        self._move(State.IN_TRANSACTION)

    async def _renew_epoch(self) -> None:
        """Get a new epoch after a transaction of the older protocol.

        Otherwise a leader that has not yet written the last transaction's marker would add the next
        records to it. Adding partitions would wait for the marker, but version 2 does not do that.
        A request of the last transaction that arrives late would change the next one (KAFKA-17754).
        And who ends a prepared transaction once more would end the next one.
        """
        try:
            async with asyncio.timeout(self._options.max_block):
                self.renew(*await self._requests.init(self._own))
        except TimeoutError:
            raise Unavailable(
                f"{BEGIN}() has no new epoch after {self._options.max_block:g} s (max.block.ms);"
                " call it again"
            ) from None
        except KafkaError as error:
            self._fail(error, is_fatal=True)
            raise self._lifecycle.failure() from error
        self._is_epoch_used = self._has_prepared = False

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: ConsumerGroup | str,
    ) -> None:
        """Commit a consumer group's offsets as part of the transaction (KIP-447)."""
        self._check(SEND_OFFSETS)
        wanted = checked_offsets(offsets)
        member = checked_group(group)
        if not wanted:
            return
        commit = next((c for c in self._offset_commits if c[:2] == (wanted, member)), None)
        if commit is None:
            task = self._loop.create_task(self._send_offsets(wanted, member))
            commit = _OffsetCommit(wanted, member, task)
            self._offset_commits.append(commit)
        try:
            await self._wait_for(SEND_OFFSETS, commit.task)
        finally:
            if commit.task.done() and commit in self._offset_commits:
                self._offset_commits.remove(commit)

    async def prepare(self) -> PreparedTransaction:
        """Send the buffered records, then leave the end to `complete_transaction`."""
        if self.state is State.IN_TRANSACTION and not self._is_two_phase:
            raise UsageError(
                f"{PREPARE}(): the transaction was not begun for two phases; begin it with"
                " begin_transaction(two_phase=True)"
            )
        await self._run_call(PREPARE, self._prepare)
        return self._prepared()

    @property
    def prepared(self) -> PreparedTransaction | None:
        """What this producer has prepared, or kept, and not ended."""
        return self._prepared() if self.state is State.PREPARED else None

    def _prepared(self) -> PreparedTransaction:
        return self._kept or PreparedTransaction(*self._own, is_empty=not self._may_have_begun)

    async def commit(self) -> None:
        """Send the buffered records, and commit once all of them are acknowledged."""
        await self._run_call(COMMIT, self._commit)

    async def abort(self) -> None:
        """Drop the unsent records, and abort the transaction."""
        await self._run_call(ABORT, self._abort)

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open that only this producer can end."""
        return not self._is_shared and self.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR)

    async def finish(self) -> None:
        """Before closing: wait for a commit or abort that goes on, and abort the transaction if one
        is open; each for up to `max.block.ms`.

        Raises no error: the coordinator aborts an open transaction when the transactional id is
        taken over, or after `transaction.timeout.ms`.
        """
        pending = self._pending
        if pending is not None and pending.call != INIT:  # nothing would come of that
            await asyncio.wait([pending.task], timeout=self._options.max_block)
            if pending.task.done():
                self._pending = None
            else:
                logger.warning(
                    "closed before the outcome of %s() was known: %s",
                    *(pending.call, self._trouble()),
                )
        if self.is_open:
            try:
                await self.abort()
            except KafkaError as error:
                logger.warning("closed with an open transaction: %s", error)

    async def close(self) -> None:
        tasks = [commit.task for commit in self._offset_commits]
        if self._pending is not None:
            tasks.append(self._pending.task)
        if self._adding is not None:
            tasks.append(self._adding)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().close()

    # for the sender

    def is_ready(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID and self.state is not State.FATAL_ERROR

    def may_send(self, queue: PartitionQueue) -> bool:
        if not super().may_send(queue):
            return False
        if self.state in _OPEN:
            if queue in self._added:
                return True
            if self._requests.in_version_2:
                if not self._may_have_begun and self._loop.time() < self._markers_written_at:
                    self._loop.call_at(self._markers_written_at, self.wake)
                    return False
                self._added.add(queue)
                return True
            self._wanted[queue] = None
            if self._adding is None or self._adding.cancelled():
                # A task begins after the sender has looked at every queue.
                self._adding = self._loop.create_task(self._add_wanted_partitions())
            return False
        if self.state in _FAILED:
            if not self._is_to_be_dropped(queue.batches[0]):
                return True
            self._loop.call_soon(self._drop)
        return False

    def number(self, batch: Batch) -> tuple[int, int, int]:
        self._may_have_begun = True
        return super().number(batch)

    def settled(self, batch: Batch, error: KafkaError | None) -> None:
        super().settled(batch, error)
        if error is None:
            self._has_begun = True
        elif is_fatal_to_produce(error):
            self._fail(error, is_fatal=True)
        elif self.state in _OPEN:
            self._fail(error)

    def refused(
        self, batch: Batch, code: ErrorCode | None, log_start_offset: int = NO_OFFSET
    ) -> bool | None:
        if self.state is State.FATAL_ERROR or (
            self.state in _FAILED and self._is_to_be_dropped(batch)
        ):
            return False
        if super().refused(batch, code, log_start_offset):
            # An idempotent producer would restart the partition's sequence, unless an earlier batch
            # has to be stored first. A transaction has to be repeated as a whole instead.
            sequence = self._sequences[batch.queue]
            if sequence.must_restart:
                sequence.must_restart = False
                return False
            return True
        return None

    def lost(self, batch: Batch) -> None:
        if batch.base_sequence >= 0:
            # Later batches of its partition cannot be stored.
            self._must_raise_epoch = True

    def recreated(self, queue: PartitionQueue) -> None:
        if self.state in _OPEN and queue in self._added:
            self._must_raise_epoch = True
            self._fail(
                Unavailable(
                    f"{queue} was deleted and created again: this transaction's records in it are"
                    " lost"
                )
            )

    def _is_to_be_dropped(self, batch: Batch) -> bool:
        """Whether this waiting batch of a failed transaction is dropped at once."""
        return self._requests.in_version_2 or batch.base_sequence < 0

    def _drop(self) -> None:
        if self.state in _FAILED:
            self.outbox.drop(
                self._is_to_be_dropped,
                TransactionError("not sent, as its transaction is aborted; repeat the transaction"),
            )

    # states

    def _check(self, call: str) -> None:
        pending = self._pending
        if pending is not None and self._lifecycle.cause is None:
            raise UsageError(
                f"{call}(): the outcome of {pending.call}() is not known yet; call {pending.call}()"
                " again to wait for it"
            )
        self._lifecycle.check(call)

    def _move(self, state: State, cause: KafkaError | None = None) -> None:
        self._lifecycle.move(state, cause)
        self.on_refuse(self.refusal())

    def _fail(self, cause: KafkaError, is_fatal: bool = False) -> None:
        """The transaction, or the producer, has failed: nothing more is sent."""
        if self.state is State.FATAL_ERROR:
            return
        if isinstance(cause, BrokerError) and cause.code in _FORGOTTEN:
            self._must_raise_epoch = True
        if is_fatal:
            self._move(State.FATAL_ERROR, explain(cause))
            failure = self._lifecycle.failure()
            logger.error("%s", failure)
            self._loop.call_soon(self.fail, failure)
        elif self.state in _OPEN:
            self._move(State.ABORTABLE_ERROR, explain(cause))
            logger.info("%s: the transaction failed: %s", self._requests, cause)
            self._loop.call_soon(self._drop)
        if self._flushing is not None:
            self._flushing.cancel()

    # the work of the calls

    async def _run_call(self, call: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do a call's work, or wait for it if an earlier call has begun it."""
        pending = self._pending
        if pending is None or pending.call != call:
            self._check(call)
            pending = self._pending = _Pending(call, self._loop.create_task(work()))
        try:
            await self._wait_for(call, pending.task)
        finally:
            if pending.task.done() and self._pending is pending:
                self._pending = None

    async def _wait_for(self, call: str, task: asyncio.Task[None]) -> None:
        # `wait` does not cancel the task: the work goes on if the caller stops waiting. The
        # callback reads the error, so that asyncio does not report it; the state keeps it.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait([task], timeout=self._options.max_block)
        if not done:
            raise Unavailable(
                f"{call}() is not done after {self._options.max_block:g} s (max.block.ms):"
                f" {self._trouble()}; it goes on, call it again to wait for it"
            )
        if task.cancelled():
            raise Unavailable(f"{call}(): the producer was closed meanwhile")
        task.result()

    def _trouble(self) -> str:
        """Why a call takes long."""
        return "; ".join(self._requests.troubles) or "records are not acknowledged yet"

    async def _init(self, before: ProducerIdentity, keep_prepared: bool) -> None:
        self._move(State.INITIALIZING)
        try:
            if keep_prepared:
                numbers, self._kept = await self._requests.take_over(before)
            else:
                numbers = await self._requests.init(before)
        except KafkaError as error:
            self._move(State.UNINITIALIZED)
            raise explain(error) from error
        self.renew(*numbers)
        if self._kept is not None:
            self._may_have_begun = self._has_begun = self._has_prepared = True
            self._requests.in_version_2 = False
        self._move(State.READY if self._kept is None else State.PREPARED)

    async def _prepare(self) -> None:
        self._move(State.PREPARING)
        await self._wait_for_answers(State.PREPARING)
        self._has_prepared = True
        self._move(State.PREPARED)

    async def _commit(self) -> None:
        self._move(State.COMMITTING)
        await self._wait_for_answers(State.COMMITTING)
        if self._may_have_begun:
            try:
                await self._end(commits=True)
            except KafkaError as error:
                self._fail(error, is_fatal_from_coordinator(error))
                raise self._lifecycle.failure() from error
        self._forget_transaction()
        self._move(State.READY)

    async def _abort(self) -> None:
        cause = self._lifecycle.cause
        self._move(State.ABORTING)
        self._drop()
        if self._adding is not None:
            await asyncio.wait([self._adding])
        await self._finish_offset_commits()
        await self._flush()
        self._check_state(State.ABORTING)
        try:
            # A coordinator that has expired the producer refuses to end its transaction.
            is_forgotten = (
                isinstance(cause, BrokerError)
                and cause.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            )
            if self._may_have_begun and not is_forgotten:
                await self._end(commits=False)
            if self._must_raise_epoch:
                self.renew(*await self._requests.init(self._own))
        except KafkaError as error:
            self._fail(error, is_fatal=True)
            raise self._lifecycle.failure() from error
        self._forget_transaction()
        self._move(State.READY)

    async def _wait_for_answers(self, state: State) -> None:
        """Wait until all batches and offsets of the transaction are answered.

        Raises TransactionError if the state is then another one.
        """
        await self._flush()
        await self._finish_offset_commits()
        self._check_state(state)

    async def _flush(self) -> None:
        """Wait until every batch is acknowledged or has failed, or the transaction has failed."""
        self._flushing = self._loop.create_task(self.outbox.flush())
        try:
            await asyncio.wait([self._flushing])
            if not self._flushing.cancelled():
                self._flushing.result()
        finally:
            self._flushing.cancel()
            self._flushing = None

    async def _finish_offset_commits(self) -> None:
        """Wait for offset commits in flight: a caller may have stopped waiting for them."""
        commits, self._offset_commits = self._offset_commits, []
        if commits:
            await asyncio.wait([commit.task for commit in commits])

    def _check_state(self, state: State) -> None:
        if self.state is not state:
            raise self._lifecycle.failure()

    def _check_open(self) -> None:
        """Raise if the transaction is no longer open; called between attempts to add to it."""
        if self.state not in _OPEN:
            raise self._ended()

    def _ended(self) -> TransactionError:
        if self._lifecycle.cause is not None:
            return self._lifecycle.failure()
        return TransactionError(f"the transaction was ended meanwhile, with {ABORT}()")

    async def _end(self, *, commits: bool) -> None:
        begun_s = self._loop.time()
        try:
            response = await self._requests.end_transaction(self._own, commits)
        except BrokerError as error:
            if commits:
                raise
            if error.code is ErrorCode.INVALID_TXN_STATE and not self._has_begun:
                return  # no request that begins the transaction reached the coordinator
            if error.code in _FORGOTTEN:
                self._must_raise_epoch = True
                return
            raise
        ended_s = self._loop.time()
        self._markers_written_at = ended_s + min(ended_s - begun_s, _MARKER_WRITE_SECONDS)
        self._is_epoch_used = not self._requests.in_version_2
        if response.producer_id != NO_PRODUCER_ID:
            self.renew(response.producer_id, response.producer_epoch)
            self._must_raise_epoch = False

    # adding partitions and offsets to the transaction

    async def _add_wanted_partitions(self) -> None:
        """Add the partitions whose first batch waits, until there are none left."""
        try:
            while self._wanted and self.state in _OPEN:
                asked = list(self._wanted)
                self._may_have_begun = True
                await self._requests.add_partitions(
                    self._own, [(queue.topic, queue.partition) for queue in asked], self._check_open
                )
                self._has_begun = True
                for queue in asked:
                    self._added.add(queue)
                    self._wanted.pop(queue, None)
                self.wake()
        except TransactionError:
            return  # it has failed or ended meanwhile, and its batches are dropped
        except Exception as error:
            cause = error if isinstance(error, KafkaError) else KafkaError(repr(error))
            self._fail(cause, is_fatal_from_coordinator(cause))
            if cause is not error:
                raise
        finally:
            self._adding = None

    async def _send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroup
    ) -> None:
        self._may_have_begun = True
        try:
            if not self._requests.in_version_2:
                await self._requests.add_group(self._own, group, self._check_open)
                self._has_begun = True
            await self._requests.commit_offsets(self._own, offsets, group, self._check_open)
            self._has_begun = True
        except TransactionError:
            raise
        except KafkaError as error:
            # Not fatal: without naming the member the offsets can still be committed.
            is_unsupported = isinstance(error, MemberUnsupported)
            self._fail(error, is_fatal_from_coordinator(error) and not is_unsupported)
            raise self._ended() from error
