"""KIP-480: a new partition for every record (round robin), or for every batch (sticky).

The runs vary the number of producers (1 to 3), linger.ms (0 to 100), the number of partitions (16
to 128), and whether half of the records have keys. They compare round robin, sticky, today's
default (KIP-794) and trimtab's partitioner.balance by batch size, number of requests and latency.
Brokers on the loopback interface answer too fast for batches to fill, so embedded brokers answer
produce requests --produce-ms late.
All runs take about five minutes.

Round robin ignores keys, as Kafka's RoundRobinPartitioner does; the others hash them.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lab.drawing import draw_latencies, to_document
from lab.experiments.cluster import ExperimentCluster, open_cluster
from lab.experiments.display import Display
from lab.experiments.perf import (
    LEAST_MS,
    Configuration,
    PerfRun,
    add_choices,
    run_perf,
    trimtab_perf,
)
from lab.output import Latency

if TYPE_CHECKING:
    from trimtab.client.topic_view import TopicView

RUNS_ANYWHERE = True
FEWEST_RECORDS: Final = 1

RACKS: Final = ("a", "b", "c")
RECORDS: Final = 10_000
RECORD_BYTES: Final = 100
RATE: Final = 1000
"""Records per second of each producer."""

SLOWEST: Final = 3
GRACE_S: Final = 60
PRODUCE_MS: Final = 5.0
KEYS: Final = 1000
KEYED_SHARE: Final = 0.5


CONFIGURATIONS: Final = {
    "round_robin": Configuration("round robin", {"partitioner.class": "round_robin"}),
    "sticky": Configuration("sticky", {"partitioner.class": "sticky"}),
    "adaptive": Configuration("adaptive", {}),
    "strict": Configuration("strict", {"partitioner.balance": "strict"}),
    "free": Configuration("free", {"partitioner.balance": "free"}),
}


class Case(NamedTuple):
    """The settings besides the partitioner that the runs vary."""

    producers: int = 3
    linger_ms: int = 0
    partitions: int = 16
    is_mixed: bool = False
    """Half of the records have keys."""


TABLES: Final[dict[str, dict[str, Case]]] = {
    "producers": {f"producers={count}": Case(producers=count) for count in (1, 2, 3)},
    "linger": {f"linger.ms={linger}": Case(linger_ms=linger) for linger in (0, 5, 100)},
    "partitions": {f"partitions={count}": Case(partitions=count) for count in (16, 64, 128)},
    "keys": {"no keys": Case(), "half with keys": Case(is_mixed=True)},
}


class Measured(NamedTuple):
    """The results of one configuration in one case, over all producers."""

    runs: Sequence[PerfRun]

    @property
    def records(self) -> int:
        return sum(run.records for run in self.runs)

    @property
    def requests(self) -> float:
        return sum(sum(run.node_totals("request-total").values()) for run in self.runs)

    @property
    def records_per_batch(self) -> float:
        batches = sum(sum(run.node_totals("batch-total").values()) for run in self.runs)
        return self.records / batches if batches else 0.0

    @property
    def bytes_per_request(self) -> float:
        sent = sum(sum(run.node_totals("outgoing-byte-total").values()) for run in self.runs)
        return sent / self.requests if self.requests else 0.0

    @property
    def latency_ms(self) -> Latency:
        """The mean of the producers' averages; for all other figures, the largest."""

        of = [run.latency_ms for run in self.runs]
        return {
            "average": sum(latency["average"] for latency in of) / len(of),
            "p50": max(latency["p50"] for latency in of),
            "p95": max(latency["p95"] for latency in of),
            "p99": max(latency["p99"] for latency in of),
            "p99_9": max(latency["p99_9"] for latency in of),
            "max": max(latency["max"] for latency in of),
        }


def configure(parser: argparse.ArgumentParser) -> None:
    add_choices(parser, "--table", TABLES, "settings to vary")
    add_choices(parser, "--configuration", CONFIGURATIONS, "partitioners to compare")
    parser.add_argument(
        "--produce-ms",
        type=float,
        default=PRODUCE_MS,
        metavar="MS",
        help="delay of embedded brokers' answers to produce requests, in milliseconds "
        f"(default: {PRODUCE_MS:g})",
    )


async def run(
    arguments: argparse.Namespace, display: Display
) -> tuple[list[str], dict[str, Any], dict[str, str]]:
    """Run the chosen tables.

    Returns:
        Findings, as sentences; all results, for JSON; plots by file name.

    Raises:
        KafkaError: the cluster rejected a request, or a run failed.
    """
    tables = {name: TABLES[name] for name in arguments.table}
    measured: dict[tuple[Case, str], Measured] = {}
    slow = dict.fromkeys(range(len(RACKS)), arguments.produce_ms)
    with open_cluster(arguments, RACKS, slow) as cluster:
        for case in dict.fromkeys(case for cases in tables.values() for case in cases.values()):
            for way in arguments.configuration:
                measured[case, way] = await _measure(cluster, case, way, arguments.records, display)
    for name, cases in tables.items():
        _show_table(name, cases, arguments.configuration, measured, display)
    findings = describe_findings(tables, measured)
    result = {
        "experiment": "kip480",
        "records_per_producer": arguments.records,
        "records_per_second_per_producer": RATE,
        "record_bytes": RECORD_BYTES,
        "produce_ms": arguments.produce_ms,
        "findings": findings,
        "runs": [
            {
                "configuration": way,
                **case._asdict(),
                "records_per_batch": of.records_per_batch,
                "bytes_per_request": of.bytes_per_request,
                "requests": of.requests,
                "latency_ms": of.latency_ms,
                "producers_metrics": [dict(run.metrics) for run in of.runs],
            }
            for (case, way), of in measured.items()
        ],
    }
    return findings, result, _draw(tables, arguments.configuration, measured)


async def _measure(
    cluster: ExperimentCluster, case: Case, way: str, records: int, display: Display
) -> Measured:
    keys = ("--key-distribution", "random", "--record-key-range", str(KEYS))
    with new_topic(cluster, case, way) as view:
        command = trimtab_perf(
            *(view.name, records, RECORD_BYTES, RATE, cluster.client_words),
            {"linger.ms": case.linger_ms, **CONFIGURATIONS[way].settings},
            (*keys, "--keyed-share", str(KEYED_SHARE)) if case.is_mixed else (),
        )
        title = (
            f"{CONFIGURATIONS[way].title}: producers {case.producers}, linger.ms {case.linger_ms}, "
            f"partitions {case.partitions}{', half with keys' if case.is_mixed else ''}"
        )
        with display.follow(title, records * case.producers) as show:
            return await measure(case, command, records, show)


def new_topic(
    cluster: ExperimentCluster, case: Case, name: str
) -> AbstractContextManager[TopicView]:
    """A topic whose partitions are on the brokers in turn."""
    leaders = [cluster.brokers[at % len(cluster.brokers)] for at in range(case.partitions)]
    return cluster.topic(f"kip480-{name}", leaders)


async def measure(
    case: Case,
    command: Sequence[str],
    records: int,
    show: Callable[[int], object] = lambda done: None,
) -> Measured:
    """Run the case's producers, each a perf tool, trimtab's or Kafka's.

    Raises:
        PerfFailed: a tool failed, or took too long.
    """
    done = [0] * case.producers
    timeout_s = SLOWEST * records / RATE + GRACE_S

    async def run_one(number: int) -> PerfRun:
        def count(records: int) -> None:
            done[number] = records
            show(sum(done))

        return await run_perf(command, timeout_s, count)

    tasks = [asyncio.create_task(run_one(number)) for number in range(case.producers)]
    try:
        return Measured(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _show_table(
    name: str,
    cases: Mapping[str, Case],
    ways: Sequence[str],
    measured: Mapping[tuple[Case, str], Measured],
    display: Display,
) -> None:
    rows = []
    for title, case in cases.items():
        for way in ways:
            of = measured[case, way]
            latency = of.latency_ms
            rows.append(
                [
                    f"{title}, {CONFIGURATIONS[way].title}",
                    f"{of.records_per_batch:.1f}",
                    f"{of.bytes_per_request:,.0f}",
                    f"{of.requests:,.0f}",
                    f"{latency['average']:.2f}",
                    *(f"{latency[key]:.0f}" for key in ("p50", "p95", "p99")),
                ]
            )
    heads = ["case", "records/batch", "bytes/request", "requests", "avg ms", "p50", "p95", "p99"]
    display.show_table(f"Varied: {name}", heads, rows)


def describe_findings(
    tables: Mapping[str, Mapping[str, Case]], measured: Mapping[tuple[Case, str], Measured]
) -> list[str]:
    """One sentence per case: sticky's batch size, requests and latency relative to round robin."""
    sentences = []
    for cases in tables.values():
        for title, case in cases.items():
            robin, sticky = measured.get((case, "round_robin")), measured.get((case, "sticky"))
            if robin is None or sticky is None or not robin.records_per_batch:
                continue
            sentences.append(
                f"With {title}, sticky's batches are "
                f"{sticky.records_per_batch / robin.records_per_batch:.1f} times those of round "
                f"robin, its requests {sticky.requests / robin.requests:.2f} times as many, its "
                f"average latency {sticky.latency_ms['average'] / robin.latency_ms['average']:.2f} "
                "times as long."
            )
    return sentences


def _draw(
    tables: Mapping[str, Mapping[str, Case]],
    ways: Sequence[str],
    measured: Mapping[tuple[Case, str], Measured],
) -> dict[str, str]:
    plots = {}
    for name, cases in tables.items():
        rows = [
            (
                f"{title}, {CONFIGURATIONS[way].title.partition(' (')[0]}",
                measured[case, way].latency_ms,
            )
            for title, case in cases.items()
            for way in ways
        ]
        drawn = draw_latencies(rows, f"KIP-480: latency percentiles by {name}", LEAST_MS)
        plots[f"{name}-latency.svg"] = to_document(drawn)
    return plots
