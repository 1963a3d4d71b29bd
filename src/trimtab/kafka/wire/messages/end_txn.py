"""EndTxn (API 26): commit or abort a transaction."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message
from trimtab.kafka.wire.sentinels import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from trimtab.kafka.wire.types import int16, int32, int64, string


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnRequest(Request["EndTxnResponse"]):
    """Ask the transaction coordinator to end a transaction.

    v2 may answer PRODUCER_FENCED. v3 is flexible. v4 may answer TRANSACTION_ABORTABLE. v5, to be
    used with transaction.version 2 only, raises the producer's epoch too (KIP-890).
    """

    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    # True commits, false aborts.
    committed: bool


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnResponse:
    """Whether the decision is stored; from v5 the id and epoch of the next transaction, else -1."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    producer_id: int64 = field(versions="5+", default=NO_PRODUCER_ID, ignorable=True)
    producer_epoch: int16 = field(versions="5+", default=NO_PRODUCER_EPOCH, ignorable=True)
