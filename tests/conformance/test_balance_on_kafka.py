"""`trimtab balance` on three brokers of Apache Kafka, while a producer writes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import pytest

from lab.benchmarks.apache_kafka import KafkaMember
from tests.kafka import needs_kafka, three_members
from trimtab import Admin, Consumer, Producer
from trimtab.balance.throttles import LISTS, RATES
from trimtab.client.admin import ConfigSource
from trimtab.client.measure.probe import PROBE_TOPIC

pytestmark = needs_kafka

T = "flights"
LIMIT_S = 180
PARTITIONS = 12
WEIGHTS = (4, 2, 1) * 4
"""Records of 2 kB that a partition gets at a time: skewed 4 : 1."""


@pytest.fixture(scope="module")
def members() -> Iterator[list[KafkaMember]]:
    with three_members(KafkaMember) as members:
        yield members


class Writer:
    """A thread that writes numbered records to every partition until it is ended.

    Attributes:
        acknowledged: by partition the numbers of the records that all replicas have.
    """

    def __init__(self, address: str) -> None:
        self.acknowledged: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self._address = address
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        sent = []
        with Producer(self._address, linger_ms=0) as producer:
            number = 0
            while not self._over.wait(0.05):
                for partition, weight in enumerate(WEIGHTS):
                    for _ in range(weight):
                        number += 1
                        value = b"%d " % number + bytes(2000)
                        future = producer.send(T, value, partition=partition)
                        sent.append((partition, number, future))
            producer.flush()
        for partition, number, future in sent:
            future.result(30)
            self.acknowledged[partition].add(number)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def balance(address: str, *words: str) -> tuple[int, dict[str, object], str]:
    """Run the command; exit code, object and errors."""
    command = [sys.executable, "-m", "trimtab", "balance", "--bootstrap-server", address]
    done = subprocess.run(
        [*command, "--window", "20", "--json", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def read_all(address: str) -> Sequence[set[int]]:
    found: list[set[int]] = [set() for _ in range(PARTITIONS)]
    with Consumer(address) as consumer:
        partitions = [(T, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(each) < end for each, end in ends.items()):
            for record in consumer.poll(timeout_ms=1000):
                assert record.value is not None
                found[record.partition].add(int(record.value.split()[0]))
    return found


def test_skewed_leaders_and_replicas_become_level_and_nothing_is_lost(
    members: list[KafkaMember],
) -> None:
    """Broker 0 leads all; two in three partitions have their other replica on broker 1."""
    address = members[0].address
    with Admin(address) as admin:
        placed = {index: [0, 2 if index % 3 == 2 else 1] for index in range(PARTITIONS)}
        admin.create_topic(T, assignment=placed, config={"min.insync.replicas": 1})
        writer = Writer(address)
        try:
            code, moved, errors = balance(
                address, "--execute", "--probe", "--throttle", "50000000", "--plan-to", "1.03"
            )
            assert code == 0, (errors, moved.get("report"))
            again, level, _ = balance(address)
        finally:
            writer.end()
        before, after = (each["levels"]["out"]["level"] for each in (moved, level))  # type: ignore[index]
        assert before > 2.8
        assert after <= 1.10, level["levels"]
        assert (again, level["reasons"], level["changes"]) == (0, [], [])
        assert moved["report"]["left"] == []  # type: ignore[index]
        leaders = admin.describe_topics([T])[T].leaders
        assert {*leaders} == {0, 1, 2}
        assert read_all(address) == writer.acknowledged
        assert [each for each in admin.describe_topic_configs([T], LISTS)[T] if each.value] == []
        for broker in range(3):
            for entry in admin.describe_configs("broker", broker):
                assert entry.name not in RATES or entry.source >= ConfigSource.DEFAULT_CONFIG
        assert admin.list_reassignments() == {}
        assert PROBE_TOPIC not in admin.topics()
