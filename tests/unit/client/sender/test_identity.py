"""Sequence numbers and epochs, without a cluster: a partition is a log that checks them as Kafka's.

`test_sender.py` tests how an identity is obtained, and the outcome of records.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from trimtab.client.network.backoff import Backoff
from trimtab.client.sender.identity import LAST_EPOCH, Anonymous, Identity, sequence_after
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@dataclass(eq=False)
class Queue:
    topic: str = "topic"
    partition: int = 0
    batches: deque[Any] = field(default_factory=deque)
    in_flight: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class Batch:
    queue: Queue
    count: int = 1
    base_sequence: int = -1
    base_offset: int = -1
    attempts: int = 0


def made(producer_id: int = 7, epoch: int = 0) -> Any:
    identity: Any = Identity(None, Backoff(0.1, 1.0), Random(1))  # type: ignore[arg-type]
    identity.renew(producer_id, epoch)
    return identity


def fill(queue: Queue, *counts: int) -> list[Batch]:
    batches = [Batch(queue, count) for count in counts]
    queue.batches.extend(batches)
    return batches


def send(identity: Any, queue: Queue) -> tuple[int, int, int]:
    batch = queue.batches.popleft()
    queue.in_flight.append(batch)
    numbers: tuple[int, int, int] = identity.number(batch)
    batch.attempts += 1
    return numbers


def acknowledge(identity: Any, batch: Batch, offset: int = -1) -> None:
    batch.queue.in_flight.remove(batch)
    batch.base_offset = offset
    identity.settled(batch, None)


def put_back(
    identity: Any, batch: Batch, code: ErrorCode | None, log_start_offset: int = -1
) -> bool | None:
    """The broker refuses a batch, and it goes to the head of its queue as in the accumulator."""
    answer: bool | None = identity.refused(batch, code, log_start_offset)
    batch.queue.in_flight.remove(batch)
    batch.queue.batches.appendleft(batch)
    return answer


def proven(identity: Any, queue: Queue) -> None:
    (first,) = fill(queue, 1)
    send(identity, queue)
    acknowledge(identity, first)


def test_numbers_follow_the_records() -> None:
    identity, queue = made(), Queue()
    fill(queue, 3, 1, 5)
    assert [send(identity, queue) for _ in range(3)] == [(7, 0, 0), (7, 0, 3), (7, 0, 4)]


def test_numbers_begin_again_after_the_last() -> None:
    assert sequence_after(2**31 - 1, 1) == 0
    assert sequence_after(2**31 - 3, 5) == 2


def test_one_batch_alone_until_the_first_is_acknowledged() -> None:
    """Else a partition that opens between two requests stores the second, and never the first."""
    identity, queue = made(), Queue()
    first, *_ = fill(queue, 1, 1, 1)
    assert identity.may_send(queue)
    send(identity, queue)
    assert not identity.may_send(queue)
    acknowledge(identity, first)
    for _ in range(2):
        assert identity.may_send(queue)
        send(identity, queue)


def test_after_a_refusal_one_goes_alone_and_before_those_behind_it() -> None:
    identity, queue = made(), Queue()
    proven(identity, queue)
    first, second, third = fill(queue, 1, 1, 1)
    send(identity, queue)
    send(identity, queue)
    assert put_back(identity, first, ErrorCode.NOT_ENOUGH_REPLICAS) is None
    assert not identity.may_send(queue), "the second is in flight"
    queue.in_flight.remove(second)
    assert identity.refused(second, OUT_OF_ORDER)
    queue.batches.insert(1, second)
    assert identity.may_send(queue)
    assert send(identity, queue) == (7, 0, 1)
    assert not identity.may_send(queue), "the first is not proven yet"
    acknowledge(identity, first)
    assert identity.may_send(queue)
    assert send(identity, queue) == (7, 0, 2)
    assert not identity.may_send(queue), "the second is sent again, and goes alone too"
    acknowledge(identity, second)
    assert send(identity, queue) == (7, 0, 3)
    assert third.base_sequence == 3


def test_an_answer_to_a_batch_sent_before_a_refusal_proves_nothing() -> None:
    """Otherwise five more would be stored behind a stored batch, which the broker then forgets."""
    identity, queue = made(), Queue()
    proven(identity, queue)
    doubted, behind, _ = fill(queue, 1, 1, 1)
    send(identity, queue)
    send(identity, queue)
    put_back(identity, doubted, ErrorCode.REQUEST_TIMED_OUT)
    acknowledge(identity, behind)
    assert send(identity, queue) == (7, 0, 1)
    assert not identity.may_send(queue)
    acknowledge(identity, doubted)
    assert identity.may_send(queue)


def test_a_numbered_batch_waits_for_batches_that_overtook_it() -> None:
    identity, queue = made(), Queue()
    proven(identity, queue)
    first, second, third = fill(queue, 1, 1, 1)
    for _ in range(3):
        send(identity, queue)
    put_back(identity, first, ErrorCode.NOT_ENOUGH_REPLICAS)
    acknowledge(identity, second)
    assert not identity.may_send(queue), "the third was numbered later, and is in flight"
    acknowledge(identity, third)
    assert identity.may_send(queue)


def test_a_lost_batch_restarts_only_its_partition() -> None:
    identity, queue, other = made(), Queue(), Queue(partition=1)
    proven(identity, queue)
    proven(identity, other)
    lost, behind = fill(queue, 2, 2)
    send(identity, queue)
    send(identity, queue)
    queue.in_flight.remove(lost)
    identity.lost(lost)
    assert not identity.may_send(queue), "the one behind it comes back first"
    assert put_back(identity, behind, OUT_OF_ORDER) is True
    fill(queue, 1)
    assert identity.may_send(queue)
    assert [send(identity, queue), identity.may_send(queue)] == [(7, 1, 0), False]
    acknowledge(identity, behind)
    assert send(identity, queue) == (7, 1, 2)
    fill(other, 1)
    assert send(identity, other) == (7, 0, 1)


def test_what_was_sent_behind_a_loss_is_sent_again_under_its_number_as_it_may_be_stored() -> None:
    identity, queue = made(), Queue()
    proven(identity, queue)
    lost, behind, last = fill(queue, 1, 1, 1)
    for _ in range(3):
        send(identity, queue)
    queue.in_flight.remove(lost)
    identity.lost(lost)
    put_back(identity, last, None)
    put_back(identity, behind, None)
    fill(queue, 1)
    for batch, number in ((behind, 2), (last, 3)):
        assert identity.may_send(queue)
        assert send(identity, queue) == (7, 0, number)
        assert not identity.may_send(queue)
        acknowledge(identity, batch)
    assert identity.may_send(queue)
    assert send(identity, queue) == (7, 1, 0)


def test_a_batch_that_was_never_sent_is_no_loss() -> None:
    identity, queue = made(), Queue()
    proven(identity, queue)
    (unsent,) = fill(queue, 1)
    identity.lost(unsent)
    assert identity.may_send(queue)
    assert send(identity, queue) == (7, 0, 1)


@pytest.mark.parametrize(
    "code", [OUT_OF_ORDER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH]
)
def test_a_broker_that_has_forgotten_gets_a_new_epoch(code: ErrorCode) -> None:
    identity, queue = made(), Queue()
    proven(identity, queue)
    (batch,) = fill(queue, 1)
    send(identity, queue)
    assert put_back(identity, batch, code) is True
    assert identity.may_send(queue)
    assert send(identity, queue) == (7, 1, 0)


@pytest.mark.parametrize(("log_start", "is_known"), [(10, True), (11, False)])
def test_out_of_order_proves_nothing_about_records_that_retention_may_have_deleted(
    log_start: int, is_known: bool
) -> None:
    """The next leader has the last of three batches only, and so remembers only that one."""
    identity, queue = made(), Queue()
    proven(identity, queue)
    acknowledged, first, second, last = fill(queue, 1, 1, 1, 1)
    for _ in range(4):
        send(identity, queue)
    acknowledge(identity, acknowledged, offset=9)
    for batch in (last, second, first):
        put_back(identity, batch, None)
    send(identity, queue)
    assert put_back(identity, first, OUT_OF_ORDER, log_start) is is_known
    if is_known:  # the whole log behind the acknowledged record is there, and not this batch
        assert identity.may_send(queue)
        assert send(identity, queue) == (7, 1, 0)
        return
    queue.batches.popleft()
    identity.lost(first)
    assert identity.may_send(queue)
    assert send(identity, queue) == (7, 0, 3), "the later ones may be stored: under their numbers"
    assert put_back(identity, second, OUT_OF_ORDER, log_start) is False
    queue.batches.popleft()
    identity.lost(second)
    assert send(identity, queue) == (7, 0, 4)
    assert put_back(identity, last, OUT_OF_ORDER, log_start) is True, "a log keeps its last batch"
    assert identity.may_send(queue)
    assert send(identity, queue) == (7, 1, 0)


def test_out_of_order_behind_an_earlier_one_is_no_cause_to_restart() -> None:
    identity, queue = made(), Queue()
    proven(identity, queue)
    first, second = fill(queue, 1, 1)
    send(identity, queue)
    send(identity, queue)
    assert identity.refused(second, OUT_OF_ORDER) is True
    put_back(identity, first, None)
    queue.in_flight.remove(second)
    queue.batches.append(second)
    assert identity.may_send(queue)
    assert send(identity, queue) == (7, 0, 1)


def test_earlier_batches_are_recognized_across_the_wrap_of_numbers() -> None:
    identity, queue = made(), Queue()
    proven(identity, queue)
    identity._sequences[queue].next = 2**31 - 1
    first, second = fill(queue, 1, 1)
    assert [send(identity, queue), send(identity, queue)] == [(7, 0, 2**31 - 1), (7, 0, 0)]
    assert identity.refused(second, OUT_OF_ORDER) is True
    put_back(identity, first, None)
    queue.in_flight.remove(second)
    queue.batches.append(second)
    assert identity.may_send(queue)
    assert send(identity, queue) == (7, 0, 2**31 - 1)
    acknowledge(identity, first)
    assert send(identity, queue) == (7, 0, 0)


def test_parts_of_a_split_batch_have_its_numbers() -> None:
    identity, queue = made(), Queue()
    proven(identity, queue)
    whole, behind = fill(queue, 5, 1)
    send(identity, queue)
    send(identity, queue)
    assert identity.refused(whole, ErrorCode.MESSAGE_TOO_LARGE) is None
    queue.in_flight.remove(whole)
    parts = [Batch(queue, 2), Batch(queue, 3)]
    queue.batches.extendleft(reversed(parts))
    identity.split(parts, whole.base_sequence)
    assert [part.base_sequence for part in parts] == [1, 3]
    assert not identity.may_send(queue)
    assert identity.refused(behind, OUT_OF_ORDER) is True
    queue.in_flight.remove(behind)
    queue.batches.append(behind)
    assert identity.may_send(queue)
    send(identity, queue)
    acknowledge(identity, parts[0])
    assert [send(identity, queue), send(identity, queue)] == [(7, 0, 3), (7, 0, 6)]


def test_what_is_in_flight_to_the_old_leader_comes_back_before_the_new_one_gets_anything() -> None:
    identity, queue = made(), Queue()
    proven(identity, queue)
    first, _ = fill(queue, 1, 1)
    send(identity, queue)
    identity.moved(queue)
    assert not identity.may_send(queue)
    put_back(identity, first, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert identity.may_send(queue)


def test_an_answer_of_the_old_leader_proves_nothing_while_another_is_to_come() -> None:
    """Else five go to each leader, and of more than five a broker does not know the first again."""
    identity, queue = made(), Queue()
    proven(identity, queue)
    first, second, _ = fill(queue, 1, 1, 1)
    send(identity, queue)
    send(identity, queue)
    identity.moved(queue)
    acknowledge(identity, first)
    assert not identity.may_send(queue)
    acknowledge(identity, second)
    assert identity.may_send(queue)


def test_epochs_that_are_used_up_take_another_producer_id(monkeypatch: pytest.MonkeyPatch) -> None:
    identity, queue, other = made(epoch=LAST_EPOCH), Queue(), Queue(partition=1)
    asked: list[int] = []
    monkeypatch.setattr(identity, "is_ready", lambda: asked.append(identity.producer_id))
    for each in (queue, other):
        proven(identity, each)
        fill(each, 1, 1)
    identity.recreated(queue)
    assert not identity.may_send(queue)
    assert asked == [-1]
    assert not identity.may_send(queue), "the new id is not there yet"
    identity.producer_id, identity.producer_epoch = 8, 0
    assert identity.may_send(queue)
    assert send(identity, queue) == (8, 0, 0)
    assert send(identity, other) == (7, LAST_EPOCH, 1), "nothing was lost here"


def test_a_topic_that_was_forgotten_continues_its_numbers() -> None:
    """From 0 again they would look like duplicates to the broker, and be dropped as stored."""
    identity = made()
    proven(identity, Queue("topic", 3))
    again = Queue("topic", 3)
    fill(again, 1)
    assert send(identity, again) == (7, 0, 1)


def test_renewing_restarts_every_partition() -> None:
    identity, queue = made(), Queue()
    proven(identity, queue)
    (waiting,) = fill(queue, 1)
    send(identity, queue)
    put_back(identity, waiting, None)
    identity.renew(7, 1)
    assert identity.may_send(queue)
    assert send(identity, queue) == (7, 1, 0)


def test_what_was_proven_stays_so_when_the_epoch_is_renewed_and_not_with_another_id() -> None:
    """A transaction with an epoch of its own costs no partition a round trip."""
    identity, queue = made(), Queue()
    proven(identity, queue)
    first, second = fill(queue, 1, 1)
    identity.renew(7, 1)
    send(identity, queue)
    assert identity.may_send(queue)
    assert send(identity, queue) == (7, 1, 1)
    for batch in (first, second):
        acknowledge(identity, batch)
    fill(queue, 1, 1)
    identity.renew(8, 0)
    assert send(identity, queue) == (8, 0, 0)
    assert not identity.may_send(queue)


def test_without_idempotence_nothing_is_numbered_or_held() -> None:
    anonymous: Any = Anonymous()
    queue = Queue()
    fill(queue, 1, 1)
    assert anonymous.is_ready()
    assert send(anonymous, queue) == (-1, -1, -1)
    assert anonymous.may_send(queue)
    assert anonymous.refused(queue.in_flight[0], OUT_OF_ORDER) is None


class _Broker:
    """Answers for producer ids, and how often it was asked."""

    node = "broker 0 (broker-0:9092)"

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.waits: list[float] = []

    async def connect_any(self) -> Any:
        return self

    async def request(self, request: object) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _ask(*answers: object) -> tuple[Any, list[object]]:
    """An identity and its calls to the sender, after these answers of brokers."""
    from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdResponse
    from trimtab.sim.world import World

    told: list[object] = []

    async def run(world: World) -> Any:
        broker = _Broker(
            *(
                InitProducerIdResponse(error_code=answer, producer_id=5, producer_epoch=2)
                if isinstance(answer, ErrorCode)
                else answer
                for answer in answers
            )
        )
        identity = Identity(broker, Backoff(0.1, 1.0), Random(1))  # type: ignore[arg-type]
        identity.wake = lambda: told.append(round(world.loop.time(), 1))
        identity.fail = told.append
        assert not identity.is_ready()
        assert not identity.is_ready(), "asks once at a time"
        while identity._asking is not None:
            await identity._asking
        await identity.close()
        return identity

    with World(1) as world:
        return world.run(run(world)), told


def test_a_producer_id_is_asked_for_until_it_is_had() -> None:
    identity, told = _ask(
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Unavailable("no broker"), ErrorCode.NONE
    )
    assert (identity.producer_id, identity.producer_epoch) == (5, 2)
    assert identity.is_ready()
    assert told == [0.3], "two waits, of a tenth and two tenths of a second"


@pytest.mark.parametrize(
    "answer",
    [
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        BrokerError(ErrorCode.UNSUPPORTED_VERSION, "serves InitProducerId not at all"),
    ],
)
def test_a_refused_producer_id_fails_the_waiting_batches(answer: object) -> None:
    identity, told = _ask(answer)
    assert not identity.producer_id >= 0
    error, _ = told
    assert isinstance(error, BrokerError)
