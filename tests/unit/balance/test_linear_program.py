from __future__ import annotations

import math
from random import Random

import pytest

from lab.benchmarks.brute_force import judge_plan, least_plan_cost
from lab.benchmarks.reassignment import make_small_cluster
from trimtab.balance.linear_program import ReplicaProgram
from trimtab.balance.moves import NoPlan, PlacedPartition, TargetBroker
from trimtab.balance.plan import find_moves
from trimtab.kafka.records import TopicPartition


def make_cluster(random: Random) -> tuple[list[PlacedPartition], list[TargetBroker]]:
    """So little room that not every program is solved in whole numbers at once."""
    count = random.randint(3, 6)
    there = list(range(count + random.randint(0, 2)))
    factor, partitions = random.randint(2, 3), random.randint(3, 9)
    ids = random.sample(there, count)
    placed = [
        PlacedPartition(
            TopicPartition("t", index),
            tuple(random.sample(there, factor)),
            random.choice([1, 5, 9]) << 20,
        )
        for index in range(partitions)
    ]
    return placed, [
        TargetBroker(each, random.choice("ab"), random.choice([0, 1, 1, 2])) for each in ids
    ]


@pytest.mark.parametrize("seed", [517, 825, 887])
def test_a_plan_in_parts_is_made_whole_and_costs_what_it_does_with_all_columns(seed: int) -> None:
    placed, targets = make_cluster(Random(seed))
    program = ReplicaProgram(placed, targets)
    program.solve()
    everything = ReplicaProgram(placed, targets)
    everything.solve()
    everything.add_columns(math.inf)
    everything.solve_whole()
    assert program.is_whole
    assert program.cost == pytest.approx(everything.cost)


def test_what_would_take_too_long_is_refused_before_it_begins() -> None:
    placed = [
        PlacedPartition(TopicPartition("t", index), (0, 2, 4), 1 << 20) for index in range(20_000)
    ]
    targets = [TargetBroker(broker, "ab"[broker % 2], 600 * broker) for broker in range(10)]
    with pytest.raises(NoPlan, match="a few topics at a time"):
        find_moves(placed, targets)


def test_leaders_stay_where_that_costs_nothing_although_room_is_short() -> None:
    placed, targets = make_small_cluster(Random(171))
    program = ReplicaProgram(placed, targets)
    program.solve()
    program.keep_leaders()
    plan = [(leader, *(brokers - {leader})) for leader, brokers in program.read()]
    assert judge_plan(placed, targets, plan) == least_plan_cost(placed, targets)


def test_only_a_broker_that_lacks_leaders_is_thought_of() -> None:
    placed = [
        PlacedPartition(TopicPartition("t", index), (index % 3,), 1 << 20) for index in range(300)
    ]
    program = ReplicaProgram(placed, [TargetBroker(broker, None, 1000) for broker in range(4)])
    program.solve()
    leaders_there, wrong_shares, most_that_might_come = 300, 2 * 4, 2 * 76
    assert program.column_count <= leaders_there + wrong_shares + most_that_might_come
