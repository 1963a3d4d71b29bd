"""ListTransactions (API 66): the transactional ids that a coordinator knows (KIP-664)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int16, int32, int64, string


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest(Request["ListTransactionsResponse"]):
    """Ask a broker for the ids it coordinates; an empty filter selects all.

    v1 filters by duration (KIP-994), v2 by a regular expression for the id (KIP-1152).
    """

    state_filters: list[string]
    producer_id_filters: list[int64]
    # Only transactions open for longer, in ms; all if negative.
    duration_filter: int64 = field(versions="1+", default=-1)
    transactional_id_pattern: string | None = field(
        versions="2+", nullable_versions="2+", default=None
    )


@struct()
class TransactionState:
    transactional_id: string
    producer_id: int64
    transaction_state: string


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    """The ids, and the requested states that are unknown."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    unknown_state_filters: list[string] = field(default_factory=list)
    transaction_states: list[TransactionState] = field(default_factory=list)
