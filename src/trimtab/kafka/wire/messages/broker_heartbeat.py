"""BrokerHeartbeat (API 63): a broker shows the controller that it is alive (KIP-631)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message
from trimtab.kafka.wire.sentinels import NO_EPOCH
from trimtab.kafka.wire.types import int16, int32, int64, uuid


@message(api_key=63, versions="0-2", flexible="0+")
class BrokerHeartbeatRequest(Request["BrokerHeartbeatResponse"]):
    """Keep the lease, and request a state.

    v1 adds offline log directories (KIP-858); v2 cordoned ones (KIP-1066).
    """

    broker_id: int32
    broker_epoch: int64 = NO_EPOCH
    # The highest offset of the metadata log that the broker has replayed.
    current_metadata_offset: int64
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: list[uuid] = field(
        versions="1+", tag=0, tagged_versions="1+", default_factory=list
    )
    # Null until the broker has caught up for the first time.
    cordoned_log_dirs: list[uuid] | None = field(
        versions="2+", nullable_versions="2+", tag=1, tagged_versions="2+", default=None
    )


@message(api_key=63, versions="0-2", flexible="0+")
class BrokerHeartbeatResponse:
    """The state that the controller has put the broker in."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    is_caught_up: bool = False
    is_fenced: bool = True
    # The broker leads no partitions any more, and may stop.
    should_shut_down: bool = False
