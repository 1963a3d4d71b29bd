from __future__ import annotations

from random import Random

import numpy

from tests.unit.balance.level_cases import MB, cluster, partition
from trimtab.balance.cluster_load import ClusterLoad
from trimtab.balance.level_bounds import bound_by_knapsacks
from trimtab.balance.level_choices import IN, KINDS, LevelChoices
from trimtab.balance.level_greedy import level_greedily
from trimtab.balance.level_program import solve_level


def uneven(partitions: int) -> ClusterLoad:
    random = Random(1)
    return cluster(
        [
            partition(
                number,
                (random.choice((0, 0, 1, 2)),),
                random.lognormvariate(0, 0.5) * MB,
                size=int(random.lognormvariate(0, 1) * 100 * MB),
            )
            for number in range(partitions)
        ],
        4,
    )


def test_many_partitions_come_near_to_the_bound_within_the_limits() -> None:
    choices = LevelChoices(uneven(1200))
    loads = choices.sum_loads()
    limits = numpy.full((KINDS, 4), numpy.inf)
    limits[IN] = 1.05 * loads[IN].mean()
    least, prices = bound_by_knapsacks(choices, loads, limits)
    first = level_greedily(choices, limits, prices)
    solved = solve_level(choices, limits, first, prices)
    ways = choices.pack(solved.choices.items())
    copied = float((choices.sizes[ways.rows] * choices.count_copies(ways)).sum())
    loads = choices.sum_loads(solved.choices)
    assert (loads[IN] <= limits[IN] * (1 + 1e-6)).all()
    assert least * 0.99 <= solved.bound <= copied <= 1.02 * solved.bound


def test_of_few_partitions_the_program_finds_two_replicas_that_change_places() -> None:
    # Broker 1 has no room for the large one unless its small one leaves.
    load = cluster(
        [
            partition(0, (0,), 6.0, size=100 * MB),
            partition(1, (0,), 7.0, size=900 * MB),
            partition(2, (1,), 3.0, size=100 * MB),
        ],
        2,
    )
    choices = LevelChoices(load)
    limits = numpy.full((KINDS, 2), numpy.inf)
    limits[IN] = 10, 8
    _, prices = bound_by_knapsacks(choices, choices.sum_loads(), limits)
    solved = solve_level(choices, limits, {}, prices)
    assert {row: choice.replicas for row, choice in solved.choices.items()} == {0: (1,), 2: (0,)}
    assert solved.bound <= 200 * MB
