"""KIP-1123: how many bytes cross racks, with rack awareness and without.

There are six embedded brokers in three racks, a topic with one partition on each broker, and a
producer in rack a. First all brokers are healthy. Then one of the two brokers in rack a is 20 ms
slow, and the load should shift within the rack. In the last run both brokers of rack a are
unavailable during the middle third, and records should go to other racks and then return. An
unavailable broker answers each produce request two seconds late, one at a time; it stays the
leader, so that only partitioner.availability.timeout.ms detects it. All runs take about 90 seconds.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lab.drawing import Bar, Span, draw_shares, draw_timeline, to_document
from lab.experiments.cluster import ExperimentCluster, open_cluster
from lab.experiments.display import Display
from lab.experiments.perf import PerfRun, add_choices, run_perf, trimtab_perf
from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.client.topic_view import TopicView

RUNS_ANYWHERE = False

RACKS: Final = ("a", "b", "c", "a", "b", "c")
HOME: Final = "a"
HOME_BROKERS: Final = tuple(broker for broker, rack in enumerate(RACKS) if rack == HOME)
SLOW_BROKER: Final = HOME_BROKERS[0]
SLOW_PRODUCE_MS: Final = 20
OUTAGE_PRODUCE_MS: Final = 2000

RECORD_BYTES: Final = 512
RATE: Final = 4096
RECORDS: Final = 40_960
FEWEST_RECORDS: Final = 6 * RATE
SAMPLE_S: Final = 0.25
SETTLING_S: Final = 1.0
"""Seconds at the start of a phase that are not counted; in the last, a late answer's time too."""

SLOWEST: Final = 4
GRACE_S: Final = 60

AWARE: Final[dict[str, str | int | bool]] = {"partitioner.rack.aware": True, "client.rack": HOME}


class Scene(NamedTuple):
    """One run: the producer's options, and whether a broker of the producer's rack is slow."""

    title: str
    settings: Mapping[str, str | int | bool]
    has_slow_broker: bool = False


SCENES: Final = {
    "anywhere": Scene("not rack-aware", {"client.rack": HOME}),
    "aware": Scene("rack-aware", AWARE),
    "slow": Scene("rack-aware, one slow", AWARE, has_slow_broker=True),
    "slow-free": Scene(
        "the same, free",
        {**AWARE, "partitioner.balance": "free"},
        has_slow_broker=True,
    ),
    "slow-java": Scene(
        "the same, as Java", {**AWARE, "partitioner.compat": "java"}, has_slow_broker=True
    ),
}

OUTAGE: Final[dict[str, str | int | bool]] = {**AWARE, "partitioner.availability.timeout.ms": 100}
PHASES: Final = ("healthy", "rack a unavailable", "available again")


class Measured(NamedTuple):
    """The results of one scene: bytes that the producer sent, records stored in the topic."""

    scene: str
    run: PerfRun
    records_by_broker: Mapping[int, int]

    @property
    def bytes_across(self) -> float:
        """Bytes sent to brokers in other racks."""
        return sum(self._bytes_by_broker.values()) - self.bytes_at_home

    @property
    def bytes_at_home(self) -> float:
        return sum(self._bytes_by_broker.get(broker, 0.0) for broker in HOME_BROKERS)

    @property
    def _bytes_by_broker(self) -> dict[int, float]:
        return self.run.node_totals("outgoing-byte-total")

    @property
    def share_across(self) -> float:
        """The share of the records that is stored in other racks."""
        return 1 - self._records_at_home() / sum(self.records_by_broker.values())

    @property
    def slow_share(self) -> float:
        """The slow broker's share of the records that stayed in the rack."""
        at_home = self._records_at_home()
        return self.records_by_broker[SLOW_BROKER] / at_home if at_home else 0.0

    def _records_at_home(self) -> int:
        return sum(self.records_by_broker[broker] for broker in HOME_BROKERS)


class Sample(NamedTuple):
    """Records stored in the producer's rack and in other racks, at a time in seconds."""

    second: float
    at_home: int
    across: int


class Outage(NamedTuple):
    """The run in which the producer's rack is unavailable during the middle third.

    Attributes:
        changes: begin and end of the outage, in seconds since the first record.
    """

    run: PerfRun
    samples: Sequence[Sample]
    changes: tuple[float, float]

    def share_across(self, phase: int) -> float:
        """The share of the records stored in other racks during one of `PHASES`, by its index."""
        down, up = self.changes
        late = OUTAGE_PRODUCE_MS / 1000
        begins = (0.0, down + SETTLING_S, up + late + SETTLING_S)[phase]
        ends = (down, up, self.samples[-1].second)[phase]
        inside = [sample for sample in self.samples if begins <= sample.second <= ends]
        if len(inside) < 2:
            raise UsageError(
                f"the phase {PHASES[phase]!r} was too short to be measured: send more --records"
            )
        at_home = inside[-1].at_home - inside[0].at_home
        across = inside[-1].across - inside[0].across
        return across / (at_home + across) if at_home + across else 0.0


def configure(parser: argparse.ArgumentParser) -> None:
    add_choices(parser, "--scene", [*SCENES, "outage"], "which runs")


async def run(
    arguments: argparse.Namespace, display: Display
) -> tuple[list[str], dict[str, Any], dict[str, str]]:
    """Run the chosen scenes.

    Returns:
        Findings, as sentences; all results, for JSON; plots by file name.

    Raises:
        KafkaError: a run failed.
    """
    measured = []
    outage = None
    with open_cluster(arguments, RACKS, {}) as cluster:
        for name in arguments.scene:
            if name == "outage":
                outage = await _measure_outage(cluster, 2 * arguments.records, display)
            else:
                measured.append(await _measure(cluster, name, arguments.records, display))
    _show(measured, outage, display)
    findings = describe_findings(measured, outage)
    return (
        findings,
        _summarize(measured, outage, arguments.records, findings),
        _draw(measured, outage),
    )


async def _measure(
    cluster: ExperimentCluster, name: str, records: int, display: Display
) -> Measured:
    scene = SCENES[name]
    cluster.slow(SLOW_BROKER, SLOW_PRODUCE_MS if scene.has_slow_broker else 0)
    try:
        with cluster.topic(f"kip1123-{name}", cluster.brokers) as view:
            command = _command(cluster, view, records, scene.settings)
            with display.follow(scene.title, records) as show:
                perf = await run_perf(command, _timeout(records), show)
            stored = cluster.count_records(view)
    finally:
        cluster.slow(SLOW_BROKER, 0)
    return Measured(name, perf, dict(zip(view.leaders, stored, strict=True)))


async def _measure_outage(cluster: ExperimentCluster, records: int, display: Display) -> Outage:
    """Send records, and make the producer's rack unavailable during the middle third."""
    third_s = records / RATE / 3
    with cluster.topic("kip1123-outage", cluster.brokers) as view:
        command = _command(cluster, view, records, OUTAGE)
        with display.follow("rack-aware, rack unavailable in the middle third", records) as show:
            producing = asyncio.create_task(run_perf(command, _timeout(records), show))
            try:
                samples, changes = await _watch(cluster, view, producing, third_s, display)
                perf = await producing
            finally:
                producing.cancel()
                for broker in HOME_BROKERS:
                    cluster.slow(broker, 0)
    return Outage(perf, samples, changes)


async def _watch(
    cluster: ExperimentCluster,
    view: TopicView,
    producing: asyncio.Task[PerfRun],
    third_s: float,
    display: Display,
) -> tuple[list[Sample], tuple[float, float]]:
    """Sample the topic while the producer runs; after a third the rack becomes unavailable, after
    two thirds available again."""
    loop = asyncio.get_running_loop()
    samples: list[Sample] = []
    changes: list[float] = []
    began = None
    while not producing.done():
        counts = await asyncio.to_thread(cluster.count_records, view)
        now = loop.time()
        if began is None and any(counts):
            began = now
        if began is not None:
            at_home = sum(counts[broker] for broker in HOME_BROKERS)
            samples.append(Sample(now - began, at_home, sum(counts) - at_home))
            if now - began >= (len(changes) + 1) * third_s and len(changes) < 2:
                for broker in HOME_BROKERS:
                    cluster.slow(broker, 0 if changes else OUTAGE_PRODUCE_MS)
                changes.append(now - began)
        await asyncio.wait([producing], timeout=SAMPLE_S)
    if len(changes) < 2:
        await producing  # raises the run's error, if it failed
        raise UsageError("the run ended before the rack was available again: send more --records")
    return samples, (changes[0], changes[1])


def _command(
    cluster: ExperimentCluster,
    view: TopicView,
    records: int,
    settings: Mapping[str, str | int | bool],
) -> list[str]:
    return trimtab_perf(
        *(view.name, records, RECORD_BYTES, RATE, cluster.client_words),
        {"linger.ms": 0, **settings},
    )


def _timeout(records: int) -> float:
    return SLOWEST * records / RATE + GRACE_S


def _show(measured: Sequence[Measured], outage: Outage | None, display: Display) -> None:
    if measured:
        rows = [
            [
                SCENES[each.scene].title,
                f"{each.run.megabytes_per_second:.2f}",
                f"{each.run.latency_ms['average']:.2f}",
                f"{each.run.latency_ms['p99']:.0f}",
                f"{each.bytes_at_home / 1e6:.1f}",
                f"{each.bytes_across / 1e6:.1f}",
                f"{each.share_across:.1%}",
                f"{each.slow_share:.1%}",
            ]
            for each in measured
        ]
        heads = ["scene", "MiB/s", "avg ms", "p99", "MB in rack", "MB across", "records across"]
        title = f"Bytes that cross racks; the producer is in rack {HOME}"
        display.show_table(title, [*heads, f"broker {SLOW_BROKER} in rack"], rows)
    if outage is not None:
        rows = [[phase, f"{outage.share_across(at):.1%}"] for at, phase in enumerate(PHASES)]
        display.show_table("Outage of the rack", ["phase", "records across"], rows)


def describe_findings(measured: Sequence[Measured], outage: Outage | None) -> list[str]:
    """Sentences that compare the results with the proposal's claims, for the scenes that ran."""
    by_name = {each.scene: each for each in measured}
    sentences = []
    if "anywhere" in by_name and "aware" in by_name:
        sentences.append(
            f"Without rack awareness {by_name['anywhere'].bytes_across / 1e6:.1f} MB cross racks, "
            f"with it {by_name['aware'].bytes_across / 1e6:.1f} MB."
        )
    sentences += [
        f"{SCENES[name].title[:1].upper()}{SCENES[name].title[1:]}: broker {SLOW_BROKER} gets "
        f"{by_name[name].slow_share:.0%} of the records that stay in the rack; "
        f"{by_name[name].share_across:.0%} of all records leave it."
        for name in ("slow", "slow-free", "slow-java")
        if name in by_name
    ]
    if outage is not None:
        before, during, after = (outage.share_across(phase) for phase in range(len(PHASES)))
        sentences.append(
            f"{before:.0%} of the records leave the rack while it is healthy, {during:.0%} while it"
            f" is unavailable, {after:.0%} when it is available again."
        )
    return sentences


def _summarize(
    measured: Sequence[Measured], outage: Outage | None, records: int, findings: Sequence[str]
) -> dict[str, Any]:
    return {
        "experiment": "kip1123",
        "records": records,
        "record_bytes": RECORD_BYTES,
        "racks": list(RACKS),
        "home": HOME,
        "findings": list(findings),
        "runs": [
            {
                "scene": each.scene,
                "settings": dict(SCENES[each.scene].settings),
                "latency_ms": each.run.latency_ms,
                "megabytes_per_second": each.run.megabytes_per_second,
                "bytes_in_rack": each.bytes_at_home,
                "bytes_across": each.bytes_across,
                "records_by_broker": {
                    str(broker): count for broker, count in each.records_by_broker.items()
                },
            }
            for each in measured
        ],
        "outage": None
        if outage is None
        else {
            "settings": dict(OUTAGE),
            "latency_ms": outage.run.latency_ms,
            "changes_s": list(outage.changes),
            "samples": [sample._asdict() for sample in outage.samples],
            "share_across": {phase: outage.share_across(at) for at, phase in enumerate(PHASES)},
        },
    }


def _draw(measured: Sequence[Measured], outage: Outage | None) -> dict[str, str]:
    plots = {}
    if measured:
        bars = []
        for each in measured:
            total = sum(each.records_by_broker.values())
            shares = {str(key): count / total for key, count in each.records_by_broker.items()}
            sizes = {key: share * total * RECORD_BYTES for key, share in shares.items()}
            bars.append(Bar(SCENES[each.scene].title, shares, sizes))
        names = {str(broker): f"broker {broker}, rack {rack}" for broker, rack in enumerate(RACKS)}
        drawn = draw_shares(
            bars, names, str(SLOW_BROKER), None, "KIP-1123: share of records by broker"
        )
        plots["shares.svg"] = to_document(drawn)
    if outage is not None:
        samples = outage.samples
        rates: dict[str, list[float]] = {"in rack a": [], "in other racks": []}
        for before, after in pairwise(samples):
            elapsed = after.second - before.second
            rates["in rack a"].append((after.at_home - before.at_home) / elapsed)
            rates["in other racks"].append((after.across - before.across) / elapsed)
        edges = (0.0, *outage.changes, samples[-1].second)
        spans = [Span(phase, *edge) for phase, edge in zip(PHASES, pairwise(edges), strict=True)]
        seconds = [sample.second for sample in samples[1:]]
        drawn = draw_timeline(
            *(seconds, rates, spans, "records/s"),
            "KIP-1123: records per rack while rack a is unavailable",
        )
        plots["outage.svg"] = to_document(drawn)
    return plots
