"""100 small tests on the pytest plugin, and on Apache Kafka started per session and per test.

A test has a topic of its own, sends ten records with confluent-kafka and reads them in a group.
Both brokers are set up as Testcontainers does: no wait before a group's first assignment, and one
partition of `__consumer_offsets`. Apache Kafka is a JVM without a container around it, so starting
and stopping the container is not in its figures.

A broker per test is measured with 1 and with 6 tests; 100 tests then take the time of the first and
99 times the time that each further one takes.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lab.benchmarks.apache_kafka import ApacheKafka
from lab.benchmarks.jars import KAFKA_VERSION, RivalMissing, kafka_jars
from lab.benchmarks.report import progress, report
from lab.processes import children_of, resident_mib

TESTS = 100
FEW = 6
SAMPLE_S = 0.02
ROOT = Path(__file__).resolve().parents[2]

TEST = """
import pytest
from confluent_kafka import Consumer, Producer

@pytest.mark.parametrize("number", range({count}))
def test_records_come_back(servers, topic, number):
    sent = [b"%d" % each for each in range(10)]
    producer = Producer({{"bootstrap.servers": servers}})
    for value in sent:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    consumer = Consumer(
        {{"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"}}
    )
    consumer.subscribe([topic])
    read = []
    while len(read) < 10:
        message = consumer.poll(30)
        assert message is not None and message.error() is None
        read.append(message.value())
    consumer.close()
    assert read == sent
"""

PLUGIN = """
import pytest

@pytest.fixture
def servers(kafka_cluster):
    return kafka_cluster.bootstrap_servers

@pytest.fixture
def topic(kafka_topic):
    return kafka_topic

@pytest.fixture(scope="session")
def kafka_options():
    return {{"config": {options}}}
"""

JVM = """
from uuid import uuid4
import pytest
from lab.benchmarks.plugin import QuickKafka
from confluent_kafka.admin import AdminClient, NewTopic

@pytest.fixture(scope="{scope}")
def servers():
    with QuickKafka() as kafka:
        yield kafka.address

@pytest.fixture(scope="{scope}")
def admin(servers):
    return AdminClient({{"bootstrap.servers": servers}})

@pytest.fixture
def topic(admin):
    name = f"topic-{{uuid4()}}"
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    yield name
    admin.delete_topics([name])[name].result(30)
"""

OPTIONS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}


class QuickKafka(ApacheKafka):
    """Apache Kafka with the options that Testcontainers gives it."""

    def settings(self) -> dict[str, str]:
        return super().settings() | OPTIONS


class Measured(NamedTuple):
    """A run of pytest with all its processes: elapsed seconds, CPU time, peak of their memory."""

    seconds: float
    cpu_s: float
    peak_mib: float


def run_tests(conftest: str, count: int) -> Measured:
    """Run so many tests in a process of their own.

    Raises:
        RuntimeError: not all of them pass.
    """
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as directory:
        (Path(directory) / "conftest.py").write_text(conftest)
        (Path(directory) / "test_records.py").write_text(TEST.format(count=count))
        with open(Path(directory) / "log", "w+") as log:
            began, cpu_began = time.perf_counter(), _children_cpu_s()
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", directory],
                cwd=directory,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            peak = 0.0
            while process.poll() is None:
                peak = max(peak, _resident_mib(process.pid))
                time.sleep(SAMPLE_S)
            seconds, cpu_s = time.perf_counter() - began, _children_cpu_s() - cpu_began
            log.seek(0)
            said = log.read()
    if not re.search(rf"^{count} passed", said, re.MULTILINE):
        raise RuntimeError(f"not {count} tests passed:\n{said[-2000:]}")
    return Measured(seconds, cpu_s, peak)


def _children_cpu_s() -> float:
    """CPU time of all descendants that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def estimate(first: Measured, few: Measured) -> Measured:
    """What 100 tests take, if each after the first takes as much as those after the first here."""

    def all_of(one: float, some: float) -> float:
        return one + (TESTS - 1) * (some - one) / (FEW - 1)

    return Measured(
        all_of(first.seconds, few.seconds),
        all_of(first.cpu_s, few.cpu_s),
        max(first.peak_mib, few.peak_mib),
    )


def _resident_mib(pid: int) -> float:
    """Resident memory of a process and its descendants that still run."""
    with suppress(OSError, RuntimeError):  # it has ended
        return resident_mib(pid) + sum(map(_resident_mib, children_of(pid)))
    return 0.0


def run(runs: int, records: int) -> None:
    del records
    note = ""
    try:
        kafka_jars()
    except RivalMissing as missing:
        note = str(missing)
    ours: list[Measured] = []
    session: list[Measured] = []
    each: list[Measured] = []
    run_tests(PLUGIN.format(options=OPTIONS), 1)  # writes Python's bytecode files
    for number in range(runs):
        progress(f"plugin: run {number + 1} of {runs}")
        ours.append(run_tests(PLUGIN.format(options=OPTIONS), TESTS))
        if not note:
            session.append(run_tests(JVM.format(scope="session"), TESTS))
            per_test = JVM.format(scope="function")
            each.append(estimate(run_tests(per_test, 1), run_tests(per_test, FEW)))
    for when, theirs, says in (
        ("session", session, note),
        ("test", each, note or f"estimated from 1 and {FEW} tests"),
    ):
        for metric, unit, measured in (
            (f"{TESTS} tests", "s", "seconds"),
            (f"{TESTS} tests, CPU time", "s", "cpu_s"),
            ("peak memory of pytest and the broker", "MiB", "peak_mib"),
        ):
            report(
                *("plugin", metric, unit, [getattr(one, measured) for one in ours]),
                f"Apache Kafka {KAFKA_VERSION} per {when}",
                [getattr(one, measured) for one in theirs],
                more_is_better=False,
                note=says,
            )
