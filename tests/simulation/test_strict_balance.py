"""What `partitioner.balance=strict` promises, in random settings of the partitioner study's model.

Brokers are late at random, slow every now and then, and freeze. `BALANCE_SEEDS` (environment;
default 100) is the number of settings, `FIRST_SEED` the first one.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from lab.benchmarks.partitioning import POLICIES
from lab.benchmarks.partitioning_model import (
    BATCH_OVERHEAD,
    RECORD_OVERHEAD,
    Model,
    Scenario,
    Service,
    always,
    serve,
)
from trimtab.client.partitioner.soonest import CREDIT

FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
SEEDS = int(os.environ.get("BALANCE_SEEDS", "100"))

SECONDS = 8.0
RECORD = 100


class Unruly:
    """A broker's random troubles; `longest` is the longest that it works on one request."""

    def __init__(self, random: Random, is_unruly: bool) -> None:
        delay = random.choice((0.0003, 0.002, 0.005))
        self._well = serve(delay, rate=random.choice((20e6, 100e6)))
        self._late = random.choice((0.0, 0.02, 0.1, 0.3)) if is_unruly else 0.0
        self._by = random.choice((0.01, 0.06, 0.3)) * random.random()
        self._slow = random.choice((0.0, 0.0, 0.02)) * random.random()
        self._period = random.choice((0.1, 1.0, 3.0))
        freezes = random.choice((0, 0, 1, 3)) if is_unruly else 0
        lasting = random.choice((0.2, 1.0, 3.0))
        self._freezes = [
            (begin, begin + lasting * random.random())
            for begin in sorted(random.random() * SECONDS for _ in range(freezes))
        ]
        frozen = max((end - begin for begin, end in self._freezes), default=0.0)
        self.longest = frozen + delay + self._slow + self._by * (self._late > 0) + 0.01

    def __call__(self, now: float, size: int, luck: float) -> float:
        for begin, end in self._freezes:
            if begin <= now < end:
                return end - now
        seconds = self._well(now, size, luck)
        if now % (2 * self._period) >= self._period:
            seconds += self._slow
        return seconds + (self._by if luck < self._late else 0.0)


def draw(random: Random) -> tuple[Scenario, list[Unruly], bool]:
    """A setting, its brokers, and whether only the first of them is unruly."""
    unruly = random.choice((1, 12))
    brokers = [Unruly(random, at < unruly) for at in range(random.choice((2, 3, 3, 5, 12)))]
    services: tuple[Service, ...] = tuple(brokers)
    scenario = Scenario(
        "random",
        services,
        partitions=len(brokers) * random.choice((1, 2, 7)) - random.choice((0, 0, 1)),
        rate=random.choice((10, 100, 300, 600)),
        sizes=always(RECORD),
        seconds=SECONDS,
        linger=random.choice((0.0, 0.0, 0.005)),
        batch_size=random.choice((300, 1000, 2000)),
        burst=random.choice((1, 1, 20)),
    )
    return scenario, brokers, unruly == 1


class Watched(Model):
    """Keeps the most that each broker has been behind its share at any moment, in bytes."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        super().__init__(scenario, POLICIES["strict"], seed)
        self.behind = [0.0] * len(self.brokers)
        self.counts = [self.leaders.count(each.number) for each in self.brokers]

    def place(self, partition: int, size: int) -> None:
        super().place(partition, size)
        level = sum(self.bytes) / len(self.leaders)
        for broker, count in zip(self.brokers, self.counts, strict=True):
            behind = level * count - broker.placed_bytes
            self.behind[broker.number] = max(self.behind[broker.number], behind)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_no_broker_is_further_behind_than_twice_the_credit_and_its_longest_silence(
    seed: int,
) -> None:
    scenario, brokers, is_one = draw(Random(f"balance {seed}"))
    model = Watched(scenario, seed)
    model.run()
    turn = 2 * scenario.batch_size  # of a record at least, and at most so much: not yet over
    rate = scenario.rate * (RECORD + RECORD_OVERHEAD + BATCH_OVERHEAD)
    for broker, unruly in zip(model.brokers, brokers, strict=True):
        # If others are silent too, the rest get more, and it is further behind its share.
        missed = model.counts[broker.number] / len(model.leaders) if is_one else 1.0
        silence = unruly.longest + 2 * scenario.burst / scenario.rate  # in whole bursts
        bound = 2 * CREDIT * scenario.batch_size + turn + rate * missed * silence
        assert model.behind[broker.number] <= bound
