"""The fetch plan alone: the fetches it plans, their order, and how it evaluates responses."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.client.scripted_broker import batch
from trimtab.client.fetcher.offsets import Isolation
from trimtab.client.fetcher.plan import (
    Assignment,
    Batches,
    Fetched,
    FetchOptions,
    FetchPlan,
    PartitionFetch,
    without_aborted,
)
from trimtab.client.network.backoff import Backoff
from trimtab.errors import BrokerError, CorruptData, ErrorCode, KafkaError
from trimtab.records import TopicPartition
from trimtab.wire.batch_cy import read_records
from trimtab.wire.batch_header import read_headers
from trimtab.wire.fetch_limits import FetchLimits
from trimtab.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from trimtab.wire.sentinels import EARLIEST, LATEST

NODE = 1
BACKOFF = 0.1
A, B, C, D = (TopicPartition("t", number) for number in range(4))


def make_plan(**changes: Any) -> FetchPlan:
    options: dict[str, Any] = {
        "limits": FetchLimits(max_bytes=1000, partition_max_bytes=1000, min_bytes=1),
        "max_wait": 0.5,
        "check_crcs": True,
        "isolation": Isolation.READ_UNCOMMITTED,
        "rack": "",
        "reset": None,
        "request_timeout": 30.0,
        "lookup_timeout": 60.0,
        "backoff": Backoff(BACKOFF, 1.0),
        "replica_max_age": 300.0,
    }
    return FetchPlan(FetchOptions(**{**options, **changes}), Random(1))


def reading(*partitions: TopicPartition, start: int = 0, **changes: Any) -> FetchPlan:
    plan = make_plan(**changes)
    plan.update(assignments(*partitions, start=start))
    return plan


def assignments(
    *partitions: TopicPartition, start: int = 0, epoch: int = 1, paused: Sequence[Any] = ()
) -> dict[TopicPartition, Assignment]:
    return {partition: Assignment(epoch, start, partition in paused) for partition in partitions}


def on_one_node(partition: TopicPartition) -> int:
    return NODE


def fetches_of(
    plan: FetchPlan, now: float = 0.0, busy: frozenset[int] = frozenset()
) -> list[PartitionFetch]:
    """The fetches due at the only node."""
    fetches = plan.due_fetches(now, on_one_node, busy)
    assert fetches.keys() <= {NODE}
    return fetches.get(NODE, [])


def order(fetches: Sequence[PartitionFetch]) -> list[TopicPartition]:
    return [each.partition for each in fetches]


def response(*data: PartitionData, error_code: int = 0) -> FetchResponse:
    topic = FetchableTopicResponse(topic="t", partitions=list(data))
    return FetchResponse(responses=[topic] if data else [], error_code=error_code)


def data_of(partition: TopicPartition, records: bytes = b"", **fields: Any) -> PartitionData:
    return PartitionData(
        partition_index=partition.partition, high_watermark=100, records=records, **fields
    )


def refusal(partition: TopicPartition, code: ErrorCode) -> PartitionData:
    return data_of(partition, error_code=code)


def receive(
    plan: FetchPlan, fetches: Sequence[PartitionFetch], *data: PartitionData, now: float = 0.0
) -> tuple[list[Fetched], bool]:
    return plan.receive(fetches, response(*data), {}, now)


def batches_of(fetched: Fetched) -> Batches:
    assert isinstance(fetched.result, Batches)
    return fetched.result


def error_of(fetched: Fetched) -> KafkaError:
    assert isinstance(fetched.result, KafkaError)
    return fetched.result


@pytest.mark.kip(74)
def test_the_first_partition_that_got_nothing_leads_the_next_request() -> None:
    """The proposal's example: room for one batch in each response."""
    plan = reading(A, B, C, D)
    served = []
    for turn in range(6):
        fetches = fetches_of(plan)
        first = fetches[0]
        served.append(first.partition)
        fetched, _ = receive(plan, fetches, data_of(first.partition, batch(first.offset, b"v")))
        plan.drain(fetched)
        assert order(fetches_of(plan))[-1] == first.partition, f"turn {turn}"
    assert served == [A, B, C, D, A, B]


@pytest.mark.kip(74)
@given(
    partitions=st.integers(2, 12),
    answered=st.lists(st.integers(1, 5), min_size=60, max_size=60),
)
def test_no_partition_starves(partitions: int, answered: list[int]) -> None:
    """Always full partitions, each response serving at least the first of them."""
    names = [TopicPartition("t", number) for number in range(partitions)]
    plan = reading(*names)
    last_served = dict.fromkeys(names, -1)
    for turn, count in enumerate(answered):
        fetches = fetches_of(plan)
        assert sorted(order(fetches)) == names
        served = fetches[:count]
        fetched, _ = receive(
            plan, fetches, *(data_of(a.partition, batch(a.offset, b"v")) for a in served)
        )
        plan.drain(fetched)
        for each in served:
            last_served[each.partition] = turn
        assert min(last_served.values()) >= turn - partitions


def test_an_empty_partition_keeps_its_position_in_the_order() -> None:
    plan = reading(A, B, C)
    fetched, _ = receive(plan, fetches_of(plan), data_of(A), data_of(B, batch(0, b"v")), data_of(C))
    plan.drain(fetched)
    assert order(fetches_of(plan)) == [A, C, B]


def test_the_next_fetch_waits_for_the_reader_and_continues_where_the_last_ended() -> None:
    plan = reading(A, B)
    fetched, _ = receive(plan, fetches_of(plan), data_of(A, batch(0, b"1", b"2", b"3")), data_of(B))
    assert fetches_of(plan) == []
    plan.drain(fetched)
    assert fetches_of(plan) == [PartitionFetch(B, 1, 0), PartitionFetch(A, 1, 3)]


def test_one_fetch_at_a_time_for_each_node() -> None:
    plan = reading(A, B)
    leaders = {A: 1, B: 2}.__getitem__
    assert plan.due_fetches(0.0, leaders, set()) == {
        1: [PartitionFetch(A, 1, 0)],
        2: [PartitionFetch(B, 1, 0)],
    }
    assert plan.due_fetches(0.0, leaders, {1}) == {2: [PartitionFetch(B, 1, 0)]}


def test_a_reader_behind_on_one_node_does_not_hold_up_another() -> None:
    plan = reading(A, B)
    leaders = {A: 1, B: 2}.__getitem__
    receive(plan, [PartitionFetch(A, 1, 0)], data_of(A, batch(0, b"v")))
    assert plan.due_fetches(0.0, leaders, set()) == {2: [PartitionFetch(B, 1, 0)]}


def test_a_paused_partition_is_left_out_and_does_not_hold_up_the_others() -> None:
    plan = reading(A, B)
    fetched, _ = receive(plan, fetches_of(plan), data_of(A, batch(0, b"v")), data_of(B))
    plan.update(assignments(A, B, paused=[A]))
    assert order(fetches_of(plan)) == [B]
    plan.update(assignments(A, B))
    assert fetches_of(plan) == []
    plan.drain(fetched)
    assert fetches_of(plan) == [PartitionFetch(B, 1, 0), PartitionFetch(A, 1, 1)]


def test_nothing_is_fetched_from_the_end_on() -> None:
    plan = make_plan()
    plan.update({A: Assignment(1, 0, False, end=2), B: Assignment(1, 5, False, end=5)})
    for offset in (0, 1):
        assert fetches_of(plan) == [PartitionFetch(A, 1, offset)]
        fetched, _ = receive(plan, fetches_of(plan), data_of(A, batch(offset, b"v")))
        plan.drain(fetched)
    assert fetches_of(plan) == []
    plan.update({A: Assignment(2, 2, False, end=3), B: Assignment(2, 5, False)})
    assert fetches_of(plan) == [PartitionFetch(B, 2, 5), PartitionFetch(A, 2, 2)]


def test_a_response_to_a_fetch_before_a_seek_is_dropped() -> None:
    plan = reading(A)
    fetches = fetches_of(plan)
    plan.update(assignments(A, start=50, epoch=2))
    fetched, _ = receive(plan, fetches, data_of(A, batch(0, b"v")))
    assert fetched == []
    assert fetches_of(plan) == [PartitionFetch(A, 2, 50)]


def test_batches_that_were_ready_before_a_seek_are_dropped() -> None:
    plan = reading(A)
    (fetched,), _ = receive(plan, fetches_of(plan), data_of(A, batch(0, b"v")))
    plan.update(assignments(A, start=50, epoch=2))
    assert not plan.is_current(fetched)
    assert fetches_of(plan) == [PartitionFetch(A, 2, 50)]
    plan.drain([fetched])
    assert fetches_of(plan) == [PartitionFetch(A, 2, 50)]


def test_a_partition_that_is_no_longer_assigned_is_not_asked_for() -> None:
    plan = reading(A, B)
    fetches = fetches_of(plan)
    plan.update(assignments(B))
    assert order(fetches_of(plan)) == [B]
    assert receive(plan, fetches, data_of(A, batch(0, b"v")), data_of(B)) == ([], False)


def test_offsets_may_have_gaps() -> None:
    plan = reading(A, start=10)
    stored = batch(4, b"1", b"2") + batch(40, b"3")
    (fetched,), _ = receive(plan, fetches_of(plan), data_of(A, stored))
    batches = batches_of(fetched)
    assert (batches.start, batches.next_offset, bytes(batches.data)) == (10, 41, stored)
    plan.drain([fetched])
    assert fetches_of(plan) == [PartitionFetch(A, 1, 41)]


def test_a_batch_that_is_cut_short_at_the_end_is_left_for_the_next_fetch() -> None:
    plan = reading(A)
    whole, cut = batch(0, b"1", b"2"), batch(2, b"3")[:-1]
    (fetched,), _ = receive(plan, fetches_of(plan), data_of(A, whole + cut))
    assert bytes(batches_of(fetched).data) == whole
    assert batches_of(fetched).next_offset == 2


def test_bytes_without_one_whole_batch_are_an_error() -> None:
    plan = reading(A)
    (fetched,), _ = receive(plan, fetches_of(plan), data_of(A, batch(0, b"value")[:-1]))
    with pytest.raises(CorruptData, match=r"t-0 at offset 0: .* 72 bytes without one whole batch"):
        raise error_of(fetched)


def test_only_batches_before_the_position_are_an_error() -> None:
    """Otherwise the same bytes would be fetched again and again."""
    plan = reading(A, start=5)
    (fetched,), _ = receive(plan, fetches_of(plan), data_of(A, batch(0, b"v")))
    assert isinstance(error_of(fetched), CorruptData)


def damaged(base_offset: int) -> bytes:
    stored = bytearray(batch(base_offset, b"value"))
    stored[-2] ^= 1
    return bytes(stored)


def test_damage_is_an_error_that_names_partition_and_offset() -> None:
    plan = reading(A, start=7)
    (fetched,), _ = receive(plan, fetches_of(plan), data_of(A, damaged(7)))
    with pytest.raises(CorruptData, match=r"t-0 at offset 7: .*CRC.*; seek past it to go on"):
        raise error_of(fetched)


def test_batches_before_a_damaged_one_are_read_first() -> None:
    plan = reading(A)
    good = batch(0, b"1", b"2")
    (fetched,), _ = receive(plan, fetches_of(plan), data_of(A, good + damaged(2) + batch(3, b"4")))
    assert bytes(batches_of(fetched).data) == good
    plan.drain([fetched])
    fetches = fetches_of(plan)
    assert fetches == [PartitionFetch(A, 1, 2)]
    (fetched,), _ = receive(plan, fetches, data_of(A, damaged(2) + batch(3, b"4")))
    assert "t-0 at offset 2" in str(error_of(fetched))


def test_checksums_are_not_looked_at_without_check_crcs() -> None:
    plan = reading(A, check_crcs=False)
    (fetched,), _ = receive(plan, fetches_of(plan), data_of(A, damaged(0)))
    assert batches_of(fetched).next_offset == 1


@pytest.mark.parametrize(
    ("code", "is_stale"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.FENCED_LEADER_EPOCH, True),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, True),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
        (ErrorCode.UNKNOWN_TOPIC_ID, True),
        (ErrorCode.KAFKA_STORAGE_ERROR, True),
        (ErrorCode.OFFSET_NOT_AVAILABLE, False),
    ],
)
def test_a_retriable_error_is_retried_after_a_back_off(code: ErrorCode, is_stale: bool) -> None:
    plan = reading(A, B)
    fetched, stale = receive(plan, fetches_of(plan), refusal(A, code), data_of(B))
    assert (fetched, stale) == ([], is_stale)
    assert order(fetches_of(plan, now=0.0)) == [B]
    retry = plan.next_retry(0.0)
    assert retry is not None
    assert 0.8 * BACKOFF <= retry <= 1.2 * BACKOFF
    assert order(fetches_of(plan, now=retry)) == [B, A]


def test_the_back_off_doubles_to_its_limit_and_is_over_with_the_first_answer() -> None:
    plan = reading(A)
    now, waits = 0.0, []
    for _ in range(6):
        receive(plan, fetches_of(plan, now), refusal(A, ErrorCode.NOT_LEADER_OR_FOLLOWER), now=now)
        retry = plan.next_retry(now)
        assert retry is not None
        waits.append(retry - now)
        now = retry
    for wait, nominal in zip(waits, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert 0.8 * nominal <= wait <= 1.2 * nominal
    receive(plan, fetches_of(plan, now), data_of(A), now=now)
    receive(plan, fetches_of(plan, now), refusal(A, ErrorCode.NOT_LEADER_OR_FOLLOWER), now=now)
    assert not fetches_of(plan, now)
    assert fetches_of(plan, now + 1.2 * BACKOFF)


def test_a_refusal_of_the_whole_request_concerns_every_partition() -> None:
    plan = reading(A, B)
    answer = response(error_code=ErrorCode.UNKNOWN_TOPIC_ID)
    assert plan.receive(fetches_of(plan), answer, {}, 0.0) == ([], True)
    assert fetches_of(plan) == []
    assert order(fetches_of(plan, now=1.0)) == [A, B]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_an_error_that_is_not_retriable_reaches_the_reader(code: ErrorCode) -> None:
    plan = reading(A, start=3)
    (fetched,), _ = receive(plan, fetches_of(plan), refusal(A, code))
    error = error_of(fetched)
    assert isinstance(error, BrokerError)
    assert (error.code, error.subject) == (code, "t-0")
    plan.drain([fetched])
    assert fetches_of(plan, now=0.0) == []
    assert fetches_of(plan, now=1.0) == [PartitionFetch(A, 1, 3)]


@pytest.mark.parametrize("reset", [EARLIEST, LATEST])
def test_a_position_outside_the_log_is_looked_up_again(reset: int) -> None:
    plan = reading(A, start=500, reset=reset)
    assert plan.origin(A) == 500
    assert receive(plan, fetches_of(plan), refusal(A, ErrorCode.OFFSET_OUT_OF_RANGE)) == ([], False)
    assert fetches_of(plan) == []
    lookups = plan.begin_lookups(0.0)
    assert lookups == {PartitionFetch(A, 1, reset): reset}
    assert plan.begin_lookups(0.0) == {}
    assert plan.origin(A) < 0
    plan.locate(PartitionFetch(A, 1, reset), 42)
    assert fetches_of(plan) == [PartitionFetch(A, 1, 42)]
    assert plan.origin(A) == 42


def test_without_a_reset_a_position_outside_the_log_is_an_error() -> None:
    plan = reading(A, start=500, reset=None)
    (fetched,), _ = receive(plan, fetches_of(plan), refusal(A, ErrorCode.OFFSET_OUT_OF_RANGE))
    with pytest.raises(BrokerError, match=r"offset 500 is not in the log; seek .*auto\.offset"):
        raise error_of(fetched)


def test_a_seek_makes_a_lookup_void() -> None:
    plan = reading(A, start=LATEST)
    (lookup,) = plan.begin_lookups(0.0)
    plan.update(assignments(A, start=7, epoch=2))
    plan.locate(lookup, 99)
    assert fetches_of(plan) == [PartitionFetch(A, 2, 7)]


def test_a_lookup_that_failed_is_repeated_after_a_back_off() -> None:
    plan = reading(A, start=LATEST)
    plan.begin_lookups(0.0)
    (fetched,) = plan.fail(A, CorruptData("no"), 0.0)
    assert str(error_of(fetched)) == "no"
    assert plan.fail(A, CorruptData("no"), 0.0) == []  # only once
    plan.drain([fetched])
    assert plan.begin_lookups(0.0) == {}
    assert list(plan.begin_lookups(1.0)) == [PartitionFetch(A, 1, LATEST)]


def test_a_missing_leader_is_searched_once_per_back_off() -> None:
    plan = reading(A, B)
    leaders: dict[TopicPartition, int] = {A: 1, B: -1}
    assert plan.begin_searches(0.0, leaders.__getitem__) == [B]
    assert plan.begin_searches(0.5, leaders.__getitem__) == []
    assert plan.next_retry(0.5) == 1.0
    assert plan.begin_searches(1.0, leaders.__getitem__) == [B]
    assert plan.due_fetches(1.0, leaders.__getitem__, set()) == {1: [PartitionFetch(A, 1, 0)]}


@pytest.mark.kip(392)
def test_a_nearer_replica_is_read_until_it_refuses() -> None:
    plan = reading(A, replica_max_age=300.0)
    leader = 1
    receive(plan, fetches_of(plan), data_of(A, preferred_read_replica=3))
    assert plan.due_fetches(0.0, lambda _: leader, set()) == {3: [PartitionFetch(A, 1, 0)]}
    fetched, _ = receive(plan, [PartitionFetch(A, 1, 0)], refusal(A, ErrorCode.OFFSET_OUT_OF_RANGE))
    assert fetched == []
    assert plan.due_fetches(0.0, lambda _: leader, set()) == {1: [PartitionFetch(A, 1, 0)]}


@pytest.mark.kip(392)
def test_the_leader_is_asked_again_which_replica_is_nearest() -> None:
    plan = reading(A, replica_max_age=300.0)
    receive(plan, fetches_of(plan), data_of(A, preferred_read_replica=3))
    assert list(plan.due_fetches(299.0, on_one_node, set())) == [3]
    assert list(plan.due_fetches(300.0, on_one_node, set())) == [NODE]


def test_answers_by_topic_id_find_their_partition() -> None:
    plan = reading(A)
    topic_id = b"\7" * 16
    answer = FetchResponse(
        responses=[
            FetchableTopicResponse(topic_id=topic_id, partitions=[data_of(A, batch(0, b"v"))]),
            FetchableTopicResponse(topic_id=b"\1" * 16, partitions=[data_of(B, batch(0, b"v"))]),
        ]
    )
    (fetched,), _ = plan.receive(fetches_of(plan), answer, {topic_id: "t"}, 0.0)
    assert fetched.partition == A


def visible(stored: Sequence[bytes], aborted: Sequence[tuple[int, int]]) -> list[bytes | None]:
    records = memoryview(b"".join(stored))
    kept = without_aborted(
        records,
        read_headers(records),
        [AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted],
    )
    return [record.value for record in read_records("t", 0, kept, 0)]


def transaction(offset: int, producer_id: int, *values: bytes, is_control: bool = False) -> bytes:
    return batch(
        offset,
        *values,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
        is_control=is_control,
    )


@pytest.mark.kip(98)
def test_records_of_aborted_transactions_are_not_seen() -> None:
    stored = [
        transaction(0, 7, b"aborted"),
        transaction(1, 8, b"other"),
        batch(2, b"plain"),
        transaction(3, 7, b"aborted too"),
        transaction(4, 7, b"marker", is_control=True),
        transaction(5, 7, b"committed later"),
    ]
    assert visible(stored, [(7, 0)]) == [b"other", b"plain", b"committed later"]


@pytest.mark.kip(98)
def test_a_transaction_that_began_after_the_fetched_batches_hides_nothing() -> None:
    assert visible([transaction(0, 7, b"committed")], [(7, 10)]) == [b"committed"]


@pytest.mark.kip(98)
def test_reading_committed_records_still_moves_past_the_aborted_ones() -> None:
    plan = reading(A, isolation=Isolation.READ_COMMITTED)
    aborted = [AbortedTransaction(producer_id=7, first_offset=0)]
    stored = transaction(0, 7, b"1", b"2")
    (fetched,), _ = receive(
        plan, fetches_of(plan), data_of(A, stored, aborted_transactions=aborted)
    )
    assert bytes(batches_of(fetched).data) == b""
    assert batches_of(fetched).next_offset == 2
