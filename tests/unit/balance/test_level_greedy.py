from __future__ import annotations

import numpy
import pytest

from tests.unit.balance.level_cases import MB, cluster, partition
from trimtab.balance.cluster_load import BrokerState
from trimtab.balance.level_bounds import bound_by_knapsacks
from trimtab.balance.level_choices import COUNT, IN, KINDS, LEADS, OUT, Choice, LevelChoices
from trimtab.balance.level_greedy import level_greedily


def test_without_prices_only_leaders_change() -> None:
    choices = LevelChoices(cluster([partition(n, (0, 1, 2), 10.0) for n in range(9)], 3))
    limits = numpy.full((KINDS, 3), numpy.inf)
    limits[OUT] = 60
    chosen = level_greedily(choices, limits)
    assert len(chosen) == 6
    assert choices.sum_loads(chosen)[OUT].tolist() == [60, 60, 60]


@pytest.mark.parametrize("room", [1, 1000])
def test_the_smallest_replicas_for_their_load_leave_and_counts_are_kept(room: int) -> None:
    partitions = [partition(n, (0,), 10.0, 0, (1 + n) * MB) for n in range(10)]
    load = cluster(partitions, 3, each=BrokerState(0, None, room))
    choices = LevelChoices(load)
    limits = numpy.full((KINDS, 3), numpy.inf)
    limits[IN] = 40
    limits[COUNT] = choices.sum_loads()[COUNT] + room
    loads = choices.sum_loads()
    bound, prices = bound_by_knapsacks(choices, loads, limits)
    chosen = level_greedily(choices, limits, prices)
    after = choices.sum_loads(chosen)
    if room == 1:
        assert after[COUNT].tolist() == [8, 1, 1]
    else:
        assert set(chosen) == set(range(6))
        assert after[IN].tolist() == [40, 30, 30]
        assert bound == sum(range(1, 7)) * MB


def test_it_begins_with_choices_that_are_made() -> None:
    choices = LevelChoices(cluster([partition(n, (0, 1), 10.0) for n in range(4)], 2))
    limits = numpy.full((KINDS, 2), numpy.inf)
    limits[OUT] = 20
    start = {3: Choice((0, 1), 1)}
    chosen = level_greedily(choices, limits, None, start)
    assert chosen[3] == start[3]
    assert len(chosen) == 2
    assert start == {3: Choice((0, 1), 1)}


def test_a_broker_without_leaders_loses_them_even_if_others_get_too_much() -> None:
    choices = LevelChoices(cluster([partition(n, (0, 1), 10.0) for n in range(4)], 2))
    limits = numpy.full((KINDS, 2), numpy.inf)
    limits[OUT, 1], limits[LEADS, 0] = 20, 0
    chosen = level_greedily(choices, limits)
    assert {choice.leader for choice in chosen.values()} == {1}
    assert len(chosen) == 4
