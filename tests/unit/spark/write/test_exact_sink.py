"""What `delivery=exactly_once` takes, and what cannot be exact (`exact_sink.py`, `ledger.py`)."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
from pyspark import TaskContext

from trimtab.client.blocking.admin import Admin
from trimtab.client.sender.prepared import PreparedTransaction, ProducerIdentity
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable, UsageError
from trimtab.spark.options.sink import read_sink_options
from trimtab.spark.resident import Residents
from trimtab.spark.write import ledger
from trimtab.spark.write.exact_sink import ExactlyOnce, Prepared
from trimtab.spark.write.exactly_once import BatchAttempt, CommitDecision, Plan, Status, TaskRun
from trimtab.spark.write.sink import TaskRows

STREAM: dict[str, Any] = {"checkpointLocation": "/data/checkpoint"}
BATCH: dict[str, Any] = {"sinkId": "flights", "batchId": "7"}


def make(is_stream: bool = True, **options: str) -> ExactlyOnce:
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "topic": "flights",
        "delivery": "exactly_once",
        **options,
    }
    return ExactlyOnce(read_sink_options(given), is_stream)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option checkpointLocation"),
        ({"sinkId": "flights"}, "needs the option checkpointLocation"),
        ({**STREAM, "asyncProgressTrackingEnabled": "true"}, "asyncProgressTrackingEnabled=true"),
        ({"checkpointLocation": "data/checkpoint"}, "is a relative path"),
        ({**STREAM, "sinkId": "a/b"}, "sinkId='a/b'"),
        ({**STREAM, "sinkId": "x" * 181}, "at most 180"),
        ({**STREAM, "recoverBatch": "skip"}, "write skip:17 or rewrite:17"),
        ({**STREAM, "recoverBatch": "skip:-1"}, "write skip:17"),
        ({**STREAM, "decisionTopic": "flights"}, "is the topic that is written to"),
        (
            {
                **STREAM,
                "kafka.transaction.timeout.ms": "1000",
                "kafka.transaction.two.phase.commit.enable": "true",
            },
            "contradict",
        ),
        ({**STREAM, "kafka.transactional.id": "mine"}, "transactional.id"),
    ],
)
def test_a_stream_that_cannot_be_exact_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option sinkId.*foreachBatch"),
        ({"sinkId": "flights"}, "batchId=''.*foreachBatch"),
        ({**BATCH, "batchId": "x"}, "batchId='x'"),
        ({**BATCH, "batchId": "-1"}, "batchId='-1'"),
    ],
)
def test_a_batch_that_could_not_be_known_again_is_refused(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        make(is_stream=False, **options)


@pytest.mark.parametrize("name", ["sinkId", "decisionTopic", "recoverBatch", "batchId"])
def test_its_options_say_nothing_without_it(name: str) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "flights", name: "1"}
    with pytest.raises(UsageError, match=f"option {name} .*delivery=exactly_once"):
        read_sink_options(given)


def test_a_sink_is_known_by_its_checkpoint_however_that_is_spelled() -> None:
    spelled = (
        "/data/checkpoint",
        "/data/checkpoint/",
        "file:/data/checkpoint",
        "file:///data/checkpoint",
    )
    plans = {make(checkpointLocation=each)._plan for each in spelled}
    assert len(plans) == 1
    others = {
        make(checkpointLocation=each)._plan for each in ("/data/other", "s3a://data/checkpoint")
    }
    assert len(plans | others) == 3


def test_transactions_last_as_long_as_brokers_allow_unless_something_else_is_asked_for() -> None:
    assert make(**STREAM)._plan.timeout == 900
    brief: dict[str, Any] = {"kafka.transaction.timeout.ms": "5000"}
    assert make(**STREAM, **brief)._plan.timeout == 5
    endless: dict[str, Any] = {"kafka.transaction.two.phase.commit.enable": "true"}
    assert make(**STREAM, **endless)._plan.timeout is None


# what a driver and its tasks do


class Ledger:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.epoch = 0

    def take_over(self, after: object = None) -> ProducerIdentity:
        self.epoch += 1
        return ProducerIdentity("flights/driver", 1, self.epoch)

    def last_decision(self) -> None:
        return None

    def open_ids(self) -> list[str]:
        return []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    made = Ledger()
    monkeypatch.setattr(ExactlyOnce, "_ledger", lambda self: made)
    return made


def test_the_driver_begins_once_however_often_it_is_pickled(asked: Ledger) -> None:
    """Spark pickles the writer twice for the tasks of one batch."""
    guarantee = make(**STREAM)
    copies = [pickle.loads(pickle.dumps(guarantee)) for _ in range(2)]
    assert asked.epoch == 1
    assert {copy._attempted.driver.epoch for copy in copies} == {1}
    pickle.dumps(make(**STREAM))
    assert asked.epoch == 2


def task(
    monkeypatch: pytest.MonkeyPatch, decided: tuple[str, int] | None, batches: list[Any]
) -> tuple[Prepared, TaskRows]:
    guarantee = make(**STREAM)
    guarantee._attempted = BatchAttempt(
        guarantee._plan, ProducerIdentity("flights/driver", 1, 0), decided, (), 0.0
    )
    monkeypatch.setattr(ExactlyOnce, "_run", lambda self: TaskRun("query", 3, 0, 0, 11))
    rows = TaskRows(iter(batches), "flights", ["value"])
    return guarantee.write(rows), rows


def test_the_rows_of_a_batch_that_is_decided_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pyarrow as pa

    batches = [pa.record_batch({"value": ["1", "2"]})] * 3
    message, rows = task(monkeypatch, ("query", 3), batches)
    assert message.receipt.is_repeated
    assert message.receipt.prepared is None
    assert rows.is_empty


def test_a_task_without_rows_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    message, _ = task(monkeypatch, ("query", 2), [])
    assert message.receipt[2:] == (None, False)
    assert message.counts == {}


def test_a_task_that_spark_does_not_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        def getLocalProperty(self, name: str) -> None:  # noqa: N802
            return None

    monkeypatch.setattr(TaskContext, "get", lambda: Context())
    with pytest.raises(UsageError, match="micro-batch"):
        make(**STREAM)._run()


class FakeProducer:
    """Notes what a task does with it."""

    made: list[FakeProducer]
    fails_at = ""

    def __init__(self, client: dict[str, str]) -> None:
        self.client = client
        self.calls: list[object] = []
        self.name = ""
        self.made.append(self)

    def __getattr__(self, call: str) -> Any:
        def note(*arguments: object, **named: object) -> None:
            self.calls.append((call, *arguments, *named.values()) if arguments else call)
            if call == self.fails_at:
                raise Unavailable(f"{call} is not done")

        return note

    def change_transactional_id(self, name: str) -> None:
        self.name = name
        self.calls.append(name)

    def prepare_transaction(self) -> PreparedTransaction:
        self.calls.append("prepare")
        return PreparedTransaction(self.name, 7, len(self.calls))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeProducer]:
    """The producers that tasks have made, in a worker without any before."""
    monkeypatch.setattr(FakeProducer, "made", [], raising=False)
    monkeypatch.setattr(FakeProducer, "fails_at", "")
    residents: Residents[Any] = Residents(ledger._producers._close, lambda seconds, call: None)
    monkeypatch.setattr(ledger, "_producers", residents)
    monkeypatch.setattr(ledger, "Producer", FakeProducer)
    monkeypatch.setattr(TaskRows, "send_to", lambda self, producer: producer.flush() or {})
    return FakeProducer.made


def run_task(monkeypatch: pytest.MonkeyPatch, run: TaskRun, claims: bool = True) -> Prepared:
    import pyarrow as pa

    guarantee = make(**STREAM)
    driver = ProducerIdentity(guarantee._plan.driver_id, 1, 5)
    guarantee._attempted = BatchAttempt(guarantee._plan, driver, None, ("a", "b"), 0.0)
    monkeypatch.setattr(ExactlyOnce, "_run", lambda self: run)
    monkeypatch.setattr(ledger, "claim", lambda producer, *rest: claims)
    return guarantee.write(TaskRows(iter([pa.record_batch({"value": ["1"]})]), "t", ["value"]))


def test_a_producer_that_has_prepared_serves_the_next_task_under_its_id(
    monkeypatch: pytest.MonkeyPatch, made: list[FakeProducer]
) -> None:
    messages = [
        run_task(monkeypatch, TaskRun("query", 3, slot, 0, 10 + slot)) for slot in (1, 2, 0, 1)
    ]
    (producer,) = made
    prefix = make(**STREAM)._plan.prefix
    writes = ["init_transactions", "begin_transaction", "flush", "prepare"]
    resumes = [("resume_transactions", ProducerIdentity(f"{prefix}driver", 1, 5)), *writes[1:]]
    assert producer.calls == [
        *("a", *writes),
        *("b", *writes),
        *(f"{prefix}driver", *resumes),
        *("a", *writes),
    ]
    ids = [each.receipt.prepared.transactional_id for each in messages if each.receipt.prepared]
    assert ids == ["a", "b", f"{prefix}driver", "a"]


def test_a_run_whose_claim_came_second_leaves_that_producer_and_uses_its_own_id(
    monkeypatch: pytest.MonkeyPatch, made: list[FakeProducer]
) -> None:
    message = run_task(monkeypatch, TaskRun("query", 3, 0, 0, 10), claims=False)
    assert message.receipt.prepared is not None
    own = f"{make(**STREAM)._plan.prefix}1.5/10"
    assert message.receipt.prepared.transactional_id == own
    claimed, used = made
    assert claimed.calls[-1] == ("close", ledger._CLOSE_SECONDS)
    assert used.calls == [own, "init_transactions", "begin_transaction", "flush", "prepare"]


@pytest.mark.parametrize("call", ["init_transactions", "flush"])
def test_a_task_that_fails_has_its_transaction_aborted_and_no_successor_its_producer(
    monkeypatch: pytest.MonkeyPatch, made: list[FakeProducer], call: str
) -> None:
    monkeypatch.setattr(FakeProducer, "fails_at", call)
    with pytest.raises(Unavailable, match=call):
        run_task(monkeypatch, TaskRun("query", 3, 1, 0, 10))
    (failed,) = made
    # Closed with time to abort: readers would wait behind what is open.
    assert failed.calls[-1] == ("close", ledger._CLOSE_SECONDS)
    monkeypatch.setattr(FakeProducer, "fails_at", "")
    run_task(monkeypatch, TaskRun("query", 3, 1, 1, 11))
    assert len(made) == 2


# the ledger


class Ender(FakeProducer):
    """Ends transactions, a few at a time."""

    outcomes: dict[str, Exception]
    under_way = 0
    most = 0
    ended = 0
    lock = threading.Lock()
    together: threading.Barrier

    def complete_transaction(self, prepared: PreparedTransaction, commit: bool) -> None:
        with self.lock:
            Ender.under_way += 1
            Ender.most = max(Ender.most, Ender.under_way)
        self.together.wait(30)
        with self.lock:
            Ender.under_way -= 1
            Ender.ended += 1
        if prepared.transactional_id in self.outcomes:
            raise self.outcomes[prepared.transactional_id]


def many_to_end(
    monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, Exception]
) -> tuple[ledger.KafkaLedger, list[PreparedTransaction]]:
    for name, value in (("under_way", 0), ("most", 0), ("ended", 0)):
        monkeypatch.setattr(Ender, name, value)
    monkeypatch.setattr(Ender, "outcomes", outcomes, raising=False)
    monkeypatch.setattr(Ender, "together", threading.Barrier(ledger._AT_ONCE), raising=False)
    monkeypatch.setattr(ledger, "Producer", Ender)
    many = [PreparedTransaction(str(n), n, 0) for n in range(32 * ledger._AT_ONCE)]
    return ledger.KafkaLedger(Plan("flights", None), {}, "decisions"), many


def test_a_thousand_transactions_are_ended_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch, made: list[FakeProducer]
) -> None:
    fenced = BrokerError(ErrorCode.PRODUCER_FENCED, "", "500")
    kept, many = many_to_end(monkeypatch, {"500": fenced})
    outcomes = kept.complete(many, True)
    assert Ender.most == ledger._AT_ONCE
    assert [n for n, outcome in enumerate(outcomes) if outcome is not None] == [500]
    assert len(outcomes) == len(many) == 1024
    assert kept.complete([], True) == []
    assert len(made) == 1


def test_the_others_are_ended_too_where_one_cannot_be_asked_about(
    monkeypatch: pytest.MonkeyPatch, made: list[FakeProducer]
) -> None:
    kept, many = many_to_end(monkeypatch, {"3": Unavailable("broker 0 is silent")})
    with pytest.raises(Unavailable, match="silent"):
        kept.complete(many, True)
    assert Ender.ended == len(many)


def test_a_topic_of_decisions_is_made_for_the_sink_or_refused() -> None:
    with Cluster(brokers=1) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("narrow", partitions=1)
        client = {"bootstrap.servers": cluster.bootstrap_servers, "transaction.timeout.ms": "1000"}
        plan = Plan("flights", 1.0)
        with pytest.raises(UsageError, match="needs 2"):
            ledger.KafkaLedger(plan, client, "narrow").last_decision()
        for _ in range(2):
            assert ledger.KafkaLedger(plan, client, "decisions").last_decision() is None
        assert admin.describe_topics(["decisions"])["decisions"].partition_count == 2
        (policy,) = [
            e for e in admin.describe_configs("topic", "decisions") if e.name == "cleanup.policy"
        ]
        assert policy.value == "compact"


def test_a_topic_of_decisions_that_is_not_shown_for_a_moment_is_not_taken_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Cluster(brokers=1) as cluster:
        client = {"bootstrap.servers": cluster.bootstrap_servers, "transaction.timeout.ms": "9000"}
        kept = ledger.KafkaLedger(Plan("hidden", 9.0), client, "hidden-decisions")
        assert kept.last_decision() is None
        decision = CommitDecision("q", 7, kept.take_over(), (), Status.DONE)
        with kept.deciding(decision.driver) as decider:
            decider.write(decision)
        describe = Admin.describe_topics
        hidden = [BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "not yet", "topic decisions")]

        def describe_topics(self: Admin, names: list[str]) -> object:
            if hidden:
                raise hidden.pop()
            return describe(self, names)

        monkeypatch.setattr(Admin, "describe_topics", describe_topics)
        kept.take_over()  # waits until the decision's transaction has ended
        assert kept.last_decision() == decision
        assert not hidden
