"""Debts and turns of a pool's brokers, without brokers."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.client.conftest import view_of
from tests.unit.client.scripted_load import ScriptedLoad
from trimtab.client.partitioner.shares import CATCH_UP, FEW, OUTAGE, BrokerShare, SharedPool

QUANTUM = 100


def pool_of(
    leaders: list[int],
    shrinking: float = 0.0,
    owed: float = 1.0,
    behind: dict[int, float] | None = None,
) -> SharedPool:
    view = view_of(leaders)
    return SharedPool(view, range(len(leaders)), False, shrinking, owed, Random(3), behind)


def found(pool: SharedPool, node_id: int) -> BrokerShare:
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
    for now, (node_id, size, turns) in enumerate(steps):
        broker = found(pool, node_id)
        if turns:
            pool.note_silence(broker, -1.0 if broker.is_silent else now, now, 500)
        else:
            pool.count_bytes(broker, size)
        assert sum(map(pool.debt, pool.brokers)) == pytest.approx(0.0, abs=1e-6)


def count(pool: SharedPool, size: int, *node_ids: int) -> None:
    for node_id in node_ids:
        pool.count_bytes(found(pool, node_id), size)


def shares(pool: SharedPool, turns: int) -> list[float]:
    """The parts of so many bytes that brokers get if the one furthest behind gets each."""
    got = dict.fromkeys((each.node_id for each in pool.brokers), 0)
    for _ in range(turns):
        broker = max(pool.brokers, key=pool.debt)
        pool.count_bytes(broker, 1)
        got[broker.node_id] += 1
    return [got[node_id] / turns for node_id in sorted(got)]


def test_what_a_broker_misses_while_it_is_silent_it_gets_later_at_twice_its_share() -> None:
    pool = pool_of([0, 1, 2])
    broker = found(pool, 0)
    pool.note_silence(broker, 1.0, 2.0, 100)
    assert broker.is_excused
    count(pool, 900, 1, 2)
    assert [pool.debt(found(pool, n)) for n in range(3)] == pytest.approx([0, 0, 0]), (
        "the others share without it"
    )
    pool.note_silence(broker, -1.0, 2.0, 100)
    assert pool.debt(broker) == 0.0, "no burst"
    twice = CATCH_UP / (CATCH_UP + 2)
    assert shares(pool, 3600) == pytest.approx([twice, (1 - twice) / 2, (1 - twice) / 2], abs=0.01)
    assert broker.lag == pytest.approx(0.0, abs=2), "each of the others has got 900 more"
    assert shares(pool, 900) == pytest.approx([1 / 3] * 3, abs=0.01)


def test_one_that_is_the_credit_behind_is_not_excused_again_until_it_has_answered_enough() -> None:
    pool = pool_of([0, 1, 2])
    broker = found(pool, 0)
    excused = []
    for now in range(6):
        pool.note_silence(broker, now, now, 500)
        excused.append(broker.is_excused)
        count(pool, 300, 1, 2)
        pool.note_silence(broker, now, now, 500)
        pool.note_silence(broker, -1.0, now, 500)
    assert excused == [True, True, False, False, False, False]
    assert pool.debt(broker) + broker.lag == pytest.approx(600 + 4 * 200)
    count(pool, 2000, 0)
    pool.note_silence(broker, 9.0, 9.0, 500)
    assert broker.is_excused


def test_what_a_broker_is_ahead_does_not_count_against_what_it_missed() -> None:
    """Or it would miss as much more, each time."""
    pool = pool_of([0, 1])
    broker = found(pool, 0)
    pool.note_silence(broker, 1.0, 1.0, 500)
    count(pool, 600, 1)
    pool.note_silence(broker, -1.0, 1.0, 500)
    count(pool, 300, 0)
    assert pool.debt(broker) < 0.0 < broker.lag
    assert pool.debt(broker) + broker.lag < 500 <= broker.lag + 1e-6
    pool.note_silence(broker, 2.0, 2.0, 500)
    assert not broker.is_excused


def test_another_silence_is_judged_anew_though_nobody_looked_in_between() -> None:
    pool = pool_of([0, 1])
    broker = found(pool, 0)
    pool.note_silence(broker, 1.0, 2.0, 500)
    count(pool, 600, 1)
    pool.note_silence(broker, 1.0, 3.0, 500)
    assert broker.is_excused, "the same one"
    pool.note_silence(broker, 2.5, 3.0, 500)
    assert not broker.is_excused


def test_in_an_outage_no_more_is_owed() -> None:
    pool = pool_of([0, 1, 2])
    broker = found(pool, 0)
    pool.note_silence(broker, 1.0, 1.0, 100)
    count(pool, 300, 1, 2)
    pool.note_silence(broker, 1.0, 1.0 + OUTAGE + 0.1, 100)
    count(pool, 1_000_000, 1, 2)
    pool.note_silence(broker, -1.0, 20.0, 100)
    assert broker.lag == pytest.approx(300)
    assert pool.debt(broker) == 0.0
    # Found silent only now, and not excused before: likewise.
    pool.note_silence(broker, 20.0, 21.0 + OUTAGE, 100)
    assert broker.is_excused
    pool.note_silence(broker, -1.0, 40.0, 100)
    assert not broker.is_excused


def test_with_a_bound_of_1_nothing_is_owed() -> None:
    pool = pool_of([0, 1], shrinking=1.0, owed=0.0)
    broker = found(pool, 0)
    for now in range(5):
        pool.note_silence(broker, now, now, 100)
        assert broker.is_excused
        count(pool, 900, 1)
    pool.note_silence(broker, -1.0, 5.0, 100)
    assert broker.lag == pool.debt(broker) == 0.0


def test_while_no_broker_answers_all_share() -> None:
    pool = pool_of([0, 1, 2])
    for node_id in range(3):
        pool.note_silence(found(pool, node_id), 1.0, 1.0, 100)
        count(pool, 60, 2)
    assert pool.is_mute
    assert not any(each.is_excused for each in pool.brokers)
    assert shares(pool, 900) == pytest.approx([1 / 3] * 3, abs=0.1)
    pool.note_silence(found(pool, 1), 1.0, 99.0, 100)
    assert not found(pool, 1).is_excused, "not even in an outage"
    pool.note_silence(found(pool, 0), -1.0, 99.0, 100)
    assert not pool.is_mute
    for node_id in (1, 2):
        pool.note_silence(found(pool, node_id), 98.0, 99.0, 100)
    assert [found(pool, n).is_excused for n in range(3)] == [False, True, True]


def test_another_pool_begins_with_what_each_partition_is_behind() -> None:
    before = pool_of([0, 1, 2, 2])
    broker = found(before, 0)
    before.note_silence(broker, 1.0, 1.0, 100)
    for node_id in (1, 2, 2):
        found(before, node_id).begin_turn(ScriptedLoad(), 1)
        count(before, 600, node_id)
    behind = before.behind()
    assert behind == pytest.approx({0: 600, 1: 0, 2: 0, 3: 0})
    pool, load = pool_of([1, 1, 2, 2], behind=behind), ScriptedLoad()
    assert [found(pool, n).lag for n in (1, 2)] == pytest.approx([300, 0])
    assert shares(pool, 900) == pytest.approx([2 / 3, 1 / 3], abs=0.01)
    further = {partition: size + 50.0 for partition, size in behind.items()}
    pool = pool_of([1, 1, 2, 2], behind=further)
    assert [found(pool, n).lag for n in (1, 2)] == pytest.approx([300, 0]), "behind each other"
    again = pool_of([1, 1, 2, 2], behind=behind)
    broker = found(again, 1)
    for _ in range(6):
        assert broker.begin_turn(load, QUANTUM)[0] == 0
        again.count_bytes(broker, 100)
    broker.begin_turn(load, QUANTUM)
    again.count_bytes(broker, 100)
    assert broker.begin_turn(load, QUANTUM)[0] == 1


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
