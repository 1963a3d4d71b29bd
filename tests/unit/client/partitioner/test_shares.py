"""Debts and turns of a pool's brokers, without brokers."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.client.conftest import view_of
from tests.unit.client.scripted_load import ScriptedLoad
from trimtab.client.partitioner.shares import FEW, Broker, SharedPool

QUANTUM = 100


def pool_of(leaders: list[int], shrinking: float = 0.0) -> SharedPool:
    view = view_of(leaders)
    return SharedPool(view, range(len(leaders)), False, shrinking, Random(3))


def found(pool: SharedPool, node_id: int) -> Broker:
    return next(broker for broker in pool.brokers if broker.node_id == node_id)


def test_a_debt_is_the_share_less_the_bytes() -> None:
    pool = pool_of([0, 0, 1])
    pool.count_bytes(found(pool, 1), 300)
    assert pool.debt(found(pool, 0)) == pytest.approx(200)
    assert pool.debt(found(pool, 1)) == pytest.approx(-200)
    pool.count_bytes(found(pool, 0), 600)
    assert [pool.debt(found(pool, n)) for n in (0, 1)] == pytest.approx([0, 0])


@pytest.mark.parametrize("shrinking", [0.25, 0.5])
def test_debts_shrink_by_a_part_of_the_share(shrinking: float) -> None:
    """So one that gets its share less that part owes nothing, and one that gets nothing owes the
    rest."""
    pool = pool_of([0, 1], shrinking)
    for _ in range(100):
        pool.count_bytes(found(pool, 0), 10)
    assert pool.debt(found(pool, 1)) == pytest.approx(500 * (1 - shrinking))
    ahead = pool.debt(found(pool, 0))
    assert ahead == pytest.approx(-1000 + 500 * (1 + shrinking), abs=10)


def test_a_debt_that_is_paid_in_between_goes_on_with_the_smaller_part() -> None:
    pool = pool_of([0, 1], 0.5)
    broker, other = found(pool, 0), found(pool, 1)
    pool.count_bytes(broker, 100)
    assert pool.debt(broker) == pytest.approx(50 * 0.5 - 100)
    pool.count_bytes(other, 300)
    # Its share of 150 pays 75 in 50 of them; of the other 100 half counts.
    assert pool.debt(broker) == pytest.approx(50)


@settings(max_examples=50)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 900), st.booleans()), min_size=1, max_size=60
    )
)
def test_debts_sum_to_0_whoever_is_silent_in_between(
    steps: list[tuple[int, int, bool]],
) -> None:
    pool = pool_of([0, 1, 2, 3, 4, 4, 4])
    for node_id, size, turns in steps:
        broker = found(pool, node_id)
        if turns:
            pool.set_silent(broker, not broker.is_silent, 500)
        elif not broker.is_silent:
            pool.count_bytes(broker, size)
        sharing = [each for each in pool.brokers if not each.is_out]
        if sharing:
            assert sum(map(pool.debt, sharing)) == pytest.approx(0.0, abs=1e-6)


def test_what_a_broker_misses_in_a_short_silence_is_made_up_for() -> None:
    pool = pool_of([0, 1, 2])
    broker = found(pool, 0)
    pool.set_silent(broker, True, 5000)
    for node_id in (1, 2):
        pool.count_bytes(found(pool, node_id), 3000)
        pool.set_silent(broker, True, 5000)
    pool.set_silent(broker, False, 5000)
    assert [pool.debt(found(pool, n)) for n in range(3)] == pytest.approx([2000, -1000, -1000])


def test_in_a_long_silence_no_more_than_the_credit_is_run_up() -> None:
    pool = pool_of([0, 1, 2])
    broker = found(pool, 0)
    for _ in range(100):
        for node_id in (1, 2):
            pool.count_bytes(found(pool, node_id), 300)
            pool.set_silent(broker, True, 1000)
    pool.set_silent(broker, False, 1000)
    debts = [pool.debt(found(pool, n)) for n in range(3)]
    assert sum(debts) == pytest.approx(0.0)
    assert 1000 * 2 / 3 <= debts[0] <= 1200
    assert debts[1] == pytest.approx(debts[2], abs=300)


def test_turns_go_to_the_partition_with_the_fewest_bytes() -> None:
    pool, load = pool_of([0] * 33), ScriptedLoad()
    broker, random = pool.brokers[0], Random(5)
    for _ in range(2000):
        partition, used = broker.begin_turn(load, QUANTUM)
        assert used == 0
        assert load.chosen[partition] == min(load.chosen[p] for p in range(33))
        size = random.randrange(1, 2 * QUANTUM)
        load.chosen[partition] += size
        pool.count_bytes(broker, size)
    assert sorted(broker.partitions()) == list(range(33))


def test_a_turn_goes_on_while_its_batch_waits_and_the_quantum_lasts() -> None:
    pool, load = pool_of([0, 0]), ScriptedLoad()
    broker = pool.brokers[0]
    first, _ = broker.begin_turn(load, QUANTUM)
    load.queued[first] = 1
    pool.count_bytes(broker, 60)
    assert broker.begin_turn(load, QUANTUM) == (first, 60)
    pool.count_bytes(broker, 40)
    assert broker.begin_turn(load, QUANTUM)[0] != first


def test_the_only_partition_begins_anew() -> None:
    pool, load = pool_of([0]), ScriptedLoad({0: 1})
    broker = pool.brokers[0]
    broker.begin_turn(load, QUANTUM)
    pool.count_bytes(broker, 70)
    assert broker.begin_turn(load, QUANTUM) == (0, 70)
    pool.count_bytes(broker, 70)
    assert broker.begin_turn(load, QUANTUM) == (0, 0)


def test_of_many_brokers_all_are_compared_in_turn() -> None:
    pool = pool_of(list(range(20)))
    assert pool.to_compare(None) != pool.brokers
    compared = [set(pool.to_compare(pool.brokers[-1])) for _ in range(3)]
    assert set.union(*compared) == set(pool.brokers)
    assert all(pool.cheapest in some and pool.brokers[-1] in some for some in compared)
    assert max(map(len, compared)) <= FEW + 2
    few = pool_of(list(range(FEW)))
    assert few.to_compare(None) == few.brokers
