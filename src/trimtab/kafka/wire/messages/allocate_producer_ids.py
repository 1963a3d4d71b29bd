"""AllocateProducerIds (API 67): a broker requests a block of producer ids (KIP-730)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, message
from trimtab.kafka.wire.sentinels import NO_EPOCH
from trimtab.kafka.wire.types import int16, int32, int64


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsRequest(Request["AllocateProducerIdsResponse"]):
    """Ask the controller for a block of ids for this broker only."""

    broker_id: int32
    broker_epoch: int64 = NO_EPOCH


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsResponse:
    """The block: its first id and its length."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    producer_id_start: int64 = 0
    producer_id_len: int32 = 0
