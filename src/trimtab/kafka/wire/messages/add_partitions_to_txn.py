"""AddPartitionsToTxn (API 24): make partitions part of a transaction."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int16, int32, int64, string


@struct()
class AddPartitionsToTxnTopic:
    name: string
    partitions: list[int32]


@struct(versions="4+")
class AddPartitionsToTxnTransaction:
    """One transaction, and the partitions to add to it."""

    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    # Whether to check only that the partitions are in the transaction (KIP-890).
    verify_only: bool = False
    topics: list[AddPartitionsToTxnTopic]


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest(Request["AddPartitionsToTxnResponse"]):
    """Ask the transaction coordinator to add partitions, before their first batch is sent.

    v2 may answer PRODUCER_FENCED. v3 is flexible, and the last that producers use: v4 is for
    brokers, with several transactions at once; v5 may answer TRANSACTION_ABORTABLE (KIP-890).
    """

    transactions: list[AddPartitionsToTxnTransaction] = field(versions="4+", default_factory=list)
    v3_and_below_transactional_id: string = field(versions="0-3", default="")
    v3_and_below_producer_id: int64 = field(versions="0-3", default=0)
    v3_and_below_producer_epoch: int16 = field(versions="0-3", default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(versions="0-3", default_factory=list)


@struct()
class AddPartitionsToTxnPartitionResult:
    partition_index: int32
    partition_error_code: int16 = 0


@struct()
class AddPartitionsToTxnTopicResult:
    name: string
    results_by_partition: list[AddPartitionsToTxnPartitionResult]


@struct(versions="4+")
class AddPartitionsToTxnResult:
    transactional_id: string
    topic_results: list[AddPartitionsToTxnTopicResult]


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    """The outcome by partition: if one is refused, none is added (OPERATION_NOT_ATTEMPTED)."""

    throttle_time_ms: int32 = 0
    error_code: int16 = field(versions="4+", default=0, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = field(
        versions="4+", default_factory=list
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(
        versions="0-3", default_factory=list
    )
