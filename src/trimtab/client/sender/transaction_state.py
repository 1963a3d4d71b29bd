"""The states of a transactional producer: which calls and errors lead where. Does no I/O.

    uninitialized ─▶ initializing ─▶ ready ─▶ in transaction ─▶ committing ─▶ ready
                                                │      │            │
                                                │      ▼            ▼
                                                │  abortable error ◀┘
                                                ▼      ▼
                                               aborting ─▶ ready           any ─▶ fatal error

    in transaction ─▶ preparing ─▶ prepared ─▶ committing | aborting
                          └─▶ abortable error

    initializing ─▶ prepared                               by another producer, and kept
    uninitialized | ready | prepared ─▶ uninitialized      under another transactional id

Source: KIP-98, KIP-588, KIP-890, KIP-939, KIP-1050; the states are those of
`org.apache.kafka.clients.producer.internals.TransactionManager`.
"""

from __future__ import annotations

from enum import Enum

from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError, TransactionError, UsageError

RENAME = "change_transactional_id"
INIT = "init_transactions"
BEGIN = "begin_transaction"
SEND = "send"
SEND_OFFSETS = "send_offsets_to_transaction"
PREPARE = "prepare_transaction"
COMMIT = "commit_transaction"
ABORT = "abort_transaction"


class State(Enum):
    """A transactional producer's state; the value completes the sentence "the producer …"."""

    UNINITIALIZED = "is not initialized"
    INITIALIZING = "is being initialized"
    READY = "is initialized, and in no transaction"
    IN_TRANSACTION = "is in a transaction"
    PREPARING = "is preparing its transaction"
    PREPARED = "has prepared its transaction"
    COMMITTING = "is committing"
    ABORTING = "is aborting"
    ABORTABLE_ERROR = "is in a transaction that has failed"
    FATAL_ERROR = "cannot be used any more"


NEXT: dict[State, frozenset[State]] = {
    State.UNINITIALIZED: frozenset({State.INITIALIZING, State.UNINITIALIZED}),
    State.INITIALIZING: frozenset({State.READY, State.PREPARED, State.UNINITIALIZED}),
    State.READY: frozenset({State.IN_TRANSACTION, State.UNINITIALIZED}),
    State.IN_TRANSACTION: frozenset(
        {State.PREPARING, State.COMMITTING, State.ABORTING, State.ABORTABLE_ERROR}
    ),
    State.PREPARING: frozenset({State.PREPARED, State.ABORTABLE_ERROR}),
    State.PREPARED: frozenset({State.COMMITTING, State.ABORTING, State.UNINITIALIZED}),
    State.COMMITTING: frozenset({State.READY, State.ABORTABLE_ERROR}),
    State.ABORTING: frozenset({State.READY}),
    State.ABORTABLE_ERROR: frozenset({State.ABORTING}),
    State.FATAL_ERROR: frozenset(),
}
"""The next states of each state, besides FATAL_ERROR, which may follow every state."""

_ALLOWED: dict[str, frozenset[State]] = {
    RENAME: frozenset({State.UNINITIALIZED, State.READY, State.PREPARED}),
    INIT: frozenset({State.UNINITIALIZED}),
    BEGIN: frozenset({State.READY}),
    SEND: frozenset({State.IN_TRANSACTION}),
    SEND_OFFSETS: frozenset({State.IN_TRANSACTION}),
    PREPARE: frozenset({State.IN_TRANSACTION}),
    COMMIT: frozenset({State.IN_TRANSACTION, State.PREPARED}),
    ABORT: frozenset({State.IN_TRANSACTION, State.PREPARED, State.ABORTABLE_ERROR}),
}
_ADVICE: dict[State, str] = {
    State.UNINITIALIZED: f"call {INIT}() first",
    State.INITIALIZING: f"{INIT}() has not ended yet; call it again to wait for that",
    State.READY: f"call {BEGIN}() first",
    State.IN_TRANSACTION: f"end it first, with {COMMIT}() or {ABORT}()",
    State.PREPARING: f"{PREPARE}() has not ended yet; call it again to wait for that",
    State.PREPARED: f"end it first, with {COMMIT}() or {ABORT}(), or elsewhere",
    State.COMMITTING: f"{COMMIT}() has not ended yet; call it again to wait for that",
    State.ABORTING: f"{ABORT}() has not ended yet; call it again to wait for that",
}
_ABORT_AND_REPEAT = f"call {ABORT}() and repeat the transaction"
_CLOSE = "close this producer and make a new one"


class TransactionLifecycle:
    """The state of one transactional producer, with the cause of an error state.

    Attributes:
        cause: the error that led to one of the two error states; None in all others.
    """

    def __init__(self) -> None:
        self.state = State.UNINITIALIZED
        self.cause: KafkaError | None = None

    def move(self, target: State, cause: KafkaError | None = None) -> None:
        """Change the state; an error state has a cause.

        Raises:
            RuntimeError: the state cannot follow the current one; a bug in trimtab.
        """
        if target is not State.FATAL_ERROR and target not in NEXT[self.state]:
            raise RuntimeError(f"the producer {self.state.value}: {target.name} cannot follow")
        self.state = target
        self.cause = cause

    def refusal(self, call: str) -> KafkaError | None:
        """The error for a call in this state; None if it is allowed."""
        if self.state in _ALLOWED[call]:
            return None
        if self.cause is not None:
            return self.failure()
        return UsageError(f"{call}(): the producer {self.state.value}; {_ADVICE[self.state]}")

    def check(self, call: str) -> None:
        """Raise an error unless this state allows the call.

        Raises:
            UsageError: names the state and the call to make first.
            TransactionError: in an error state, with its cause.
        """
        refusal = self.refusal(call)
        if refusal is not None:
            raise refusal

    def failure(self) -> TransactionError:
        """The error for the cause of an error state, with advice; a new object on each call."""
        is_fatal = self.state is State.FATAL_ERROR
        code = self.cause.code if isinstance(self.cause, BrokerError) else None
        error = TransactionError(
            f"{self.cause}; {_CLOSE if is_fatal else _ABORT_AND_REPEAT}", code, is_fatal
        )
        error.__cause__ = self.cause
        return error


_FATAL = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
_FATAL_FROM_COORDINATOR = _FATAL | {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE}


def is_fatal_to_produce(error: KafkaError) -> bool:
    """Whether a batch's final `error` is fatal to the producer, not just to its transaction.

    A leader's INVALID_PRODUCER_EPOCH is not: only the coordinator knows whether the producer is
    fenced, and says so when the transaction is aborted (KIP-588).
    """
    return isinstance(error, BrokerError) and error.code in _FATAL


def is_fatal_from_coordinator(error: KafkaError) -> bool:
    """Whether a coordinator's error is fatal to the producer, not just to its transaction.

    Kafka's own producer treats unexpected errors as fatal. Here the transaction can be aborted: the
    coordinator answers that request with an error if the producer cannot go on.
    """
    return not isinstance(error, BrokerError) or error.code in _FATAL_FROM_COORDINATOR


def explain(error: KafkaError) -> KafkaError:
    """The error, with the usual cause of its code and how to correct it."""
    if (
        isinstance(error, BrokerError)
        and (hint := _HINTS.get(error.code)) is not None
        and hint not in error.detail
    ):
        said = error.detail.rstrip(".")
        return BrokerError(error.code, f"{said}; {hint}" if said else hint, error.subject)
    return error


_FENCED = (
    "another producer with this transactional.id has begun, or this transaction was open for longer"
    " than transaction.timeout.ms, so that its coordinator has aborted it; raise that, or commit"
    " more often"
)
_LEFT_BEHIND = (
    "the consumer is no longer a member of the group in that generation; let it poll and read again"
    " from the offsets that are committed"
)
_HINTS = {
    ErrorCode.PRODUCER_FENCED: _FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH: _FENCED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "grant Write and Describe on this transactional id; two-phase commit needs TwoPhaseCommit,"
        " too, and brokers with transaction.two.phase.commit.enable=true"
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant Write on the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant Read on the group",
    ErrorCode.INVALID_TXN_STATE: (
        "the coordinator has ended this transaction already, as it does if one is open for longer"
        " than transaction.timeout.ms; raise that, or commit more often"
    ),
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: (
        "the coordinator has forgotten this producer (transactional.id.expiration.ms)"
    ),
    ErrorCode.UNKNOWN_PRODUCER_ID: "the broker has forgotten this producer",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "transaction.timeout.ms is above the brokers' transaction.max.timeout.ms; lower the one or"
        " raise the other"
    ),
    ErrorCode.ILLEGAL_GENERATION: _LEFT_BEHIND,
    ErrorCode.UNKNOWN_MEMBER_ID: _LEFT_BEHIND,
    ErrorCode.FENCED_INSTANCE_ID: _LEFT_BEHIND,
    ErrorCode.STALE_MEMBER_EPOCH: _LEFT_BEHIND,
    ErrorCode.FENCED_MEMBER_EPOCH: _LEFT_BEHIND,
}
