"""AddOffsetsToTxn (API 25): make a consumer group's offsets part of a transaction."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, message
from trimtab.kafka.wire.types import int16, int32, int64, string


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest(Request["AddOffsetsToTxnResponse"]):
    """Ask the transaction coordinator to add a group, before its offsets are committed.

    v2 may answer PRODUCER_FENCED. v3 is flexible. v4 may answer TRANSACTION_ABORTABLE (KIP-890).
    With transaction.version 2 this request is not needed: TxnOffsetCommit adds the group.
    """

    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    group_id: string


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    """Whether the group was added."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
