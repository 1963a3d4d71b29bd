"""The fetch plan alone: the fetches it plans, their order, and how it evaluates responses.

Long because the rules of the plan limit each other, so the cases share one scene.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.client.scripted_broker import batch, end_of
from trimtab.client.fetcher.offsets import Isolation
from trimtab.client.fetcher.plan import (
    COMMITTED,
    Assignment,
    Batches,
    EpochEnd,
    Fetched,
    FetchOptions,
    FetchPlan,
    NodeFetch,
    PartitionFetch,
)
from trimtab.client.network.backoff import Backoff
from trimtab.kafka.errors import BrokerError, CorruptData, ErrorCode, KafkaError, LogTruncation
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_header import restamp
from trimtab.kafka.wire.fetch_limits import FetchLimits
from trimtab.kafka.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from trimtab.kafka.wire.sentinels import EARLIEST, LATEST, NO_EPOCH
from trimtab.kafka.wire.types import ZERO_UUID

NODE = 1
BACKOFF = 0.1
ID = bytes(range(16))
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
    fetches = due(plan, now, on_one_node, busy)
    assert fetches.keys() <= {NODE}
    return fetches.get(NODE, [])


def due(
    plan: FetchPlan,
    now: float,
    leader: Callable[[TopicPartition], int],
    busy: Collection[int] = (),
) -> dict[int, list[PartitionFetch]]:
    """The partitions to fetch, by node."""
    return {node: each.partitions for node, each in plan.due_fetches(now, leader, busy).items()}


def node_fetch(plan: FetchPlan, epoch: int = NO_EPOCH) -> NodeFetch:
    """The fetch due at the only node, whose partitions are in this leader epoch."""
    return plan.due_fetches(0.0, on_one_node, (), lambda _: epoch)[NODE]


def order(fetches: Sequence[PartitionFetch]) -> list[TopicPartition]:
    return [each.partition for each in fetches]


def response(*data: PartitionData, error_code: int = 0) -> FetchResponse:
    topic = FetchableTopicResponse(topic="t", partitions=list(data))
    return FetchResponse(responses=[topic] if data else [], error_code=error_code)


def data_of(partition: TopicPartition, records: bytes = b"", **fields: Any) -> PartitionData:
    """Of a partition that has no more than these records, unless the high watermark says so."""
    return PartitionData(
        **{
            "partition_index": partition.partition,
            "high_watermark": end_of([records]) if records else 0,
            "records": memoryview(bytearray(records)),  # as of a frame: writable
            **fields,
        }
    )


def refusal(partition: TopicPartition, code: ErrorCode) -> PartitionData:
    return data_of(partition, error_code=code)


def receive(
    plan: FetchPlan,
    fetches: Sequence[PartitionFetch],
    *data: PartitionData,
    now: float = 0.0,
    node: int = NODE,
) -> tuple[list[Fetched], bool]:
    return plan.receive(fetches, response(*data), {}, now, node)


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
    assert fetches_of(plan) == [PartitionFetch(B, 1, 0), PartitionFetch(A, 1, 3, 0)]


def test_one_fetch_at_a_time_for_each_node() -> None:
    plan = reading(A, B)
    leaders = {A: 1, B: 2}.__getitem__
    assert due(plan, 0.0, leaders) == {
        1: [PartitionFetch(A, 1, 0)],
        2: [PartitionFetch(B, 1, 0)],
    }
    assert due(plan, 0.0, leaders, {1}) == {2: [PartitionFetch(B, 1, 0)]}


def test_a_reader_behind_on_one_node_does_not_hold_up_another() -> None:
    plan = reading(A, B)
    leaders = {A: 1, B: 2}.__getitem__
    receive(plan, [PartitionFetch(A, 1, 0)], data_of(A, batch(0, b"v")))
    assert due(plan, 0.0, leaders) == {2: [PartitionFetch(B, 1, 0)]}


def test_a_paused_partition_is_left_out_and_does_not_hold_up_the_others() -> None:
    plan = reading(A, B)
    fetched, _ = receive(plan, fetches_of(plan), data_of(A, batch(0, b"v")), data_of(B))
    plan.update(assignments(A, B, paused=[A]))
    assert order(fetches_of(plan)) == [B]
    plan.update(assignments(A, B))
    assert fetches_of(plan) == []
    plan.drain(fetched)
    assert fetches_of(plan) == [PartitionFetch(B, 1, 0), PartitionFetch(A, 1, 1, 0)]


def test_nothing_is_fetched_from_the_end_on() -> None:
    plan = make_plan()
    plan.update({A: Assignment(1, 0, False, end=2), B: Assignment(1, 5, False, end=5)})
    for offset, last_epoch in ((0, NO_EPOCH), (1, 0)):
        assert fetches_of(plan) == [PartitionFetch(A, 1, offset, last_epoch)]
        fetched, _ = receive(plan, fetches_of(plan), data_of(A, batch(offset, b"v")))
        plan.drain(fetched)
    assert fetches_of(plan) == []
    plan.update({A: Assignment(2, 2, False, end=3), B: Assignment(2, 5, False)})
    assert fetches_of(plan) == [PartitionFetch(B, 2, 5), PartitionFetch(A, 2, 2)]


def test_a_read_of_the_last_offset_ends_if_no_record_ever_comes() -> None:
    def answers(plan: FetchPlan, *times: float, **fields: Any) -> list[Fetched]:
        return [
            each
            for now in times
            for each in receive(
                plan, fetches_of(plan), *[data_of(A, **fields)] * bool(fields), now=now
            )[0]
        ]

    plan = make_plan()
    plan.update({A: Assignment(1, 9, False, end=10)})
    (nothing,) = answers(plan, 0, 1, 2, 2.9, 3, high_watermark=10)
    assert batches_of(nothing)[:3] == (A, 9, 10)
    assert not batches_of(nothing).data
    plan.drain([nothing])
    assert fetches_of(plan) == []
    # A session leaves the partition out, and the end is that of the response before the seek.
    plan.update({A: Assignment(2, 9, False, end=10)})
    assert len(answers(plan, 0, 1, 2, 3, 4)) == 1
    # Not before the last offset, for there Kafka's broker may be slow, and not behind it.
    for start, end, known in ((8, 10, 10), (9, 10, 9), (9, 11, 11)):
        plan.update({A: Assignment(start * 100 + end, start, False, end=end)})
        assert answers(plan, *range(20), high_watermark=known) == []
    # A throttled broker has said nothing.
    plan.update({A: Assignment(4, 9, False, end=10)})
    assert answers(plan, 0, high_watermark=10) == []
    for now in range(20):
        throttled = FetchResponse(responses=[], throttle_time_ms=100)
        assert plan.receive(fetches_of(plan), throttled, {}, now, NODE)[0] == []
    plan.update({A: Assignment(3, 9, False)})
    assert answers(plan, *range(20), high_watermark=10) == []


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
    assert fetches_of(plan) == [PartitionFetch(A, 1, 41, 0)]


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
    assert fetches == [PartitionFetch(A, 1, 2, 0)]
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


@pytest.mark.kip(516)
def test_a_position_belongs_to_the_topic_that_served_it() -> None:
    plan = reading(A)
    (fetch,) = fetches_of(plan)
    assert plan.topic_id(A) == fetch.topic_id == ZERO_UUID
    fetched, _ = receive(plan, [fetch._replace(topic_id=ID)], data_of(A, batch(0, b"x")))
    plan.drain(fetched)
    (fetch,) = fetches_of(plan)
    assert plan.topic_id(A) == fetch.topic_id == ID
    plan.update(assignments(A, start=500, epoch=2))
    (fetch,) = fetches_of(plan)
    assert plan.topic_id(A) == fetch.topic_id == ZERO_UUID, "no broker has found it yet"


@pytest.mark.kip(516)
def test_a_position_belongs_to_the_topic_in_which_it_was_found() -> None:
    plan = reading(A, start=LATEST)
    (fetch,) = plan.begin_lookups(0.0)
    plan.locate(fetch, 42, 7, ID)
    (fetch,) = fetches_of(plan)
    assert (fetch.offset, fetch.topic_id) == (42, ID)
    ((doubtful,), _) = plan.begin_validations(0.0, lambda _: 8)
    assert doubtful.topic_id == ID


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
    assert due(plan, 1.0, leaders.__getitem__) == {1: [PartitionFetch(A, 1, 0)]}


def test_a_second_lookup_that_failed_before_the_first_error_was_read_is_repeated() -> None:
    plan = reading(A, start=EARLIEST)
    error = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "", str(A))
    assert plan.begin_lookups(0.0)
    (first,) = plan.fail(A, error, 0.0)
    assert plan.begin_lookups(1.0)
    assert plan.fail(A, error, 1.0) == [], "one error at a time"
    plan.drain([first])
    assert plan.begin_lookups(2.0)


@pytest.mark.kip(392)
def test_a_nearer_replica_is_read_until_it_refuses() -> None:
    plan = reading(A, replica_max_age=300.0)
    leader = 1
    receive(plan, fetches_of(plan), data_of(A, preferred_read_replica=3))
    assert due(plan, 0.0, lambda _: leader) == {3: [PartitionFetch(A, 1, 0)]}
    out_of_range = refusal(A, ErrorCode.OFFSET_OUT_OF_RANGE)
    fetched, _ = receive(plan, [PartitionFetch(A, 1, 0)], out_of_range, node=3)
    assert fetched == []
    assert due(plan, 0.0, lambda _: leader) == {1: [PartitionFetch(A, 1, 0)]}


@pytest.mark.kip(392)
def test_a_nearer_replica_that_cannot_be_read_is_not_waited_for() -> None:
    plan = reading(A, B, replica_max_age=300.0)
    first = plan.due_fetches(0.0, on_one_node, ())[NODE]
    assert first.names_rack
    receive(plan, first.partitions, data_of(A, preferred_read_replica=3))
    fetches = plan.due_fetches(1.0, on_one_node, (), can_read=lambda partition, node: False)
    assert order(fetches[NODE].partitions) == [A, B]
    assert not fetches[NODE].names_rack, "the leader would name the same replica again"
    fetched, _ = receive(
        plan, fetches[NODE].partitions, refusal(A, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    )
    assert error_of(fetched[0]), "the leader's errors count"


@pytest.mark.kip(392)
def test_the_leader_is_asked_again_which_replica_is_nearest() -> None:
    plan = reading(A, replica_max_age=300.0)
    receive(plan, fetches_of(plan), data_of(A, preferred_read_replica=3))
    assert list(due(plan, 299.0, on_one_node)) == [3]
    assert list(due(plan, 300.0, on_one_node)) == [NODE]


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


# truncation (KIP-320)


def doubtful(plan: FetchPlan, epoch: int, now: float = 0.0) -> list[PartitionFetch]:
    found, is_stale = plan.begin_validations(now, lambda _: epoch)
    assert not is_stale
    return found


def read_to(plan: FetchPlan, end: int, epoch: int = 3) -> None:
    """Read one batch of leader epoch `epoch` that ends at `end`."""
    fetches = node_fetch(plan, epoch).partitions
    stored = bytearray(batch(end - 1, b"v"))
    restamp(stored, 0, end - 1, epoch)
    fetched, _ = receive(plan, fetches, data_of(A, bytes(stored)))
    plan.drain(fetched)


def ended(epoch: int, end_offset: int, code: ErrorCode = ErrorCode.NONE) -> EpochEnd:
    return EpochEnd(code, epoch, end_offset)


@pytest.mark.kip(320)
def test_a_position_is_confirmed_before_the_next_fetch_in_a_new_leader_epoch() -> None:
    plan = reading(A)
    assert doubtful(plan, epoch=3) == [], "nothing was read yet"
    read_to(plan, 10)
    assert doubtful(plan, epoch=3) == []
    assert list(plan.due_fetches(0.0, on_one_node, (), lambda _: 4)) == []
    (asked,) = doubtful(plan, epoch=4)
    assert asked == PartitionFetch(A, 1, 10, last_epoch=3, leader_epoch=4)
    assert doubtful(plan, epoch=4) == [], "asked once"
    assert plan.validated(asked, ended(3, 10), 0.0) == ([], False)
    assert node_fetch(plan, epoch=4).partitions == [asked]
    assert doubtful(plan, epoch=4) == []


@pytest.mark.kip(320)
def test_a_position_that_is_not_read_from_is_not_confirmed() -> None:
    plan = reading(A)
    read_to(plan, 10)
    plan.update(assignments(A, paused=[A]))
    assert doubtful(plan, epoch=4) == []
    plan.update(assignments(A))
    assert order(doubtful(plan, epoch=4)) == [A]
    plan.update({A: Assignment(2, 5, False, end=5, leader_epoch=3)})
    assert doubtful(plan, epoch=4) == []


@pytest.mark.kip(320)
@pytest.mark.parametrize(("epoch", "end_offset"), [(3, 9), (2, 9), (2, 10), (3, 0)])
def test_truncation_goes_back_to_where_the_logs_part(epoch: int, end_offset: int) -> None:
    plan = reading(A, reset=LATEST)
    read_to(plan, 10)
    (asked,) = doubtful(plan, epoch=4)
    (fetched,), _ = plan.validated(asked, ended(epoch, end_offset), 0.0)
    moved = batches_of(fetched)
    assert (moved.start, moved.next_offset, bytes(moved.data)) == (end_offset, end_offset, b"")
    plan.drain([fetched])
    (asked,) = doubtful(plan, epoch=4)
    assert asked == PartitionFetch(A, 1, end_offset, epoch, 4)
    plan.validated(asked, ended(epoch, end_offset), 0.0)
    assert node_fetch(plan, epoch=4).partitions == [asked]


@pytest.mark.kip(320)
def test_truncation_is_an_error_without_a_reset_until_the_consumer_seeks() -> None:
    plan = reading(A, reset=None)
    read_to(plan, 10)
    now = 0.0
    for _ in range(2):
        (asked,) = doubtful(plan, epoch=4, now=now)
        (fetched,), _ = plan.validated(asked, ended(2, 7), now)
        error = error_of(fetched)
        assert isinstance(error, LogTruncation)
        assert (error.subject, error.position, error.divergence) == ("t-0", 10, 7)
        assert "the position is 10" in str(error)
        assert "seek to 7" in str(error)
        plan.drain([fetched])
        now += 10
    plan.update({A: Assignment(2, 7, False)})
    assert node_fetch(plan, epoch=4).partitions == [PartitionFetch(A, 2, 7, leader_epoch=4)]


@pytest.mark.kip(320)
def test_a_leader_that_knows_no_such_epoch_means_the_reset() -> None:
    plan = reading(A, reset=EARLIEST)
    read_to(plan, 10)
    (asked,) = doubtful(plan, epoch=4)
    assert plan.validated(asked, ended(-1, -1), 0.0) == ([], False)
    assert list(plan.begin_lookups(0.0).values()) == [EARLIEST]
    plan = reading(A, reset=None)
    read_to(plan, 10)
    (fetched,), _ = plan.validated(doubtful(plan, epoch=4)[0], ended(-1, -1), 0.0)
    error = error_of(fetched)
    assert isinstance(error, LogTruncation)
    assert error.divergence == -1


@pytest.mark.kip(320)
def test_a_leader_that_cannot_tell_is_trusted() -> None:
    plan = reading(A)
    read_to(plan, 10)
    (asked,) = doubtful(plan, epoch=4)
    assert plan.validated(asked, None, 0.0) == ([], False)
    assert node_fetch(plan, epoch=4).partitions == [asked]


@pytest.mark.kip(320)
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ],
)
def test_a_leader_that_has_changed_is_looked_up_and_asked_again(code: ErrorCode) -> None:
    plan = reading(A)
    read_to(plan, 10)
    (asked,) = doubtful(plan, epoch=4)
    assert plan.validated(asked, ended(-1, -1, code), 0.0) == ([], True)
    assert doubtful(plan, epoch=4) == []
    retry = plan.next_retry(0.0)
    assert retry is not None
    (again,) = doubtful(plan, epoch=5, now=retry)
    assert again.leader_epoch == 5


@pytest.mark.kip(320)
def test_a_refusal_to_confirm_reaches_the_reader() -> None:
    plan = reading(A)
    read_to(plan, 10)
    (asked,) = doubtful(plan, epoch=4)
    (fetched,), _ = plan.validated(asked, ended(-1, -1, ErrorCode.TOPIC_AUTHORIZATION_FAILED), 0.0)
    assert "t-0: TOPIC_AUTHORIZATION_FAILED" in str(error_of(fetched))


@pytest.mark.kip(320)
def test_a_committed_position_with_an_epoch_is_confirmed_first() -> None:
    plan = reading(A, start=COMMITTED)
    (lookup,) = plan.begin_lookups(0.0)
    plan.locate(lookup, 10, 3)
    (asked,) = doubtful(plan, epoch=3)
    assert asked == PartitionFetch(A, 1, 10, 3, 3)
    plan.validated(asked, ended(3, 12), 0.0)
    assert node_fetch(plan, epoch=3).partitions == [asked]


@pytest.mark.kip(320)
def test_metadata_older_than_the_position_is_renewed_but_not_for_ever() -> None:
    """Epochs begin anew when a topic is deleted and created again."""
    plan = reading(A, start=COMMITTED)
    (lookup,) = plan.begin_lookups(0.0)
    plan.locate(lookup, 10, 3)
    now, renewals = 0.0, 0
    while True:
        asked, is_stale = plan.begin_validations(now, lambda _: 2)
        if asked:
            break
        assert is_stale
        renewals += 1
        now += 10
    assert renewals == 5
    assert asked == [PartitionFetch(A, 1, 10, 3, 2)]


@pytest.mark.kip(320)
def test_an_older_leader_of_the_same_topic_is_not_asked() -> None:
    """It does not know the records that were read, so it would call them lost."""
    plan = reading(A, start=COMMITTED)
    (lookup,) = plan.begin_lookups(0.0)
    topic_id = bytes(range(16))
    plan.locate(lookup, 10, 3, topic_id)
    for now in range(0, 1000, 10):
        assert plan.begin_validations(now, lambda _: 2, lambda _: topic_id) == ([], True)
    (asked,), is_stale = plan.begin_validations(1000, lambda _: 3, lambda _: topic_id)
    assert (asked.leader_epoch, is_stale) == (3, False)


@pytest.mark.kip(320)
def test_a_seek_makes_a_confirmation_void() -> None:
    plan = reading(A, reset=None)
    read_to(plan, 10)
    (asked,) = doubtful(plan, epoch=4)
    plan.update(assignments(A, start=50, epoch=2))
    assert plan.validated(asked, ended(2, 7), 0.0) == ([], False)
    assert order(node_fetch(plan, epoch=4).partitions) == [A]


@pytest.mark.kip(320)
def test_a_fetch_response_also_tells_where_the_logs_part() -> None:
    plan = reading(A, reset=LATEST)
    read_to(plan, 10)
    fetches = node_fetch(plan, epoch=3).partitions
    parted = data_of(A, diverging_epoch=EpochEndOffset(epoch=2, end_offset=6))
    (fetched,), _ = receive(plan, fetches, parted)
    assert batches_of(fetched).next_offset == 6
    plan.drain([fetched])
    assert node_fetch(plan, epoch=3).partitions == [PartitionFetch(A, 1, 6, 2, 3)]


@pytest.mark.kip(320)
@pytest.mark.kip(392)
def test_only_the_leader_is_believed_that_the_logs_part() -> None:
    plan = reading(A, reset=LATEST)
    read_to(plan, 10)
    receive(plan, fetches_of(plan), data_of(A, preferred_read_replica=3))
    parted = data_of(A, diverging_epoch=EpochEndOffset(epoch=2, end_offset=6))
    fetches = due(plan, 0.0, on_one_node)[3]
    assert receive(plan, fetches, parted, node=3) == ([], True)
    assert due(plan, 0.0, on_one_node) == {NODE: [PartitionFetch(A, 1, 10, 3)]}


@pytest.mark.kip(320)
def test_batches_tell_the_epochs_of_their_records() -> None:
    plan = reading(A, start=5)
    stored = bytearray(batch(4, b"1", b"2") + batch(6, b"3") + batch(7, b"4"))
    size = len(batch(6, b"3"))
    restamp(stored, 0, 4, 1)
    restamp(stored, len(stored) - 2 * size, 6, 1)
    restamp(stored, len(stored) - size, 7, 2)
    (fetched,), _ = receive(plan, fetches_of(plan), data_of(A, bytes(stored)))
    assert batches_of(fetched).leader_epochs == ((5, 1), (7, 2))


@pytest.mark.kip(98)
def test_reading_committed_records_still_moves_past_the_aborted_ones() -> None:
    plan = reading(A, isolation=Isolation.READ_COMMITTED)
    aborted = [AbortedTransaction(producer_id=7, first_offset=0)]
    stored = batch(
        0, b"1", b"2", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    (fetched,), _ = receive(
        plan, fetches_of(plan), data_of(A, stored, aborted_transactions=aborted)
    )
    assert bytes(batches_of(fetched).data) == b""
    assert batches_of(fetched).next_offset == 2
