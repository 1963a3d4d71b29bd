"""KIP-794's test series: trimtab's producer and Java's, on trimtab's cluster and on Apache Kafka.

There are three brokers; broker 0 answers produce requests 20 ms late, Apache Kafka's through
`benchmarks.proxy`. Each producer is measured by its own perf tool; both print the same lines.
Java's rounds latencies down to milliseconds, which makes its average half a millisecond better. The
old sticky partitioner is that of the last Java client that has it.

A round, every configuration once, takes half an hour. The stage runs one round;
`python -m benchmarks.kip794 --runs 3` runs more, and `--cluster`, `--series` and `--configuration`
select.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

from benchmarks.jars import (
    NEWEST_CLIENT,
    OLD_CLIENT,
    RivalMissing,
    client_jars,
    java_command,
    kafka_jars,
)
from benchmarks.processes import KafkaBehindProxy, Trimtab
from benchmarks.report import progress, report
from trimtab.blocking.admin import Admin
from trimtab.cli.experiment.cluster import ExperimentCluster
from trimtab.cli.experiment.kip794 import (
    CONFIGURATIONS,
    LINGER,
    RATES,
    RECORD_BYTES,
    RECORDS,
    SLOW_PRODUCE_MS,
    Measured,
    measure,
    new_topic,
)
from trimtab.cli.experiment.perf import trimtab_perf

CLUSTERS: Final = ("trimtab", "apache")
SLOW: Final = {0: SLOW_PRODUCE_MS}

RIVALS: Final = {"strict": "uniform", "tenth": "adaptive", "free": "adaptive"}
"""Java's configuration to compare with, for trimtab's configurations that Java lacks."""

JAVA_SETTINGS: Final[dict[str, Mapping[str, str | int | bool]]] = {
    "old": {},  # the default of the old client
    "uniform": CONFIGURATIONS["uniform"].settings,
    "adaptive": CONFIGURATIONS["adaptive"].settings,
    "timeout": CONFIGURATIONS["timeout"].settings,
}

METRICS: Final = {
    "average_ms": ("ms", False),
    "p99_ms": ("ms", False),
    "megabytes_per_s": ("MiB/s", True),
    "slow_broker_share": ("of the records", False),
    "spread_of_brokers": ("of the mean", False),
}


def run(runs: int, records: int) -> None:
    measure_all(1, min(records, RECORDS), CLUSTERS, list(RATES), list(CONFIGURATIONS))


def measure_all(
    rounds: int,
    records: int,
    clusters: Sequence[str],
    series: Sequence[int],
    configurations: Sequence[str],
) -> None:
    """Measure and report; the two sides alternate."""
    for cluster in clusters:
        try:
            if cluster == "trimtab":
                with Trimtab(3, SLOW) as ours:
                    _measure_on(cluster, ours.address, rounds, records, series, configurations)
            else:
                with KafkaBehindProxy(SLOW) as theirs:
                    _measure_on(cluster, theirs.address, rounds, records, series, configurations)
        except RivalMissing as missing:
            for each, name in product(series, configurations):
                _report(cluster, each, name, [], [], str(missing))


def _measure_on(
    cluster: str,
    address: str,
    rounds: int,
    records: int,
    series: Sequence[int],
    configurations: Sequence[str],
) -> None:
    with Admin(address) as admin:
        target = ExperimentCluster(admin, None, ["--bootstrap-server", address])
        for each in series:
            ours: dict[str, list[Measured]] = {name: [] for name in configurations}
            theirs: dict[str, list[Measured]] = {
                RIVALS.get(name, name): [] for name in configurations
            }
            missing = ""
            for number in range(rounds):
                where = f"kip794: on {cluster}, series {each}, round {number + 1} of {rounds}"
                for name, measured in ours.items():
                    progress(f"{where}: {name}")
                    measured.append(_measure(target, each, name, records))
                for name, measured in theirs.items():
                    progress(f"{where}: Java's {name}")
                    try:
                        measured.append(_measure_java(target, address, each, name, records))
                    except RivalMissing as reason:
                        missing = str(reason)
            for name in configurations:
                _report(cluster, each, name, ours[name], theirs[RIVALS.get(name, name)], missing)


def _measure(target: ExperimentCluster, series: int, name: str, records: int) -> Measured:
    with new_topic(target, f"{series}-{name}") as view:
        command = trimtab_perf(
            *(view.name, records, RECORD_BYTES, RATES[series], target.client_words),
            {**LINGER, **CONFIGURATIONS[name].settings},
        )
        return asyncio.run(measure(target, view, series, name, command, records, lambda done: None))


def _measure_java(
    target: ExperimentCluster, address: str, series: int, name: str, records: int
) -> Measured:
    with new_topic(target, f"{series}-java-{name}") as view:
        properties = {"bootstrap.servers": address, **LINGER, **JAVA_SETTINGS[name]}
        command = [
            *(*java_command("512m"), "-cp"),
            java_class_path(name),
            *("org.apache.kafka.tools.ProducerPerformance", "--print-metrics"),
            *("--topic", view.name, "--num-records", str(records)),
            *("--record-size", str(RECORD_BYTES), "--throughput", str(RATES[series])),
            "--producer-props",
            *(f"{key}={str(value).lower()}" for key, value in properties.items()),
        ]
        return asyncio.run(measure(target, view, series, name, command, records, lambda done: None))


def java_class_path(configuration: str) -> str:
    """The newest client with Apache Kafka's tools; for the old partitioner, the old client with
    its own tools.

    Raises:
        RivalMissing: they are not available.
    """
    if configuration == "old":
        return f"{client_jars(OLD_CLIENT)}/*"
    return f"{client_jars(NEWEST_CLIENT)}/*:{kafka_jars()}/*"


def _figures(measured: Measured) -> dict[str, float]:
    latency = measured.run.latency_ms
    return {
        "average_ms": latency["average"],
        "p99_ms": latency["p99"],
        "megabytes_per_s": measured.run.megabytes_per_second,
        "slow_broker_share": measured.shares[measured.brokers[0]],
        "spread_of_brokers": measured.spread,
    }


def _report(
    cluster: str,
    series: int,
    name: str,
    ours: Sequence[Measured],
    theirs: Sequence[Measured],
    note: str = "",
) -> None:
    client = OLD_CLIENT if name == "old" else NEWEST_CLIENT
    for metric, (unit, more_is_better) in METRICS.items():
        report(
            *("kip794", f"{metric}, on {cluster}, series {series}, {name}", unit),
            [_figures(each)[metric] for each in ours],
            f"Java's producer {client}, {RIVALS.get(name, name)}",
            [_figures(each)[metric] for each in theirs],
            more_is_better=more_is_better,
            note=note,
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kip794",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="rounds (default: 1)")
    parser.add_argument("--records", type=int, default=RECORDS, metavar="N", help="in each run")
    parser.add_argument("--cluster", nargs="+", choices=CLUSTERS, default=CLUSTERS)
    parser.add_argument("--series", nargs="+", type=int, choices=RATES, default=list(RATES))
    parser.add_argument(
        "--configuration", nargs="+", choices=CONFIGURATIONS, default=list(CONFIGURATIONS)
    )
    arguments = parser.parse_args()
    measure_all(
        arguments.runs,
        arguments.records,
        arguments.cluster,
        arguments.series,
        arguments.configuration,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
