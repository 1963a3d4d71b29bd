"""ListTransactions (API 66): the transactions that a broker coordinates (KIP-664)."""

from __future__ import annotations

from trimtab.wire.schema import field, message, struct
from trimtab.wire.types import int16, int32, int64, string


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest:
    """Ask for transactions. v1 adds the duration (KIP-994); v2 the pattern (KIP-1152)."""

    # Empty for any; so too the next.
    state_filters: list[string] = field(default_factory=list)
    producer_id_filters: list[int64] = field(default_factory=list)
    # Only those that have run for more milliseconds; negative for all.
    duration_filter: int64 = field(versions="1+", default=-1)
    # A regular expression of RE2; null or empty for all.
    transactional_id_pattern: string | None = field(
        versions="2+", nullable_versions="2+", default=None
    )


@struct()
class TransactionState:
    """One transactional id."""

    transactional_id: string
    producer_id: int64
    # By name, as in "Ongoing".
    transaction_state: string


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    """The transactions that pass every filter."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    unknown_state_filters: list[string] = field(default_factory=list)
    transaction_states: list[TransactionState] = field(default_factory=list)
