"""The consumer's side of fetch sessions, against a broker that keeps sessions as KIP-227 says."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.client.fetcher.sessions import FetchSessionHandler, Turn, Wanted
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.fetch import FetchResponse
from trimtab.kafka.wire.sentinels import FINAL_EPOCH, INITIAL_EPOCH
from trimtab.kafka.wire.types import MAX_INT32

BY_NAME, BY_ID = 12, 13
A, B, C = (TopicPartition("t", number) for number in range(3))

pytestmark = pytest.mark.kip(227)


def at(offset: int, topic_id: int = 1, epoch: int = 0, last_epoch: int = -1) -> Wanted:
    return Wanted(bytes([topic_id]) * 16, offset, epoch, last_epoch)


@dataclass
class SessionBroker:
    """Keeps one session, in its order; answers with errors as Kafka does."""

    has_room: bool = True
    id: int = 0
    epoch: int = 0
    by_id: bool = False
    held: dict[object, Wanted] = field(default_factory=dict)
    """By topic id and partition, or by name."""

    def answer(
        self, turn: Turn, wanted: dict[TopicPartition, Wanted], by_id: bool
    ) -> FetchResponse:
        def key(partition: TopicPartition, topic_id: bytes) -> object:
            return (topic_id, partition.partition) if by_id else partition

        if turn.epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            assert not turn.forgotten
            if turn.session_id == self.id:
                self.id = 0
            self.held = {key(p, wanted[p].topic_id): wanted[p] for p in turn.named}
            if turn.epoch == FINAL_EPOCH or not self.has_room:
                return FetchResponse(session_id=0, responses=[])
            self.id, self.epoch, self.by_id = self.id + 7, 1, by_id
            return FetchResponse(session_id=self.id, responses=[])
        if turn.session_id != self.id or not self.id:
            return refusal(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if turn.epoch != self.epoch:
            return refusal(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if by_id != self.by_id:
            return refusal(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        for partition in turn.named:
            self.held[key(partition, wanted[partition].topic_id)] = wanted[partition]
        for partition, topic_id in turn.forgotten:
            del self.held[key(partition, topic_id)]
        self.epoch = 1 if self.epoch == MAX_INT32 else self.epoch + 1
        return FetchResponse(session_id=self.id, responses=[])


def refusal(code: ErrorCode) -> FetchResponse:
    return FetchResponse(error_code=code, session_id=0, responses=[])


def ask(
    session: FetchSessionHandler,
    broker: SessionBroker,
    wanted: dict[TopicPartition, Wanted],
    version: int = BY_ID,
) -> tuple[Turn, bool]:
    turn = session.next_turn(wanted, version)
    return turn, session.accept(broker.answer(turn, wanted, version >= BY_ID))


def test_only_changes_are_named() -> None:
    session, broker = FetchSessionHandler(), SessionBroker()
    assert ask(session, broker, {A: at(1), B: at(1)}) == (Turn(0, 0, [A, B], []), True)
    assert ask(session, broker, {A: at(1), B: at(1)}) == (Turn(7, 1, [], []), True)
    assert ask(session, broker, {B: at(1), A: at(2)}) == (Turn(7, 2, [A], []), True)
    assert ask(session, broker, {C: at(0), A: at(2)}) == (
        Turn(7, 3, [C], [(B, at(1).topic_id)]),
        True,
    )


@pytest.mark.parametrize("changed", [at(1, epoch=1), at(1, last_epoch=0), at(2)])
def test_each_value_that_the_broker_needs_counts_as_a_change(changed: Wanted) -> None:
    session, broker = FetchSessionHandler(), SessionBroker()
    ask(session, broker, {A: at(1), B: at(1)})
    assert ask(session, broker, {A: changed, B: at(1)})[0].named == [A]


def test_a_topic_that_was_created_again_replaces_the_old_one() -> None:
    session, broker = FetchSessionHandler(), SessionBroker()
    ask(session, broker, {A: at(1, topic_id=1)})
    turn, _ = ask(session, broker, {A: at(0, topic_id=2)})
    assert turn == Turn(7, 1, [A], [(A, at(1, topic_id=1).topic_id)])
    assert list(broker.held.values()) == [at(0, topic_id=2)]


@pytest.mark.parametrize(
    ("code", "names_old"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, False),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, True),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, True),
    ],
)
def test_a_refused_session_is_replaced_at_once(code: ErrorCode, names_old: bool) -> None:
    session, broker = FetchSessionHandler(), SessionBroker()
    wanted = {A: at(1), B: at(1)}
    ask(session, broker, wanted)
    session.next_turn(wanted, BY_ID)
    assert session.accept(refusal(code)) is False
    assert session.next_turn(wanted, BY_ID) == Turn(7 if names_old else 0, 0, [A, B], [])


def test_another_error_is_the_partitions_and_the_next_request_is_full() -> None:
    session, broker = FetchSessionHandler(), SessionBroker()
    ask(session, broker, {A: at(1)})
    session.next_turn({A: at(1)}, BY_ID)
    assert session.accept(refusal(ErrorCode.UNKNOWN_TOPIC_ID)) is True
    assert session.next_turn({A: at(1)}, BY_ID) == Turn(7, 0, [A], [])


def test_a_lost_response_begins_another_session_in_place_of_the_old_one() -> None:
    session, broker = FetchSessionHandler(), SessionBroker()
    ask(session, broker, {A: at(1)})
    session.next_turn({A: at(2)}, BY_ID)
    session.restart()
    assert session.next_turn({A: at(2)}, BY_ID) == Turn(7, 0, [A], [])


def test_a_broker_without_room_is_asked_for_everything_each_time() -> None:
    session, broker = FetchSessionHandler(), SessionBroker(has_room=False)
    for _ in range(3):
        assert ask(session, broker, {A: at(1)}) == (Turn(0, 0, [A], []), True)


def test_a_broker_that_refuses_even_new_sessions_is_asked_without() -> None:
    session = FetchSessionHandler()
    session.next_turn({A: at(1)}, BY_ID)
    assert session.accept(refusal(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)) is False
    for _ in range(2):
        assert session.next_turn({A: at(1)}, BY_ID) == Turn(0, FINAL_EPOCH, [A], [])
        assert session.accept(FetchResponse(session_id=0, responses=[])) is True
    session.next_turn({A: at(1)}, BY_ID)
    assert session.accept(refusal(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)) is True, "no tight loop"


def test_versions_before_7_have_no_sessions() -> None:
    session = FetchSessionHandler()
    for _ in range(2):
        assert session.next_turn({A: at(1)}, 6) == Turn(0, FINAL_EPOCH, [A], [])
        assert session.accept(FetchResponse(responses=[])) is True


def test_the_epoch_after_the_greatest_is_1() -> None:
    session, broker = FetchSessionHandler(), SessionBroker()
    ask(session, broker, {A: at(1)})
    session._epoch = broker.epoch = MAX_INT32
    assert ask(session, broker, {A: at(1)})[0].epoch == MAX_INT32
    assert ask(session, broker, {A: at(1)})[0].epoch == 1


_PARTITIONS = st.sampled_from([A, B, C])
_WANTED = st.dictionaries(
    _PARTITIONS, st.builds(at, st.integers(0, 2), st.integers(1, 2), st.integers(0, 1)), min_size=1
)
_EVENT = st.sampled_from(["", "", "", "response lost", "session evicted", "epoch lost", "no ids"])


@given(st.lists(st.tuples(_WANTED, _EVENT, st.booleans()), min_size=1, max_size=30))
def test_the_broker_fetches_exactly_what_is_wanted(
    steps: list[tuple[dict[TopicPartition, Wanted], str, bool]],
) -> None:
    session, broker = FetchSessionHandler(), SessionBroker()
    for wanted, event, has_room in steps:
        broker.has_room = has_room
        if event == "session evicted":
            broker.id = 0
        elif event == "epoch lost":
            broker.epoch += 1
        version = BY_NAME if event == "no ids" else BY_ID
        by_id = version >= BY_ID
        turn = session.next_turn(wanted, version)
        response = broker.answer(turn, wanted, by_id)
        if event == "response lost":
            session.restart()
            continue
        if not session.accept(response):
            assert ask(session, broker, wanted, version)[1], "the second request is not refused"
        assert broker.held == {
            ((w.topic_id, p.partition) if by_id else p): w for p, w in wanted.items()
        }
