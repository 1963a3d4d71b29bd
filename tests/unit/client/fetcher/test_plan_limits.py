"""How much the fetch plan asks for: what is unread, under way and in memory stays within limits."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.client.fetcher.test_plan import (
    NODE,
    A,
    B,
    C,
    assignments,
    batches_of,
    data_of,
    due,
    fetches_of,
    node_fetch,
    on_one_node,
    order,
    reading,
    receive,
)
from tests.unit.client.scripted_broker import batch
from trimtab.client.fetcher.offsets import Isolation
from trimtab.client.fetcher.plan import Fetched
from trimtab.client.fetcher.taken import Taken
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.fetch_limits import FetchLimits
from trimtab.kafka.wire.messages.fetch import PartitionData


def full(partition: TopicPartition, offset: int = 0, size: int = 400) -> PartitionData:
    """A batch of about `size` bytes, from a partition with many more records."""
    return data_of(partition, batch(offset, bytes(size - 70)), high_watermark=1_000)


@pytest.mark.kip(74)
def test_partitions_with_more_are_fetched_while_others_are_unread() -> None:
    plan = reading(A, B, C, limits=FetchLimits(1000, 600, 1))
    fetched, _ = receive(plan, fetches_of(plan), full(A), full(B), data_of(C))
    assert fetches_of(plan) == [], "more than half of the limit is unread"
    plan.drain(fetched[:1])
    fetch = node_fetch(plan)
    assert order(fetch.partitions) == [C, A]
    assert fetch.max_bytes == 1000 - len(batches_of(fetched[1]).data)
    assert not fetch.may_wait, "an idle C would hold up B"
    plan.drain(fetched[1:])
    fetch = node_fetch(plan)
    assert order(fetch.partitions) == [C, A, B]
    assert (fetch.max_bytes, fetch.may_wait) == (1000, True)


@pytest.mark.kip(74)
def test_the_limit_of_few_partitions_is_their_own() -> None:
    """Half of two partitions' `max.partition.fetch.bytes`, which is less than `fetch.max.bytes`."""
    plan = reading(A, B, limits=FetchLimits(100_000, 300, 1))
    fetched, _ = receive(plan, fetches_of(plan), full(A, size=310), full(B, size=310))
    plan.drain(fetched[:1])
    assert fetches_of(plan) == []


def test_a_broker_without_more_is_asked_only_when_all_is_read() -> None:
    plan = reading(A, B)
    fetched, _ = receive(
        plan, fetches_of(plan), data_of(A, batch(0, b"v")), data_of(B, batch(0, b"v"))
    )
    plan.drain(fetched[:1])
    assert fetches_of(plan) == []
    plan.drain(fetched[1:])
    assert order(fetches_of(plan)) == [A, B]


def test_a_broker_that_brings_nothing_is_not_asked_again_and_again() -> None:
    """As of a follower that lags, or of a broker that throttles."""
    plan = reading(A, B, limits=FetchLimits(1000, 600, 1))
    fetched, _ = receive(plan, fetches_of(plan), full(A), full(B))
    plan.drain(fetched[:1])
    assert order(fetches_of(plan)) == [A]
    receive(plan, fetches_of(plan))
    assert fetches_of(plan) == []


@pytest.mark.kip(98)
def test_records_of_open_transactions_are_not_more() -> None:
    plan = reading(A, B, isolation=Isolation.READ_COMMITTED)
    more = {"high_watermark": 9, "last_stable_offset": 1}
    fetched, _ = receive(
        plan, fetches_of(plan), data_of(A, batch(0, b"v"), **more), data_of(B, batch(0, b"v"))
    )
    plan.drain(fetched[:1])
    assert fetches_of(plan) == []


def test_batches_of_paused_partitions_leave_half_of_the_limit() -> None:
    plan = reading(A, B, limits=FetchLimits(1000, 1000, 1))
    fetched, _ = receive(plan, fetches_of(plan), full(A, size=900), data_of(B))
    plan.update(assignments(A, B, paused=[A]))
    fetch = node_fetch(plan)
    assert (order(fetch.partitions), fetch.max_bytes, fetch.may_wait) == ([B], 500, True)
    assert len(fetched) == 1


def test_batches_from_a_former_leader_count_for_that_broker() -> None:
    plan = reading(A, B, limits=FetchLimits(1000, 600, 1))
    receive(plan, fetches_of(plan), full(A, size=590), data_of(B))
    assert list(due(plan, 0.0, lambda _: 2)) == [2]


@pytest.mark.kip(74)
@given(data=st.data())
def test_what_is_unread_and_under_way_stays_within_the_limits(data: st.DataObject) -> None:
    """A broker fills each response to its limits; the reader begins with any number of results."""
    partitions = [TopicPartition("t", n) for n in range(data.draw(st.integers(1, 8)))]
    limits = FetchLimits(data.draw(st.integers(100, 2_000)), data.draw(st.integers(100, 500)), 1)
    plan = reading(*partitions, limits=limits)
    unread: list[Fetched] = []
    for _ in range(30):
        if (due := plan.due_fetches(0.0, on_one_node, ()).get(NODE)) is not None:
            answers: list[PartitionData] = []
            room = due.max_bytes
            for each in due.partitions:
                stored = batch(each.offset, bytes(data.draw(st.integers(0, 300))))
                if len(stored) > min(room, limits.partition_max_bytes) and answers:
                    continue
                room -= len(stored)
                answers.append(data_of(each.partition, stored, high_watermark=10_000))
            unread += receive(plan, due.partitions, *answers)[0]
        held = [len(batches_of(each).data) for each in unread]
        one_batch = 400
        assert sum(held) <= limits.max_bytes + one_batch
        assert sum(held) <= len(partitions) * limits.partition_max_bytes + one_batch
        assert len({each.partition for each in unread}) == len(unread)
        begun = data.draw(st.integers(0, len(unread)))
        plan.drain(unread[:begun])
        del unread[:begun]
    plan.drain(unread)
    assert order(fetches_of(plan)), "nothing is left behind"


@pytest.mark.kip(74)
@pytest.mark.parametrize("at_once", [1, 3, 40])
def test_the_memory_of_responses_stays_within_the_limit(at_once: int) -> None:
    """A response is in memory until the reader has left its last batch."""
    limits = FetchLimits(16 * 1024 * 1024, 1024 * 1024, 1)
    partitions = [TopicPartition("t", n) for n in range(64)]
    plan = reading(*partitions, limits=limits)
    taken = Taken()
    responses: list[int] = []
    """The bytes of each."""
    unread: deque[tuple[int, Fetched]] = deque()
    """With the number of the response."""
    most = 0
    for _ in range(300):
        while (due := plan.due_fetches(0.0, on_one_node, ()).get(NODE)) is not None:
            answers = [
                full(each.partition, each.offset, 500_000)
                for each in due.partitions[: due.max_bytes // 500_000]
            ]
            fetched, _ = receive(plan, due.partitions, *answers)
            responses.append(sum(len(batches_of(each).data) for each in fetched))
            for each in fetched:
                taken.add_result(each)
                unread.append((len(responses) - 1, each))
            most = max(most, sum(responses[unread[0][0] :]))
        for _ in range(at_once):
            _, begun = unread[0]
            taken.begin_result(begun)
            if taken.is_due(is_waiting=len(unread) == 1):
                plan.drain(list(taken.begun))
                taken.begun.clear()
                break  # it is still at this one when the next response comes
            unread.popleft()
    assert limits.max_bytes * 0.6 < most <= limits.max_bytes


@pytest.mark.kip(74)
def test_a_small_limit_is_used_by_one_response() -> None:
    assert node_fetch(reading(A, limits=FetchLimits(600_000, 600_000, 1))).max_bytes == 600_000
    wide = node_fetch(reading(A, limits=FetchLimits(2_000_000, 2_000_000, 1)))
    assert wide.max_bytes == 1024 * 1024
