"""DescribeTransactions (API 65): a coordinator's state of transactional ids (KIP-664)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int16, int32, int64, string


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest(Request["DescribeTransactionsResponse"]):
    """Ask a broker about ids that it coordinates."""

    transactional_ids: list[string]


@struct()
class TopicData:
    # In Kafka's definition the key of a map.
    topic: string
    partitions: list[int32]


@struct()
class TransactionState:
    """One transactional id, or the error about it."""

    error_code: int16 = 0
    transactional_id: string
    transaction_state: string = ""
    transaction_timeout_ms: int32 = 0
    # -1 if no transaction is open.
    transaction_start_time_ms: int64 = 0
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    # While it ends, those that have no marker yet.
    topics: list[TopicData] = field(default_factory=list)


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse:
    throttle_time_ms: int32 = 0
    transaction_states: list[TransactionState]
