"""Allowed calls by state, and the effect of errors (`client/sender/transaction_state.py`)."""

from __future__ import annotations

import pickle

import pytest

from trimtab.client.sender.transaction_state import (
    ABORT,
    BEGIN,
    COMMIT,
    INIT,
    NEXT,
    PREPARE,
    RENAME,
    SEND,
    SEND_OFFSETS,
    State,
    TransactionLifecycle,
    explain,
    is_fatal_from_coordinator,
    is_fatal_to_produce,
)
from trimtab.kafka.errors import BrokerError, ErrorCode, TransactionError, Unavailable, UsageError

CALLS = (RENAME, INIT, BEGIN, SEND, SEND_OFFSETS, PREPARE, COMMIT, ABORT)
ERRORS = (State.ABORTABLE_ERROR, State.FATAL_ERROR)
ALLOWED = {
    State.UNINITIALIZED: {RENAME, INIT},
    State.READY: {RENAME, BEGIN},
    State.IN_TRANSACTION: {SEND, SEND_OFFSETS, PREPARE, COMMIT, ABORT},
    State.PREPARED: {RENAME, COMMIT, ABORT},
    State.ABORTABLE_ERROR: {ABORT},
}
CAUSE = Unavailable("broker 0 did not answer")


def lifecycle_in(state: State) -> TransactionLifecycle:
    """A lifecycle that has reached a state by the shortest path."""
    ways: list[list[State]] = [[State.UNINITIALIZED]]
    for way in ways:
        if way[-1] is state:
            made = TransactionLifecycle()
            for step in way[1:]:
                made.move(step, CAUSE if step in ERRORS else None)
            return made
        following = {*NEXT[way[-1]], State.FATAL_ERROR}
        ways += [
            [*way, step] for step in sorted(following, key=lambda s: s.name) if step not in way
        ]
    raise AssertionError(f"no way leads to {state}")


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
@pytest.mark.parametrize("target", State, ids=lambda state: state.name)
def test_only_the_ways_in_the_table_can_be_gone(state: State, target: State) -> None:
    lifecycle = lifecycle_in(state)
    if target in NEXT[state] or target is State.FATAL_ERROR:
        lifecycle.move(target)
        assert lifecycle.state is target
    else:
        with pytest.raises(RuntimeError, match=target.name):
            lifecycle.move(target)
        assert lifecycle.state is state


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_allowed_or_its_error_names_the_due_call(state: State, call: str) -> None:
    lifecycle = lifecycle_in(state)
    if call in ALLOWED.get(state, set()):
        lifecycle.check(call)
        return
    with pytest.raises((UsageError, TransactionError)) as raised:
        lifecycle.check(call)
    text = str(raised.value)
    if state in ERRORS:
        assert isinstance(raised.value, TransactionError)
        assert raised.value.__cause__ is CAUSE
        assert str(CAUSE) in text
        assert raised.value.is_fatal is (state is State.FATAL_ERROR)
        assert ("close this producer" in text) is raised.value.is_fatal
    else:
        assert text.startswith(f"{call}(): the producer {state.value}; ")
        assert any(f"{due}()" in text.partition(";")[2] for due in CALLS)


def test_sending_is_refused_outside_of_a_transaction() -> None:
    for state in State:
        assert (lifecycle_in(state).refusal(SEND) is None) is (state is State.IN_TRANSACTION)


def test_an_error_is_forgotten_with_its_transaction() -> None:
    lifecycle = lifecycle_in(State.ABORTABLE_ERROR)
    lifecycle.move(State.ABORTING)
    assert lifecycle.cause is None


@pytest.mark.parametrize(
    ("code", "to_produce", "from_coordinator"),
    [
        (ErrorCode.PRODUCER_FENCED, True, True),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, True, True),
        (ErrorCode.UNSUPPORTED_VERSION, True, True),
        (ErrorCode.INVALID_PRODUCER_EPOCH, False, True),
        (ErrorCode.INVALID_TXN_STATE, False, True),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, False, False),
        (ErrorCode.UNKNOWN_PRODUCER_ID, False, False),
        (ErrorCode.TRANSACTION_ABORTABLE, False, False),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, False, False),
        (ErrorCode.ILLEGAL_GENERATION, False, False),
    ],
)
def test_fatal_errors(code: ErrorCode, to_produce: bool, from_coordinator: bool) -> None:
    error = BrokerError(code)
    assert is_fatal_to_produce(error) is to_produce
    assert is_fatal_from_coordinator(error) is from_coordinator


def test_a_timeout_is_never_fatal_to_produce() -> None:
    assert not is_fatal_to_produce(CAUSE)


def test_an_error_is_explained_once_behind_what_the_broker_said() -> None:
    bare = BrokerError(ErrorCode.PRODUCER_FENCED, "", "transactional id orders")
    assert str(explain(bare)).startswith(
        "transactional id orders: PRODUCER_FENCED (90): another producer"
    )
    said = BrokerError(ErrorCode.PRODUCER_FENCED, "by epoch 4")
    explained = explain(said)
    assert "by epoch 4; another producer" in str(explained)
    assert "raise that, or commit more often" in str(explained)
    assert explain(explained) is explained
    assert explain(CAUSE) is CAUSE


def test_a_failure_crosses_processes() -> None:
    error = TransactionError("because; close", ErrorCode.PRODUCER_FENCED, True)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code, copy.is_fatal) == ("because; close", 90, True)
