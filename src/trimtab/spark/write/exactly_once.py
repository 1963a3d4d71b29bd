"""Exactly once: tasks prepare, the driver decides, and everything is ended by that decision.

    driver    begin ─▶ take over ─▶ finish what was decided ─▶ abort orphans ─▶ a `Try` for tasks
    task      assign ─▶ init or claim ─▶ send ─▶ prepare ─▶ a receipt; EndTxn is left to the driver
    driver    commit ─▶ write the decision ─▶ commit every transaction ─▶ write that it is done
                              ▲ its EndTxn is the moment when the batch counts as written

Decides, and asks a `Ledger` for whatever concerns the cluster; `ledger.py` is one.

**Why nothing is doubled.** The driver has a transactional id of its own, and takes it over before
each try of a batch; the decision is written under that epoch. So of several tries, also of drivers
that are taken for dead and live on, only the last can decide. A batch that is decided is not
written again: the decision holds its number, and tasks compare.

**Why nothing is lost.** A decision names every prepared transaction by its id, producer id and
epoch. To commit them again does no harm, so the next driver after a crash does it. Until that is
noted down as done nobody takes one of these ids over; with `Enable2Pc` nothing else aborts them.

**Which id.** A run of a task must never use an id that another one may still use: taking it over
would abort what is prepared. So a run has an id of its own, named after the driver's epoch and the
task's attempt; but brokers remember each id and its producer for days. So the ids that a decision
names, whose runs have ended, serve the next try, and only that one: the driver's epoch tells. A
second attempt, which may run beside the first, never gets one of them.

**The first task** writes in the driver's own transaction, to which the decision is added. So a
batch of one task is one transaction, data and decision, all or none. The run that stores the first
claim under the driver's epoch has it; another one reads that it is not its own, and uses its id.

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
from trimtab.errors import BrokerError, ErrorCode, KafkaError, Unavailable, UsageError

logger = logging.getLogger(__name__)

_WARN_AT = 0.5
_TOO_LATE_AT = 0.9
"""Shares of the time that transactions last: from here the driver warns, decides no more."""


def reached(point: str) -> None:
    """Called at every step that a crash may fall on; a test puts something else here."""


class Status(Enum):
    """How far a decision is carried out."""

    DECIDED = "decided"
    """Its transactions are to be committed."""
    DONE = "done"
    """They are, and nobody uses their ids."""


class Decision(NamedTuple):
    """That a batch counts as written.

    Attributes:
        query_id: Spark's, of the stream; it is another one for each checkpoint.
        driver: under whose epoch it was written.
        transactions: those to be committed with it, besides the one that it lies in.
        spare: ids that the try could have handed out besides, and did not.
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
    def from_json(cls, text: str | bytes) -> Decision:
        """Raises UsageError if it is none of this version."""
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
                f"the decision topic holds {text[:100]!r}, which is no decision of this version of"
                f" trimtab ({error}): give the sink a decision topic of its own (decisionTopic)"
            ) from error


class Remedy(NamedTuple):
    """What the user wants done about a batch part of which is lost."""

    action: str
    """`skip` or `rewrite`."""
    batch_id: int


@dataclass(frozen=True)
class Plan:
    """What does not change from batch to batch.

    Attributes:
        timeout: seconds that a transaction lasts; None: until it is ended (`Enable2Pc`).
    """

    sink_id: str
    timeout: float | None
    remedy: Remedy | None = None

    @property
    def prefix(self) -> str:
        """Of all transactional ids of this sink."""
        return f"{self.sink_id}/"

    @property
    def driver_id(self) -> str:
        return f"{self.prefix}driver"


class Try(NamedTuple):
    """One try of one batch, as its tasks get it.

    Attributes:
        decided: query and number of the batch that was decided last.
        ids: transactional ids that nobody else uses, for the tasks from the second on.
        began_at: the driver's clock, seconds since the Unix epoch.
    """

    plan: Plan
    driver: ProducerIdentity
    decided: tuple[str, int] | None
    ids: tuple[str, ...]
    began_at: float


class Run(NamedTuple):
    """One run of one task: who it is to Spark."""

    query_id: str
    batch_id: int
    slot: int
    attempt: int
    task_attempt_id: int


class Receipt(NamedTuple):
    """What a run leaves for the driver; `receipt` makes one.

    Attributes:
        attempted: with `ids` in the first task's alone: there are as many as tasks.
        prepared: None if it had nothing to write.
        is_repeated: the batch was decided before, so nothing was written.
    """

    attempted: Try
    run: Run
    prepared: PreparedTransaction | None
    is_repeated: bool = False


class Decider(Protocol):
    """Writes decisions under one epoch of the driver."""

    @property
    def identity(self) -> ProducerIdentity: ...

    def write(self, decision: Decision) -> None:
        """In a transaction, together with what the epoch's transaction holds already."""


class Ledger(Protocol):
    """What the protocol asks of the cluster for one sink. Raises KafkaError where it cannot."""

    def take_over(self, after: ProducerIdentity | None = None) -> ProducerIdentity:
        """A new epoch for the driver, from that one alone if it is given; what the one before had
        open is aborted by then."""

    def last_decision(self) -> Decision | None:
        """Asked by who has taken over: then no decision is under way."""

    def complete(
        self, prepared: Sequence[PreparedTransaction], commit: bool
    ) -> list[BrokerError | None]:
        """End them; why one could not be, as it is not open any more, or None."""

    def gone(self, prepared: Sequence[PreparedTransaction]) -> list[PreparedTransaction]:
        """Those of them that are not open any more."""

    def open_ids(self) -> Sequence[str]:
        """The ids under the sink's prefix that have a transaction open."""

    def fence(self, transactional_ids: Sequence[str]) -> None:
        """Take these over: what is open is aborted."""

    def deciding(self, identity: ProducerIdentity) -> AbstractContextManager[Decider]:
        """Go on under that epoch."""


class BatchLost(KafkaError):
    """A batch was decided, and some of its transactions were aborted before they were committed."""


class BatchLate(KafkaError):
    """A batch took longer than its transactions last; nothing of it counts as written."""


# the driver, before the tasks


def begin(ledger: Ledger, plan: Plan, now: float) -> Try:
    """Take over from every earlier try, finish what was decided, and clear away the rest.

    Raises:
        BatchLost: a decided batch cannot be committed as a whole; says what can be done.
    """
    driver = ledger.take_over()
    reached("took over")
    decision = ledger.last_decision()
    if decision is not None and decision.status is Status.DECIDED:
        decision = _recover(ledger, plan, decision, driver)
        reached("recovered")
        # Who writes under an epoch twice counts its records from the start again.
        driver = ledger.take_over()
    # Of this epoch there is none yet.
    _abort_orphans(ledger, plan, driver)
    return Try(
        plan,
        driver,
        None if decision is None else (decision.query_id, decision.batch_id),
        _free_ids(decision, driver),
        now,
    )


def _recover(ledger: Ledger, plan: Plan, decision: Decision, driver: ProducerIdentity) -> Decision:
    outcomes = ledger.complete(decision.transactions, True)
    lost = [error for error in outcomes if error is not None]
    batch = decision.batch_id
    recovered = decision._replace(driver=driver, status=Status.DONE)
    if lost:
        remedy = plan.remedy
        if remedy is None or remedy.batch_id != batch:
            raise BatchLost(
                f"sink {plan.sink_id}: batch {batch} was decided, but the coordinator has aborted"
                f" {len(lost)} of its {len(decision.transactions)} transactions, as nobody came to"
                f" commit them within {_lasts(plan)} ({lost[0]}). The others are written. Choose:"
                f" .option('recoverBatch', 'skip:{batch}') goes on without the records that are"
                f" missing; 'rewrite:{batch}' writes the whole batch again, so that the others are"
                " there twice. To be safe from this, raise kafka.transaction.timeout.ms, or use"
                " kafka.transaction.two.phase.commit.enable=true where the brokers allow it"
            )
        logger.warning("sink %s: batch %d: %s", plan.sink_id, batch, remedy.action)
        if remedy.action == "rewrite":
            recovered = recovered._replace(batch_id=batch - 1)
    else:
        logger.info("sink %s: batch %d, decided before, is committed", plan.sink_id, batch)
    with ledger.deciding(driver) as decider:
        decider.write(recovered)
    return recovered


def _abort_orphans(
    ledger: Ledger, plan: Plan, driver: ProducerIdentity, kept: Collection[str] = ()
) -> None:
    """Abort what this try and those before it have open: readers wait behind it.

    Another driver may have taken over meanwhile, and decided: its ids have later epochs in them. Of
    the earlier ids it has those alone that the last decision hands on.

    Args:
        driver: of the last of these tries.
        kept: ids that a decision of that try names.
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


def _free_ids(decision: Decision | None, driver: ProducerIdentity) -> tuple[str, ...]:
    """The ids of the last decision, if no try since can have handed them out."""
    if decision is None or decision.status is not Status.DONE:
        return ()
    if driver != decision.driver._replace(epoch=decision.driver.epoch + 1):
        return ()
    return _handed_on(decision)


def _handed_on(decision: Decision) -> tuple[str, ...]:
    """The ids for the next try, once the decision is carried out."""
    return (*(each.transactional_id for each in decision.transactions), *decision.spare)


# a task


class Identity(NamedTuple):
    """Under which id a run writes.

    Attributes:
        claims: take this epoch of the driver's if no other run has; else `transactional_id`.
    """

    transactional_id: str
    claims: ProducerIdentity | None = None


def assign(attempted: Try, run: Run) -> Identity | None:
    """The identity for a run; None if its batch is written already.

    Raises:
        UsageError: Spark asks for a batch that is older than the last one decided.
    """
    plan = attempted.plan
    if attempted.decided is not None and attempted.decided[0] == run.query_id:
        last = attempted.decided[1]
        if run.batch_id == last:
            return None
        if run.batch_id < last:
            raise UsageError(
                f"sink {plan.sink_id} has written batch {last}, and now comes batch {run.batch_id}:"
                " the checkpoint was set back, or batchId. Nobody knows which of its records are"
                " there: give the sink another sinkId, which writes them all, or a later batch"
            )
    _, producer_id, epoch = attempted.driver
    own = f"{plan.prefix}{producer_id}.{epoch}/{run.task_attempt_id}"
    if run.attempt > 0:
        return Identity(own)
    if run.slot == 0:
        return Identity(own, claims=attempted.driver)
    if run.slot <= len(attempted.ids):
        return Identity(attempted.ids[run.slot - 1])
    return Identity(own)


def receipt(
    attempted: Try, run: Run, prepared: PreparedTransaction | None, is_repeated: bool = False
) -> Receipt:
    kept = attempted if run.slot == 0 else attempted._replace(ids=())
    return Receipt(kept, run, prepared, is_repeated)


# the driver, after the tasks


def commit(ledger: Ledger, receipts: Sequence[Receipt], now: float) -> None:
    """Decide that a batch counts as written, and commit its transactions.

    Raises:
        BatchLate: it took too long; nothing is decided, and the batch can be repeated.
        BatchLost: transactions were aborted in the moment after the decision.
        KafkaError: the cluster could not be asked. What was decided the next `begin` finishes, what
            was not it aborts.
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
            " has the same sinkId. Nothing of the batch counts as written: it can be repeated"
        )
    reached("checked")
    others = tuple(each for each in prepared if each.transactional_id != driver.transactional_id)
    if len(others) == len(prepared):
        # A run of the first task that failed may have written under the driver's epoch.
        driver = ledger.take_over(after=driver)
    ids = next((each.attempted.ids for each in receipts if each.run.slot == 0), ())
    # From the second task on each had one.
    spare = ids[len(receipts) - 1 :]
    decision = Decision(run.query_id, run.batch_id, driver, others, Status.DECIDED, spare)
    if not others:
        decision = decision._replace(status=Status.DONE)
    reached("decides")
    _carry_out(ledger, plan, decision, name)
    try:
        # Of attempts that failed, or came second: the next try may be long in coming.
        _abort_orphans(ledger, plan, attempted.driver, _handed_on(decision))
    except (BrokerError, Unavailable) as error:
        logger.warning("%s is written; open transactions are left to the next: %s", name, error)


def _carry_out(ledger: Ledger, plan: Plan, decision: Decision, name: str) -> None:
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
                f"{name}: {len(lost)} of {len(others)} transactions were aborted when they were to"
                f" be committed: {lost[0]}. Start the query again: it says what can be done"
            )
        decider.write(decision._replace(status=Status.DONE))
        reached("done")


def abort(ledger: Ledger, receipts: Sequence[Receipt]) -> None:
    """Abort what a failed try has prepared, unless it has decided.

    What is not done here the next `begin` does; until then readers of committed records wait.
    """
    prepared = _prepared(receipts)
    if not prepared:
        return
    attempted, run = receipts[0].attempted, receipts[0].run
    try:
        # From here on it cannot decide any more, so that what it has decided is known.
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
            "sink %s: transactions of batch %d are left to the next try: %s",
            attempted.plan.sink_id,
            run.batch_id,
            error,
        )


def _prepared(receipts: Sequence[Receipt]) -> tuple[PreparedTransaction, ...]:
    tries = {receipt.attempted.driver for receipt in receipts}
    batches = {receipt.run[:2] for receipt in receipts}
    if len(tries) > 1 or len(batches) > 1 or len({each.is_repeated for each in receipts}) > 1:
        raise RuntimeError(f"receipts of several tries: {sorted(tries)}, {sorted(batches)}")
    found = (receipt.prepared for receipt in receipts)
    return tuple(each for each in found if each is not None and not each.is_empty)


def _check_time(plan: Plan, name: str, took: float) -> None:
    if plan.timeout is None or took < _WARN_AT * plan.timeout:
        return
    advice = (
        "raise kafka.transaction.timeout.ms (up to the brokers' transaction.max.timeout.ms), make"
        " batches smaller, or use kafka.transaction.two.phase.commit.enable=true where the brokers"
        " allow it"
    )
    if took >= _TOO_LATE_AT * plan.timeout:
        raise BatchLate(
            f"{name} took {took:.0f} s until its tasks were done, and its transactions last"
            f" {_lasts(plan)}: there is no time left to commit them all. Nothing of the batch"
            f" counts as written, and it would go the same way again: {advice}"
        )
    logger.warning(
        "%s took %.0f s, more than half of the time that its transactions last (%s): past that it"
        " cannot be committed; %s",
        name,
        took,
        _lasts(plan),
        advice,
    )


def _lasts(plan: Plan) -> str:
    return (
        "the time without limit that they have"
        if plan.timeout is None
        else f"{plan.timeout:g} s (transaction.timeout.ms)"
    )
