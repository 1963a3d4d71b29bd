"""A response filled by the budget of a fetch keeps the promises of KIP-74 for all limits and all
sizes of batches (`trimtab.kafka.wire.fetch_limits`)."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.kafka.wire.fetch_limits import FetchBudget

LIMITS = st.one_of(st.integers(0, 400), st.just(2**31 - 1))
# The sizes of a partition's batches, and the limit that the request sets for it.
PARTITIONS = st.lists(st.tuples(st.lists(st.integers(61, 200), max_size=5), LIMITS), max_size=8)

pytestmark = pytest.mark.kip(74)


def fill(max_bytes: int, partitions: list[tuple[list[int], int]]) -> list[list[int]]:
    """The batches that each partition gives: whole ones, as many as its room holds."""
    budget = FetchBudget(max_bytes)
    given_ = []
    for batches, partition_max_bytes in partitions:
        room = budget.room(partition_max_bytes)
        taken = [
            size
            for size, end in zip(batches, accumulate(batches), strict=True)
            if end <= room or (budget.must_give_one and end == size == batches[0])
        ]
        if taken:
            budget.spend(sum(taken))
        given_.append(taken)
    assert budget.spent == min(max_bytes, sum(map(sum, given_)))
    return given_


@given(LIMITS, PARTITIONS)
def test_a_response_exceeds_its_limit_only_by_one_first_batch(
    max_bytes: int, partitions: list[tuple[list[int], int]]
) -> None:
    answered = [taken for taken in fill(max_bytes, partitions) if taken]
    total = sum(map(sum, answered))
    assert total <= max_bytes or [total] == [size for taken in answered for size in taken]


@given(LIMITS, PARTITIONS)
def test_a_partition_exceeds_its_limit_only_by_one_first_batch(
    max_bytes: int, partitions: list[tuple[list[int], int]]
) -> None:
    answers = fill(max_bytes, partitions)
    for number, (taken, (_, partition_max_bytes)) in enumerate(
        zip(answers, partitions, strict=True)
    ):
        if sum(taken) > partition_max_bytes:
            assert len(taken) == 1
            assert not any(answers[:number]), "an earlier partition gave records"


@given(LIMITS, PARTITIONS)
def test_the_first_partition_with_records_gives_some(
    max_bytes: int, partitions: list[tuple[list[int], int]]
) -> None:
    for taken, (batches, _) in zip(fill(max_bytes, partitions), partitions, strict=True):
        if batches:
            assert taken
            return


@given(LIMITS, PARTITIONS)
def test_a_partition_gives_nothing_only_if_its_first_batch_does_not_fit(
    max_bytes: int, partitions: list[tuple[list[int], int]]
) -> None:
    spent = 0
    for taken, (batches, partition_max_bytes) in zip(
        fill(max_bytes, partitions), partitions, strict=True
    ):
        if batches and not taken:
            assert batches[0] > min(partition_max_bytes, max_bytes - spent)
        spent += sum(taken)
