"""Exactly once: tasks prepare transactions; the driver decides, and commits or aborts them all.

    driver    begin ─▶ take over ─▶ carry out the last decision ─▶ abort orphans ─▶ `BatchAttempt`
    task      assign ─▶ init or claim ─▶ send ─▶ prepare ─▶ a receipt; EndTxn is left to the driver
    driver    commit ─▶ write the decision ─▶ commit every transaction ─▶ write that it is done
                              ▲ its EndTxn is the moment when the batch counts as written

This module decides; a `Ledger` sends the requests to the cluster (`ledger.py`).

**Why no row is written twice.** The driver has a separate transactional id, and takes it over
before each attempt to write a batch; the decision is written under that epoch. So only the latest
attempt can decide, even if an earlier driver was believed dead and still runs. A decided batch is
not written again: the decision has its number, and tasks compare it with theirs.

**Why no row is lost.** A decision names every prepared transaction by its id, producer id and
epoch. Committing a transaction twice does no harm, so the next driver after a crash commits them
all again. Until the decision is marked as done, no producer takes over one of these ids; with
`Enable2Pc` nothing else aborts the transactions.

**Which id.** A run of a task must never use a transactional id that another run may still use:
taking the id over would abort the prepared transaction. So a run gets a new id, named after the
driver's epoch and Spark's task attempt. But brokers remember each id and its producer for days, so
the ids that a decision names, whose runs have ended, are reused: by the next attempt to write a
batch, and only by that one, which the driver's epoch shows. The second run of a task, which may
run beside the first, always gets a new id.

**The first task** writes in the driver's transaction, to which the decision is added. So a batch of
one task is one transaction with data and decision. The run that stores the first claim under the
driver's epoch uses this transaction; every other run of that task reads a claim that differs from
its own, and uses its own id.

Source: KIP-98, KIP-360, KIP-939; `TransactionCoordinator`, `WriteToDataSourceV2Exec`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from trimtab.client.sender.prepared import PreparedTransaction, ProducerIdentity
from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError, Unavailable, UsageError

logger = logging.getLogger(__name__)

_WARN_AT = 0.5
_TOO_LATE_AT = 0.9
"""Shares of the transaction time-out after which the driver warns, and no longer decides."""


def reached(point: str) -> None:
    """Does nothing; called between any two steps, so that tests can replace it and crash there."""


class Status(Enum):
    """Whether a decision is carried out."""

    DECIDED = "decided"
    """Its transactions must still be committed."""
    DONE = "done"
    """Its transactions are committed, and no producer uses their ids."""


class CommitDecision(NamedTuple):
    """The record that a batch counts as written.

    Attributes:
        query_id: Spark's id of the streaming query; each checkpoint has a different one.
        driver: the driver's producer identity, under which the decision was written.
        transactions: the transactions to commit, without the driver's, which has the decision.
        spare: reusable transactional ids in excess of the batch's tasks.
    """

    query_id: str
    batch_id: int
    driver: ProducerIdentity
    transactions: tuple[PreparedTransaction, ...]
    status: Status
    spare: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": 1,
                "query": self.query_id,
                "batch": self.batch_id,
                "driver": self.driver,
                "transactions": [str(each) for each in self.transactions],
                "status": self.status.value,
                "spare": self.spare,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> CommitDecision:
        """Raises UsageError if the text is not a decision of version 1."""
        try:
            read = json.loads(text)
            if read["version"] != 1:
                raise ValueError(f"version {read['version']}")
            return cls(
                read["query"],
                read["batch"],
                ProducerIdentity(*read["driver"]),
                tuple(map(PreparedTransaction.parse, read["transactions"])),
                Status(read["status"]),
                tuple(read["spare"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"the decision topic has the record {text[:100]!r}, which is not a decision of"
                f" this version of trimtab ({error}): set the option decisionTopic to a topic that"
                " only this sink uses"
            ) from error


class Remedy(NamedTuple):
    """What to do about a batch that is partly lost: the option `recoverBatch`."""

    action: str
    """`skip` or `rewrite`."""
    batch_id: int


@dataclass(frozen=True)
class Plan:
    """The settings of a sink, the same for every batch.

    Attributes:
        timeout: seconds after which brokers abort a transaction; None for never (`Enable2Pc`).
    """

    sink_id: str
    timeout: float | None
    remedy: Remedy | None = None

    @property
    def prefix(self) -> str:
        """The prefix of all transactional ids of this sink."""
        return f"{self.sink_id}/"

    @property
    def driver_id(self) -> str:
        return f"{self.prefix}driver"


class BatchAttempt(NamedTuple):
    """One attempt to write a batch; every task of it gets a copy.

    Attributes:
        driver: the driver's producer identity; each attempt has a new epoch.
        decided: query id and number of the batch that was decided last.
        ids: transactional ids that no other run uses, for the second task and later ones.
        began_at: the driver's clock, seconds since the Unix epoch.
    """

    plan: Plan
    driver: ProducerIdentity
    decided: tuple[str, int] | None
    ids: tuple[str, ...]
    began_at: float


class TaskRun(NamedTuple):
    """One run of one task, as Spark identifies it.

    Attributes:
        slot: Spark's partition id: the task's index in the batch.
        attempt: Spark's attempt number, from 0.
        task_attempt_id: unique within the Spark application.
    """

    query_id: str
    batch_id: int
    slot: int
    attempt: int
    task_attempt_id: int


class Receipt(NamedTuple):
    """The message of a task's run to the driver; `receipt` makes one.

    Attributes:
        attempted: the attempt; only the first task's receipt keeps `ids`, as they may be many.
        prepared: the run's transaction; None if it had no rows to write.
        is_repeated: whether the batch was already decided, so that the run wrote nothing.
    """

    attempted: BatchAttempt
    run: TaskRun
    prepared: PreparedTransaction | None
    is_repeated: bool = False


class Decider(Protocol):
    """Writes decisions under one epoch of the driver."""

    @property
    def identity(self) -> ProducerIdentity: ...

    def write(self, decision: CommitDecision) -> None:
        """Add the decision to the epoch's open transaction, or begin one, and commit it."""


class Ledger(Protocol):
    """The protocol's requests to the cluster for one sink. Raises KafkaError if one fails."""

    def take_over(self, after: ProducerIdentity | None = None) -> ProducerIdentity:
        """Give the driver a new epoch, and abort the transaction that its old epoch had open.

        Args:
            after: fails unless this is the driver's current identity.
        """

    def last_decision(self) -> CommitDecision | None:
        """The latest decision. Call it after `take_over`, so that no driver is writing one."""

    def complete(
        self, prepared: Sequence[PreparedTransaction], commit: bool
    ) -> list[BrokerError | None]:
        """End these transactions.

        Returns, for each: None, or the error that says that it is no longer open.
        """

    def gone(self, prepared: Sequence[PreparedTransaction]) -> list[PreparedTransaction]:
        """The transactions among these that are no longer open."""

    def open_ids(self) -> Sequence[str]:
        """The sink's transactional ids that have an open transaction."""

    def fence(self, transactional_ids: Sequence[str]) -> None:
        """Take over these ids, which aborts their open transactions."""

    def deciding(self, identity: ProducerIdentity) -> AbstractContextManager[Decider]:
        """Yields a `Decider` that continues under this epoch."""


class BatchLost(KafkaError):
    """A batch was decided, but brokers aborted some of its transactions before the commit."""


class BatchLate(KafkaError):
    """A batch took longer than the transaction time-out; no row of it counts as written."""


# the driver, before the tasks


def begin(ledger: Ledger, plan: Plan, now: float) -> BatchAttempt:
    """Take over from every earlier attempt, carry out the last decision, abort all other
    transactions.

    Raises:
        BatchLost: a decided batch cannot be committed as a whole; the error lists the options.
    """
    driver = ledger.take_over()
    reached("took over")
    decision = ledger.last_decision()
    if decision is not None and decision.status is Status.DECIDED:
        decision = _recover(ledger, plan, decision, driver)
        reached("recovered")
        # A producer that resumes an epoch begins with sequence number 0, which `_recover` has used.
        driver = ledger.take_over()
    # No task has a transaction under the new epoch yet.
    _abort_orphans(ledger, plan, driver)
    return BatchAttempt(
        plan,
        driver,
        None if decision is None else (decision.query_id, decision.batch_id),
        _free_ids(decision, driver),
        now,
    )


def _recover(
    ledger: Ledger, plan: Plan, decision: CommitDecision, driver: ProducerIdentity
) -> CommitDecision:
    outcomes = ledger.complete(decision.transactions, True)
    lost = [error for error in outcomes if error is not None]
    batch = decision.batch_id
    recovered = decision._replace(driver=driver, status=Status.DONE)
    if lost:
        remedy = plan.remedy
        if remedy is None or remedy.batch_id != batch:
            raise BatchLost(
                f"sink {plan.sink_id}: batch {batch} was decided, but the coordinator has aborted"
                f" {len(lost)} of its {len(decision.transactions)} transactions, because they were"
                f" not committed within {_lasts(plan)} ({lost[0]}). The records of the others are"
                f" in the topic. Choose: .option('recoverBatch', 'skip:{batch}') continues without"
                f" the missing records; 'rewrite:{batch}' writes the whole batch again, which"
                " duplicates the records of the other transactions. To prevent this, raise"
                " kafka.transaction.timeout.ms, or set"
                " kafka.transaction.two.phase.commit.enable=true if the brokers allow it"
            )
        logger.warning("sink %s: applying recoverBatch=%s:%d", plan.sink_id, remedy.action, batch)
        if remedy.action == "rewrite":
            recovered = recovered._replace(batch_id=batch - 1)
    else:
        logger.info("sink %s: committed batch %d, which was decided before", plan.sink_id, batch)
    with ledger.deciding(driver) as decider:
        decider.write(recovered)
    return recovered


def _abort_orphans(
    ledger: Ledger, plan: Plan, driver: ProducerIdentity, kept: Collection[str] = ()
) -> None:
    """Abort the open transactions of this attempt and earlier ones: readers wait behind them.

    If another driver has taken over meanwhile and decided, its new ids contain later epochs. Of the
    earlier ids it uses only those that the last decision hands on.

    Args:
        driver: the driver's identity in this attempt.
        kept: ids that must not be aborted, because this attempt's decision names them.
    """
    own = re.compile(re.escape(plan.prefix) + r"(\d+)\.(\d+)/\d+", re.ASCII)
    found = [match for name in ledger.open_ids() if (match := own.fullmatch(name))]
    orphans = [
        match[0]
        for match in found
        if (int(match[1]), int(match[2])) <= driver.numbers and match[0] not in kept
    ]
    reached("found orphans")
    if orphans:
        ledger.fence(orphans)
        logger.info("sink %s: aborted %d open transactions", plan.sink_id, len(orphans))
    reached("aborted orphans")


def _free_ids(decision: CommitDecision | None, driver: ProducerIdentity) -> tuple[str, ...]:
    """The ids of the last decision, if no later attempt can have used them."""
    if decision is None or decision.status is not Status.DONE:
        return ()
    if driver != decision.driver._replace(epoch=decision.driver.epoch + 1):
        return ()
    return _handed_on(decision)


def _handed_on(decision: CommitDecision) -> tuple[str, ...]:
    """The ids for the next attempt, once the decision is carried out."""
    return (*(each.transactional_id for each in decision.transactions), *decision.spare)


# a task


class TaskIdentity(NamedTuple):
    """The transactional id of a task's run.

    Attributes:
        claims: write under this identity of the driver if no other run of the task does; else under
            `transactional_id`.
    """

    transactional_id: str
    claims: ProducerIdentity | None = None


def assign(attempted: BatchAttempt, run: TaskRun) -> TaskIdentity | None:
    """The identity for a run; None if its batch is already written.

    Raises:
        UsageError: the batch is older than the last decided one.
    """
    plan = attempted.plan
    if attempted.decided is not None and attempted.decided[0] == run.query_id:
        last = attempted.decided[1]
        if run.batch_id == last:
            return None
        if run.batch_id < last:
            raise UsageError(
                f"sink {plan.sink_id} has written batch {last}, and is now given batch"
                f" {run.batch_id}: the checkpoint or the option batchId was set back. Which records"
                " of that batch are in the topic is unknown: set a new sinkId to write all of them,"
                " or continue with a later batch"
            )
    _, producer_id, epoch = attempted.driver
    own = f"{plan.prefix}{producer_id}.{epoch}/{run.task_attempt_id}"
    if run.attempt > 0:
        return TaskIdentity(own)
    if run.slot == 0:
        return TaskIdentity(own, claims=attempted.driver)
    if run.slot <= len(attempted.ids):
        return TaskIdentity(attempted.ids[run.slot - 1])
    return TaskIdentity(own)


def receipt(
    attempted: BatchAttempt,
    run: TaskRun,
    prepared: PreparedTransaction | None,
    is_repeated: bool = False,
) -> Receipt:
    kept = attempted if run.slot == 0 else attempted._replace(ids=())
    return Receipt(kept, run, prepared, is_repeated)


# the driver, after the tasks


def commit(ledger: Ledger, receipts: Sequence[Receipt], now: float) -> None:
    """Decide that a batch counts as written, and commit its transactions.

    Raises:
        BatchLate: the batch took too long; nothing is decided, and it can be repeated.
        BatchLost: transactions were aborted between the decision and their commit.
        KafkaError: a request failed. The next `begin` commits the batch if it was decided, and
            aborts it if not.
    """
    prepared = _prepared(receipts)
    if not prepared:
        return
    attempted, run = receipts[0].attempted, receipts[0].run
    plan, driver = attempted.plan, attempted.driver
    name = f"sink {plan.sink_id}: batch {run.batch_id}"
    _check_time(plan, name, now - attempted.began_at)
    gone = ledger.gone(prepared)
    if gone:
        raise BatchLate(
            f"{name}: {len(gone)} of its {len(prepared)} transactions are not open any more, the"
            f" first is {gone[0]}: they were open for longer than {_lasts(plan)}, or another query"
            " uses the same sinkId. No row of the batch counts as written; it can be repeated"
        )
    reached("checked")
    others = tuple(each for each in prepared if each.transactional_id != driver.transactional_id)
    if len(others) == len(prepared):
        # A failed run of the first task may have written under the driver's epoch.
        driver = ledger.take_over(after=driver)
    ids = next((each.attempted.ids for each in receipts if each.run.slot == 0), ())
    # Every task but the first could use one.
    spare = ids[len(receipts) - 1 :]
    decision = CommitDecision(run.query_id, run.batch_id, driver, others, Status.DECIDED, spare)
    if not others:
        decision = decision._replace(status=Status.DONE)
    reached("decides")
    _carry_out(ledger, plan, decision, name)
    try:
        # Those of failed and second runs: not left to the next batch, which may be hours away.
        _abort_orphans(ledger, plan, attempted.driver, _handed_on(decision))
    except (BrokerError, Unavailable) as error:
        logger.warning(
            "%s is written; the next batch will abort transactions that are still open: %s",
            name,
            error,
        )


def _carry_out(ledger: Ledger, plan: Plan, decision: CommitDecision, name: str) -> None:
    others = decision.transactions
    with ledger.deciding(decision.driver) as decider:
        decider.write(decision)
        reached("decided")
        if not others:
            return
        lost = [error for error in ledger.complete(others, True) if error is not None]
        reached("committed")
        if lost:
            raise BatchLost(
                f"{name}: {len(lost)} of {len(others)} transactions were aborted before they could"
                f" be committed: {lost[0]}. Start the query again: its error lists the options"
            )
        decider.write(decision._replace(status=Status.DONE))
        reached("done")


def abort(ledger: Ledger, receipts: Sequence[Receipt]) -> None:
    """Abort the transactions of a failed attempt, unless it has written its decision.

    If this fails, the next `begin` aborts them; until then readers of committed records wait.
    """
    prepared = _prepared(receipts)
    if not prepared:
        return
    attempted, run = receipts[0].attempted, receipts[0].run
    try:
        # This fences the attempt's driver: its decision, if any, is already written.
        ledger.take_over(after=attempted.driver)
        reached("stopped")
        decision = ledger.last_decision()
        if decision is not None and (decision.query_id, decision.batch_id) == (
            run.query_id,
            run.batch_id,
        ):
            return
        _abort_orphans(ledger, attempted.plan, attempted.driver)
    except (BrokerError, Unavailable) as error:
        is_fenced = isinstance(error, BrokerError) and error.code is ErrorCode.PRODUCER_FENCED
        logger.log(
            logging.INFO if is_fenced else logging.WARNING,
            "sink %s: the next attempt will abort the transactions of batch %d: %s",
            attempted.plan.sink_id,
            run.batch_id,
            error,
        )


def _prepared(receipts: Sequence[Receipt]) -> tuple[PreparedTransaction, ...]:
    drivers = {receipt.attempted.driver for receipt in receipts}
    batches = {receipt.run[:2] for receipt in receipts}
    if len(drivers) > 1 or len(batches) > 1 or len({each.is_repeated for each in receipts}) > 1:
        raise RuntimeError(f"receipts of several attempts: {sorted(drivers)}, {sorted(batches)}")
    found = (receipt.prepared for receipt in receipts)
    return tuple(each for each in found if each is not None and not each.is_empty)


def _check_time(plan: Plan, name: str, took: float) -> None:
    if plan.timeout is None or took < _WARN_AT * plan.timeout:
        return
    advice = (
        "raise kafka.transaction.timeout.ms (up to the brokers' transaction.max.timeout.ms), make"
        " batches smaller, or set kafka.transaction.two.phase.commit.enable=true if the brokers"
        " allow it"
    )
    if took >= _TOO_LATE_AT * plan.timeout:
        raise BatchLate(
            f"{name} took {took:.0f} s until its tasks were done, but brokers abort transactions"
            f" after {_lasts(plan)}: too little time is left to commit them all. No row of the"
            f" batch counts as written, and repeating it would fail the same way: {advice}"
        )
    logger.warning(
        "%s took %.0f s, more than half of the time after which brokers abort its transactions: %s."
        " A batch that takes longer is not committed; %s",
        name,
        took,
        _lasts(plan),
        advice,
    )


def _lasts(plan: Plan) -> str:
    return (
        "their unlimited time"
        if plan.timeout is None
        else f"{plan.timeout:g} s (transaction.timeout.ms)"
    )
