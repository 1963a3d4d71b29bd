"""A proposal's setting, with trimtab's producer and Java's, on trimtab's cluster and Apache Kafka.

There are three brokers. Some answer produce requests late, Apache Kafka's through
`lab.benchmarks.proxy`. Each producer is measured by its own perf tool, and both tools print the
same lines; Java's rounds latencies down to milliseconds, which makes its average half a millisecond
better. The old sticky partitioner is that of the last Java client that has it.

`lab.experiments` has the settings, and measures one run; a stage says which runs it compares.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from lab.benchmarks.apache_kafka import KafkaCluster
from lab.benchmarks.jars import (
    NEWEST_CLIENT,
    OLD_CLIENT,
    RivalMissing,
    client_jars,
    java_command,
    kafka_jars,
)
from lab.benchmarks.report import progress, report
from lab.experiments.cluster import ExperimentCluster
from lab.experiments.perf import trimtab_perf
from lab.processes import Trimtab
from trimtab.client.blocking.admin import Admin

CLUSTERS = ("trimtab", "apache")
LINGER = {"linger.ms": 0}

Perf = Callable[[str, int, int, float], list[str]]
"""A perf tool's command, of topic, records, bytes of a record, and records per second."""


class Proposal(NamedTuple):
    """What a stage measures, on three brokers.

    Attributes:
        stage: its name.
        slow: milliseconds by which brokers answer produce requests late.
        records: the most in one run.
        configurations: of trimtab's producer, that are measured unless others are selected.
        settings: of trimtab's producer, by configuration.
        java_settings: of Java's producer, by configuration.
        rivals: Java's configuration to compare with, where it has another name.
        metrics: by name, the unit and whether more is better.
        measure: runs a tool for a series and a configuration, with so many records; returns the
            metrics.
        series: their numbers; None for a proposal that has none.
    """

    stage: str
    slow: Mapping[int, float]
    records: int
    configurations: Sequence[str]
    settings: Mapping[str, Mapping[str, object]]
    java_settings: Mapping[str, Mapping[str, object]]
    rivals: Mapping[str, str]
    metrics: Mapping[str, tuple[str, bool]]
    measure: Callable[[ExperimentCluster, int | None, str, int, Perf], dict[str, float]]
    series: Sequence[int | None] = (None,)

    def perf(self, name: str, address: str, *, is_java: bool) -> Perf:
        """The tool of a producer with this configuration, on the cluster at this address."""
        words = ["--bootstrap-server", address]

        def command(topic: str, records: int, record_bytes: int, rate: float) -> list[str]:
            sent = topic, records, record_bytes, rate
            if is_java:
                return java_perf(name, *sent, address, self.java_settings[name])
            return trimtab_perf(*sent, words, {**LINGER, **self.settings[name]})

        return command


def measure_all(
    proposal: Proposal,
    rounds: int,
    records: int,
    clusters: Sequence[str],
    series: Sequence[int | None],
    configurations: Sequence[str],
) -> None:
    """Measure and report; the producers alternate."""
    for cluster in clusters:
        make = Trimtab if cluster == "trimtab" else KafkaCluster
        try:
            with make(3, proposal.slow) as brokers, Admin(brokers.address) as admin:
                target = ExperimentCluster(admin, None, ["--bootstrap-server", brokers.address])
                for number in series:
                    _measure_series(
                        *(proposal, cluster, target, brokers.address),
                        *(rounds, records, number, configurations),
                    )
        except RivalMissing as missing:
            for number, name in product(series, configurations):
                _report(proposal, cluster, number, name, [], [], str(missing))


def _measure_series(
    proposal: Proposal,
    cluster: str,
    target: ExperimentCluster,
    address: str,
    rounds: int,
    records: int,
    series: int | None,
    configurations: Sequence[str],
) -> None:
    ours: dict[str, list[dict[str, float]]] = {name: [] for name in configurations}
    theirs: dict[str, list[dict[str, float]]] = {
        proposal.rivals.get(name, name): [] for name in configurations
    }
    missing = ""
    for number in range(rounds):
        for is_java, found in ((False, ours), (True, theirs)):
            for name, measured in found.items():
                progress(
                    f"{proposal.stage}: on {cluster}{_word(series)}, round {number + 1} of "
                    f"{rounds}: {'Java ' if is_java else ''}{name}"
                )
                perf = proposal.perf(name, address, is_java=is_java)
                try:
                    measured.append(proposal.measure(target, series, name, records, perf))
                except RivalMissing as reason:
                    missing = str(reason)
    for name in configurations:
        rival = theirs[proposal.rivals.get(name, name)]
        _report(proposal, cluster, series, name, ours[name], rival, missing)


def _report(
    proposal: Proposal,
    cluster: str,
    series: int | None,
    name: str,
    ours: Sequence[Mapping[str, float]],
    theirs: Sequence[Mapping[str, float]],
    note: str,
) -> None:
    client = OLD_CLIENT if name == "sticky" else NEWEST_CLIENT
    for metric, (unit, more_is_better) in proposal.metrics.items():
        report(
            *(proposal.stage, f"{metric}, on {cluster}{_word(series)}, {name}", unit),
            [found[metric] for found in ours],
            f"Java's producer {client}, {proposal.rivals.get(name, name)}",
            [found[metric] for found in theirs],
            more_is_better=more_is_better,
            note=note,
        )


def _word(series: int | None) -> str:
    return "" if series is None else f", series {series}"


def java_perf(
    configuration: str,
    topic: str,
    records: int,
    record_bytes: int,
    rate: float,
    address: str,
    settings: Mapping[str, object],
) -> list[str]:
    """The command line of Java's ProducerPerformance; see `trimtab_perf` and `java_class_path`."""
    properties = {"bootstrap.servers": address, **LINGER, **settings}
    return [
        *(*java_command("512m"), "-cp", java_class_path(configuration)),
        *("org.apache.kafka.tools.ProducerPerformance", "--print-metrics"),
        *("--topic", topic, "--num-records", str(records)),
        *("--record-size", str(record_bytes), "--throughput", f"{rate:g}", "--producer-props"),
        *(f"{key}={str(value).lower()}" for key, value in properties.items()),
    ]


def java_class_path(configuration: str) -> str:
    """The newest client with Apache Kafka's tools; for the old partitioner, the old client with
    its own tools.

    Raises:
        RivalMissing: they are not available.
    """
    if configuration == "sticky":
        return f"{client_jars(OLD_CLIENT)}/*"
    return f"{client_jars(NEWEST_CLIENT)}/*:{kafka_jars()}/*"


def run_stage(proposal: Proposal, records: int) -> None:
    """One round of everything, as a stage of `make bench`."""
    count = min(records, proposal.records)
    measure_all(proposal, 1, count, CLUSTERS, proposal.series, proposal.configurations)


def main(proposal: Proposal, description: str | None) -> int:
    """Measure what the command line selects."""
    parser = argparse.ArgumentParser(
        prog=f"python -m lab.benchmarks.{proposal.stage}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ours, series = list(proposal.configurations), list(proposal.series)
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="rounds (default: 1)")
    parser.add_argument(
        "--records", type=int, default=proposal.records, metavar="N", help="in each run"
    )
    parser.add_argument("--cluster", nargs="+", choices=CLUSTERS, default=CLUSTERS)
    if series != [None]:
        parser.add_argument("--series", nargs="+", type=int, choices=series, default=series)
    parser.add_argument("--configuration", nargs="+", choices=proposal.settings, default=ours)
    parser.set_defaults(series=series)
    arguments = parser.parse_args()
    measure_all(
        proposal,
        arguments.runs,
        arguments.records,
        arguments.cluster,
        arguments.series,
        arguments.configuration,
    )
    return 0
