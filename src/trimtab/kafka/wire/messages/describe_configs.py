"""DescribeConfigs (API 32): the options of topics and brokers."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int8, int16, int32, string


@struct()
class DescribeConfigsResource:
    """One resource whose options are requested."""

    # 2: a topic; 4: a broker; 8: a broker's loggers; 16: client metrics; 32: a group.
    resource_type: int8
    resource_name: string
    # Null for all of them.
    configuration_keys: list[string] | None = field(nullable_versions="0+", default_factory=list)


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsRequest(Request["DescribeConfigsResponse"]):
    """Ask for options. v1 adds synonyms; v3 documentation. v4 is flexible."""

    resources: list[DescribeConfigsResource]
    include_synonyms: bool = field(versions="1+", default=False)
    include_documentation: bool = field(versions="3+", default=False)


@struct(versions="1+")
class DescribeConfigsSynonym:
    """One source of the value, the effective one first."""

    name: string
    value: string | None = field(nullable_versions="0+")
    source: int8


@struct()
class DescribeConfigsResourceResult:
    name: string
    # Null if sensitive.
    value: string | None = field(nullable_versions="0+")
    read_only: bool
    # 1: the topic; 2: the broker, dynamically; 3: all brokers so; 4: the broker's file; 5: default.
    config_source: int8 = field(versions="1+", default=-1, ignorable=True)
    is_sensitive: bool
    synonyms: list[DescribeConfigsSynonym] = field(
        versions="1+", default_factory=list, ignorable=True
    )
    # 0 unknown, 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password.
    config_type: int8 = field(versions="3+", default=0, ignorable=True)
    documentation: string | None = field(
        versions="3+", nullable_versions="0+", default="", ignorable=True
    )


@struct()
class DescribeConfigsResult:
    """The options of one resource, or the error about it."""

    error_code: int16 = 0
    error_message: string | None = field(nullable_versions="0+", default="")
    resource_type: int8
    resource_name: string
    configs: list[DescribeConfigsResourceResult] = field(default_factory=list)


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    """One result per resource. v1 adds sources and synonyms; v3 types and documentation."""

    throttle_time_ms: int32 = 0
    results: list[DescribeConfigsResult]
