from __future__ import annotations

import subprocess
import sys
from collections import Counter
from random import Random

import pytest

from lab.benchmarks.brute_force import judge_plan, least_plan_cost
from trimtab.balance.leader_flow import choose_freely
from trimtab.balance.linear_program import ReplicaProgram
from trimtab.balance.moves import MOVE_COST, PlacedPartition, TargetBroker
from trimtab.kafka.records import TopicPartition

PLENTY = 10**6


def place(replicas: list[tuple[int, ...]], random: Random, most: int) -> list[PlacedPartition]:
    return [
        PlacedPartition(TopicPartition("t", index), each, random.randint(0, most))
        for index, each in enumerate(replicas)
    ]


@pytest.mark.parametrize("seed", range(40))
def test_no_plan_costs_less_or_changes_fewer_leaders(seed: int) -> None:
    """With racks of any sizes, and partitions with different numbers of replicas."""
    random = Random(seed)
    there = range(random.randint(3, 6))
    most = random.randint(1, 3)
    ids = random.sample(there, random.randint(most, min(5, len(there))))
    targets = [TargetBroker(broker, random.choice("abcd"), PLENTY) for broker in ids]
    placed = place(
        [
            tuple(random.sample(there, random.randint(1, most)))
            for _ in range(random.randint(1, 4 if most < 3 else 3))
        ],
        random,
        4 << 20,
    )
    chosen = choose_freely(placed, targets)
    assert chosen is not None
    assert judge_plan(placed, targets, chosen) == least_plan_cost(placed, targets)


@pytest.mark.parametrize(("brokers", "before"), [(6, 6), (6, 4), (5, 6)])
def test_it_costs_what_the_linear_program_finds(brokers: int, before: int) -> None:
    random = Random(brokers)
    placed = place([tuple(random.sample(range(before), 3)) for _ in range(60)], random, 10**9)
    targets = [TargetBroker(broker, "abc"[broker % 3], PLENTY) for broker in range(brokers)]
    program = ReplicaProgram(placed, targets)
    program.solve()
    program.keep_leaders()
    chosen = choose_freely(placed, targets)
    assert chosen is not None
    plan = [(leader, *(found - {leader})) for leader, found in program.read()]
    assert judge_plan(placed, targets, chosen) == judge_plan(placed, targets, plan)


def test_a_large_cluster_whose_racks_are_not_met_copies_no_more_than_they_require() -> None:
    random = Random(1)
    placed = place([tuple(random.sample(range(30), 3)) for _ in range(10_000)], random, 10**9)
    targets = [TargetBroker(broker, "abc"[broker % 3], PLENTY) for broker in range(30)]
    chosen = choose_freely(placed, targets)
    assert chosen is not None
    judged = judge_plan(placed, targets, chosen)
    assert judged is not None
    assert (judged.uneven, judged.unlevel) == (0, 0)
    assert judged.moves == sum(
        (each.size + MOVE_COST) * (3 - len({broker % 3 for broker in each.replicas}))
        for each in placed
    )


def test_a_broker_that_hands_on_the_right_to_one_leader_more_has_it_no_longer() -> None:
    replicas = [(1,), (0, 2, 3), (1,), (3, 0), (3,), (1, 0), (3,), (0, 3), (0, 1)]
    sizes = [44, 16, 24, 49, 53, 88, 81, 11, 98]
    placed = [
        PlacedPartition(TopicPartition("t", index), each, size)
        for index, (each, size) in enumerate(zip(replicas, sizes, strict=True))
    ]
    chosen = choose_freely(placed, [TargetBroker(broker, None, PLENTY) for broker in range(4)])
    assert chosen is not None
    assert sorted(Counter(each[0] for each in chosen).values()) == [2, 2, 2, 3]


def test_replicas_come_to_the_brokers_with_the_most_room() -> None:
    placed = place([(0, 1)] * 8, Random(1), 100)
    targets = [TargetBroker(broker, "aabb"[broker], PLENTY) for broker in range(4)]
    chosen = choose_freely(placed, targets)
    assert chosen is not None
    came = Counter(broker for each in chosen for broker in each if broker > 1)
    assert came == {2: 4, 3: 4}


def test_replicas_leave_brokers_above_their_limit_and_a_limit_that_is_not_met_is_noticed() -> None:
    placed = place([(0, 1), (0, 1)], Random(1), 100)
    rest = [TargetBroker(1, "a", PLENTY), TargetBroker(2, "b", PLENTY)]
    chosen = choose_freely(placed, [TargetBroker(0, "a", -1), *rest])
    assert chosen is not None
    assert sum(0 in each for each in chosen) == 1
    assert (
        choose_freely(placed, [TargetBroker(0, "a", PLENTY), rest[0], rest[1]._replace(free=1)])
        is None
    )


def test_sizes_beyond_what_a_machine_word_holds_times_the_partitions() -> None:
    placed = place([(0,)] * 5, Random(1), 1 << 60)
    chosen = choose_freely(placed, [TargetBroker(broker, None, PLENTY) for broker in range(3)])
    assert chosen is not None
    by_size = sorted(zip(placed, chosen, strict=True), key=lambda pair: pair[0].size)
    assert [to == (0,) for _, to in by_size] == [False, False, False, True, True]


def test_where_limits_leave_room_no_solver_is_needed() -> None:
    program = (
        "import sys; sys.modules['highspy'] = None\n"
        "from trimtab.balance.moves import PlacedPartition, TargetBroker\n"
        "from trimtab.balance.plan import find_moves\n"
        "targets = [TargetBroker(1, None, 9), TargetBroker(2, None, 9)]\n"
        "print(find_moves([PlacedPartition(('t', 0), (3,), 1)], targets)[0].replicas)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(1,)\n", "")
