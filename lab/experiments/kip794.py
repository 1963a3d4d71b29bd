"""KIP-794's two test series, compared with the results that the proposal published.

There are three brokers, a topic with one partition on each, and broker 0 answers every produce
request 20 ms late. The producer sends 122,880 records of 512 bytes, 2048 per second (series 1) or
4096 (series 2), with linger.ms=0 and otherwise defaults. A run of series 1 takes a minute, one of
series 2 half a minute, longer if a configuration cannot keep up. With --bootstrap the topic is
created on the first three brokers of that cluster, and the first counts as the slow one: you must
slow it down yourself.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lab.drawing import Bar, draw_latencies, draw_shares, to_document
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
from trimtab.cli.table import show_count
from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.client.topic_view import TopicView

RUNS_ANYWHERE = True
FEWEST_RECORDS: Final = 1

RACKS: Final = ("a", "b", "c")
SLOW_PRODUCE_MS: Final = 20
RECORDS: Final = 122_880
RECORD_BYTES: Final = 512
RATES: Final = {1: 2048, 2: 4096}
"""Records per second of each series: 1 and 2 MiB/s."""

SLOWEST: Final = 6
"""A run may take this many times its planned duration, plus `GRACE_S` seconds."""

GRACE_S: Final = 60

LINGER: Final = {"linger.ms": 0}


CONFIGURATIONS: Final = {
    "sticky": Configuration("sticky", {"partitioner.class": "sticky"}),
    "uniform": Configuration("uniform", {"partitioner.adaptive.partitioning.enable": False}),
    "adaptive": Configuration("adaptive", {}),
    "timeout": Configuration("adaptive with timeout", {"partitioner.availability.timeout.ms": 5}),
    "strict": Configuration("strict", {"partitioner.balance": "strict"}),
    "0.1": Configuration("0.1", {"partitioner.balance": "0.1"}),
    "free": Configuration("free", {"partitioner.balance": "free"}),
}


class Published(NamedTuple):
    """The proposal's results of one run: MiB/s, milliseconds, bytes sent to each broker."""

    megabytes_per_second: float
    average: float
    p50: float
    p95: float
    p99: float
    p99_9: float
    bytes_by_broker: tuple[int, int, int]


# The proposal prints 4,682,622 for the slow broker in the first run; the last digit is missing, as
# each run sums to about 65 MB and the text says "about 5 times the others".
PUBLISHED: Final = {
    (1, "sticky"): Published(
        0.84, 4072.74, 3870, 10221, 10992, 11214, (46_826_220, 9_207_276, 9_004_193)
    ),
    (1, "uniform"): Published(1.00, 49.92, 8, 150, 214, 422, (22_237_614, 21_606_034, 22_152_273)),
    (1, "adaptive"): Published(1.00, 40.06, 7, 141, 154, 220, (19_244_362, 23_589_010, 23_321_818)),
    (1, "timeout"): Published(1.00, 36.29, 6, 138, 150, 184, (17_431_944, 25_781_879, 22_977_244)),
    (2, "uniform"): Published(
        1.85, 426.24, 8, 2065, 2408, 2468, (22_396_882, 21_652_393, 21_355_134)
    ),
    (2, "adaptive"): Published(1.99, 34.66, 4, 143, 167, 297, (14_866_064, 25_176_418, 25_581_116)),
}


class Measured(NamedTuple):
    """The results of one run.

    Attributes:
        brokers: the ids of the three brokers, the slow one first.
        records_by_broker: records stored on each of them.
    """

    series: int
    configuration: str
    run: PerfRun
    brokers: Sequence[int]
    records_by_broker: Mapping[int, int]

    @property
    def bytes_by_broker(self) -> dict[int, float]:
        """Bytes sent to each broker, including request headers, by the producer's metric."""
        totals = self.run.node_totals("outgoing-byte-total")
        return {broker: totals.get(broker, 0.0) for broker in self.brokers}

    @property
    def shares(self) -> dict[int, float]:
        """Each broker's share of the records, which all have the same size."""
        total = sum(self.records_by_broker.values())
        return {broker: self.records_by_broker[broker] / total for broker in self.brokers}

    @property
    def spread(self) -> float:
        """The difference between the highest and the lowest share, relative to the mean share."""
        return (max(self.shares.values()) - min(self.shares.values())) * len(self.shares)

    @property
    def published(self) -> Published | None:
        return PUBLISHED.get((self.series, self.configuration))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--series",
        type=int,
        nargs="+",
        choices=list(RATES),
        default=list(RATES),
        help="1 sends 1 MiB/s, 2 sends 2 MiB/s (default: both)",
    )
    add_choices(parser, "--configuration", CONFIGURATIONS, "partitioners to compare")
    parser.add_argument(
        "--topic",
        metavar="TOPIC",
        help="use this existing topic, with one partition on each of three brokers (default: "
        "create a topic for each run)",
    )


async def run(
    arguments: argparse.Namespace, display: Display
) -> tuple[list[str], dict[str, Any], dict[str, str]]:
    """Run the chosen series.

    Returns:
        Findings, as sentences; all results, for JSON; plots by file name.

    Raises:
        UsageError: the cluster has fewer than three brokers, or the topic
            has other records than the run sent.
        KafkaError: the cluster rejected a request, or a run failed.
    """
    with open_cluster(arguments, RACKS, {0: SLOW_PRODUCE_MS}) as cluster:
        if len(cluster.brokers) < len(RACKS):
            raise UsageError(
                f"the cluster has {show_count(len(cluster.brokers), 'broker')}: three are needed"
            )
        slow = cluster.brokers[0]
        delay = "" if cluster.embedded is None else f", by {SLOW_PRODUCE_MS} ms"
        display.say(
            f"Brokers {', '.join(map(str, cluster.brokers))}; the slow one is broker {slow}{delay}"
        )
        measured = [
            await _measure(cluster, series, name, arguments.records, arguments.topic, display)
            for series in arguments.series
            for name in arguments.configuration
        ]
    for series in arguments.series:
        _show_series(series, [each for each in measured if each.series == series], display)
    findings = describe_findings(measured)
    return findings, _summarize(measured, arguments.records, findings), _draw(measured)


async def _measure(
    cluster: ExperimentCluster,
    series: int,
    name: str,
    records: int,
    topic: str | None,
    display: Display,
) -> Measured:
    title = f"series {series}, {CONFIGURATIONS[name].title}"
    with ExitStack() as stack:
        view = (
            stack.enter_context(new_topic(cluster, f"{series}-{name}"))
            if topic is None
            else cluster.describe(topic)
        )
        command = trimtab_perf(
            *(view.name, records, RECORD_BYTES, RATES[series], cluster.client_words),
            {**LINGER, **CONFIGURATIONS[name].settings},
        )
        show = stack.enter_context(display.follow(title, records))
        return await measure(cluster, view, series, name, command, records, show)


def new_topic(cluster: ExperimentCluster, name: str) -> AbstractContextManager[TopicView]:
    """The proposal's topic: partition 0 on the second broker, partition 1 on the slow first one."""
    slow, second, third = cluster.brokers[:3]
    return cluster.topic(f"kip794-{name}", [second, slow, third])


async def measure(
    cluster: ExperimentCluster,
    view: TopicView,
    series: int,
    name: str,
    command: Sequence[str],
    records: int,
    show: Callable[[int], object] = lambda done: None,
) -> Measured:
    """Run a perf tool, trimtab's or Kafka's, and count the records on each broker.

    Raises:
        UsageError: the topic's number of new records is not the number of records sent.
        PerfFailed: the tool failed, or took too long.
    """
    before = cluster.count_records(view)
    perf = await run_perf(command, SLOWEST * records / RATES[series] + GRACE_S, show)
    after = cluster.count_records(view)
    by_broker = dict.fromkeys(sorted(set(view.leaders)), 0)
    for leader, old, new in zip(view.leaders, before, after, strict=True):
        by_broker[leader] += new - old
    stored = sum(by_broker.values())
    if stored != records:
        raise UsageError(
            f"topic {view.name} has {stored} new records, but {records} were sent: does another "
            "producer write to it?"
        )
    return Measured(series, name, perf, list(by_broker), by_broker)


def _show_series(series: int, measured: Sequence[Measured], display: Display) -> None:
    rows = []
    for each in measured:
        published = each.published
        title = CONFIGURATIONS[each.configuration].title
        rows.append([title, *_word_figures(each)])
        if published is not None:
            rows.append(["  in the proposal", *_word_published(published)])
    display.show_table(
        f"Series {series}: {RATES[series]} records/s of {RECORD_BYTES} bytes",
        ["configuration", "MiB/s", "avg ms", "p50", "p95", "p99", "p99.9"],
        rows,
    )
    rows = []
    for each in measured:
        title = CONFIGURATIONS[each.configuration].title
        sizes = each.bytes_by_broker
        rows.append(
            [
                title,
                *(f"{sizes[broker] / 1e6:.1f}" for broker in each.brokers),
                *(f"{each.shares[broker]:.1%}" for broker in each.brokers),
            ]
        )
        if each.published is not None:
            total = sum(each.published.bytes_by_broker)
            rows.append(
                [
                    "  in the proposal",
                    *(f"{size / 1e6:.1f}" for size in each.published.bytes_by_broker),
                    *(f"{size / total:.1%}" for size in each.published.bytes_by_broker),
                ]
            )
    brokers = measured[0].brokers
    display.show_table(
        f"Series {series}: bytes sent to each broker, millions, and its share of the records",
        ["configuration", *(f"broker {broker}" for broker in brokers), *("share" for _ in brokers)],
        rows,
    )


def _word_figures(each: Measured) -> list[str]:
    latency = each.run.latency_ms
    return [
        f"{each.run.megabytes_per_second:.2f}",
        f"{latency['average']:.2f}",
        *(f"{latency[name]:.0f}" for name in ("p50", "p95", "p99", "p99_9")),
    ]


def _word_published(figures: Published) -> list[str]:
    return [
        f"{figures.megabytes_per_second:.2f}",
        f"{figures.average:.2f}",
        *(f"{value:.0f}" for value in (figures.p50, figures.p95, figures.p99, figures.p99_9)),
    ]


def describe_findings(measured: Sequence[Measured]) -> list[str]:
    """Sentences that compare the results with the proposal's claims, for the runs made."""
    by_name = {(each.series, each.configuration): each for each in measured}
    sentences = []
    for series in sorted({each.series for each in measured}):
        sticky = by_name.get((series, "sticky"))
        uniform = by_name.get((series, "uniform"))
        adaptive = by_name.get((series, "adaptive"))
        if sticky is not None and adaptive is not None:
            times = sticky.run.latency_ms["p99"] / max(adaptive.run.latency_ms["p99"], 1)
            sentences.append(
                f"Series {series}: sticky's p99 is {times:.0f} times that of adaptive, and it "
                f"sends the slow broker {sticky.shares[sticky.brokers[0]]:.0%} of the records."
            )
        if uniform is not None:
            sentences.append(
                f"Series {series}: uniform's brokers are within {uniform.spread:.1%} of each other "
                f"and take {uniform.run.megabytes_per_second:.2f} MiB/s."
            )
        if adaptive is not None:
            share = adaptive.shares[adaptive.brokers[0]]
            sentences.append(
                f"Series {series}: adaptive sustains {adaptive.run.megabytes_per_second:.2f} MiB/s "
                f"and sends the slow broker {share:.0%}."
            )
        for name in ("strict", "0.1", "free"):
            balanced = by_name.get((series, name))
            if adaptive is not None and balanced is not None:
                ours, theirs = balanced.run.latency_ms, adaptive.run.latency_ms
                sentences.append(
                    f"Series {series}: with {CONFIGURATIONS[name].title}, average and p99 are "
                    f"{ours['average'] / theirs['average']:.2f} and "
                    f"{ours['p99'] / max(theirs['p99'], 1):.2f} times adaptive's, and the brokers "
                    f"are within {balanced.spread:.1%} of each other."
                )
    return sentences


def _summarize(
    measured: Sequence[Measured], records: int, findings: Sequence[str]
) -> dict[str, Any]:
    return {
        "experiment": "kip794",
        "records": records,
        "record_bytes": RECORD_BYTES,
        "slow_produce_ms": SLOW_PRODUCE_MS,
        "findings": list(findings),
        "runs": [
            {
                "series": each.series,
                "configuration": each.configuration,
                "settings": {**LINGER, **CONFIGURATIONS[each.configuration].settings},
                "records_per_second": each.run.records_per_second,
                "megabytes_per_second": each.run.megabytes_per_second,
                "latency_ms": each.run.latency_ms,
                "brokers": list(each.brokers),
                "bytes_by_broker": {str(key): of for key, of in each.bytes_by_broker.items()},
                "records_by_broker": {str(key): of for key, of in each.records_by_broker.items()},
                "published": None if each.published is None else each.published._asdict(),
                "metrics": dict(each.run.metrics),
            }
            for each in measured
        ],
    }


def _draw(measured: Sequence[Measured]) -> dict[str, str]:
    plots = {}
    for series in sorted({each.series for each in measured}):
        bars, rows = [], []
        names: dict[str, str] = {}
        for each in (each for each in measured if each.series == series):
            title = CONFIGURATIONS[each.configuration].title
            sizes = {str(broker): size for broker, size in each.bytes_by_broker.items()}
            bars.append(Bar(title, {str(key): of for key, of in each.shares.items()}, sizes))
            rows.append((title, each.run.latency_ms))
            slow = each.brokers[0]
            names = {
                str(broker): f"broker {broker}{' (slow)' if broker == slow else ''}"
                for broker in each.brokers
            }
            if each.published is not None:
                bars.append(_draw_published(each.published, each.brokers))
                rows.append(("in the proposal", _published_latency(each.published)))
        highlighted = next(iter(names))
        plots[f"series{series}-shares.svg"] = to_document(
            draw_shares(
                *(bars, names, highlighted, 1 / len(names)),
                f"KIP-794 series {series}: share of records by broker",
            )
        )
        plots[f"series{series}-latency.svg"] = to_document(
            draw_latencies(rows, f"KIP-794 series {series}: latency percentiles", LEAST_MS)
        )
    return plots


def _draw_published(published: Published, brokers: Sequence[int]) -> Bar:
    sizes = dict(zip(map(str, brokers), published.bytes_by_broker, strict=True))
    total = sum(sizes.values())
    return Bar("in the proposal", {key: size / total for key, size in sizes.items()}, sizes)


def _published_latency(published: Published) -> Latency:
    return {
        "average": published.average,
        "p50": published.p50,
        "p95": published.p95,
        "p99": published.p99,
        "p99_9": published.p99_9,
        "max": published.p99_9,
    }
