"""AlterConfigs (API 33): replace all options of a topic or broker (KIP-133)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int8, int16, int32, string


@struct()
class AlterableConfig:
    """One option; a null value unsets it."""

    name: string
    value: string | None = field(nullable_versions="0+")


@struct()
class AlterConfigsResource:
    """One resource and all its options; unlisted options return to their defaults."""

    # 2: a topic; 4: a broker; 8: a broker's loggers; 16: client metrics; 32: a group.
    resource_type: int8
    # For brokers, empty stands for all of them.
    resource_name: string
    configs: list[AlterableConfig]


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsRequest(Request["AlterConfigsResponse"]):
    """Replace options, or only check that they could be. v2 is flexible.

    Deprecated since KIP-339: IncrementalAlterConfigs keeps the options that it does not name.
    """

    resources: list[AlterConfigsResource]
    validate_only: bool = False


@struct()
class AlterConfigsResourceResponse:
    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")
    resource_type: int8
    resource_name: string


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse:
    throttle_time_ms: int32 = 0
    responses: list[AlterConfigsResourceResponse]
