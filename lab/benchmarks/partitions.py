"""Many partitions, by KIP-578's appendix: three brokers of trimtab compared with Apache Kafka's.

1. Throughput of Java's tool with 10 to 10,000 replicas on each broker, at RF 1 and RF 3, and which
   share of it remains from the fewest to the most.
2. A topic of 30,000 partitions, at RF 1 and RF 3: seconds from its creation until every leader is
   known; CPU and memory of all nodes while idle; seconds for a clean restart of all nodes until
   every leader is known; seconds until the topic is deleted.

Each count has its own cluster on both sides, so that earlier runs leave nothing behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from lab.benchmarks.apache_kafka import KafkaCluster
from lab.benchmarks.jars import KAFKA_VERSION, RivalMissing, find_java, kafka_jars
from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import Topics, run_producer_performance
from lab.processes import Trimtab

RIVAL = f"Apache Kafka {KAFKA_VERSION}"
Start: TypeAlias = Callable[[], Trimtab | KafkaCluster]

BROKERS = 3
PER_BROKER = (10, 100, 500, 1_000, 5_000, 10_000)
FACTORS = (1, 3)
MANY = 30_000
SETTINGS = {"acks": "all", "batch.size": "131072", "linger.ms": "10"}
SETTLE_SECONDS = 15
IDLE_SECONDS = 20


class Many(NamedTuple):
    """The costs of a topic with many partitions, in seconds, percent of a core, and MiB."""

    create: float
    idle_cpu: float
    idle_memory: float
    restart: float
    delete: float


def run(runs: int, records: int) -> None:
    sides: dict[str, Start] = {"ours": lambda: Trimtab(brokers=BROKERS)}
    note = ""
    try:
        find_java()
        kafka_jars()
        sides["theirs"] = lambda: KafkaCluster(BROKERS)
    except RivalMissing as missing:
        note = str(missing)
    for factor in FACTORS:
        if not note:
            _compare_throughput(sides, runs, records, factor)
        _compare_many(sides, factor, note)


def _compare_throughput(sides: dict[str, Start], runs: int, records: int, factor: int) -> None:
    kept: dict[str, list[float]] = {}
    for name, start in sides.items():
        medians = []
        for count in PER_BROKER:
            progress(f"partitions: {name}, RF {factor}, {count} replicas on each broker")
            medians.append(_measure(start, runs, records, count * BROKERS // factor, factor))
        kept[name] = medians
    for index, count in enumerate(PER_BROKER):
        ours, theirs = (
            [kept[name][index]] if kept[name][index] else [] for name in ("ours", "theirs")
        )
        report(
            *("partitions", f"records_per_s, RF {factor}, {count} on each broker", "records/s"),
            *(ours, RIVAL, theirs),
            more_is_better=True,
            note="" if theirs else f"{RIVAL} did not take the load",
        )
    ours, theirs = ([each[-1] / each[0]] if each[-1] else [] for each in kept.values())
    report(
        *("partitions", f"kept from {PER_BROKER[0]} to {PER_BROKER[-1]}, RF {factor}", "ratio"),
        *(ours, RIVAL, theirs),
        more_is_better=True,
    )


def _measure(start: Start, runs: int, records: int, partitions: int, factor: int) -> float:
    """Records per second of the best run; 0 if the cluster failed."""
    best = 0.0
    try:
        with start() as side:
            for _ in range(runs):
                load = run_producer_performance(
                    side, records, SETTINGS, partitions, replication_factor=factor
                )
                best = max(best, load.records_per_second)
    except Exception as error:
        progress(f"partitions: gave up: {error}")
    return best


def _compare_many(sides: dict[str, Start], factor: int, note: str) -> None:
    found: dict[str, Many] = {}
    for name, start in sides.items():
        progress(f"partitions: {name}, RF {factor}, a topic of {MANY}")
        try:
            with start() as side:
                found[name] = _carry_many(side, factor)
        except Exception as error:
            note = f"{name} gave up: {str(error).splitlines()[0]}"
            progress(f"partitions: {note}")
    for metric, unit in (
        ("create", "s"),
        ("idle_cpu", "% of a core"),
        ("idle_memory", "MiB"),
        ("restart", "s"),
        ("delete", "s"),
    ):
        ours, theirs = (
            [float(getattr(found[name], metric))] if name in found else []
            for name in ("ours", "theirs")
        )
        report(
            *("partitions", f"{metric}, {MANY} partitions, RF {factor}", unit),
            *(ours, RIVAL, theirs),
            more_is_better=False,
            note=note,
        )


def _carry_many(side: Trimtab | KafkaCluster, factor: int) -> Many:
    topics = Topics(side.address, factor)
    began = time.perf_counter()
    name = topics.create(MANY)
    created = time.perf_counter() - began
    time.sleep(SETTLE_SECONDS)
    cpu, began = side.cpu_seconds(), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    idle = (side.cpu_seconds() - cpu) / (time.perf_counter() - began) * 100
    memory = side.resident_mib()
    began = time.perf_counter()
    side.restart()
    topics = Topics(side.address, factor)
    topics.await_leaders(name, MANY)
    restarted = time.perf_counter() - began
    began = time.perf_counter()
    topics.delete(name)
    while True:  # until the nodes are idle
        cpu = side.cpu_seconds()
        time.sleep(1)
        if side.cpu_seconds() - cpu < max(0.1, idle / 50):
            return Many(created, idle, memory, restarted, time.perf_counter() - began - 1)
