"""IncrementalAlterConfigs (API 44): change single options (KIP-339)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int8, int16, int32, string


@struct()
class AlterableConfig:
    """The change of one option."""

    name: string
    # 0: set; 1: delete, which restores the default; 2: append to a list; 3: subtract from it.
    config_operation: int8
    # Null to delete.
    value: string | None = field(nullable_versions="0+")


@struct()
class AlterConfigsResource:
    """One resource whose options change; unlisted options stay."""

    # 2: a topic; 4: a broker; 8: a broker's loggers; 16: client metrics; 32: a group.
    resource_type: int8
    # For brokers, empty stands for all of them.
    resource_name: string
    configs: list[AlterableConfig]


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest(Request["IncrementalAlterConfigsResponse"]):
    """Change options, or only check that they could be. v1 is flexible."""

    resources: list[AlterConfigsResource]
    validate_only: bool = False


@struct()
class AlterConfigsResourceResponse:
    """The result for one resource: all its changes, or none."""

    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")
    resource_type: int8
    resource_name: string


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int32 = 0
    responses: list[AlterConfigsResourceResponse]
