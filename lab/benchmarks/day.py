"""A day of thirty brokers under `trimtab balance --watch`, in virtual time, beside greedy goals.

Three regions have their peaks eight hours apart, topics go up and down by themselves, and what is
measured has noise. Each minute that passes, the true levels are noted: busiest broker : mean of the
bytes that leaders send, and of those that are written, which only copies can level. Copies take the
time that the throttle makes them take.

The rival acts as Cruise Control's detection does: every five minutes it plans if a broker is above
the threshold, by one greedy goal after another (`greedy_goals.py`), and carries out the plan.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any, cast

from lab.benchmarks.greedy_goals import GreedyGoals
from lab.benchmarks.report import progress, report
from trimtab.balance.cluster_load import IN, OUT, BrokerState, ClusterLoad, PartitionLoad
from trimtab.balance.level_plan import Goal, LevelPlan, find_levels
from trimtab.client.balancer import Balancer
from trimtab.client.measure.rates import MeteredLoad
from trimtab.client.measure.slow import SlowBrokers
from trimtab.client.measure.watch import NOBODY_SLOW
from trimtab.client.moves.executor import MoveReport
from trimtab.kafka.records import TopicPartition
from trimtab.sim.world import World

BROKERS = 30
PARTITIONS = 1_200
REGIONS = 3
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
WINDOW_S = 60.0
RATE = 50_000_000
"""The throttle: bytes/s that each broker sends, and receives, for moves."""
BACK_S = 6 * HOUR_S
LEVEL = 1.15
DRIFT = 0.15
"""How much a topic goes up and down by itself, in the logarithm."""
RETAINED_S = 6 * HOUR_S
ABOVE = 1.09
DETECT_ABOVE = 1.10
DETECT_S = 300.0
RIVAL = "greedy goals every five minutes"
_MINUTE_S = 60.0
_HALF_LIFE_S = 1800.0


class Day:
    """A cluster whose load follows the hours.

    Attributes:
        now_s: seconds since midnight.
        minutes: the levels at each minute that has passed: sent by leaders, written.
        moved: when each replica left a broker, by partition and broker.
        returned: replicas that came back to a broker that they left less than six hours before.
        leaders, copied: changes of leaders, and bytes copied, so far.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.now_s = 0.0
        self.minutes: list[tuple[float, float]] = []
        self.moved: dict[tuple[TopicPartition, int], float] = {}
        self.returned = self.leaders = self.copied = 0
        self._states = {each: BrokerState(each, f"r{each % 6}", 10_000) for each in range(BROKERS)}
        self._partitions: list[PartitionLoad] = []
        self._means: list[float] = []
        self._drift: dict[str, float] = {}
        for number in range(PARTITIONS):
            mean = self._random.lognormvariate(0, 0.8) * 500_000
            topic = f"topic-{number // 24}"
            self._drift[topic] = 0.0
            first = self._random.randrange(BROKERS)
            replicas = tuple((first + step * 7) % BROKERS for step in range(3))
            self._means.append(mean)
            self._partitions.append(
                PartitionLoad(
                    TopicPartition(topic, number % 24),
                    replicas,
                    replicas[0],
                    frozenset(replicas),
                    mean,
                    2 * mean,
                    int(mean * RETAINED_S),
                )
            )
        self._turn()

    def load(self, noise: float = 0.0) -> ClusterLoad:
        """The load now.

        Args:
            noise: of what is measured, relative.
        """
        return ClusterLoad(self._states, [*self._measure(noise)], measured_s=self.now_s)

    def _measure(self, noise: float) -> Iterator[PartitionLoad]:
        for each in self._partitions:
            factor = math.exp(self._random.gauss(0, noise)) if noise else 1.0
            yield each._replace(bytes_in=each.bytes_in * factor, bytes_out=each.bytes_out * factor)

    def _turn(self) -> None:
        """Make the load that of this minute."""
        for topic, drift in self._drift.items():
            kept = 0.5 ** (_MINUTE_S / _HALF_LIFE_S)
            change = self._random.gauss(0, DRIFT * math.sqrt(1 - kept * kept))
            self._drift[topic] = kept * drift + change
        for number, each in enumerate(self._partitions):
            region = int(each.partition.topic[6:]) % REGIONS
            hour = self.now_s / HOUR_S - 24 / REGIONS * region
            rhythm = 1 + 0.7 * math.sin(2 * math.pi * hour / 24)
            rate = self._means[number] * rhythm * math.exp(self._drift[each.partition.topic])
            self._partitions[number] = each._replace(bytes_in=rate, bytes_out=2 * rate)

    async def pass_time(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            step_s = min(_MINUTE_S, end_s - self.now_s)
            await asyncio.sleep(step_s)
            self.now_s += step_s
            self._turn()
            levels = find_levels(self.load())
            self.minutes.append((levels[OUT].level, levels[IN].level))

    async def change(self, changes: dict[TopicPartition, tuple[tuple[int, ...], int]]) -> int:
        """Give partitions other replicas and leaders, by the time that the copies take; returns the
        bytes."""
        received = dict.fromkeys(range(BROKERS), 0)
        copied = 0
        for number, each in enumerate(self._partitions):
            if each.partition not in changes:
                continue
            replicas, leader = changes[each.partition]
            for broker in {*each.replicas} - {*replicas}:
                self.moved[each.partition, broker] = self.now_s
            for broker in {*replicas} - {*each.replicas}:
                left_s = self.moved.get((each.partition, broker), -math.inf)
                self.returned += self.now_s - left_s < BACK_S
                received[broker] += each.size
                copied += each.size
            self.leaders += leader != each.leader
            self._partitions[number] = each._replace(
                replicas=replicas, leader=leader, in_sync=frozenset(replicas)
            )
        self.copied += copied
        await self.pass_time(max(received.values()) / RATE)
        return copied


class _Watch:
    is_ready = is_measured = True

    def __init__(self, day: Day) -> None:
        self._day = day

    def start_over(self) -> None:
        """Load is measured anew each time."""

    def find_slow(self) -> SlowBrokers:
        return NOBODY_SLOW

    def measure(self) -> MeteredLoad:
        return MeteredLoad(self._day.load(noise=0.03), {}, {}, ())


class DayBalancer(Balancer):
    """The watch of a balancer, whose windows and moves take virtual time."""

    def __init__(self, day: Day) -> None:
        self._day = day
        super().__init__(cast(Any, None), Goal(), window_s=WINDOW_S)
        self.load_watch = cast(Any, _Watch(day))

    async def _tick(self) -> None:
        await self._day.pass_time(WINDOW_S)
        if self._day.now_s >= DAY_S:
            self.stop()

    async def _execute(self, wanted: Any, before: Any, *rest: Any) -> MoveReport:
        changes = {each: (replicas, replicas[0]) for each, replicas in wanted.items()}
        moved = tuple(each for each in wanted if {*wanted[each]} != {*before[each]})
        copied = await self._day.change(changes)
        return MoveReport(moved, (), {}, copied, (), ())


async def _watch(day: Day) -> list[LevelPlan]:
    plans: list[LevelPlan] = []

    def tell(event: object) -> None:
        if isinstance(event, LevelPlan):
            plans.append(event)

    await DayBalancer(day).watch(tell=tell)
    return plans


async def _detect(day: Day) -> None:
    while day.now_s < DAY_S:
        await day.pass_time(DETECT_S)
        load = day.load(noise=0.03)
        levels = find_levels(load)
        if max(each.level for each in levels.values()) > DETECT_ABOVE:
            goals = GreedyGoals(load, ABOVE)
            goals.run()
            await day.change(
                {
                    each.partition: (tuple(goals.replicas[each.partition]), leader)
                    for each in load.partitions
                    if (leader := goals.leaders[each.partition]) != each.leader
                    or goals.replicas[each.partition] != [*each.replicas]
                }
            )


async def _leave(day: Day) -> None:
    await day.pass_time(DAY_S)


def run(runs: int, records: int) -> None:
    days: dict[str, list[Day]] = {}
    for name, act in (("ours", _watch), ("theirs", _detect), ("nobody", _leave)):
        days[name] = []
        for seed in range(runs):
            progress(f"day: {name}, day {seed + 1} of {runs}")
            with World(seed=seed) as world:
                day = Day(seed)
                world.run(act(day))
                days[name].append(day)

    def compare(metric: str, unit: str, read: Any, more_is_better: bool = False) -> None:
        ours, theirs = ([read(day) for day in days[side]] for side in ("ours", "theirs"))
        note = f"without either: {read(days['nobody'][0]):.4g}"
        report("day", metric, unit, ours, RIVAL, theirs, more_is_better=more_is_better, note=note)

    for at, what in enumerate(("sent by leaders", "written")):
        above = f"minutes with no broker above {LEVEL} x mean, {what}"

        def share(day: Day, at: int = at, first: int = 0) -> float:
            minutes = day.minutes[first:]
            return 100 * sum(each[at] <= LEVEL for each in minutes) / len(minutes)

        def worst(day: Day, at: int = at) -> float:
            return max(each[at] for each in day.minutes)

        compare(above, "%", share, True)
        compare(f"{above}, after the first hour", "%", partial(share, first=60), True)
        compare(f"worst level, {what}", "x mean", worst)
    compare("changes of leaders", "an hour", lambda day: day.leaders * HOUR_S / day.now_s)
    compare("bytes copied", "an hour", lambda day: day.copied * HOUR_S / day.now_s)
    compare("replicas that came back within 6 hours", "replicas", lambda day: day.returned)
