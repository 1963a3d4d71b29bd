"""`delivery=exactly_once`: the tasks' and the driver's side of a write, by `exactly_once.py`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from trimtab.kafka.errors import UsageError
from trimtab.spark.options.sink import SinkOptions
from trimtab.spark.write import exactly_once as protocol
from trimtab.spark.write.exactly_once import (
    BatchAttempt,
    Plan,
    Receipt,
    Remedy,
    TaskIdentity,
    TaskRun,
)
from trimtab.spark.write.sink import Counts, Guarantee, TaskRows
from trimtab.threads.clock import wall_clock

if TYPE_CHECKING:
    from trimtab.client.blocking.producer import Producer
    from trimtab.client.sender.prepared import PreparedTransaction
    from trimtab.spark.write.ledger import KafkaLedger

TIMEOUT_MS = 900_000
"""The default `transaction.timeout.ms`: the longest that brokers allow by default. A query that is
started again within that time after a crash loses nothing."""

_TIMEOUT = "transaction.timeout.ms"
_TWO_PHASE = "transaction.two.phase.commit.enable"
_BATCH = ""
"""The query id of a write that belongs to no stream."""


@dataclass
class Prepared(WriterCommitMessage):
    """A task's message to the driver: what it wrote in a transaction that is not committed."""

    receipt: Receipt
    counts: Counts


class ExactlyOnce(Guarantee):
    """Readers of committed records see each row once, whichever process fails.

    Args:
        is_stream: whether Spark numbers the batches; if not, the option `batchId` has the number.

    Raises:
        UsageError: with these options a row could be lost or written twice; says what to change.
    """

    def __init__(self, options: SinkOptions, is_stream: bool) -> None:
        self._options = options
        self._is_stream = is_stream
        sink_id = _read_sink_id(options, is_stream)
        self._batch_id = -1 if is_stream else _read_batch_id(options)
        client = dict(options.client)
        is_endless = client.get(_TWO_PHASE, "false").strip().lower() == "true"
        if not is_endless:
            client.setdefault(_TIMEOUT, str(TIMEOUT_MS))
        self._client = client
        self._plan = Plan(
            sink_id,
            None if is_endless else int(client[_TIMEOUT]) / 1000,
            _read_remedy(options.exact.get("recoverBatch")),
        )
        self._topic = options.exact.get("decisionTopic") or f"trimtab-decisions-{sink_id}"
        if self._topic == options.topic:
            raise UsageError(
                f"decisionTopic={self._topic!r} is the topic that is written to: leave the option"
                " out, or name a different topic"
            )
        self._attempted: BatchAttempt | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Begin the attempt: Spark pickles the writer on the driver before any task starts."""
        if self._attempted is None:
            self._attempted = protocol.begin(self._ledger(), self._plan, wall_clock())
        return self.__dict__

    def write(self, rows: TaskRows) -> Prepared:
        attempted, run = self._attempted, self._run()
        assert attempted is not None, "it was pickled"
        identity = protocol.assign(attempted, run)
        if identity is None:
            rows.skip()
            return Prepared(protocol.receipt(attempted, run, None, is_repeated=True), {})
        if rows.is_empty:
            return Prepared(protocol.receipt(attempted, run, None), {})
        protocol.reached("task begins")
        prepared, counts = self._send(identity, run, rows)
        return Prepared(protocol.receipt(attempted, run, prepared), counts)

    def _send(
        self, identity: TaskIdentity, run: TaskRun, rows: TaskRows
    ) -> tuple[PreparedTransaction, Counts]:
        """Send the rows in one transaction, and prepare it."""
        from trimtab.spark.write.ledger import claim

        if identity.claims is not None:
            with suppress(_ClaimedByAnother), self._producer(self._plan.driver_id) as producer:
                producer.resume_transactions(identity.claims)
                producer.begin_transaction(two_phase=True)
                if not claim(producer, self._client, self._topic, b"%d" % run.task_attempt_id):
                    raise _ClaimedByAnother
                return _send_prepared(rows, producer)
        with self._producer(identity.transactional_id) as producer:
            producer.init_transactions()
            producer.begin_transaction(two_phase=True)
            return _send_prepared(rows, producer)

    def commit(self, messages: Sequence[WriterCommitMessage], batch_id: int | None) -> None:
        protocol.commit(self._ledger(), _receipts(messages), wall_clock())

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        protocol.abort(self._ledger(), _receipts(messages))

    def _run(self) -> TaskRun:
        context = TaskContext.get()
        assert context is not None, "in a task"
        query, batch = _BATCH, self._batch_id
        if self._is_stream:
            query = context.getLocalProperty("sql.streaming.queryId") or ""
            batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
            if not query or batch < 0:
                raise UsageError(
                    "Spark does not say which query and batch this task belongs to: exactly_once"
                    " needs a stream with micro-batches (trigger ProcessingTime, AvailableNow or"
                    " Once)"
                )
        return TaskRun(
            query,
            batch,
            context.partitionId(),
            context.attemptNumber(),
            context.taskAttemptId(),
        )

    def _producer(self, transactional_id: str) -> AbstractContextManager[Producer]:
        from trimtab.spark.write.ledger import borrow_producer

        return borrow_producer({**self._options.client_here(), **self._client}, transactional_id)

    def _ledger(self) -> KafkaLedger:
        from trimtab.spark.write.ledger import KafkaLedger

        return KafkaLedger(self._plan, self._client, self._topic)


class _ClaimedByAnother(Exception):
    """Another run of the first task uses the driver's transaction."""


def _send_prepared(rows: TaskRows, producer: Producer) -> tuple[PreparedTransaction, Counts]:
    protocol.reached("task has begun")
    counts = rows.send_to(producer)
    protocol.reached("task has sent")
    prepared = producer.prepare_transaction()
    protocol.reached("task has prepared")
    return prepared, counts


def _receipts(messages: Sequence[WriterCommitMessage | None]) -> list[Receipt]:
    return [message.receipt for message in messages if isinstance(message, Prepared)]


def _read_sink_id(options: SinkOptions, is_stream: bool) -> str:
    """Raises UsageError if a repeated batch could not be recognised."""
    sink_id = options.exact.get("sinkId", "")
    if sink_id and not re.fullmatch(r"[A-Za-z0-9._-]{1,180}", sink_id):
        raise UsageError(
            f"option sinkId={sink_id!r}: write at most 180 letters, digits, dots, dashes and"
            " underscores"
        )
    if not is_stream:
        if not sink_id:
            raise UsageError(
                "delivery=exactly_once of a batch needs the option sinkId, a name that stays the"
                " same, and the option batchId, a number that grows from batch to batch (in"
                " foreachBatch: Spark's batch id). A batch with the number of the last one is not"
                " written again"
            )
        return sink_id
    checkpoint = options.spark.get("checkpointlocation", "").strip()
    if not checkpoint:
        raise UsageError(
            "delivery=exactly_once needs the option checkpointLocation: without it, a query that is"
            " restarted begins from the start, and writes everything twice"
        )
    if options.spark.get("asyncprogresstrackingenabled", "").strip().lower() == "true":
        raise UsageError(
            "delivery=exactly_once does not work with asyncProgressTrackingEnabled=true, with which"
            " a batch may be repeated with other records: leave out one of the two"
        )
    if sink_id:
        return sink_id
    location = re.sub(r"^file:/*", "/", checkpoint).rstrip("/")
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:|/", location):
        raise UsageError(
            f"delivery=exactly_once: checkpointLocation={checkpoint!r} is a relative path, which"
            " other queries may use too: write the absolute path, or set the option sinkId"
        )
    return hashlib.sha256(location.encode()).hexdigest()[:16]


def _read_batch_id(options: SinkOptions) -> int:
    text = options.exact.get("batchId", "")
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise UsageError(
            f"option batchId={text!r}: delivery=exactly_once of a batch needs a whole number that"
            " grows from batch to batch; in foreachBatch, pass Spark's batch id"
        )
    return int(text)


def _read_remedy(text: str | None) -> Remedy | None:
    if text is None:
        return None
    found = re.fullmatch(r"(skip|rewrite):(\d{1,18})", text, re.ASCII)
    if found is None:
        raise UsageError(f"option recoverBatch={text!r}: write skip:17 or rewrite:17")
    return Remedy(found[1], int(found[2]))
