"""Streams and batches written exactly once, to trimtab's cluster and to Apache Kafka; what a reader
of committed ones sees.

Those on Apache Kafka are skipped without Java. The crashes are in
`tests/unit/spark/test_exactly_once.py` and, with real processes, in
`python -m lab.benchmarks.exactly_once`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab.benchmarks.exactly_once import TwoPhaseKafka, committed_values
from lab.benchmarks.jars import RivalMissing, find_java, kafka_jars
from trimtab import Admin, Producer
from trimtab.client.sender.prepared import PreparedTransaction
from trimtab.cluster.embedded import Cluster
from trimtab.spark.write.exactly_once import CommitDecision, Plan, Status
from trimtab.spark.write.ledger import KafkaLedger, claim

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = 3
LINES = 200


@pytest.fixture(scope="module", params=["trimtab", "kafka"])
def kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "trimtab":
        with Cluster(config={"transaction.two.phase.commit.enable": True}) as cluster:
            yield cluster.bootstrap_servers
        return
    try:
        find_java()
        kafka_jars()
    except RivalMissing as missing:
        pytest.skip(str(missing))
    with TwoPhaseKafka() as broker:
        yield broker.address


def add_file(directory: Path, number: int) -> list[str]:
    lines = [f"{number}-{line}" for line in range(LINES)]
    directory.mkdir(exist_ok=True)
    (directory / f"{number}.txt").write_text("\n".join(lines))
    return lines


def write_stream(frame: DataFrame, topic: str, checkpoint: Path, servers: str, **more: str) -> None:
    query = (
        frame.writeStream.format("trimtab")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("checkpointLocation", str(checkpoint))
        .option("delivery", "exactly_once")
        .options(**more)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


@pytest.mark.parametrize("two_phase", ["false", "true"], ids=["limited", "endless"])
@pytest.mark.parametrize("tasks", [1, 3])
def test_a_stream_is_there_once_also_when_its_last_batch_is_repeated(
    spark: SparkSession, kafka: str, tmp_path: Path, tasks: int, two_phase: str
) -> None:
    topic, checkpoint = f"stream-{tasks}-{two_phase}", tmp_path / "checkpoint"
    with Admin(kafka) as admin:
        admin.create_topic(topic, partitions=4)
    lines = [line for number in range(FILES) for line in add_file(tmp_path / "in", number)]
    frame = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(str(tmp_path / "in"))
        .repartition(tasks)
    )
    options = {"sinkId": topic, "kafka.transaction.two.phase.commit.enable": two_phase}
    write_stream(frame, topic, checkpoint, kafka, **options)
    assert Counter(committed_values(kafka, topic)) == Counter(lines)
    # As if the driver had died before Spark noted that the batch is written.
    commits = checkpoint / "commits"
    for name in (str(FILES - 1), f".{FILES - 1}.crc"):
        (commits / name).unlink()
    lines += add_file(tmp_path / "in", FILES)
    write_stream(frame, topic, checkpoint, kafka, **options)
    assert Counter(committed_values(kafka, topic)) == Counter(lines)
    with Admin(kafka) as admin:
        assert admin.list_transactions(f"{topic}/", ["Ongoing"]) == []
        ids = [each.transactional_id for each in admin.list_transactions(f"{topic}/")]
    # The ids of one batch serve the next; a batch of one task needs none.
    assert len(ids) <= 1 + (tasks - 1) * 3


def test_a_batch_with_the_same_number_is_not_written_again(spark: SparkSession, kafka: str) -> None:
    with Admin(kafka) as admin:
        admin.create_topic("batches", partitions=2)
    frame = spark.range(0, 100, 1, 3).selectExpr("CAST(id AS STRING) AS value")
    for number in (0, 0, 1):
        (
            frame.write.format("trimtab")
            .mode("append")
            .option("kafka.bootstrap.servers", kafka)
            .option("topic", "batches")
            .option("delivery", "exactly_once")
            .option("sinkId", "batches")
            .option("batchId", number)
            .save()
        )
    counts = Counter(committed_values(kafka, "batches"))
    assert counts == {str(number): 2 for number in range(100)}


def test_a_task_that_fails_leaves_nothing(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    with Admin(kafka) as admin:
        admin.create_topic("failing", partitions=2)
    add_file(tmp_path / "in", 0)
    frame = (
        spark.readStream.text(str(tmp_path / "in"))
        .repartition(2)
        .selectExpr("IF(value = '0-77', raise_error('row 77'), value) AS value")
    )
    with pytest.raises(Exception, match="row 77"):
        write_stream(frame, "failing", tmp_path / "checkpoint", kafka, sinkId="failing")
    assert committed_values(kafka, "failing") == []
    plain = spark.readStream.text(str(tmp_path / "in")).repartition(2)
    write_stream(plain, "failing", tmp_path / "checkpoint", kafka, sinkId="failing")
    assert sorted(committed_values(kafka, "failing")) == sorted(f"0-{n}" for n in range(LINES))


def test_of_two_runs_under_one_epoch_one_has_it(kafka: str) -> None:
    client = {"bootstrap.servers": kafka}
    with Admin(kafka) as admin:
        admin.create_topic("claims", partitions=2)
    with Producer(kafka, transactional_id="claims/driver") as driver:
        identity = driver.init_transactions()
    with (
        Producer(kafka, transactional_id="claims/driver") as one,
        Producer(kafka, transactional_id="claims/driver") as two,
    ):
        for producer, token in ((one, b"1"), (two, b"2")):
            producer.resume_transactions(identity)
            producer.begin_transaction(two_phase=True)
            assert claim(producer, client, "claims", token) is (producer is one)


def test_the_last_decision_is_found_behind_what_was_aborted(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.spark.write.ledger._WINDOW", 1)
    ledger = KafkaLedger(Plan("found", 60.0), {"bootstrap.servers": kafka}, "found-decisions")
    driver = ledger.take_over()
    assert ledger.last_decision() is None
    decisions = [
        CommitDecision(
            "query", batch, driver, (PreparedTransaction("found/1", 7, 0),) * 9, Status.DONE
        )
        for batch in range(3)
    ]
    with ledger.deciding(driver) as decider:
        for decision in decisions:
            decider.write(decision)
    driver = ledger.take_over(after=driver)  # which waits for the end of the last commit
    assert ledger.last_decision() == decisions[-1]
    with Producer(kafka, transactional_id="found/driver") as zombie:
        zombie.resume_transactions(driver)
        zombie.begin_transaction(two_phase=True)
        for _ in range(5):
            zombie.send("found-decisions", b"{}", key=b"decision", partition=0)
            zombie.flush()
    ledger.take_over(after=driver)
    assert ledger.last_decision() == decisions[-1]
