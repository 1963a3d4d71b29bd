"""An application of Kafka Streams counts words on trimtab's cluster exactly once (KIP-447).

`java/WordCount.java` has a repartition topic, a RocksDB store with its changelog, and an output
topic with every new count of a word. So the counts of a word that a consumer of committed records
reads are 1, 2, 3, …: a word that is counted twice, or lost, is a gap or a repetition.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

from lab.benchmarks.jars import find_streams_jars, java_command
from trimtab import Admin, Cluster, Consumer, Producer, TopicPartition
from trimtab.client.admin import TransactionDescription
from trimtab.threads.clock import monotonic_clock, wall_clock_ms

pytestmark = [
    pytest.mark.kip(447),
    pytest.mark.skipif(
        shutil.which("javac") is None or find_streams_jars() is None,
        reason="needs javac and Kafka Streams: python -m lab.benchmarks.jars",
    ),
]

SOURCE = Path(__file__).parent / "java" / "WordCount.java"
PARTITIONS = 4
WORDS = [f"word-{number}" for number in range(40)]
LINES_AT_ONCE, WORDS_OF_LINE = 5, 4
PATIENCE_S = 60
LAST_LINES = 400
COMMIT_MS = 1000
"""Long, so that an instance nearly always has an open transaction."""


class Instance:
    """A process of the application, with a state directory that outlives it.

    Args:
        command: all of its arguments.
        log: the file for what it prints.
    """

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    @property
    def said(self) -> list[str]:
        """The lines that it has printed since it was started last."""
        return self._log.read_text(encoding="utf-8").splitlines()

    def start(self) -> None:
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True
            )

    def kill(self) -> None:
        """Send SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def close(self) -> None:
        """Have it close its KafkaStreams; fails if that takes too long."""
        assert self._process is not None
        self._process.communicate("close\n", timeout=PATIENCE_S)
        said = self.said
        assert "closed true NOT_RUNNING" in said, "\n".join(said[-40:])

    def check(self) -> None:
        """Fail if it has ended, or has failed."""
        assert self._process is not None
        said = self.said
        has_failed = self._process.poll() is not None or "state ERROR" in said
        assert not has_failed, "\n".join(said[-40:])


class Scene:
    """The application on a cluster: lines to its input, and counts from its output.

    Attributes:
        counts: the committed counts of each word, in the order in which they were read.
        sent: how often each word was sent.
    """

    def __init__(self, cluster: Cluster, name: str, classes: Path, directory: Path) -> None:
        self.input, self.output = f"{name}-input", f"{name}-output"
        self.counts: dict[str, list[int]] = defaultdict(list)
        self.sent: Counter[str] = Counter()
        self._name = name
        self._servers = cluster.bootstrap_servers
        self._classes = classes
        self._directory = directory
        self._random = Random(name)
        self._instances: list[Instance] = []
        self._open = ExitStack()
        self.admin = self._open.enter_context(Admin(self._servers))
        for topic in (self.input, self.output):
            self.admin.create_topic(topic, PARTITIONS, replication_factor=3)
        self._producer = self._open.enter_context(Producer(self._servers))
        self._consumer = self._open.enter_context(self._read_output("read_committed"))

    def close(self) -> None:
        for each in self._instances:
            each.kill()
        self._open.close()

    def add_instance(self) -> Instance:
        """Another instance of the application, not started."""
        place = self._directory / f"instance-{len(self._instances)}"
        place.mkdir()
        instance = Instance(
            [
                *(*java_command("96m"), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-cp", f"{self._classes}{os.pathsep}{find_streams_jars()}/*", SOURCE.stem),
                *(self._servers, self._name, self.input, self.output),
                *(str(place / "state"), str(COMMIT_MS)),
            ],
            place / "log",
        )
        self._instances.append(instance)
        return instance

    def await_that(self, is_so: Callable[[], bool], *running: Instance, sends: bool = True) -> None:
        """Send lines and read counts until a condition holds; fails if an instance ends."""
        deadline = monotonic_clock() + PATIENCE_S
        while not is_so():
            for each in running:
                each.check()
            if monotonic_clock() > deadline:
                said = "\n".join(line for each in running for line in each.said[-20:])
                raise AssertionError(
                    f"sent {self.sent.total()}, counted {self.committed()}; instances:\n{said}"
                )
            if sends:
                self.send_lines(LINES_AT_ONCE)
            for record in self._consumer.poll(50):
                assert record.key is not None
                assert record.value is not None
                self.counts[record.key.decode()].append(int(record.value))

    def send_lines(self, count: int) -> None:
        for _ in range(count):
            words = self._random.choices(WORDS, k=WORDS_OF_LINE)
            self._producer.send(self.input, " ".join(words).encode())
            self.sent.update(words)

    def await_progress(self, *running: Instance) -> None:
        """Wait until each of the words has been counted after this call, and sent after it."""
        sent = self.sent.copy()
        self.await_that(
            lambda: all(len(self.counts[word]) > sent[word] for word in WORDS), *running
        )

    def await_all(self, *running: Instance) -> None:
        """Send the last lines, and wait until all that was sent has been counted."""
        self.send_lines(LAST_LINES)
        self._producer.flush(PATIENCE_S)
        self.await_that(lambda: self.committed() >= self.sent.total(), *running, sends=False)

    def committed(self) -> int:
        """How many counts were read."""
        return sum(map(len, self.counts.values()))

    def transactional_ids(self) -> set[str]:
        return {
            each.transactional_id
            for each in self.admin.list_transactions()
            if each.transactional_id.startswith(f"{self._name}-")
        }

    def open_transaction(self, transactional_id: str) -> TransactionDescription | None:
        """The transaction that is open and has counts."""
        found = self.admin.describe_transactions([transactional_id])[transactional_id]
        has_counts = any(each.topic == self.output for each in found.partitions)
        return found if found.state == "Ongoing" and has_counts else None

    def read_all(self, isolation: str) -> dict[str, list[int]]:
        """The counts of each word that are in the output topic."""
        counts: dict[str, list[int]] = defaultdict(list)
        with self._read_output(isolation) as consumer:
            ends = consumer.end_offsets(consumer.assignment())
            while any(consumer.position(each) < end for each, end in ends.items()):
                for record in consumer.poll(1000):
                    assert record.key is not None
                    assert record.value is not None
                    counts[record.key.decode()].append(int(record.value))
        return counts

    def _read_output(self, isolation: str) -> Consumer:
        consumer = Consumer({"bootstrap.servers": self._servers, "isolation.level": isolation})
        partitions = [TopicPartition(self.output, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        return consumer


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("classes")
    jars = f"{find_streams_jars()}/*"
    subprocess.run(["javac", "-d", str(directory), "-cp", jars, str(SOURCE)], check=True)
    return directory


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    }
    with Cluster(brokers=3, config=config) as cluster:
        yield cluster


@contextmanager
def scene_of(cluster: Cluster, name: str, classes: Path, directory: Path) -> Iterator[Scene]:
    scene = Scene(cluster, name, classes, directory)
    try:
        yield scene
    finally:
        scene.close()


def test_an_application_runs_and_closes_in_time(
    cluster: Cluster, classes: Path, tmp_path: Path
) -> None:
    with scene_of(cluster, "plain", classes, tmp_path) as scene:
        instance = scene.add_instance()
        instance.start()
        scene.await_that(lambda: "state RUNNING" in instance.said, instance)
        scene.await_all(instance)
        instance.close()
        assert scene.read_all("read_committed") == {
            word: list(range(1, times + 1)) for word, times in scene.sent.items()
        }


def test_every_word_is_counted_once_though_an_instance_and_a_broker_are_killed(
    cluster: Cluster, classes: Path, tmp_path: Path
) -> None:
    with scene_of(cluster, "killed", classes, tmp_path) as scene:
        first, second = scene.add_instance(), scene.add_instance()
        first.start()
        scene.await_that(lambda: len(scene.transactional_ids()) == 1, first)
        (of_first,) = scene.transactional_ids()
        scene.await_progress(first)
        second.start()
        scene.await_that(lambda: len(scene.transactional_ids()) == 2, first, second)
        (of_second,) = scene.transactional_ids() - {of_first}
        scene.await_that(lambda: scene.open_transaction(of_second) is not None, first, second)

        def is_within_a_transaction() -> bool:
            """Whether the first instance has written counts, which it will not commit soon."""
            found = scene.open_transaction(of_first)
            return found is not None and wall_clock_ms() - found.started_at < COMMIT_MS / 2

        scene.await_that(is_within_a_transaction, first, second)
        first.kill()
        scene.await_progress(second)
        first.start()
        scene.await_that(lambda: scene.open_transaction(of_first) is not None, first, second)
        scene.await_progress(first, second)

        broker = scene.admin.describe_topics([scene.output])[scene.output].leaders[0]
        cluster.kill_broker(broker)
        scene.await_progress(first, second)
        cluster.start_broker(broker)
        scene.await_progress(first, second)

        scene.await_all(first, second)
        for each in (first, second):
            each.close()
        expected = {word: list(range(1, times + 1)) for word, times in scene.sent.items()}
        assert scene.counts == expected
        assert scene.read_all("read_committed") == expected
        aborted = scene.read_all("read_uncommitted")
        assert sum(map(len, aborted.values())) > scene.sent.total()
