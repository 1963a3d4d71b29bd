"""FindCoordinator (API 10): which broker coordinates a group or a transactional id."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int8, int16, int32, string


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest(Request["FindCoordinatorResponse"]):
    """Ask for coordinators: one key up to v3, several from v4 (KIP-699).

    v1 adds the key type. v3 is flexible. v6 adds share groups (KIP-932).
    """

    key: string = field(versions="0-3", default="")
    # 0: a group; 1: a transactional id; 2: a share group's "group:topic id:partition".
    key_type: int8 = field(versions="1+", default=0)
    coordinator_keys: list[string] = field(versions="4+", default_factory=list)


@struct(versions="4+")
class Coordinator:
    key: string
    node_id: int32
    host: string
    port: int32
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="4+", default="", ignorable=True)


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    """The coordinator: in the fields themselves up to v3, one per key from v4.

    v1 adds the throttle time and the error message. v3 is flexible.
    """

    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    error_code: int16 = field(versions="0-3", default=0)
    error_message: string | None = field(
        versions="1-3", nullable_versions="1-3", default="", ignorable=True
    )
    node_id: int32 = field(versions="0-3", default=0)
    host: string = field(versions="0-3", default="")
    port: int32 = field(versions="0-3", default=0)
    coordinators: list[Coordinator] = field(versions="4+", default_factory=list)
