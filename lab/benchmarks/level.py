"""Plans that level a cluster: trimtab's, beside one greedy goal after another.

First RUNS x 200 random clusters of 3 to 12 brokers and up to 400 partitions, then single ones of up
to 100,000 partitions x 3 on 100 brokers, each planned in a process of its own. The level is that of
the worst resource (busiest broker : mean); `bound` are the fewest bytes that any plan copies which
is as level as trimtab's.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from random import Random
from statistics import mean
from typing import Any, NamedTuple

from lab.benchmarks.greedy_goals import GreedyGoals
from lab.benchmarks.report import progress, report
from trimtab.balance.cluster_load import RESOURCES, BrokerState, ClusterLoad, PartitionLoad
from trimtab.balance.level_plan import Goal, find_level_plan, find_levels
from trimtab.kafka.records import TopicPartition

RIVAL = "greedy goals"
GOAL = Goal(payback_s=float("inf"))
ABOVE = 1 + 0.9 * 0.10
"""What Cruise Control plans to."""
SIZES = ((1_000, 12), (10_000, 30), (20_000, 30), (20_000, 100), (100_000, 100))
"""Partitions and brokers."""
CLUSTERS = 200
"""A run."""
MB = 1_000_000


class Planned(NamedTuple):
    """What came of one cluster.

    Attributes:
        level, reachable: of the worst resource; `reachable` is the least that its largest partition
            allows.
        copied, bound: bytes.
    """

    seconds: float
    level: float
    reachable: float
    copied: int
    bound: int


def make_cluster(seed: int, brokers: int, partitions: int, factor: int = 3) -> ClusterLoad:
    """A cluster in six racks or three, in which some brokers have much more than others. Rates and
    sizes are lognormal, as those of topics are."""
    random = Random(seed)
    racks = 6 if brokers >= 12 else 3
    states = {each: BrokerState(each, f"r{each % racks}", 100_000) for each in range(brokers)}
    weights = [random.random() + 0.2 for _ in range(brokers)]
    loads = []
    for number in range(partitions):
        replicas: list[int] = []
        while len(replicas) < factor:
            broker = random.choices(range(brokers), weights)[0]
            if all(broker % racks != other % racks for other in replicas):
                replicas.append(broker)
        written = random.lognormvariate(0, 1) * MB
        loads.append(
            PartitionLoad(
                TopicPartition(f"topic-{number // 100}", number % 100),
                tuple(replicas),
                replicas[0],
                frozenset(replicas),
                written,
                written * random.choice((0, 1, 3)),
                int(written * random.lognormvariate(7, 0.7)),
            )
        )
    return ClusterLoad(states, loads)


def plan_ours(load: ClusterLoad) -> Planned:
    begin = time.perf_counter()
    plan = find_level_plan(load, GOAL)
    seconds = time.perf_counter() - begin
    level = max(plan.after[name].level for name in RESOURCES)
    reachable = max(plan.before[name].reachable for name in RESOURCES)
    return Planned(seconds, level, reachable, plan.copied, plan.bound)


def plan_greedily(load: ClusterLoad) -> Planned:
    begin = time.perf_counter()
    goals = GreedyGoals(load, ABOVE)
    goals.run()
    seconds = time.perf_counter() - begin
    levels = find_levels(goals.result())
    level = max(levels[name].level for name in RESOURCES)
    reachable = max(levels[name].reachable for name in RESOURCES)
    return Planned(seconds, level, reachable, goals.copied(), 0)


def run(runs: int, records: int) -> None:
    _compare_small(runs)
    for partitions, brokers in SIZES:
        progress(f"level: {partitions} partitions on {brokers} brokers")
        ours, theirs = (_plan_apart(side, partitions, brokers) for side in ("ours", "theirs"))
        where = f"{partitions} x 3 on {brokers} brokers"
        for metric, unit in (
            ("seconds", "s"),
            ("peak_mib", "MiB"),
            ("level", "x mean"),
            ("copied", "bytes"),
        ):
            note = f"bound {ours['bound']}" if metric == "copied" else ""
            values = [ours[metric]], RIVAL, [theirs[metric]]
            report("level", f"{metric}, {where}", unit, *values, more_is_better=False, note=note)


def _compare_small(runs: int) -> None:
    """Means over many clusters; `level` is above what the largest partition allows."""
    found: dict[str, list[Planned]] = {"ours": [], "theirs": []}
    count = runs * CLUSTERS
    for seed in range(count):
        if seed % 50 == 0:
            progress(f"level: cluster {seed + 1} of {count}")
        random = Random(seed)
        load = make_cluster(seed, random.randint(3, 12), random.randint(10, 400))
        found["ours"].append(plan_ours(load))
        found["theirs"].append(plan_greedily(load))

    def compare(metric: str, unit: str, values: dict[str, list[float]]) -> None:
        ours, theirs = ([mean(values[side])] for side in ("ours", "theirs"))
        where = f"mean of {count} clusters"
        report("level", f"{metric}, {where}", unit, ours, RIVAL, theirs, more_is_better=False)

    def gather(read: Any) -> dict[str, list[float]]:
        return {side: [read(each) for each in planned] for side, planned in found.items()}

    compare("level", "x mean", gather(lambda each: each.level))
    compare("seconds", "s", gather(lambda each: each.seconds))
    compare("copied", "bytes", gather(lambda each: each.copied))
    compare(
        "clusters above 1.05 and what their largest partition allows",
        "clusters",
        {
            side: [sum(each.level > 1.001 * max(1.05, each.reachable) for each in planned)]
            for side, planned in found.items()
        },
    )
    ratios = [each.copied / each.bound for each in found["ours"] if each.bound]
    near = sum(ratio <= 1.02 for ratio in ratios)
    report(
        *("level", f"bytes copied : bound, mean of {len(ratios)} clusters that copy", "x bound"),
        *([mean(ratios)], RIVAL, []),
        more_is_better=False,
        note=f"{near} within 1.02; the largest {max(ratios):.3f}",
    )


def _plan_apart(side: str, partitions: int, brokers: int) -> dict[str, float]:
    words = (sys.executable, "-m", "lab.benchmarks.level", side, str(partitions), str(brokers))
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def main() -> None:
    side, partitions, brokers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    load = make_cluster(1, brokers, partitions)
    planned = plan_ours(load) if side == "ours" else plan_greedily(load)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**planned._asdict(), "peak_mib": peak}))


if __name__ == "__main__":
    main()
