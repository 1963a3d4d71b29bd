"""UnregisterBroker (API 64): remove a broker that will not come back (KIP-631)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message
from trimtab.kafka.wire.types import int16, int32, string


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerRequest(Request["UnregisterBrokerResponse"]):
    """Remove the registration of one broker."""

    broker_id: int32


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerResponse:
    """Whether it is removed."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")
