"""Exactly once under fire: processes are killed at every step of the protocol, on either cluster.

    python -m lab.benchmarks.exactly_once --kills 200 --seed 1       Spark and Apache Kafka
        --kills 200 --trimtab       a cluster of trimtab's
        --kills 25 --standalone     a cluster of Spark's own; with --at-least-once nothing is lost
        --endless                   in batches without end
        --late                      nobody comes in time
        --model 3000 --seed 1       the model, without Spark and Kafka

Prints one JSON object: how many kills, of what and where, and how many rows a reader of committed
records misses or sees twice. Ends with 1 if there is any; `--late`, if the query goes on without a
word. As a stage of `python -m lab.benchmarks` it does all of that, with 50 kills of each kind.

A stream reads files, one a micro-batch, and writes three tasks each. For each kill an order is laid
out for a step; the process that comes there first is killed (SIGKILL), or kills a broker, or the
JVM of Spark's driver. The query is started again until it is through. Every seventh time the commit
of the last batch is deleted by hand.

With `--standalone` there are a master and two workers; executors are killed too. Speculation is on:
some tasks stand still at a step until another attempt of them has ended, and then go on.

Apache Kafka is one broker, which is started again. trimtab's cluster has three brokers and a
controller in processes of their own, which its supervisor starts again.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import IO

from lab.benchmarks.apache_kafka import ApacheKafka
from lab.benchmarks.standalone import standalone
from lab.processes import Trimtab
from trimtab import Admin, Consumer, TopicPartition
from trimtab.spark.session.java import find_java_home

DRIVER_POINTS = (
    *("took over", "aborted orphans", "checked", "decides", "decided", "committed", "done"),
)
LATER_POINTS = ("recovered", "stopped", "took over")
"""Reached by who comes after a kill."""
TASK_POINTS = ("task begins", "task has begun", "task has sent", "task has prepared")
_BROKERS = 3
LINES = 120
"""Rows of each micro-batch."""
TASKS = 3
TOPIC = "under-fire"
TWO_PHASE_OPTION = "transaction.two.phase.commit.enable"
TWO_PHASE = f"kafka.{TWO_PHASE_OPTION}"
MARKER_SECONDS = 60.0
PATIENCE = 900.0
"""Seconds for one micro-batch, with all that happens to it."""


class TwoPhaseKafka(ApacheKafka):
    """Apache Kafka that takes Enable2Pc, and aborts what is open for too long within a second."""

    def settings(self) -> dict[str, str]:
        return {
            **super().settings(),
            TWO_PHASE_OPTION: "true",
            "unstable.api.versions.enable": "true",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        }

    def revive(self) -> None:
        """Start it again if it has been killed."""
        if self._process is not None and self._process.poll() is not None:
            self.start()


class TwoPhaseTrimtab(Trimtab):
    """Three brokers of trimtab that take Enable2Pc."""

    def __init__(self) -> None:
        super().__init__(_BROKERS, config=[f"{TWO_PHASE_OPTION}=true"])

    def revive(self) -> None:
        """The supervisor does."""


def wait_for_markers(admin: Admin) -> None:
    """Return once readers of committed records see every transaction that has been ended.

    EndTxn is answered before the brokers have written the transaction's markers.
    """
    deadline = time.monotonic() + MARKER_SECONDS
    while pending := admin.list_transactions(states=["PrepareCommit", "PrepareAbort"]):
        assert time.monotonic() < deadline, pending


def committed_values(servers: str, topic: str) -> list[str]:
    """The values of all records that a reader of committed ones sees."""
    with Admin(servers) as admin:
        wait_for_markers(admin)
        count = admin.describe_topics([topic])[topic].partition_count
        partitions = [TopicPartition(topic, number) for number in range(count)]
        ends = admin.list_offsets(partitions, isolation="read_committed")
    values: list[str] = []
    with Consumer(
        servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        for partition in partitions:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            while consumer.position(partition) < ends[partition].offset:
                values += [(record.value or b"").decode() for record in consumer.poll(1000)]
    return values


class DriverProcess:
    """Spark's driver in a process of its own, which runs the query for each line it is sent."""

    def __init__(
        self, directory: Path, servers: str, master: str = "local[2,3]", **options: str
    ) -> None:
        self._arguments = [str(directory), servers, master, json.dumps(options)]
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] = (directory / "driver.log").open("a")

    def run_query(self) -> str:
        """What it answers; "" if it has died."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lab.benchmarks.exactly_once", "--driver", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except OSError:
            self._process.wait()
            return ""
        answer = self._process.stdout.readline().strip()
        if not answer:
            self._process.wait()
        return answer

    def pids(self) -> list[int]:
        """Of Spark's JVM and the program that started it; none before the first query."""
        if self._process is None or self._process.poll() is not None:
            return []
        return [int((self._directory / "jvm").read_text()), self._process.pid]

    def end(self) -> None:
        if self._process is not None:
            self._process.communicate()
        self._log.close()


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.3",
}
"""A task that takes longer than one of three others gets a second attempt, soon."""
STALLS = 8.0
"""Seconds for which a task stands still: enough for another attempt."""


def drive(directory: Path, servers: str, master: str, options: dict[str, str]) -> None:
    """In the driver's process: run the query for each line of the standard input."""
    from lab.benchmarks.exactly_once_killer import NAME, OPTION, KilledDataSource
    from trimtab.spark.session import start_session, stop_session

    # Python workers import the killer.
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    os.environ["PYTHONPATH"] = path
    config = {"spark.master": master, "spark.log.level": "OFF"}
    if not master.startswith("local"):
        config |= SPECULATION
        config |= {"spark.executor.memory": "512m", "spark.executorEnv.PYTHONPATH": path}
    session = start_session("exactly once", cores=2, config=config)
    session.dataSource.register(KilledDataSource)
    from pyspark import SparkContext

    assert SparkContext._gateway is not None
    (directory / "jvm").write_text(str(SparkContext._gateway.proc.pid))
    for _ in sys.stdin:
        frame = (
            session.readStream.option("maxFilesPerTrigger", 1)
            .text(str(directory / "in"))
            .repartition(TASKS)
        )
        query = (
            frame.writeStream.format(NAME)
            .option("kafka.bootstrap.servers", servers)
            .option("topic", TOPIC)
            .option("checkpointLocation", str(directory / "checkpoint"))
            .option(OPTION, str(directory / "orders"))
            .options(**options)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except Exception as error:
            lines = [line for line in str(error).splitlines() if "trimtab." in line]
            print("failed", (lines or [type(error).__name__])[-1][:1000], flush=True)
        else:
            print("done", flush=True)
    stop_session(session)


EXACTLY_ONCE = {"delivery": "exactly_once", "sinkId": TOPIC}
AT_LEAST_ONCE = {"delivery": "at_least_once"}


def bombard(
    kills: int,
    seed: int,
    seconds: float,
    *,
    endless: bool = False,
    on_standalone: bool = False,
    on_trimtab: bool = False,
    delivery: dict[str, str] = EXACTLY_ONCE,
) -> dict[str, object]:
    """Kill so often, or for so long, and count what came of it."""
    random = Random(seed)
    is_exact = delivery == EXACTLY_ONCE
    task_points = TASK_POINTS if is_exact else TASK_POINTS[:3]
    driver_points = DRIVER_POINTS if is_exact else ()
    options = delivery | ({TWO_PHASE: str(endless).lower()} if is_exact else {})
    directory = Path(tempfile.mkdtemp(prefix="trimtab-exactly-once-"))
    for name in ("in", "orders"):
        (directory / name).mkdir()
    expected: list[str] = []
    done: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    stalled: Counter[str] = Counter()
    repeated = 0
    began = time.perf_counter()
    with ExitStack() as clusters:
        kafka: TwoPhaseKafka | TwoPhaseTrimtab = TwoPhaseKafka()
        if on_trimtab:
            kafka = TwoPhaseTrimtab()
        clusters.enter_context(kafka)
        with Admin(kafka.address) as admin:
            admin.create_topic(TOPIC, partitions=4)
        master = clusters.enter_context(_master(directory)) if on_standalone else "local[2,3]"
        driver = DriverProcess(directory, kafka.address, master, **options)
        try:
            number = 0
            while sum(done.values()) < kills and time.perf_counter() - began < seconds:
                expected += _add_file(directory / "in", number)
                orders = {random.choice((*driver_points, *task_points))}
                if is_exact and random.random() < 0.5:
                    orders.add(random.choice(LATER_POINTS))
                if on_standalone and random.random() < 0.5:
                    orders.add(random.choice(task_points))
                kinds = {}
                for point in sorted(orders):
                    kind = random.choices(("process", "broker", "jvm"), (8, 1, 1))[0]
                    if on_standalone and point in TASK_POINTS:
                        kind = random.choice(("process", "executor", "stall", kind))
                    victims = {"broker": [random.choice(kafka.pids)], "jvm": driver.pids()}.get(
                        kind, []
                    )
                    is_unknown = kind == "jvm" and not victims
                    kinds[point] = "process" if is_unknown else kind
                    _give_order(
                        directory,
                        point,
                        victims=victims,
                        executor=kind == "executor",
                        stall=STALLS if kind == "stall" else 0.0,
                    )
                if number % 7 == 6:
                    repeated += _delete_last_commit(directory / "checkpoint")
                _run_until_done(driver, kafka, failures)
                for point, kind in kinds.items():
                    order = directory / "orders" / f"{point}.order"
                    if order.exists():
                        order.unlink()  # nobody came there
                    elif kind == "stall":
                        stalled[point] += 1
                    else:
                        done[f"{kind}: {point}"] += 1
                number += 1
            # What was killed last may have left something open, which the next batch clears away.
            expected += _add_file(directory / "in", number)
            _run_until_done(driver, kafka, failures)
            counts = Counter(committed_values(kafka.address, TOPIC))
            with Admin(kafka.address) as admin:
                ids = len(admin.list_transactions(f"{TOPIC}/"))
                left = len(admin.list_transactions(f"{TOPIC}/", ["Ongoing"]))
        finally:
            driver.end()
    shutil.rmtree(directory, ignore_errors=True)
    return {
        "cluster": kafka.name,
        "seed": seed,
        **options,
        "speculation": on_standalone,
        "kills": sum(done.values()),
        "of": dict(sorted(done.items())),
        "stood still": dict(sorted(stalled.items())),
        "batches": number,
        "commits deleted by hand": repeated,
        "queries that failed": dict(failures.most_common(5)),
        "rows": len(expected),
        "lost": sum(counts[row] == 0 for row in expected),
        "doubled": sum(times > 1 for times in counts.values()),
        "transactional ids": ids,
        "left open": left,
        "seconds": round(time.perf_counter() - began),
    }


def come_too_late() -> dict[str, object]:
    """The driver dies between decision and commit, and nobody comes while transactions last."""
    directory = Path(tempfile.mkdtemp(prefix="trimtab-exactly-once-"))
    for name in ("in", "orders"):
        (directory / name).mkdir()
    limit = {"kafka.transaction.timeout.ms": "60000"}
    with TwoPhaseKafka() as kafka:
        with Admin(kafka.address) as admin:
            admin.create_topic(TOPIC, partitions=4)
            driver = DriverProcess(directory, kafka.address, **EXACTLY_ONCE, **limit)
            try:
                expected = _add_file(directory / "in", 0)
                answers = [driver.run_query()]
                expected += _add_file(directory / "in", 1)
                _give_order(directory, "decided")
                answers.append(driver.run_query())
                while admin.list_transactions(f"{TOPIC}/", ["Ongoing"]):
                    time.sleep(1)
                answers.append(driver.run_query())
            finally:
                driver.end()
        before = Counter(committed_values(kafka.address, TOPIC))
        limit["recoverBatch"] = "rewrite:1"
        driver = DriverProcess(directory, kafka.address, **EXACTLY_ONCE, **limit)
        try:
            answers.append(driver.run_query())
        finally:
            driver.end()
        after = Counter(committed_values(kafka.address, TOPIC))
    shutil.rmtree(directory, ignore_errors=True)
    says_so = "batch 1 was decided" in answers[2] and "recoverBatch" in answers[2]
    return {
        "answers": answers,
        "says so": says_so,
        "missing until then": sum(before[row] == 0 for row in expected),
        "lost": sum(after[row] == 0 for row in expected) + (not says_so),
        "doubled": sum(times > 1 for times in before.values()),
        "twice after rewrite": sum(times > 1 for times in after.values()),
    }


@contextmanager
def _master(directory: Path) -> Iterator[str]:
    """A cluster of Spark's own, which replaces executors however many are killed."""
    import pyspark

    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
    }
    with standalone(Path(pyspark.__file__).parent, directory, environment, cores=2) as url:
        yield url


def _give_order(
    directory: Path,
    point: str,
    victims: Sequence[int] = (),
    executor: bool = False,
    stall: float = 0.0,
) -> None:
    order = {"victims": list(victims), "executor": executor, "stall": stall}
    (directory / "orders" / f"{point}.order").write_text(json.dumps(order))


def _add_file(directory: Path, number: int) -> list[str]:
    lines = [f"{number}-{line}" for line in range(LINES)]
    hidden = directory / f".{number}.txt"
    hidden.write_text("\n".join(lines))
    hidden.rename(directory / f"{number}.txt")
    return lines


def _delete_last_commit(checkpoint: Path) -> int:
    commits = checkpoint / "commits"
    numbers = [int(path.name) for path in commits.iterdir() if path.name.isdecimal()]
    if not numbers:
        return 0
    (commits / str(max(numbers))).unlink()
    (commits / f".{max(numbers)}.crc").unlink(missing_ok=True)
    return 1


def _run_until_done(
    driver: DriverProcess, kafka: TwoPhaseKafka | TwoPhaseTrimtab, failures: Counter[str]
) -> None:
    deadline = time.perf_counter() + PATIENCE
    while True:
        answer = driver.run_query()
        kafka.revive()
        if answer == "done":
            return
        failures[answer or "the driver died"] += 1
        if time.perf_counter() > deadline:
            raise RuntimeError(f"a micro-batch is not done after {PATIENCE:g} s: {answer}")


def model(schedules: int, seed: int, endless: bool) -> dict[str, object]:
    """The protocol in the model of `tests/unit/spark`, which needs neither Spark nor Kafka."""
    from tests.unit.spark.write.exactly_once_model import Spark

    logging.disable(logging.CRITICAL)
    kills = replays = lost = doubled = loud = rows = 0
    began = time.perf_counter()
    for number in range(seed, seed + schedules):
        spark = Spark(number, None if endless else 60.0)
        spark.run()
        kills += spark.kills
        replays += spark.replays
        loud += bool(spark.lost)
        rows += sum(spark.coordinator.committed.values())
        doubled += len(spark.doubled)
        lost += 0 if spark.lost else len(spark.missing)
    return {
        "schedules": schedules,
        "seed": seed,
        "two phase commit": endless,
        "kills": kills,
        "batches repeated": replays,
        "rows": rows,
        "lost": lost,
        "doubled": doubled,
        "lost by time, and said so": loud,
        "seconds": round(time.perf_counter() - began, 1),
    }


def run(runs: int, records: int) -> None:
    """As a stage of `python -m lab.benchmarks`; neither number means anything to it."""
    for endless in (False, True):
        print(json.dumps(model(1000, 1, endless)), flush=True)
        for number, on_standalone in enumerate((False, True)):
            for on_trimtab in (False, True):
                result = bombard(
                    *(50, number, 3600.0),
                    endless=endless,
                    on_standalone=on_standalone,
                    on_trimtab=on_trimtab,
                )
                print(json.dumps(result), flush=True)
    result = bombard(50, 2, 3600.0, on_standalone=True, delivery=AT_LEAST_ONCE)
    print(json.dumps(result), flush=True)
    print(json.dumps(come_too_late()), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Exactly once under fire.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=3600.0, help="give up after")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--endless", action="store_true", help="with two-phase commit (KIP-939)")
    parser.add_argument("--trimtab", action="store_true", help="on trimtab's cluster")
    parser.add_argument("--standalone", action="store_true", help="master, workers, speculation")
    parser.add_argument("--at-least-once", action="store_true", help="rows may be there twice")
    parser.add_argument("--model", type=int, default=0, metavar="SCHEDULES")
    parser.add_argument("--late", action="store_true", help="past transaction.timeout.ms")
    parser.add_argument("--driver", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.driver:
        directory, servers, master, options = given.driver
        drive(Path(directory), servers, master, json.loads(options))
        return 0
    if given.late:
        result = come_too_late()
    elif given.model:
        result = model(given.model, given.seed, given.endless)
    else:
        result = bombard(
            given.kills,
            given.seed,
            given.seconds,
            endless=given.endless,
            on_standalone=given.standalone,
            on_trimtab=given.trimtab,
            delivery=AT_LEAST_ONCE if given.at_least_once else EXACTLY_ONCE,
        )
    print(json.dumps(result))
    return 1 if result["lost"] or (result["doubled"] and not given.at_least_once) else 0


if __name__ == "__main__":
    sys.exit(main())
