"""ListConfigResources (API 74): the resources that have options (KIP-1142)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int8, int16, int32, string


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest(Request["ListConfigResourcesResponse"]):
    """Ask for resources. v0, of KIP-714, lists client metrics only; v1 adds the types."""

    # 2: topics; 4: brokers; 8: brokers' loggers; 16: client metrics; 32: groups. Empty for all.
    resource_types: list[int8] = field(versions="1+", default_factory=list)


@struct()
class ConfigResource:
    resource_name: string
    resource_type: int8 = field(versions="1+", default=16, ignorable=True)


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    config_resources: list[ConfigResource] = field(default_factory=list)
