"""Three brokers, replication factor 3, acks=all: trimtab and Apache Kafka, under Java's tool.

Both clusters run at the same time, after uncounted warm-up runs; measured runs alternate. Measures
throughput and CPU of all nodes including the controller, then latency at a tenth of the slower
side's throughput, then the memory of all nodes.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack

from lab.benchmarks.apache_kafka import KafkaCluster
from lab.benchmarks.jars import KAFKA_VERSION, RivalMissing, find_java, kafka_jars
from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import Load, run_producer_performance
from lab.processes import Side, Trimtab

RIVAL = f"Apache Kafka {KAFKA_VERSION}"
SETTINGS = {
    "defaults": {"acks": "all"},
    "batch 128 KiB, linger 10 ms": {"batch.size": "131072", "linger.ms": "10", "acks": "all"},
}
SIZES = (100, 1000)
BROKERS = 3
WARM_UP_RUNS = 2
LATENCY_SECONDS = 10


def run(runs: int, records: int) -> None:
    try:
        find_java()
        kafka_jars()
    except RivalMissing as missing:
        report(
            *("replication", "records_per_s", "records/s"),
            *([], RIVAL, []),
            more_is_better=True,
            note=str(missing),
        )
        return
    with ExitStack() as stack:
        sides: dict[str, Side] = {
            "ours": stack.enter_context(Trimtab(brokers=BROKERS)),
            "theirs": stack.enter_context(KafkaCluster(BROKERS)),
        }
        idle = {name: side.resident_mib() for name, side in sides.items()}
        for number in range(WARM_UP_RUNS):
            progress(f"replication: warming up, {number + 1} of {WARM_UP_RUNS}")
            for side in sides.values():
                _load(side, records // 2, SIZES[0], "defaults")
        for size in SIZES:
            for setting in SETTINGS:
                _compare(sides, runs, records * SIZES[0] // size * 2, size, setting)
        loaded = {name: side.resident_mib() for name, side in sides.items()}
        for when, memory in (("idle", idle), ("after the load", loaded)):
            report(
                *("replication", f"resident, all nodes, {when}", "MiB"),
                *([memory["ours"]], RIVAL, [memory["theirs"]]),
                more_is_better=False,
            )


def _compare(sides: dict[str, Side], runs: int, records: int, size: int, setting: str) -> None:
    loads: dict[str, list[Load]] = {name: [] for name in sides}
    for number in range(runs):
        progress(f"replication: {size} B, {setting}, run {number + 1} of {runs}")
        for name, side in sides.items():
            loads[name].append(_load(side, records, size, setting))
    _report("records_per_s", "records/s", size, setting, loads, "records_per_second", True)
    _report("cpu_us_per_record", "us", size, setting, loads, "broker_cpu_us_per_record", False)
    slower = min(
        statistics.median(load.records_per_second for load in each) for each in loads.values()
    )
    tenth = max(1, int(slower / 10))
    latencies: dict[str, list[Load]] = {name: [] for name in sides}
    for number in range(runs):
        progress(f"replication: {size} B, {setting}, {tenth} records/s, run {number + 1} of {runs}")
        for name, side in sides.items():
            latencies[name].append(_load(side, tenth * LATENCY_SECONDS, size, setting, tenth))
    _report(f"p99 at {tenth} records/s", "ms", size, setting, latencies, "p99_ms", False)


def _load(side: Side, records: int, size: int, setting: str, throughput: int = -1) -> Load:
    return run_producer_performance(
        side,
        records,
        SETTINGS[setting],
        replication_factor=BROKERS,
        record_bytes=size,
        throughput=throughput,
    )


def _report(
    metric: str,
    unit: str,
    size: int,
    setting: str,
    loads: dict[str, list[Load]],
    attribute: str,
    more_is_better: bool,
) -> None:
    report(
        *("replication", f"{metric}, {size} B, {setting}", unit),
        [getattr(load, attribute) for load in loads["ours"]],
        RIVAL,
        [getattr(load, attribute) for load in loads["theirs"]],
        more_is_better=more_is_better,
    )
