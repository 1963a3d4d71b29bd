"""The protocol of exactly once, step by step and under thousands of crashes (`exactly_once.py`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

import pytest

from tests.unit.spark.write.exactly_once_model import ROWS, Coordinator, ModelLedger, Spark
from trimtab.client.sender.prepared import PreparedTransaction, ProducerIdentity
from trimtab.kafka.errors import BrokerError, KafkaError, Unavailable, UsageError
from trimtab.spark.write import exactly_once as protocol
from trimtab.spark.write.exactly_once import (
    BatchAttempt,
    BatchLate,
    BatchLost,
    CommitDecision,
    Plan,
    Receipt,
    Remedy,
    Status,
    TaskRun,
)

SEEDS = 30
ENDLESS = Plan("sink", None)
LIMITED = Plan("sink", 60.0)


def crash(seeds: range, timeout: float | None, **options: object) -> list[Spark]:
    runs = []
    for seed in seeds:
        spark = Spark(seed, timeout, **options)  # type: ignore[arg-type]
        spark.run()
        runs.append(spark)
    return runs


# crashes


def test_nothing_is_lost_and_nothing_doubled_whoever_dies_when() -> None:
    runs = crash(range(SEEDS), None)
    assert {seed: run.missing for seed, run in enumerate(runs) if run.missing} == {}
    assert {seed: run.doubled for seed, run in enumerate(runs) if run.doubled} == {}
    assert [run.lost for run in runs if run.lost] == []
    # What this is about has happened.
    assert sum(run.kills for run in runs) > SEEDS
    assert sum(run.replays for run in runs) > SEEDS / 10
    assert sum(run.reuses for run in runs) > SEEDS


def test_with_a_time_limit_a_loss_is_loud_and_nothing_is_doubled() -> None:
    runs = crash(range(SEEDS), 60.0)
    for seed, run in enumerate(runs):
        assert run.doubled == [], seed
        if run.missing:
            (error,) = run.lost
            assert "recoverBatch" in str(error) or "Start the query again" in str(error)
            assert run.coordinator.expired
    assert any(run.lost for run in runs)
    assert any(run.coordinator.expired and not run.lost for run in runs)


@pytest.mark.parametrize(("remedy", "wrong"), [("skip", "doubled"), ("rewrite", "missing")])
def test_what_the_user_chose_is_done_about_a_lost_batch(remedy: str, wrong: str) -> None:
    runs = crash(range(SEEDS), 60.0, remedy=remedy)
    assert [seed for seed, run in enumerate(runs) if getattr(run, wrong)] == []
    assert any(run.lost for run in runs)
    assert [seed for seed, r in enumerate(runs) if not r.lost and (r.missing or r.doubled)] == []


def test_a_repeated_stage_is_never_wrong_in_silence() -> None:
    runs = crash(range(SEEDS), None, stage_retries=True)
    assert [seed for seed, run in enumerate(runs) if run.doubled] == []
    assert [seed for seed, run in enumerate(runs) if run.missing and not run.lost] == []


def test_one_task_needs_no_other_transaction_and_loses_nothing_by_time() -> None:
    """A time limit that is over leaves the batch undecided, as the decision lies in it too."""
    runs = crash(range(SEEDS), 60.0, most_slots=1)
    assert [seed for seed, run in enumerate(runs) if run.missing or run.doubled or run.lost] == []
    assert any(run.coordinator.expired for run in runs)


def test_ids_serve_again_where_nothing_fails() -> None:
    """Brokers keep each id for days."""
    spark = Spark(1, None, batches=50, killing=0.0, losing=0.0, most_slots=4, speculating=0.0)
    spark.is_calm = True
    spark.run()
    assert (spark.missing, spark.doubled) == ([], [])
    assert len(spark.ids) < 10


# step by step


def ledger_of(coordinator: Coordinator, plan: Plan = ENDLESS) -> ModelLedger:
    return ModelLedger(coordinator, plan, lambda ask, *arguments: ask(*arguments))


def write(
    coordinator: Coordinator, attempted: BatchAttempt, batch: int, slots: Sequence[Sequence[int]]
) -> list[Receipt]:
    """What the tasks of a batch leave, each with its rows."""
    receipts = []
    for number, rows in enumerate(slots):
        run = TaskRun("query", batch, number, 0, 100 * batch + number)
        identity = protocol.assign(attempted, run)
        if identity is None:
            receipts.append(Receipt(attempted, run, None, is_repeated=True))
            continue
        who = identity.claims or coordinator.init(identity.transactional_id)
        coordinator.open(who).rows.extend(rows)
        receipts.append(Receipt(attempted, run, PreparedTransaction(*who)))
    return receipts


def test_a_batch_of_one_task_is_one_transaction() -> None:
    coordinator = Coordinator(None)
    ledger = ledger_of(coordinator)
    attempted = protocol.begin(ledger, ENDLESS, 0)
    receipts = write(coordinator, attempted, 0, [[1, 2]])
    assert sorted(coordinator.committed) == []
    protocol.commit(ledger, receipts, 0)
    assert sorted(coordinator.committed) == [1, 2]
    assert list(coordinator.transactions) == ["sink/driver"]
    (decision,) = coordinator.decisions
    assert (decision.batch_id, decision.status, decision.transactions) == (0, Status.DONE, ())


@pytest.mark.parametrize(
    ("moment", "error"),
    [("tasks are done", BatchLate), ("decides", BatchLost), ("decided", BatchLost), ("done", None)],
)
def test_a_slow_run_of_a_repeated_stage_loses_rows_only_beside_the_decision_and_never_in_silence(
    monkeypatch: pytest.MonkeyPatch, moment: str, error: type[KafkaError] | None
) -> None:
    coordinator = Coordinator(None)
    ledger = ledger_of(coordinator)
    first = protocol.begin(ledger, ENDLESS, 0)
    protocol.commit(ledger, write(coordinator, first, 0, [[1], [2]]), 0)
    attempted = protocol.begin(ledger, ENDLESS, 0)
    receipts = write(coordinator, attempted, 1, [[3], [4]])
    slow = protocol.assign(attempted, TaskRun("query", 1, 1, 0, 999))
    prepared = receipts[1].prepared
    assert slow is not None
    assert prepared is not None
    assert slow.transactional_id == prepared.transactional_id

    def reach(point: str) -> None:
        if point == moment:
            coordinator.init(slow.transactional_id)

    monkeypatch.setattr(protocol, "reached", reach)
    reach("tasks are done")
    if error is None:
        protocol.commit(ledger, receipts, 0)
    else:
        with pytest.raises(error, match="batch 1"):
            protocol.commit(ledger, receipts, 0)
    monkeypatch.setattr(protocol, "reached", lambda point: None)
    if error is BatchLost:
        with pytest.raises(BatchLost, match="skip:1"):
            protocol.begin(ledger, ENDLESS, 0)
        return
    again = protocol.begin(ledger, ENDLESS, 0)
    rest = write(coordinator, again, 1, [[3], [4]])
    assert [each.is_repeated for each in rest] == [error is None] * 2
    protocol.commit(ledger, rest, 0)
    assert sorted(coordinator.committed) == [1, 2, 3, 4]


def test_a_batch_that_is_decided_is_not_written_again() -> None:
    coordinator = Coordinator(None)
    ledger = ledger_of(coordinator)
    attempted = protocol.begin(ledger, ENDLESS, 0)
    protocol.commit(ledger, write(coordinator, attempted, 0, [[1], [2]]), 0)
    again = protocol.begin(ledger, ENDLESS, 0)
    receipts = write(coordinator, again, 0, [[2], [1]])
    assert all(receipt.is_repeated for receipt in receipts)
    protocol.commit(ledger, receipts, 0)
    protocol.commit(ledger, write(coordinator, again, 1, [[3]]), 0)
    assert coordinator.committed == {1: 1, 2: 1, 3: 1}


def test_another_query_writes_the_same_numbers_again() -> None:
    """Its checkpoint was deleted."""
    coordinator = Coordinator(None)
    ledger = ledger_of(coordinator)
    attempted = protocol.begin(ledger, ENDLESS, 0)
    protocol.commit(ledger, write(coordinator, attempted, 5, [[1]]), 0)
    attempted = protocol.begin(ledger, ENDLESS, 0)
    assert protocol.assign(attempted, TaskRun("another", 0, 0, 0, 1)) is not None
    assert protocol.assign(attempted, TaskRun("query", 5, 0, 0, 1)) is None
    with pytest.raises(UsageError, match=r"written batch 5.*now given batch 4.*set back"):
        protocol.assign(attempted, TaskRun("query", 4, 0, 0, 1))


def test_ids_of_the_last_batch_serve_the_next_try_and_only_that() -> None:
    coordinator = Coordinator(None)
    ledger = ledger_of(coordinator)
    attempted = protocol.begin(ledger, ENDLESS, 0)
    assert attempted.ids == ()
    protocol.commit(ledger, write(coordinator, attempted, 0, [[1], [2], [3]]), 0)
    second = protocol.begin(ledger, ENDLESS, 0)
    assert second.ids == ("sink/1000.0/1", "sink/1000.0/2")
    given = [protocol.assign(second, TaskRun("query", 1, slot, 0, 7)) for slot in range(4)]
    assert [each.transactional_id for each in given if each] == [
        "sink/1000.1/7",
        *second.ids,
        "sink/1000.1/7",
    ]
    assert [each.claims for each in given if each] == [second.driver, None, None, None]
    other = protocol.assign(second, TaskRun("query", 1, 1, 1, 8))
    assert other is not None
    assert other.transactional_id == "sink/1000.1/8"
    # A run of the second try may be about to take one of them over.
    assert protocol.begin(ledger, ENDLESS, 0).ids == ()


def test_ids_that_a_batch_of_fewer_tasks_leaves_serve_again_once() -> None:
    coordinator = Coordinator(None)
    ledger = ledger_of(coordinator)
    for batch, tasks in enumerate((4, 2, 1, 3)):
        attempted = protocol.begin(ledger, ENDLESS, 0)
        slots = [[10 * batch + number] for number in range(tasks)]
        protocol.commit(ledger, write(coordinator, attempted, batch, slots), 0)
    assert len(coordinator.transactions) == 1 + 3
    ids = protocol.begin(ledger, ENDLESS, 0).ids
    assert len(ids) == len(set(ids)) == 3


def test_an_empty_batch_asks_nobody() -> None:
    attempted = BatchAttempt(ENDLESS, ProducerIdentity("sink/driver", 1, 0), None, (), 0)
    run = TaskRun("query", 0, 0, 0, 1)
    empty = PreparedTransaction("sink/1", 1, 0, is_empty=True)
    for prepared in (None, empty):
        protocol.commit(None, [Receipt(attempted, run, prepared)], 0)  # type: ignore[arg-type]
        protocol.abort(None, [Receipt(attempted, run, prepared)])  # type: ignore[arg-type]


def test_past_half_of_its_time_a_batch_is_warned_of_and_near_its_end_not_decided(
    caplog: pytest.LogCaptureFixture,
) -> None:
    coordinator = Coordinator(60.0)
    ledger = ledger_of(coordinator, LIMITED)
    for batch, (took, is_decided) in enumerate([(29, True), (31, True), (54, False)]):
        caplog.clear()
        attempted = protocol.begin(ledger, LIMITED, 1000)
        receipts = write(coordinator, attempted, batch, [[batch], [10 + batch]])
        with caplog.at_level(logging.WARNING):
            if is_decided:
                protocol.commit(ledger, receipts, 1000 + took)
            else:
                with pytest.raises(BatchLate, match=r"batch 2 took 54 s.*transaction\.timeout\.ms"):
                    protocol.commit(ledger, receipts, 1000 + took)
        said = [record.message for record in caplog.records]
        assert bool(said) is (took == 31)
        assert all(f"batch {batch} took 31 s, more than half" in each for each in said)
    assert sorted(coordinator.committed) == [0, 1, 10, 11]
    assert len(coordinator.decisions) == 4


def test_without_a_time_limit_no_batch_is_late() -> None:
    coordinator = Coordinator(None)
    ledger = ledger_of(coordinator)
    attempted = protocol.begin(ledger, ENDLESS, 0)
    protocol.commit(ledger, write(coordinator, attempted, 0, [[1], [2]]), 1e6)
    assert sorted(coordinator.committed) == [1, 2]


def test_what_is_not_open_any_more_is_not_decided() -> None:
    coordinator = Coordinator(60.0)
    ledger = ledger_of(coordinator, LIMITED)
    attempted = protocol.begin(ledger, LIMITED, 0)
    receipts = write(coordinator, attempted, 0, [[1], [2]])
    coordinator.pass_time(61)
    with pytest.raises(BatchLate, match=r"2 of its 2 transactions are not open"):
        protocol.commit(ledger, receipts, 1)
    assert coordinator.decisions == []


class Stopped(BaseException):
    pass


def decide_and_stop(
    coordinator: Coordinator, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> list[Receipt]:
    """A batch of three tasks is decided; the driver dies before it has committed any."""
    ledger = ledger_of(coordinator, plan)
    attempted = protocol.begin(ledger, plan, 0)
    receipts = write(coordinator, attempted, 0, [[1], [2], [3]])

    def stop(point: str) -> None:
        if point == "decided":
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(protocol, "reached", stop)
        with pytest.raises(Stopped):
            protocol.commit(ledger, receipts, 0)
    return receipts


def test_what_was_decided_is_committed_by_who_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(None)
    decide_and_stop(coordinator, ENDLESS, monkeypatch)
    assert sorted(coordinator.committed) == [1]
    attempted = protocol.begin(ledger_of(coordinator), ENDLESS, 0)
    assert coordinator.committed == {1: 1, 2: 1, 3: 1}
    assert len(attempted.ids) == 2  # no other try has been between
    assert protocol.assign(attempted, TaskRun("query", 0, 0, 0, 9)) is None
    assert protocol.begin(ledger_of(coordinator), ENDLESS, 0).ids == ()


def test_what_is_decided_after_a_recovery_is_noted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker takes a second first record of an epoch for a repeat, and does not store it."""
    coordinator = Coordinator(None)
    ledger = ledger_of(coordinator)
    decide_and_stop(coordinator, ENDLESS, monkeypatch)
    attempted = protocol.begin(ledger, ENDLESS, 0)
    protocol.commit(ledger, write(coordinator, attempted, 1, [[4]]), 0)
    assert coordinator.decisions[-1].batch_id == 1


def test_what_was_decided_is_not_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark calls `abort` at once if `commit` raises."""
    coordinator = Coordinator(None)
    receipts = decide_and_stop(coordinator, ENDLESS, monkeypatch)
    protocol.abort(ledger_of(coordinator), receipts)
    protocol.begin(ledger_of(coordinator), ENDLESS, 0)
    assert coordinator.committed == {1: 1, 2: 1, 3: 1}


def test_what_was_not_decided_is_aborted_at_once() -> None:
    coordinator = Coordinator(None)
    ledger = ledger_of(coordinator)
    attempted = protocol.begin(ledger, ENDLESS, 0)
    receipts = write(coordinator, attempted, 0, [[1], [2]])
    protocol.abort(ledger, receipts)
    assert {each.state for each in coordinator.transactions.values()} <= {"Empty", "CompleteAbort"}
    with pytest.raises((BatchLate, BrokerError)):
        protocol.commit(ledger, receipts, 0)


def open_ids(coordinator: Coordinator) -> list[str]:
    return [name for name, each in coordinator.transactions.items() if each.state == "Ongoing"]


def test_what_attempts_left_that_do_not_count_is_aborted_with_the_decision() -> None:
    """Readers of committed records would wait behind it until the next batch, or for ever."""
    coordinator = Coordinator(None)
    ledger = ledger_of(coordinator)
    for batch, tasks in enumerate(([[1], [2]], [[3]], [[4], [5]])):
        attempted = protocol.begin(ledger, ENDLESS, 0)
        receipts = write(coordinator, attempted, batch, tasks)
        late = protocol.assign(attempted, TaskRun("query", batch, 0, 1, 900 + batch))
        assert late is not None
        coordinator.open(coordinator.init(late.transactional_id)).rows.append(99)
        protocol.commit(ledger, receipts, 0)
        assert open_ids(coordinator) == []
    assert coordinator.committed == dict.fromkeys(range(1, 6), 1)


def test_a_successor_that_has_begun_keeps_what_it_was_handed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its tasks write under the ids of the decision while this driver looks for orphans."""
    coordinator = Coordinator(None)
    ledger = ledger_of(coordinator)
    attempted = protocol.begin(ledger, ENDLESS, 0)
    receipts = write(coordinator, attempted, 0, [[1], [2], [3]])
    later: list[Receipt] = []

    def be_overtaken(reached: str) -> None:
        if reached == "done":
            monkeypatch.setattr(protocol, "reached", lambda point: None)
            successor = protocol.begin(ledger, ENDLESS, 0)
            assert len(successor.ids) == 2
            later.extend(write(coordinator, successor, 1, [[4], [5], [6]]))

    monkeypatch.setattr(protocol, "reached", be_overtaken)
    protocol.commit(ledger, receipts, 0)
    protocol.commit(ledger, later, 0)
    assert coordinator.committed == dict.fromkeys(range(1, 7), 1)


def test_a_failed_try_leaves_nothing_open_also_of_attempts_that_left_no_receipt() -> None:
    coordinator = Coordinator(None)
    ledger = ledger_of(coordinator)
    protocol.commit(
        ledger, write(coordinator, protocol.begin(ledger, ENDLESS, 0), 0, [[1], [2], [3]]), 0
    )
    attempted = protocol.begin(ledger, ENDLESS, 0)
    receipts = write(coordinator, attempted, 1, [[4], [5], [6]])
    protocol.abort(ledger, receipts[:2])
    assert open_ids(coordinator) == []
    assert sorted(coordinator.committed) == [1, 2, 3]


def test_a_batch_is_written_though_orphans_cannot_be_asked_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator(None)
    ledger = ledger_of(coordinator)
    attempted = protocol.begin(ledger, ENDLESS, 0)
    receipts = write(coordinator, attempted, 0, [[1], [2]])

    def fail() -> list[str]:
        raise Unavailable("broker 1 is silent")

    monkeypatch.setattr(ledger, "open_ids", fail)
    with caplog.at_level(logging.WARNING):
        protocol.commit(ledger, receipts, 0)
    assert "batch 0 is written" in caplog.text
    assert "broker 1 is silent" in caplog.text


def test_a_zombie_aborts_nothing_of_its_successor() -> None:
    coordinator = Coordinator(None)
    ledger = ledger_of(coordinator)
    zombie = protocol.begin(ledger, ENDLESS, 0)
    late = write(coordinator, zombie, 0, [[1], [2]])
    attempted = protocol.begin(ledger, ENDLESS, 0)
    receipts = write(coordinator, attempted, 0, [[1], [2]])
    protocol.abort(ledger, late)
    protocol.commit(ledger, receipts, 0)
    assert coordinator.committed == {1: 1, 2: 1}


def test_a_lost_batch_is_named_with_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(60.0)
    decide_and_stop(coordinator, LIMITED, monkeypatch)
    coordinator.pass_time(61)
    with pytest.raises(BatchLost) as raised:
        protocol.begin(ledger_of(coordinator), LIMITED, 0)
    for words in ("batch 0 was decided", "2 of its 2", "60 s", "'skip:0'", "'rewrite:0'"):
        assert words in str(raised.value)
    elsewhere = Plan("sink", 60.0, Remedy("skip", 1))
    with pytest.raises(BatchLost):
        protocol.begin(ledger_of(coordinator), elsewhere, 0)
    skips = Plan("sink", 60.0, Remedy("skip", 0))
    attempted = protocol.begin(ledger_of(coordinator), skips, 0)
    assert protocol.assign(attempted, TaskRun("query", 0, 0, 0, 9)) is None
    assert protocol.assign(
        protocol.begin(ledger_of(coordinator), LIMITED, 0), TaskRun("query", 1, 0, 0, 9)
    )


def test_orphans_of_this_sink_alone_are_aborted() -> None:
    coordinator = Coordinator(None)
    others = ("sink2/1.0/5", "sink", "sink/other", "sink/1.0/5/x")
    for name in ("sink/1.0/5", *others):
        coordinator.open(coordinator.init(name))
    protocol.begin(ledger_of(coordinator), ENDLESS, 0)
    states = {name: each.state for name, each in coordinator.transactions.items()}
    assert states.pop("sink/driver") == "Empty"
    assert states.pop("sink/1.0/5") == "Empty"
    assert states == dict.fromkeys(others, "Ongoing")


@pytest.mark.parametrize("point", ["took over", "found orphans"])
def test_a_zombie_takes_nothing_that_its_successor_has_decided_for_an_orphan(
    monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    coordinator = Coordinator(None)
    receipts: list[Receipt] = []

    def be_overtaken(reached: str) -> None:
        if reached == point:
            monkeypatch.setattr(protocol, "reached", lambda reached: None)
            receipts.extend(decide_and_stop(coordinator, ENDLESS, monkeypatch))

    monkeypatch.setattr(protocol, "reached", be_overtaken)
    with suppress(BrokerError):  # it may notice that it is one
        protocol.begin(ledger_of(coordinator), ENDLESS, 0)
    assert len(receipts) == 3
    protocol.begin(ledger_of(coordinator), ENDLESS, 0)
    assert coordinator.committed == {1: 1, 2: 1, 3: 1}


def test_receipts_of_two_tries_are_a_mistake() -> None:
    first = BatchAttempt(ENDLESS, ProducerIdentity("sink/driver", 1, 0), None, (), 0)
    second = first._replace(driver=ProducerIdentity("sink/driver", 1, 1))
    receipts = [Receipt(each, TaskRun("query", 0, 0, 0, 1), None) for each in (first, second)]
    with pytest.raises(RuntimeError, match="several attempts"):
        protocol.commit(None, receipts, 0)  # type: ignore[arg-type]


def test_a_decision_is_read_back() -> None:
    prepared = tuple(PreparedTransaction(f"sink/1.0/{number}", number, 3) for number in range(3))
    driver = ProducerIdentity("sink/driver", 1, 2)
    decision = CommitDecision("query", 7, driver, prepared, Status.DECIDED)
    assert CommitDecision.from_json(decision.to_json()) == decision


@pytest.mark.parametrize("text", ["", "7", "{}", '{"version":2}', b"\xff", '{"version":1}'])
def test_anything_else_in_its_topic_is_not(text: str | bytes) -> None:
    with pytest.raises(UsageError, match="decisionTopic"):
        CommitDecision.from_json(text)


def test_the_model_counts_what_it_should() -> None:
    """Broken on purpose, it must notice: a task that is not fenced, an answer given twice."""
    spark = Spark(0, None, batches=2)
    spark.coordinator.committed.update(range(ROWS))
    assert spark.missing == list(range(ROWS, 2 * ROWS))
    spark.coordinator.committed.update([3])
    assert spark.doubled == [3]
