"""A study of partitioners with brokers that are slow, jittery, failing, recovering or throttled.

`python -m lab.benchmarks partitioning` prints the table, and `make figures` draws the pictures.

Each partitioner of `partitioner.balance` is compared with one that knows the brokers' future: the
same rules with the true times instead of measured ones (`Clairvoyant`). It sends at once, or
gathers like a producer, or gathers until the broker is free; the one with the best average counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from functools import partial
from multiprocessing import get_context
from random import Random
from typing import Any, Final, cast

from lab.benchmarks.partitioning_model import (
    Death,
    Model,
    Node,
    Outcome,
    Policy,
    Scenario,
    Service,
    always,
    serve,
)
from lab.benchmarks.report import progress
from lab.drawing import Group, Panel, Point, draw_groups, draw_points, to_document
from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
from trimtab.client.partitioner.per_record import RoundRobinPartitioner
from trimtab.client.partitioner.protocol import NodeLoad
from trimtab.client.partitioner.soonest import FREE, STRICT, SoonestOptions, SoonestPartitioner
from trimtab.client.partitioner.sticky import StickyPartitioner


class Clairvoyant(SoonestPartitioner):
    """Knows how long a request to each broker will take, and which broker is frozen or dead."""

    def _expected(self, node: NodeLoad, now: float, turns: int) -> float:
        model = cast(Node, node)
        return min(FOREVER, model.broker.foresee(now, max(SMALL, model.queued_bytes)))

    def _silent_since(self, node: NodeLoad, now: float) -> float:
        is_frozen = cast(Node, node).broker.service_at(now, SMALL) > FROZEN
        return max(0.0, node.moved_at) if is_frozen else -1.0


FOREVER: Final = 1000.0
SMALL: Final = 600
FROZEN: Final = 0.25
"""A broker that takes longer for a small request, in seconds, counts as frozen."""


def _soonest(
    kind: type[SoonestPartitioner],
    bound: float,
    quantum: int,
    linger: float,
    rack: str | None,
    random: Random,
) -> SoonestPartitioner:
    return kind(SoonestOptions(quantum, bound, linger, rack), random)


def _built_in(
    is_adaptive: bool, quantum: int, linger: float, rack: str | None, random: Random
) -> BuiltInPartitioner:
    return BuiltInPartitioner(BuiltInOptions(quantum, is_adaptive, rack), random)


BOUNDS: Final = {"strict": STRICT, "0.1": 0.1, "free": FREE}
"""Values of `partitioner.balance`."""

MORE_BOUNDS: Final = {"0.03": 0.03, "0.3": 0.3}
"""More of them, for the pictures of the proposals' settings."""

POLICIES: Final[dict[str, Policy]] = {
    "round robin": Policy(lambda quantum, linger, rack, random: RoundRobinPartitioner()),
    "sticky": Policy(lambda quantum, linger, rack, random: StickyPartitioner(random)),
    "uniform": Policy(partial(_built_in, False)),
    "adaptive": Policy(partial(_built_in, True)),
    **{
        name: Policy(partial(_soonest, SoonestPartitioner, bound), has_windows=True)
        for name, bound in BOUNDS.items()
    },
}


def clairvoyants(bound: float) -> list[Policy]:
    """Those that place records with knowledge of the future, under the same bound."""
    make = partial(_soonest, Clairvoyant, bound)
    return [
        Policy(make),
        Policy(make, has_windows=True),
        Policy(make, is_patient=True),
    ]


WELL: Final = serve()
SLOW: Final = serve(slow=0.020)
FIVE: Final = serve(delay=0.0053)


def pauses(phase: float) -> Service:
    """Every 1.7 seconds the broker pauses for 50 ms, as for a garbage collection."""

    def service(now: float, size: int, luck: float) -> float:
        since = (now + phase) % 1.7
        return WELL(now, size, luck) + max(0.0, 0.05 - since)

    return service


def freezes(now: float, size: int, luck: float) -> float:
    """Twice the broker does not answer for three seconds."""
    for begin in (5.0, 15.0):
        if begin <= now < begin + 3.0:
            return begin + 3.0 - now
    return WELL(now, size, luck)


def recovers(now: float, size: int, luck: float) -> float:
    """20 ms late for ten seconds, then healthy."""
    return WELL(now, size, luck) + (0.020 if now < 10.0 else 0.0)


def flaps(now: float, size: int, luck: float) -> float:
    """20 ms late in every other second."""
    return WELL(now, size, luck) + (0.020 if int(now) % 2 else 0.0)


def mixed_sizes(random: Random) -> int:
    """100 bytes to 1 MB: most are small, and most bytes are in large ones."""
    return int(100 * 10_000 ** (random.random() ** 6))


def late(part: float, by: float) -> Service:
    """A part of the answers, at random, is late by so many seconds."""
    return lambda now, size, luck: WELL(now, size, luck) + (by if luck < part else 0.0)


LATE: Final = late(0.1, 0.060)

KIP_480: Final = "KIP-480"
SERIES: Final = ("KIP-794, series 1", "KIP-794, series 2")

SCENARIOS: Final = (
    Scenario(KIP_480, (FIVE,) * 3, 16, 1000, sizes=always(100), watched=()),
    Scenario("KIP-794, series 1", (SLOW, WELL, WELL), 3, 2048),
    Scenario("KIP-794, series 2", (SLOW, WELL, WELL), 3, 4096),
    Scenario("slow for 10 of 30 s", (recovers, WELL, WELL), 3, 2048),
    Scenario("slow every other second", (flaps, WELL, WELL), 3, 2048),
    Scenario("a tenth 60 ms late", (LATE, WELL, WELL), 3, 2048),
    Scenario("a twentieth 50 ms late", (late(0.05, 0.050), WELL, WELL), 3, 2048),
    Scenario("a tenth late, linger 5 ms", (LATE, WELL, WELL), 12, 4096, linger=0.005),
    Scenario("a tenth late, on all", (LATE, LATE, LATE), 3, 2048),
    Scenario("10 records/s", (SLOW, WELL, WELL), 3, 10, seconds=600.0),
    Scenario("10 records/s, a tenth late", (LATE, WELL, WELL), 3, 10, seconds=600.0),
    Scenario("freezes twice for 3 s", (freezes, WELL, WELL), 12, 4096, linger=0.005),
    Scenario(
        "dies, is back after 10 s",
        (WELL,) * 5,
        30,
        4096,
        linger=0.005,
        death=Death(0, 10.0, 12.0, 20.0),
    ),
    Scenario(
        "throttled to 1 MB/s of 10",
        (serve(rate=1e6), serve(rate=20e6), serve(rate=20e6)),
        30,
        10_000,
        sizes=always(1000),
        seconds=15.0,
        linger=0.005,
    ),
    Scenario(
        "3 of 30 slow",
        (SLOW,) * 3 + (WELL,) * 27,
        300,
        20_000,
        watched=(0, 1, 2),
        seconds=10.0,
        linger=0.005,
    ),
    Scenario(
        "3 of 30 slow, linger 0",
        (SLOW,) * 3 + (WELL,) * 27,
        300,
        5000,
        watched=(0, 1, 2),
        seconds=10.0,
    ),
    Scenario(
        "rack: one of two slow",
        (SLOW, WELL, WELL, WELL, WELL, WELL),
        12,
        2048,
        watched=(2, 3, 4, 5),
        racks=("a", "a", "b", "b", "c", "c"),
    ),
    Scenario(
        "rack: takes 6 MB/s of 10",
        (serve(rate=3e6), serve(rate=3e6), WELL, WELL, WELL, WELL),
        12,
        10_000,
        watched=(2, 3, 4, 5),
        sizes=always(1000),
        seconds=15.0,
        linger=0.005,
        racks=("a", "a", "b", "b", "c", "c"),
    ),
    Scenario(
        "racks of 3, 2 and 1, one slow",
        (SLOW, WELL, WELL, WELL, WELL, WELL),
        24,
        4096,
        watched=(3, 4, 5),
        racks=("a", "a", "a", "b", "b", "c"),
    ),
    Scenario("all well", (WELL,) * 100, 300, 20_000, seconds=10.0, linger=0.005),
    Scenario("all with pauses", (pauses(0.3), pauses(0.9), pauses(1.55)), 12, 4096),
    Scenario(
        "all overloaded, 24 of 18 MB/s",
        (serve(rate=2e6), serve(rate=8e6), serve(rate=8e6)),
        30,
        24_000,
        sizes=always(1000),
        seconds=10.0,
        linger=0.005,
    ),
    Scenario("far, and quick", (WELL,) * 3, 12, 4096, linger=0.005, distance=0.03),
    Scenario("100 B to 1 MB", (serve(delay=0.002, rate=50e6),) * 3, 12, 1000, sizes=mixed_sizes),
    Scenario("bursts of 100", (serve(delay=0.002),) * 3, 12, 2000, burst=100),
    Scenario("3 producers", (FIVE,) * 3, 16, 1500, sizes=always(100), producers=3, watched=()),
    Scenario("3 producers, one slow", (SLOW, WELL, WELL), 12, 4096, producers=3),
)


def run(runs: int, records: int) -> None:
    """Print the table: for each scenario and partitioner, the median over `runs` seeds."""
    print("\n".join(word_table(measure(runs))))


def measure(runs: int) -> list[dict[str, Any]]:
    """An `Outcome` for each scenario and partitioner, with their names; with that of the
    clairvoyant as `knowing_average` and `knowing_p99`, where there is one."""
    with get_context("spawn").Pool() as pool:
        found = pool.imap(partial(_measure_scenario, runs), range(len(SCENARIOS)), chunksize=1)
        return [row for rows in found for row in rows]


def _measure_scenario(runs: int, index: int) -> list[dict[str, Any]]:
    scenario, rows = SCENARIOS[index], []
    progress(f"partitioning: {scenario.name}")
    for name, policy in POLICIES.items():
        row: dict[str, Any] = {"scenario": scenario.name, "policy": name}
        row |= asdict(_run(scenario, policy, runs))
        if name in BOUNDS:
            knowing = [_run(scenario, each, runs) for each in clairvoyants(BOUNDS[name])]
            best = min(knowing, key=lambda each: each.average / each.kept)
            row |= {"knowing_average": best.average, "knowing_p99": best.p99}
        rows.append(row)
    if scenario.name in (KIP_480, *SERIES):
        for name, bound in MORE_BOUNDS.items():
            policy = Policy(partial(_soonest, SoonestPartitioner, bound), has_windows=True)
            row = {"scenario": scenario.name, "policy": name}
            rows.append({**row, **asdict(_run(scenario, policy, runs))})
    return rows


def _run(scenario: Scenario, policy: Policy, runs: int) -> Outcome:
    return _median([Model(scenario, policy, seed).run() for seed in range(runs)])


def _median(outcomes: list[Outcome]) -> Outcome:
    return Outcome(
        *(statistics.median(column) for column in zip(*map(astuple, outcomes), strict=True))
    )


def word_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of the table; a row is an `Outcome` with its scenario and policy."""
    lines = [
        "| brokers | partitioner | average ms | p99 ms | knowing: average | p99 | least |"
        " bytes there | uneven | kept | batch |"
    ]
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    before = ""
    for row in rows:
        if row["policy"] not in POLICIES:
            continue
        scenario = "" if row["scenario"] == before else row["scenario"]
        before = row["scenario"]
        beside = "|".join(
            f" {_digits(row[key])} " if key in row else " "
            for key in ("knowing_average", "knowing_p99", "least")
        )
        lines.append(
            f"| {scenario} | {row['policy']} | {_digits(row['average'])} | {_digits(row['p99'])} |"
            f"{beside}| {row['share']:.1%} | {row['deviation']:.1%} |"
            f" {row['kept']:.1%} | {row['batch']:.1f} |"
        )
    return lines


def _digits(milliseconds: float) -> str:
    return f"{milliseconds:,.1f}" if milliseconds < 10 else f"{milliseconds:,.0f}"


def draw(rows: Sequence[Mapping[str, Any]]) -> str:
    """The 99th percentiles as bars, as SVG."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["policy"] in POLICIES:
            found.setdefault(row["scenario"], []).append(row["p99"])
    groups = [Group(scenario, values) for scenario, values in found.items()]
    return to_document(draw_groups(groups, list(POLICIES), "99th percentiles by partitioner"))


def draw_balance(rows: Sequence[Mapping[str, Any]]) -> str:
    """Latency against unevenness in the proposals' settings, a point for each partitioner, as SVG.

    The line joins the bounds of `partitioner.balance`. Low and left is better.
    """
    order = list(POLICIES)
    bounds = dict(sorted({**BOUNDS, **MORE_BOUNDS}.items(), key=lambda item: item[1]))
    panels = []
    for scenario in (KIP_480, *SERIES):
        own = [row for row in rows if row["scenario"] == scenario]
        places = {row["policy"]: at for at, row in enumerate(own)}
        points = [
            Point(
                row["policy"] if row["policy"] in POLICIES else "",
                row["deviation"],
                row["average"],
                f"c{order.index(row['policy']) if row['policy'] in POLICIES else len(order) - 1}",
            )
            for row in own
        ]
        title = f"{scenario}: average latency"
        panels.append(Panel(title, points, [places[each] for each in bounds if each in places]))
    below = "largest difference of a partition from the mean"
    description = "Average latency against unevenness of each partitioner"
    return to_document(draw_points(panels, 0.001, 4.0, below, description))
