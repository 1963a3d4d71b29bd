"""InitProducerId (API 22): an identity for an idempotent or transactional producer."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message
from trimtab.kafka.wire.sentinels import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from trimtab.kafka.wire.types import int16, int32, int64, string


@message(api_key=22, versions="0-6", flexible="2+")
class InitProducerIdRequest(Request["InitProducerIdResponse"]):
    """Ask for a producer id and epoch.

    v2 is flexible. v3 lets a producer keep its id; v4 may answer PRODUCER_FENCED, v5
    TRANSACTION_ABORTABLE (KIP-890). v6 is for two-phase commit (KIP-939), unstable
    and not served here.
    """

    # Null for a producer that is only idempotent.
    transactional_id: string | None = field(nullable_versions="0+")
    # How long a transaction may stay open before it is aborted; only with a transactional id.
    transaction_timeout_ms: int32
    producer_id: int64 = field(versions="3+", default=NO_PRODUCER_ID)
    producer_epoch: int16 = field(versions="3+", default=NO_PRODUCER_EPOCH)
    enable2_pc: bool = field(versions="6+", default=False)
    keep_prepared_txn: bool = field(versions="6+", default=False)


@message(api_key=22, versions="0-6", flexible="2+")
class InitProducerIdResponse:
    """The producer id and its epoch; v6 adds the transaction that is still open."""

    throttle_time_ms: int32 = field(default=0, ignorable=True)
    error_code: int16 = 0
    producer_id: int64 = NO_PRODUCER_ID
    producer_epoch: int16
    ongoing_txn_producer_id: int64 = field(versions="6+", default=NO_PRODUCER_ID)
    ongoing_txn_producer_epoch: int16 = field(versions="6+", default=NO_PRODUCER_EPOCH)
