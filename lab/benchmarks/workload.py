"""Topics and loads that several stages use, for brokers of either side."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import count
from typing import NamedTuple

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ has no __all__
    AdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from lab.benchmarks.apache_kafka import run_java
from lab.benchmarks.report import progress, report
from lab.processes import Side

PARTITIONS = 6
RECORD_BYTES = 100

_SUMMARY = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec .* ([\d.]+) ms avg latency.* (\d+) ms 99th.*99\.9th"
)
_numbers = count()
_PATIENCE_S = 300
_MOST_AT_ONCE = 9_999
"""Limit on the partitions that one request creates, in trimtab and in Apache Kafka."""


class Load(NamedTuple):
    """The results of one run of ProducerPerformance."""

    records_per_second: float
    broker_cpu_us_per_record: float
    p99_ms: float


class Topics:
    """Creates and deletes topics on brokers of either side, through confluent-kafka."""

    def __init__(self, address: str, replication_factor: int = 1) -> None:
        self._replication_factor = replication_factor
        self._admin = AdminClient({"bootstrap.servers": address, "log_level": 0})

    def create(self, partitions: int = PARTITIONS) -> str:
        """Create a topic, wait for the leaders of its partitions, and return its name."""
        name = f"bench-{next(_numbers)}"
        there = min(partitions, _MOST_AT_ONCE)
        self._admin.create_topics(
            [NewTopic(name, there, self._replication_factor)], request_timeout=_PATIENCE_S
        )[name].result(_PATIENCE_S)
        while there < partitions:
            there = min(partitions, there + _MOST_AT_ONCE)
            self._admin.create_partitions(
                [NewPartitions(name, there)], request_timeout=_PATIENCE_S
            )[name].result(_PATIENCE_S)
        self.await_leaders(name, partitions)
        return name

    def await_leaders(self, name: str, partitions: int) -> None:
        """Wait until each partition of a topic has a leader."""
        while True:
            topic = self._admin.list_topics(name, timeout=_PATIENCE_S).topics[name]
            if len(topic.partitions) == partitions and all(
                partition.leader >= 0 for partition in topic.partitions.values()
            ):
                return
            time.sleep(0.1)

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name], request_timeout=_PATIENCE_S)[name].result(_PATIENCE_S)

    def count_records(self, name: str) -> int:
        """The number of records in a topic."""
        partitions = self._admin.list_topics(name, timeout=30).topics[name].partitions
        end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        latest = self._admin.list_offsets({TopicPartition(name, n): end for n in partitions})
        return sum(future.result(30).offset for future in latest.values())


def run_producer_performance(
    broker: Side,
    records: int,
    properties: Mapping[str, str],
    partitions: int = PARTITIONS,
    replication_factor: int = 1,
    record_bytes: int = RECORD_BYTES,
    throughput: int = -1,
) -> Load:
    """Run Java's ProducerPerformance on a new topic, and check that every record is stored.

    Args:
        throughput: records per second; -1 for no limit.

    Raises:
        RivalMissing: there is no Java, or no jars.
        RuntimeError: the tool failed, or records are missing.
    """
    topics = Topics(broker.address, replication_factor)
    topic = topics.create(partitions)
    before = broker.cpu_seconds()
    text = run_java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)),
        *("--throughput", str(throughput), "--bootstrap-server", broker.address),
        *("--command-property", *(f"{name}={value}" for name, value in properties.items())),
    )
    used = broker.cpu_seconds() - before
    summary = _SUMMARY.search(text)
    stored = topics.count_records(topic)
    if summary is None or stored != records:
        raise RuntimeError(f"{broker.name} holds {stored} of {records} records; the tool: {text}")
    topics.delete(topic)
    return Load(float(summary[2]), used / records * 1e6, float(summary[4]))


class Loop(NamedTuple):
    """The results of one run of `lab.benchmarks.producer_loop`; memory above that before the
    loop."""

    records_per_second: float
    cpu_us_per_record: float
    peak_mib: float


def run_producer_loop(
    client: str,
    broker: Side,
    records: int,
    options: Mapping[str, object],
    topic: str | None = None,
    partitions: int = PARTITIONS,
    replication_factor: int = 1,
) -> Loop:
    """Run a Python client in its own process, and check that every record is stored.

    Args:
        client: one of `producer_loop.CLIENTS`.
        topic: an empty topic to use; without it, a topic is created for the run.
        partitions: number of partitions of the topic that is created.

    Raises:
        RuntimeError: the client failed, or records are missing.
    """
    topics = Topics(broker.address, replication_factor)
    name = topic or topics.create(partitions)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "lab.benchmarks.producer_loop", client, broker.address, name),
            *(str(records), str(RECORD_BYTES), json.dumps(options)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    stored = topics.count_records(name)
    if done.returncode != 0 or stored != records:
        raise RuntimeError(f"{client}: exit code {done.returncode}, {stored} of {records} stored")
    if topic is None:
        topics.delete(name)
    answer = json.loads(done.stdout)
    return Loop(
        records / answer["seconds"], answer["cpu_seconds"] / records * 1e6, answer["peak_mib"]
    )


def compare_loops(
    stage: str,
    setting: str,
    broker: Side,
    sides: Mapping[str, str],
    records: int,
    runs: int,
    options: Mapping[str, object],
    *,
    makes_topics: bool = True,
    note: str = "",
) -> dict[str, list[Loop]]:
    """Run clients alternately, and report the first one compared with each other one.

    Args:
        sides: by client (one of `producer_loop.CLIENTS`), its name in the report.
        makes_topics: False for a broker on which every topic exists.

    Returns:
        The results of each client's runs.
    """
    found: dict[str, list[Loop]] = {client: [] for client in sides}
    for number in range(runs):
        progress(f"{stage}: {setting}, run {number + 1} of {runs}")
        for client, loops in found.items():
            topic = None if makes_topics else f"bench-{next(_numbers)}"
            loops.append(run_producer_loop(client, broker, records, options, topic))
    (_, ours), *rivals = found.items()
    for client, theirs in rivals:
        report(
            *(stage, f"records_per_s, {setting}", "records/s"),
            [loop.records_per_second for loop in ours],
            sides[client],
            [loop.records_per_second for loop in theirs],
            more_is_better=True,
            note=note,
        )
        report(
            *(stage, f"client_cpu_us_per_record, {setting}", "us"),
            [loop.cpu_us_per_record for loop in ours],
            sides[client],
            [loop.cpu_us_per_record for loop in theirs],
            more_is_better=False,
            note=note,
        )
    return found


def report_memory(stage: str, setting: str, found: Mapping[str, list[Loop]]) -> None:
    """Report the peak memory of `compare_loops`: the first client compared with the second."""
    (_, ours), (rival, theirs), *_ = found.items()
    report(
        *(stage, f"peak_memory_mib, {setting}", "MiB"),
        [loop.peak_mib for loop in ours],
        rival,
        [loop.peak_mib for loop in theirs],
        more_is_better=False,
        note="beyond what the process had before its loop; to compare with buffer.memory, 32 MiB",
    )
