"""Plans of small clusters against all plans there are, and what holds for plans of any cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from math import prod
from random import Random

import pytest

from tests.unit.balance.level_cases import (
    MB,
    SLOW,
    Everything,
    check_rules,
    choices_of,
    cluster,
    partition,
    random_cluster,
)
from trimtab.balance.cluster_load import DISK, IN, OUT, BrokerState, ClusterLoad
from trimtab.balance.level_plan import Goal, LevelPlan, find_level_plan, find_levels
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

SEEDS = int(os.environ.get("LEVEL_SEEDS", "25"))
"""More are for a run by hand."""
MOST_PLANS = 60_000


def small_case(seed: int) -> tuple[ClusterLoad, Goal]:
    random = Random(seed)
    load = random_cluster(
        random, random.choice((3, 3, 4)), random.randint(4, 6), random.choice((1, 1, 2, 3)), 0.3
    )
    plan_to = random.choice((1.05, 1.2, 1.3, 1.4))
    return load, SLOW._replace(plan_to=plan_to, act_above=plan_to + 0.1)


def test_small_plans_reach_the_least_level_with_the_fewest_bytes_of_all_plans() -> None:
    compared = moved = 0
    for seed in range(SEEDS):
        load, goal = small_case(seed)
        if prod(len(list(choices_of(load, each))) for each in load.partitions) > MOST_PLANS:
            continue
        plan = find_level_plan(load, goal)
        check_rules(load, goal, plan)
        if not plan.reasons:
            continue
        reached, least, fewest = Everything(load, goal).compare(plan, load)
        assert reached <= 1.01 * least, seed
        assert plan.copied <= fewest + 1, seed
        assert plan.bound <= fewest + 1, seed
        compared += 1
        moved += plan.copied > 0
    assert compared > SEEDS // 2
    assert moved > SEEDS // 4


def uneven(seed: int, goal: Goal = SLOW, partitions: int = 60) -> tuple[ClusterLoad, LevelPlan]:
    load = random_cluster(Random(seed), 8, partitions, 3, 0.7)
    return load, find_level_plan(load, goal)


@pytest.mark.parametrize("seed", range(3))
def test_plans_of_larger_clusters_keep_the_rules_and_explain_what_they_do_not_reach(
    seed: int,
) -> None:
    load, plan = uneven(seed, partitions=(50, 120, 300)[seed])
    check_rules(load, SLOW, plan)
    assert plan.changes
    assert plan.copied >= plan.bound > 0
    assert plan.copied == sum(change.copied for change in plan.changes)
    for name, level in plan.after.items():
        if plan.before[name].level > SLOW.act_above:
            assert level.level <= max(SLOW.plan_to + 0.001, level.reachable) or plan.unmet
        else:
            assert level.level <= SLOW.act_above + 1e-6


def test_the_same_load_gives_the_same_plan_also_in_another_process() -> None:
    code = (
        "from tests.unit.balance.test_level_plan import uneven; "
        "print([(c.before.partition, c.replicas) for c in uneven(3)[1].changes])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    said.add(str([(c.before.partition, c.replicas) for c in uneven(3)[1].changes]))
    assert len(said) == 1


def test_leaders_alone_change_where_that_is_enough() -> None:
    load = cluster([partition(n, (0, 1, 2)) for n in range(30)], 3)
    plan = find_level_plan(load)
    assert (plan.copied, plan.bound) == (0, 0)
    assert plan.after[OUT].level <= 1.05
    assert all(set(change.replicas) == {0, 1, 2} for change in plan.changes)
    assert len(plan.changes) <= 20
    assert plan.changes[0].reason.startswith("broker ")
    assert "nothing copied" in plan.changes[0].reason


@pytest.mark.parametrize(("extra", "is_level"), [(0.139, True), (0.161, False)])
def test_a_plan_begins_above_the_upper_level_only(extra: float, is_level: bool) -> None:
    # 100 partitions each; what broker 0 has more, the others have less.
    weights = (1 + extra, 1 - extra / 2, 1 - extra / 2)
    partitions = [
        partition(n, (n % 3,), MB * weights[n % 3], 0, round(100 * MB * weights[n % 3]))
        for n in range(300)
    ]
    plan = find_level_plan(cluster(partitions, 3), SLOW)
    assert bool(plan.changes) is not is_level
    assert bool(plan.reasons) is not is_level
    assert is_level or max(level.level for level in plan.after.values()) <= 1.05 + 1e-6


def test_an_idle_cluster_is_levelled_by_size() -> None:
    partitions = [partition(n, (0, 1), 0, 0, (1 + n % 3) * MB) for n in range(60)]
    plan = find_level_plan(cluster(partitions, 4))
    assert plan.before[DISK].level == 2
    assert plan.after[DISK].level <= 1.05
    assert plan.reasons == ["broker 0 has 2.00 times the mean of bytes stored"]
    assert plan.copied >= plan.bound >= 0.9 * plan.copied
    assert all(change.payback_s is None for change in plan.changes)


@pytest.mark.parametrize("brokers", [0, 1, 3])
def test_no_load_and_a_single_broker_need_no_plan(brokers: int) -> None:
    partitions = [partition(n, (0,)) for n in range(5)] if brokers == 1 else []
    plan = find_level_plan(cluster(partitions, brokers))
    assert (list(plan.changes), plan.copied, plan.reasons) == ([], 0, [])
    assert {level.level for level in plan.after.values()} == {1}


def test_a_cluster_whose_brokers_are_all_dead_has_no_plan() -> None:
    load = cluster([partition(0, (0, 1))], 2, each=BrokerState(0, None, 0, None, False, False))
    plan = find_level_plan(load)
    assert (list(plan.changes), plan.reasons) == ([], [])


def test_what_moves_already_is_not_touched_and_said() -> None:
    partitions = [partition(n, (0, 1)) for n in range(10)]
    load = cluster(partitions, 4, moving=frozenset(each.partition for each in partitions))
    plan = find_level_plan(load)
    assert not plan.changes
    assert plan.reasons
    assert plan.unmet == [
        f"bytes {verb}: {level} times the mean is the least level found"
        for verb, level in (("that leaders send", "4.00"), ("written", "2.00"), ("stored", "2.00"))
    ]


def test_a_replica_on_a_broker_that_is_not_known_stays() -> None:
    partitions = [partition(n, (9, 0), leader=0) for n in range(10)]
    plan = find_level_plan(cluster(partitions, 3))
    assert plan.reasons
    assert not plan.changes


def test_replicas_move_only_if_that_pays_in_time_but_for_disks() -> None:
    # Of 100 s: 1 MB/s takes 100 MB away, so the large ones do not pay.
    partitions = [partition(n, (0,), MB, 0, (50 + 100 * (n % 2)) * MB) for n in range(40)] + [
        partition(40 + n, (1,), 0, 0, 4000 * MB) for n in range(1)
    ]
    load = cluster(partitions, 2)
    plan = find_level_plan(load, Goal(payback_s=100))
    assert plan.before[DISK].level <= 1.15
    assert plan.changes
    assert {change.before.size for change in plan.changes} == {50 * MB}
    assert {change.payback_s for change in plan.changes} == {50.0}
    assert find_level_plan(load, Goal(payback_s=10)).unmet


@pytest.mark.parametrize("seed", range(3))
def test_drained_brokers_end_without_replicas_and_leaders(seed: int) -> None:
    load = random_cluster(Random(seed), 6, 80, 2, 0.7)
    brokers = {
        each.id: each._replace(free=1000, is_alive=True, takes_replicas=True)
        for each in load.brokers.values()
    }
    partitions = [
        each._replace(in_sync=frozenset(each.replicas), leader=each.replicas[0])
        for each in load.partitions
    ]
    load = ClusterLoad(brokers, partitions)
    goal = Goal(drain=frozenset({1, 2}), payback_s=1)
    plan = find_level_plan(load, goal)
    check_rules(load, goal, plan)
    held = {
        broker
        for each in partitions
        for broker in plan.assignment.get(each.partition, each.replicas)
    }
    assert held.isdisjoint(goal.drain)
    assert plan.bound <= plan.copied
    assert {"broker 1 is to be drained", "broker 2 is to be drained"} <= set(plan.reasons)


def test_a_drain_goes_before_the_level_and_what_cannot_leave_is_said() -> None:
    # Rack r0 has brokers 0 and 2: all that 0 has goes to 2.
    partitions = [partition(n, (0, 1)) for n in range(8)] + [
        partition(8 + n, (2, 1)) for n in range(4)
    ]
    load = cluster(partitions, 3, 2)
    plan = find_level_plan(load, SLOW._replace(drain=frozenset({0})))
    assert all(set(replicas) == {1, 2} for replicas in plan.assignment.values())
    assert len([change for change in plan.changes if change.copied]) == 8
    full = {**load.brokers, 2: load.brokers[2]._replace(free=5)}
    some = find_level_plan(load._replace(brokers=full), SLOW._replace(drain=frozenset({0})))
    assert some.unmet[0].startswith("broker 0 keeps 3 replicas: ")
    assert len([change for change in some.changes if change.copied]) == 5


def test_relieved_brokers_alone_lose_load_and_nobody_gets_worse_than_the_level() -> None:
    load = random_cluster(Random(5), 6, 120, 1, 0.7)
    before = find_levels(load)
    busiest = before[IN].busiest
    goal = SLOW._replace(relieve=frozenset({busiest}))
    plan = find_level_plan(load, goal)
    check_rules(load, goal, plan)
    assert plan.changes
    for name, level in plan.after.items():
        for broker, amount in level.loads.items():
            most = max(goal.act_above * level.mean, before[name].loads[broker])
            assert amount <= most * (1 + 1e-6)
    assert plan.after[IN].loads[busiest] < before[IN].loads[busiest]


def test_brokers_lose_their_leaders_also_on_an_idle_cluster() -> None:
    for written in (0.0, 1.0 * MB):
        load = cluster([partition(n, (n % 3, (n + 1) % 3), written) for n in range(12)], 3)
        plan = find_level_plan(load, Goal(without_leaders=frozenset({1}), leaders_only=True))
        assert {change.before.leader for change in plan.changes} >= {1}
        leaders = {each.partition: each.leader for each in load.partitions}
        leaders.update({change.before.partition: change.leader for change in plan.changes})
        assert 1 not in leaders.values()
        assert plan.copied == 0


def test_a_leader_that_no_other_replica_may_replace_is_said() -> None:
    load = cluster([partition(0, (1, 0), in_sync=frozenset({1}))], 2)
    plan = find_level_plan(load, Goal(without_leaders=frozenset({1}), leaders_only=True))
    assert not plan.changes
    assert plan.unmet == ["broker 1 keeps 1 leaders: no other replica may lead"]


def test_dead_brokers_count_neither_for_the_mean_nor_as_the_busiest() -> None:
    load = cluster([partition(n, (0, 1 + n % 2), leader=1 + n % 2) for n in range(8)], 3)
    dead = load.brokers[0]._replace(is_alive=False, takes_replicas=False)
    levels = find_levels(load._replace(brokers={**load.brokers, 0: dead}))
    assert [levels[name].level for name in (OUT, IN, DISK)] == [1, 1, 1]
    assert levels[IN].mean == 4 * MB
    assert levels[IN].busiest == 1


@pytest.mark.parametrize(
    "goal",
    [
        Goal(drain=frozenset({7})),
        Goal(relieve=frozenset({7})),
        Goal(without_leaders=frozenset({7})),
    ],
)
def test_a_broker_that_is_not_there_is_refused(goal: Goal) -> None:
    load = cluster([partition(0, (0, 1))], 2)
    with pytest.raises(UsageError, match="7: there is no such broker; there are 0, 1"):
        find_level_plan(load, goal)


def test_a_disk_is_not_filled() -> None:
    partitions = [partition(n, (0,), MB, 0, 100 * MB) for n in range(30)]
    load = cluster(partitions, 3)
    small = load.brokers[1]._replace(disk=500 * MB)
    plan = find_level_plan(load._replace(brokers={**load.brokers, 1: small}), SLOW)
    assert sum(1 in replicas for replicas in plan.assignment.values()) <= 4
    assert plan.unmet


def test_one_large_partition_does_not_keep_the_others_from_their_level() -> None:
    partitions = [partition(0, (0,), 100 * MB, size=10_000 * MB)] + [
        partition(1 + n, (n % 2,), MB, size=(100 + n) * MB) for n in range(60)
    ]
    plan = find_level_plan(cluster(partitions, 4), SLOW)
    loads = plan.after[IN].loads
    assert loads[0] == 100 * MB
    assert max(loads[broker] for broker in (1, 2, 3)) <= 1.05 * 20 * MB
    assert plan.changes[0].before.partition != TopicPartition("t", 0)
