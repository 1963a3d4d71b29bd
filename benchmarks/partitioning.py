"""A study of partitioners with brokers that are slow, jittery, failing, recovering or throttled.

`python -m benchmarks partitioning` prints the table, and `make figures` draws the picture.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from random import Random
from typing import Any

from benchmarks.partitioning_model import Death, Model, Outcome, Policy, Scenario, serve
from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
from trimtab.client.partitioner.latency import LatencyPartitioner
from trimtab.client.partitioner.per_record import RoundRobinPartitioner
from trimtab.client.partitioner.sticky import StickyPartitioner

POLICIES: dict[str, Policy] = {
    "round robin": lambda quantum, rack, random: RoundRobinPartitioner(),
    "sticky": lambda quantum, rack, random: StickyPartitioner(random),
    "uniform": lambda quantum, rack, random: BuiltInPartitioner(
        BuiltInOptions(quantum, is_adaptive=False, rack=rack), random
    ),
    "queue": lambda quantum, rack, random: BuiltInPartitioner(
        BuiltInOptions(quantum, rack=rack), random
    ),
    "latency": lambda quantum, rack, random: LatencyPartitioner(
        BuiltInOptions(quantum, rack=rack), random
    ),
}

WELL = serve()
SLOW = serve(slow=0.020)


def pauses(now: float, size: int, random: Random) -> float:
    """Every hundredth request waits for a garbage collection."""
    return WELL(now, size, random) + (0.05 if random.random() < 0.01 else 0.0)


def freezes(now: float, size: int, random: Random) -> float:
    """Twice the broker does not answer for three seconds."""
    for begin in (5.0, 15.0):
        if begin <= now < begin + 3.0:
            return begin + 3.0 - now
    return WELL(now, size, random)


def recovers(now: float, size: int, random: Random) -> float:
    """20 ms late for ten seconds, then healthy."""
    return WELL(now, size, random) + (0.020 if now < 10.0 else 0.0)


SCENARIOS = (
    Scenario("KIP-794, series 1", (SLOW, WELL, WELL), 3, 2048),
    Scenario("KIP-794, series 2", (SLOW, WELL, WELL), 3, 4096),
    Scenario("slow for 10 of 30 s", (recovers, WELL, WELL), 3, 2048),
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
        size=1000,
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
        size=1000,
        seconds=15.0,
        linger=0.005,
        racks=("a", "a", "b", "b", "c", "c"),
    ),
    Scenario("all well", (WELL,) * 100, 300, 20_000, seconds=10.0, linger=0.005),
    Scenario("all with pauses", (pauses,) * 3, 12, 4096),
    Scenario(
        "all overloaded, 24 of 18 MB/s",
        (serve(rate=2e6), serve(rate=8e6), serve(rate=8e6)),
        30,
        24_000,
        size=1000,
        seconds=10.0,
        linger=0.005,
    ),
    Scenario("far, and quick", (WELL,) * 3, 12, 4096, linger=0.005, distance=0.03),
)


def run(runs: int, records: int) -> None:
    """Print the table: for each scenario and partitioner, the median over `runs` seeds."""
    print("\n".join(word_table(measure(runs))))


def measure(runs: int) -> list[dict[str, Any]]:
    """An `Outcome` for each scenario and partitioner, with their names."""
    return [
        {
            "scenario": scenario.name,
            "policy": name,
            **asdict(_median([Model(scenario, policy, seed).run() for seed in range(runs)])),
        }
        for scenario in SCENARIOS
        for name, policy in POLICIES.items()
    ]


def _median(outcomes: list[Outcome]) -> Outcome:
    return Outcome(
        *(statistics.median(column) for column in zip(*map(astuple, outcomes), strict=True))
    )


def word_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of the table; a row is an `Outcome` with its scenario and policy."""
    lines = [
        "| brokers | partitioner | average ms | p99 ms | bytes there | uneven | kept | batch |"
    ]
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|")
    before = ""
    for row in rows:
        scenario = "" if row["scenario"] == before else row["scenario"]
        before = row["scenario"]
        lines.append(
            f"| {scenario} | {row['policy']} | {_digits(row['average'])} | {_digits(row['p99'])} |"
            f" {row['share']:.1%} | {row['spread']:.1%} | {row['kept']:.1%} | {row['batch']:.1f} |"
        )
    return lines


def _digits(milliseconds: float) -> str:
    return f"{milliseconds:,.1f}" if milliseconds < 10 else f"{milliseconds:,.0f}"


WIDTH, LEFT, BAR, GAP, TOP = 760, 200, 9, 14, 44
COLOURS = ("#b8b8b8", "#e0a458", "#7aa6c2", "#3d6f99", "#2a9d6f")


def draw(rows: Sequence[Mapping[str, Any]]) -> str:
    """The 99th percentiles as bars on a logarithmic scale, as SVG."""
    results: dict[str, list[float]] = {}
    for row in rows:
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
        left = LEFT + index * 95
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
