"""`delivery=exactly_once`: what tasks and driver of a write do, by `exactly_once.py`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from trimtab.errors import UsageError
from trimtab.runtime.clock import wall_clock
from trimtab.spark.options.sink import SinkOptions
from trimtab.spark.resident import Residents
from trimtab.spark.write import exactly_once as protocol
from trimtab.spark.write.exactly_once import Identity, Plan, Receipt, Remedy, Run, Try
from trimtab.spark.write.sink import Counts, Guarantee, TaskRows

if TYPE_CHECKING:
    from trimtab.client.producer import Producer
    from trimtab.client.sender.prepared import PreparedTransaction
    from trimtab.spark.write.ledger import KafkaLedger

TIMEOUT_MS = 900_000
"""How long transactions last unless the user says so: as long as brokers allow by default. A query
that is started again within that time after a crash loses nothing."""

_CLOSE_SECONDS = 5.0
_TIMEOUT = "transaction.timeout.ms"
_TWO_PHASE = "transaction.two.phase.commit.enable"
_BATCH = ""
"""The query of a write that is none of a stream's."""


@dataclass
class Prepared(WriterCommitMessage):
    """What a task wrote, none of it visible yet."""

    receipt: Receipt
    counts: Counts


class ExactlyOnce(Guarantee):
    """Every row is there once, for readers of committed records, whichever process fails.

    Args:
        is_stream: whether Spark numbers the batches; else the option `batchId` does.

    Raises:
        UsageError: what is asked for cannot be exact; says what to change.
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
                " out, or name another one"
            )
        self._attempted: Try | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickled for the tasks: the last moment before any of them begins."""
        if self._attempted is None:
            self._attempted = protocol.begin(self._ledger(), self._plan, wall_clock())
        return self.__dict__

    def write(self, rows: TaskRows) -> Prepared:
        attempted, run = self._attempted, self._run()
        assert attempted is not None, "it was pickled"
        identity = protocol.assign(attempted, run)
        if identity is None:
            rows.pass_over()
            return Prepared(protocol.receipt(attempted, run, None, is_repeated=True), {})
        if rows.is_empty:
            return Prepared(protocol.receipt(attempted, run, None), {})
        protocol.reached("task begins")
        prepared, counts = self._send(identity, run, rows)
        return Prepared(protocol.receipt(attempted, run, prepared), counts)

    def _send(
        self, identity: Identity, run: Run, rows: TaskRows
    ) -> tuple[PreparedTransaction, Counts]:
        """In a transaction of its own."""
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

    def _run(self) -> Run:
        context = TaskContext.get()
        assert context is not None, "in a task"
        query, batch = _BATCH, self._batch_id
        if self._is_stream:
            query = context.getLocalProperty("sql.streaming.queryId") or ""
            batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
            if not query or batch < 0:
                raise UsageError(
                    "Spark does not say which query and batch this task belongs to; is it the"
                    " micro-batch of a stream (trigger ProcessingTime, AvailableNow or Once)?"
                )
        return Run(
            query,
            batch,
            context.partitionId(),
            context.attemptNumber(),
            context.taskAttemptId(),
        )

    @contextmanager
    def _producer(self, transactional_id: str) -> Iterator[Producer]:
        """A producer with that id, and no identity yet. One that has prepared serves the next
        task, whichever id that has."""
        from trimtab.client.producer import Producer

        client = {**self._options.client_here(), **self._client}
        with _producers.borrow(
            frozenset(client.items()),
            lambda: Producer({**client, "transactional.id": transactional_id}),
        ) as producer:
            producer.change_transactional_id(transactional_id)
            yield producer

    def _ledger(self) -> KafkaLedger:
        from trimtab.spark.write.ledger import KafkaLedger

        return KafkaLedger(self._plan, self._client, self._topic)


class _ClaimedByAnother(Exception):
    """Another run of the first task writes in the driver's transaction."""


def _send_prepared(rows: TaskRows, producer: Producer) -> tuple[PreparedTransaction, Counts]:
    protocol.reached("task has begun")
    counts = rows.send_to(producer)
    protocol.reached("task has sent")
    prepared = producer.prepare_transaction()
    protocol.reached("task has prepared")
    return prepared, counts


def _close(producer: Producer) -> None:
    """Close one that nobody uses, or that failed: then its transaction is aborted, so that it holds
    nobody up."""
    producer.close(_CLOSE_SECONDS)


_producers: Residents[Producer] = Residents(_close)


def _receipts(messages: Sequence[WriterCommitMessage | None]) -> list[Receipt]:
    return [message.receipt for message in messages if isinstance(message, Prepared)]


def _read_sink_id(options: SinkOptions, is_stream: bool) -> str:
    """Raises UsageError where a batch that is repeated could not be known again."""
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
                " same, and batchId, a number that grows: a batch with the same number is not"
                " written again. In foreachBatch that is the number that Spark hands over"
            )
        return sink_id
    checkpoint = options.spark.get("checkpointlocation", "").strip()
    if not checkpoint:
        raise UsageError(
            "delivery=exactly_once needs the option checkpointLocation: a query without one begins"
            " again from the start when it is restarted, and writes everything twice"
        )
    if options.spark.get("asyncprogresstrackingenabled", "").strip().lower() == "true":
        raise UsageError(
            "delivery=exactly_once cannot be with asyncProgressTrackingEnabled=true: batches that"
            " are written may be repeated with other records; leave one of the two out"
        )
    if sink_id:
        return sink_id
    location = re.sub(r"^file:/*", "/", checkpoint).rstrip("/")
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:|/", location):
        raise UsageError(
            f"delivery=exactly_once: checkpointLocation={checkpoint!r} is a relative path, which"
            " other queries may have too; write the whole path, or give the option sinkId"
        )
    return hashlib.sha256(location.encode()).hexdigest()[:16]


def _read_batch_id(options: SinkOptions) -> int:
    text = options.exact.get("batchId", "")
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise UsageError(
            f"option batchId={text!r}: delivery=exactly_once of a batch needs a whole number that"
            " grows from batch to batch; in foreachBatch that is what Spark hands over"
        )
    return int(text)


def _read_remedy(text: str | None) -> Remedy | None:
    if text is None:
        return None
    found = re.fullmatch(r"(skip|rewrite):(\d{1,18})", text, re.ASCII)
    if found is None:
        raise UsageError(f"option recoverBatch={text!r}: write skip:17 or rewrite:17")
    return Remedy(found[1], int(found[2]))
