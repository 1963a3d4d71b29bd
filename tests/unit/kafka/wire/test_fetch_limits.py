"""The byte budget of a fetch (`trimtab.kafka.wire.fetch_limits`), by the clauses of KIP-74."""

from __future__ import annotations

import pytest

from trimtab.kafka.wire.fetch_limits import FetchBudget

BIG = 2**31 - 1

pytestmark = pytest.mark.kip(74)


def test_a_new_budget_has_its_whole_limit_and_must_give_one_batch() -> None:
    budget = FetchBudget(800)
    assert (budget.left, budget.spent, budget.must_give_one) == (800, 0, True)


@pytest.mark.parametrize(
    ("max_bytes", "partition_max_bytes", "room"),
    [(800, 190, 190), (190, 800, 190), (800, 800, 800), (0, 190, 0), (800, 0, 0), (BIG, BIG, BIG)],
)
def test_the_smaller_limit_is_the_room_of_a_partition(
    max_bytes: int, partition_max_bytes: int, room: int
) -> None:
    assert FetchBudget(max_bytes).room(partition_max_bytes) == room


@pytest.mark.parametrize(("max_bytes", "partition_max_bytes"), [(-1, 10), (10, -1), (-1, -1)])
def test_a_negative_limit_gives_negative_room(max_bytes: int, partition_max_bytes: int) -> None:
    assert FetchBudget(max_bytes).room(partition_max_bytes) < 0


def test_partitions_share_the_limit_of_the_response() -> None:
    budget = FetchBudget(800)
    rooms = []
    for _ in range(5):
        rooms.append(budget.room(190))
        budget.spend(rooms[-1])
    assert rooms == [190, 190, 190, 190, 40]
    assert (budget.left, budget.spent) == (0, 800)


def test_reading_the_room_spends_nothing() -> None:
    budget = FetchBudget(800)
    budget.room(190)
    assert (budget.left, budget.must_give_one) == (800, True)


def test_only_the_first_partition_with_records_is_exempt() -> None:
    budget = FetchBudget(800)
    budget.spend(1)
    assert not budget.must_give_one


def test_a_first_batch_beyond_the_limit_leaves_nothing() -> None:
    budget = FetchBudget(800)
    budget.spend(801)
    assert (budget.left, budget.room(190)) == (0, 0)


def test_no_more_than_the_limit_counts_as_spent() -> None:
    budget = FetchBudget(800)
    budget.spend(5000)
    assert budget.spent == 800, "min.bytes, which is within the limit, is reached exactly"


def test_bytes_that_one_partition_could_not_use_are_left_for_the_next() -> None:
    budget = FetchBudget(140)
    budget.spend(100)
    assert budget.room(190) == budget.room(190) == 40


def test_a_limit_of_zero_allows_one_batch() -> None:
    budget = FetchBudget(0)
    assert (budget.room(190), budget.must_give_one) == (0, True)
    budget.spend(100)
    assert (budget.room(190), budget.must_give_one, budget.spent) == (0, False, 0)
