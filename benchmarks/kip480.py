"""KIP-480's setting: trimtab's producer and Java's, on trimtab's cluster and on Apache Kafka.

There are three brokers, and each answers produce requests 5 ms late, Apache Kafka's through
`benchmarks.proxy`; a topic of 16 partitions; 1000 records/s of 100 bytes with linger.ms=0. Each
producer is measured by its own perf tool; Java's rounds latencies down to milliseconds, which makes
its average half a millisecond better. The old sticky partitioner is that of the last Java client
that has it.

The stage sends 30,000 records in each run. `python -m benchmarks.kip480 --records 100000` sends
more, and `--cluster` and `--configuration` select.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from benchmarks.jars import NEWEST_CLIENT, OLD_CLIENT, RivalMissing, java_command
from benchmarks.kip794 import java_class_path
from benchmarks.processes import KafkaBehindProxy, Trimtab
from benchmarks.report import progress, report
from trimtab.blocking.admin import Admin
from trimtab.cli.experiment.cluster import ExperimentCluster
from trimtab.cli.experiment.kip480 import CONFIGURATIONS, PRODUCE_MS, RATE, RECORD_BYTES
from trimtab.cli.experiment.perf import PerfRun, run_perf, trimtab_perf

CLUSTERS: Final = ("trimtab", "apache")
OURS: Final = ("default", "sticky", "strict", "free")
SLOW: Final = dict.fromkeys(range(3), PRODUCE_MS)
PARTITIONS: Final = 16
RECORDS: Final = 30_000
SLOWEST: Final = 3
GRACE_S: Final = 60

METRICS: Final = {
    "average_ms": ("ms", False),
    "p99_ms": ("ms", False),
    "records_per_batch": ("records", True),
    "deviation_of_partitions": ("of the mean", False),
}


class Measured(NamedTuple):
    """The results of one run; `records` by partition."""

    run: PerfRun
    records: Sequence[int]

    def figures(self) -> dict[str, float]:
        batches = sum(self.run.node_totals("batch-total").values())
        mean = sum(self.records) / len(self.records)
        return {
            "average_ms": self.run.latency_ms["average"],
            "p99_ms": self.run.latency_ms["p99"],
            # Java's client counts requests, which may have several batches.
            "records_per_batch": self.run.records / batches
            if batches
            else self.run.metrics["records-per-request-avg"],
            "deviation_of_partitions": max(abs(of - mean) for of in self.records) / mean,
        }


def run(runs: int, records: int) -> None:
    measure_all(1, min(records, RECORDS), CLUSTERS, OURS)


def measure_all(
    rounds: int, records: int, clusters: Sequence[str], configurations: Sequence[str]
) -> None:
    """Measure and report; trimtab's producers and Java's alternate."""
    for cluster in clusters:
        try:
            with Trimtab(3, SLOW) if cluster == "trimtab" else KafkaBehindProxy(SLOW) as brokers:
                _measure_on(cluster, brokers.address, rounds, records, configurations)
        except RivalMissing as missing:
            for name in configurations:
                _report(cluster, name, [], "", [], str(missing))


def _measure_on(
    cluster: str, address: str, rounds: int, records: int, configurations: Sequence[str]
) -> None:
    ours: dict[str, list[Measured]] = {name: [] for name in configurations}
    theirs: dict[str, list[Measured]] = {"adaptive": [], "old": []}
    missing = ""
    with Admin(address) as admin:
        target = ExperimentCluster(admin, None, ["--bootstrap-server", address])
        for number in range(rounds):
            where = f"kip480: on {cluster}, round {number + 1} of {rounds}"
            for name, found in ours.items():
                progress(f"{where}: {name}")
                found.append(_measure(target, name, records))
            for name, found in theirs.items():
                progress(f"{where}: Java's {name}")
                try:
                    found.append(_measure(target, name, records, address))
                except RivalMissing as reason:
                    missing = str(reason)
    for name in configurations:
        is_old = name == "sticky"
        rival = f"Java {OLD_CLIENT}, sticky" if is_old else f"Java {NEWEST_CLIENT}, default"
        found = theirs["old" if is_old else "adaptive"]
        _report(cluster, name, ours[name], rival, found, missing)


def _measure(
    target: ExperimentCluster, name: str, records: int, java_address: str = ""
) -> Measured:
    """One run of trimtab's producer; of Java's if its bootstrap address is given."""
    leaders = [target.brokers[at % 3] for at in range(PARTITIONS)]
    with target.topic(f"kip480-{name}", leaders) as view:
        if java_address:
            command = [
                *(*java_command("512m"), "-cp", java_class_path(name)),
                *("org.apache.kafka.tools.ProducerPerformance", "--print-metrics"),
                *("--topic", view.name, "--num-records", str(records)),
                *("--record-size", str(RECORD_BYTES), "--throughput", str(RATE)),
                *("--producer-props", f"bootstrap.servers={java_address}", "linger.ms=0"),
            ]
        else:
            command = trimtab_perf(
                *(view.name, records, RECORD_BYTES, RATE, target.client_words),
                {"linger.ms": 0, **CONFIGURATIONS[name].settings},
            )
        timeout_s = SLOWEST * records / RATE + GRACE_S
        perf = asyncio.run(run_perf(command, timeout_s, lambda done: None))
        return Measured(perf, target.count_records(view))


def _report(
    cluster: str,
    name: str,
    ours: Sequence[Measured],
    rival: str,
    theirs: Sequence[Measured],
    note: str = "",
) -> None:
    for metric, (unit, more_is_better) in METRICS.items():
        report(
            *("kip480", f"{metric}, on {cluster}, {name}", unit),
            [each.figures()[metric] for each in ours],
            rival,
            [each.figures()[metric] for each in theirs],
            more_is_better=more_is_better,
            note=note,
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kip480",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="rounds (default: 1)")
    parser.add_argument("--records", type=int, default=RECORDS, metavar="N", help="in each run")
    parser.add_argument("--cluster", nargs="+", choices=CLUSTERS, default=CLUSTERS)
    parser.add_argument("--configuration", nargs="+", choices=list(CONFIGURATIONS), default=OURS)
    arguments = parser.parse_args()
    measure_all(arguments.runs, arguments.records, arguments.cluster, arguments.configuration)
    return 0


if __name__ == "__main__":
    sys.exit(main())
