from __future__ import annotations

from random import Random

import numpy
import pytest

from tests.unit.balance.level_cases import choices_of, cluster, partition, random_cluster
from trimtab.balance.level_choices import (
    COUNT,
    DISK,
    IN,
    KINDS,
    LEADER_COST,
    LEADS,
    OUT,
    Choice,
    LevelChoices,
)
from trimtab.balance.moves import MOVE_COST


@pytest.mark.parametrize("seed", range(12))
def test_all_choices_are_those_that_the_rules_allow(seed: int) -> None:
    load = random_cluster(Random(seed), 4 + seed % 2, 12, 1 + seed % 3)
    choices = LevelChoices(load)
    for row, each in enumerate(load.partitions):
        if each.leader < 0:
            continue
        found = {(frozenset(c.replicas), c.leader) for c in choices.list_choices(row)}
        assert found == {(frozenset(some), leader) for some, leader in choices_of(load, each)}


@pytest.mark.parametrize("is_free", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_the_cheapest_choice_costs_at_most_the_best_of_all(seed: int, is_free: bool) -> None:
    random = Random(seed)
    load = random_cluster(random, 5, 30, 1 + seed % 3)
    choices = LevelChoices(load)
    prices = numpy.zeros((KINDS, 5))
    for broker in range(5):
        prices[[OUT, IN, DISK], broker] = [random.choice((0, 1)) * random.random() for _ in "123"]
    prices[:2] *= 2000
    rows = numpy.flatnonzero(choices.leaders < 5)
    values, found = choices.choose(prices, rows, is_free)
    allowed = choices.are_allowed(found)
    changed = 0
    for number, row in enumerate(rows.tolist()):

        def price(choice: Choice, row: int = row) -> float:
            way = choices.pack([(row, choice)])
            copies = int(choices.count_copies(way)[0]) * float(choices.sizes[row])
            cost = copies if is_free else float(choices.find_costs(way)[0])
            _, kinds, brokers, amounts = choices.list_changes(way)
            return cost + float((amounts * prices[kinds, brokers]).sum())

        best = min(map(price, choices.list_choices(row)))
        value = float(values[number])
        assert value <= best + 1
        if allowed[number]:
            ((_, chosen),) = choices.unpack(found.pick(numpy.array([number])))
            assert price(chosen) == pytest.approx(value, abs=1)
            assert value == pytest.approx(best, abs=1)
            changed += chosen != choices.present(row)
    assert changed


def test_loads_are_what_changes_sum_up_to() -> None:
    load = random_cluster(Random(4), 5, 20, 2)
    choices = LevelChoices(load)
    rows = [row for row, each in enumerate(load.partitions) if each.leader >= 0]
    for row in rows:
        for choice in list(choices.list_choices(row))[:5]:
            each = load.partitions[row]
            after = [*load.partitions]
            after[row] = each._replace(replicas=choice.replicas, leader=choice.leader)
            expected = LevelChoices(load._replace(partitions=after)).sum_loads()
            sums = choices.sum_loads()
            _, kinds, brokers, amounts = choices.list_changes(choices.pack([(row, choice)]))
            numpy.add.at(sums, (kinds, brokers), amounts)
            assert numpy.allclose(sums, expected)


def test_costs_count_copied_bytes_moves_and_leaders() -> None:
    choices = LevelChoices(cluster([partition(0, (0, 1), size=500)], 3))
    some = [Choice((0, 1), 0), Choice((0, 1), 1), Choice((0, 2), 0), Choice((2, 2), 2)]
    ways = choices.pack([(0, each) for each in some])
    assert [each for _, each in choices.unpack(ways)] == some
    assert choices.find_costs(ways)[:3].tolist() == [0, LEADER_COST, 500 + MOVE_COST]
    assert choices.are_allowed(ways).tolist() == [True, True, True, False]
    assert choices.sum_loads()[[COUNT, LEADS]].tolist() == [[1, 1, 0], [1, 0, 0]]


def test_only_the_replica_that_is_out_of_the_isr_leaves() -> None:
    load = cluster([partition(0, (0, 1, 2), in_sync=frozenset({0, 2}))], 4)
    choices = LevelChoices(load)
    assert choices.can_leave.tolist() == [[False, True, False]]
    assert choices.can_lead.tolist() == [[True, False, True]]
    assert choices.destinations(0, 1).tolist() == [False, False, False, True]


def test_only_from_some_brokers() -> None:
    load = cluster([partition(0, (0, 1)), partition(1, (1, 0))], 3)
    choices = LevelChoices(load, {0})
    assert choices.can_leave.tolist() == [[True, False], [False, True]]
    assert choices.can_lead.tolist() == [[True, True], [False, False]]
