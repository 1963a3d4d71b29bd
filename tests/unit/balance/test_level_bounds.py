from __future__ import annotations

import os
from math import prod
from random import Random

import numpy

from tests.unit.balance.level_cases import (
    MB,
    SLOW,
    Everything,
    choices_of,
    cluster,
    partition,
    random_cluster,
)
from trimtab.balance.level_bounds import bound_by_knapsacks
from trimtab.balance.level_choices import IN, KINDS, OUT, LevelChoices
from trimtab.balance.level_program import solve_level

INSTANCES = int(os.environ.get("LEVEL_BOUNDS", "300"))
"""2,000 were run once by hand."""


def test_the_bounds_never_exceed_the_fewest_bytes_of_all_plans() -> None:
    compared = above_zero = programs = 0
    seed = 0
    while compared < INSTANCES:
        seed += 1
        random = Random(seed)
        load = random_cluster(
            random, random.choice((3, 3, 4)), random.randint(3, 5), random.choice((1, 2, 3)), 0.5
        )
        if prod(len(list(choices_of(load, each))) for each in load.partitions) > 5_000:
            continue
        choices = LevelChoices(load)
        every = Everything(load, SLOW._replace(plan_to=1e6, act_above=1e6))
        limits = numpy.full((KINDS, choices.count), numpy.inf)
        # What some plan reaches, so that there is one.
        reached = every.loads[random.randrange(len(every.loads))]
        limits[:3] = reached * random.uniform(1, 1.1)
        fewest = every.find_fewest(limits[:3])
        loads = choices.sum_loads()
        bound, prices = bound_by_knapsacks(choices, loads, limits)
        assert bound <= fewest * (1 + 1e-9) + 1, seed
        above_zero += bound > 0
        if compared % 10 == 0:
            solved = solve_level(choices, limits, {}, prices)
            assert solved.bound <= fewest * (1 + 1e-6) + 1, seed
            programs += solved.bound > 0
        # Any prices bound the bytes, those of the program only best.
        scale = float(choices.sizes.max()) / numpy.maximum(loads, 1)
        for _ in range(3):
            some = numpy.zeros((KINDS, choices.count))
            some[:3] = scale[:3] * numpy.array(
                [[random.random() for _ in choices.ids] for _ in range(3)]
            )
            rows = numpy.flatnonzero(choices.leaders < choices.count)
            values, _ = choices.choose(some, rows, is_free=True)
            priced = float(values.sum() + (some[:3] * (loads - limits)[:3]).sum())
            assert priced <= fewest * (1 + 1e-9) + 1, seed
        compared += 1
    assert above_zero > INSTANCES // 3
    assert programs > INSTANCES // 40


def test_a_broker_loses_its_excess_by_the_replicas_with_the_fewest_bytes_for_it() -> None:
    sizes = (400, 100, 200)
    load = cluster([partition(n, (0,), 10.0, 0, size * MB) for n, size in enumerate(sizes)], 2)
    choices = LevelChoices(load)
    limits = numpy.full((KINDS, 2), numpy.inf)
    limits[IN, 0] = 15
    bound, prices = bound_by_knapsacks(choices, choices.sum_loads(), limits)
    assert bound == 100 * MB + 100 * MB
    assert prices[IN, 0] == 20 * MB


def test_what_leaders_take_away_costs_nothing() -> None:
    load = cluster([partition(n, (0, 1), 10.0) for n in range(4)], 2)
    choices = LevelChoices(load)
    limits = numpy.full((KINDS, 2), numpy.inf)
    limits[OUT, 0] = 20
    assert bound_by_knapsacks(choices, choices.sum_loads(), limits)[0] == 0
