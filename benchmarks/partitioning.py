"""A study of partitioners with brokers that are slow, jittery, failing, recovering or throttled.

`python -m benchmarks partitioning` prints the table, and `make figures` draws the pictures.

Each partitioner of `partitioner.balance` is compared with one that knows the brokers' future: the
same rules with the true times instead of measured ones (`Clairvoyant`). It sends at once, or
gathers like a producer, or gathers until the broker is free; the one with the best average counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from functools import partial
from random import Random
from typing import Any, Final, cast

from benchmarks.partitioning_model import (
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
from benchmarks.report import progress
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

    def _is_silent(self, node: NodeLoad, now: float) -> bool:
        return cast(Node, node).broker.service_at(now, SMALL) > FROZEN


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
    "queue": Policy(partial(_built_in, True)),
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


KIP_480: Final = "KIP-480"
SERIES: Final = ("KIP-794, series 1", "KIP-794, series 2")

SCENARIOS: Final = (
    Scenario(KIP_480, (FIVE,) * 3, 16, 1000, sizes=always(100), watched=()),
    Scenario("KIP-794, series 1", (SLOW, WELL, WELL), 3, 2048),
    Scenario("KIP-794, series 2", (SLOW, WELL, WELL), 3, 4096),
    Scenario("slow for 10 of 30 s", (recovers, WELL, WELL), 3, 2048),
    Scenario("slow every other second", (flaps, WELL, WELL), 3, 2048),
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
    rows = []
    for scenario in SCENARIOS:
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
        "| brokers | partitioner | average ms | p99 ms | knowing: average | p99 | bytes there |"
        " uneven | kept | batch |"
    ]
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    before = ""
    for row in rows:
        if row["policy"] not in POLICIES:
            continue
        scenario = "" if row["scenario"] == before else row["scenario"]
        before = row["scenario"]
        knowing = "|".join(
            f" {_digits(row[f'knowing_{key}'])} " if f"knowing_{key}" in row else " "
            for key in ("average", "p99")
        )
        lines.append(
            f"| {scenario} | {row['policy']} | {_digits(row['average'])} | {_digits(row['p99'])} |"
            f"{knowing}| {row['share']:.1%} | {row['deviation']:.1%} | {row['kept']:.1%} |"
            f" {row['batch']:.1f} |"
        )
    return lines


def _digits(milliseconds: float) -> str:
    return f"{milliseconds:,.1f}" if milliseconds < 10 else f"{milliseconds:,.0f}"


WIDTH, LEFT, BAR, GAP, TOP = 760, 200, 9, 14, 44
COLOURS = ("#b8b8b8", "#e0a458", "#7aa6c2", "#3d6f99", "#9bd0b5", "#55b88c", "#1f7a55")


def draw(rows: Sequence[Mapping[str, Any]]) -> str:
    """The 99th percentiles as bars on a logarithmic scale, as SVG."""
    results: dict[str, list[float]] = {}
    for row in rows:
        if row["policy"] not in POLICIES:
            continue
        results.setdefault(row["scenario"], []).append(row["p99"])
    lowest, highest = 0.1, 30_000.0

    def x(milliseconds: float) -> float:
        place = math.log(max(milliseconds, lowest) / lowest) / math.log(highest / lowest)
        return LEFT + place * (WIDTH - LEFT - 60)

    height = TOP + len(results) * (len(POLICIES) * BAR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="sans-serif" font-size="10">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for index, (name, colour) in enumerate(zip(POLICIES, COLOURS, strict=True)):
        left = LEFT + index * 78
        parts.append(f'<rect x="{left}" y="6" width="9" height="9" fill="{colour}"/>')
        parts.append(f'<text x="{left + 13}" y="14">{name}</text>')
    tick = lowest
    while tick <= highest:
        parts.append(
            f'<line x1="{x(tick):.0f}" x2="{x(tick):.0f}" y1="34" y2="{height}" stroke="#e8e8e8"/>'
            f'<text x="{x(tick):.0f}" y="30" text-anchor="middle" fill="#777">{tick:g} ms</text>'
        )
        tick *= 10
    y = TOP
    for scenario, percentiles in results.items():
        middle = y + len(POLICIES) * BAR / 2 + 3
        parts.append(f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end">{scenario}</text>')
        for colour, percentile in zip(COLOURS, percentiles, strict=True):
            end = x(percentile)
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="{BAR - 1}"'
                f' fill="{colour}"/>'
                f'<text x="{end + 3:.1f}" y="{y + BAR - 2}" font-size="8" fill="#555">'
                f"{_digits(percentile)}</text>"
            )
            y += BAR
        y += GAP
    return "\n".join([*parts, "</svg>", ""])


PANEL, PANEL_HEIGHT, INSET, GUTTER = 250, 230, 40, 16


def draw_balance(rows: Sequence[Mapping[str, Any]]) -> str:
    """Latency against unevenness in the proposals' settings, a point for each partitioner, as SVG.

    The line joins the bounds of `partitioner.balance`. Low and left is better. Both scales are
    logarithmic.
    """
    names = (KIP_480, *SERIES)
    width = len(names) * (PANEL + GUTTER)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {PANEL_HEIGHT + 30}"'
        ' font-family="sans-serif" font-size="9">',
        f'<rect width="{width}" height="{PANEL_HEIGHT + 30}" fill="white"/>',
    ]
    for index, name in enumerate(names):
        own = [row for row in rows if row["scenario"] == name]
        parts += _draw_panel(name, own, index * (PANEL + GUTTER))
    return "\n".join([*parts, "</svg>", ""])


def _draw_panel(title: str, rows: Sequence[Mapping[str, Any]], left: int) -> list[str]:
    averages = [row["average"] for row in rows]
    low, high = min(averages) * 0.6, max(averages) * 1.6
    even, uneven = 0.001, 4.0
    right, bottom = left + PANEL, PANEL_HEIGHT

    def x(deviation: float) -> float:
        place = math.log(max(deviation, even) / even) / math.log(uneven / even)
        return left + INSET + place * (PANEL - INSET - 30)

    def y(milliseconds: float) -> float:
        return bottom - math.log(milliseconds / low) / math.log(high / low) * (bottom - 26)

    parts = [
        f'<text x="{left + INSET}" y="14" font-size="11">{title}</text>',
        f'<path d="M{left + INSET} 22V{bottom}H{right}" fill="none" stroke="#999"/>',
        f'<text x="{right}" y="{bottom + 24}" text-anchor="end" fill="#777">'
        "largest difference of a partition from the mean</text>",
    ]
    parts += [
        f'<text x="{x(tick):.0f}" y="{bottom + 12}" text-anchor="middle" fill="#777">'
        f"{tick:.1%}</text>"
        for tick in (0.001, 0.01, 0.1, 1.0)
    ]
    parts += [
        f'<text x="{left + INSET - 4}" y="{y(tick) + 3:.0f}" text-anchor="end" fill="#777">'
        f"{tick:g} ms</text>"
        for tick in (0.1, 1.0, 10.0, 100.0, 1000.0, 10_000.0)
        if low <= tick <= high
    ]
    found = {row["policy"]: row for row in rows}
    bounds = sorted({**BOUNDS, **MORE_BOUNDS}.items(), key=lambda item: item[1])
    line = " ".join(
        f"{x(found[name]['deviation']):.1f},{y(found[name]['average']):.1f}"
        for name, _ in bounds
        if name in found
    )
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1f7a55" stroke-width="1.5"/>')
    colours = dict(zip(POLICIES, COLOURS, strict=True))
    for name, row in found.items():
        at, height = x(row["deviation"]), y(row["average"])
        colour = colours.get(name, "#1f7a55")
        parts.append(f'<circle cx="{at:.1f}" cy="{height:.1f}" r="3.5" fill="{colour}"/>')
        if name in POLICIES:
            parts.append(f'<text x="{at + 6:.1f}" y="{height - 4:.1f}">{name}</text>')
    return parts
