"""DescribeConfigs (32), versions 1-4: the options of topics and of this broker.

Every option of the table is given, with its value, type, where the value comes from, where it would
come from otherwise (synonyms) and what it means. Options that are described but change nothing yet
say so in their documentation. Loggers, client metrics and groups have no options here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from trimtab.config import BROKER, TOPIC, Option, OptionTable, Value, inherited, write
from trimtab.errors import ErrorCode
from trimtab.metadata.image import CONFIG_BROKER, CONFIG_TOPIC
from trimtab.metadata.topic_name import find_fault
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from trimtab.broker.broker import Broker

SOURCE_TOPIC = 1
SOURCE_BROKER = 4
SOURCE_DEFAULT = 5
"""Where a value comes from, as `ConfigEntry.ConfigSource` numbers it."""


class _Source(NamedTuple):
    name: str
    value: Value
    source: int


_NOT_HONOURED = " (Described for Kafka's sake: it has no effect here yet.)"


def describe_configs(
    broker: Broker, header: RequestHeader, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Options of each resource that is asked for."""
    return DescribeConfigsResponse(
        throttle_time_ms=0,
        results=[_describe(broker, request, resource) for resource in request.resources],
    )


def _describe(
    broker: Broker, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    name = resource.resource_name
    code, message = ErrorCode.NONE, None
    configs: list[DescribeConfigsResourceResult] = []
    if resource.resource_type == CONFIG_TOPIC:
        if name in broker.image.topics:
            given = broker.image.configs(CONFIG_TOPIC, name)
            configs = _list(
                TOPIC, resource, request, lambda option: _topic_sources(broker, given, option)
            )
        elif fault := find_fault(name):
            code, message = ErrorCode.INVALID_TOPIC_EXCEPTION, fault
        else:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif resource.resource_type != CONFIG_BROKER:
        code = ErrorCode.INVALID_REQUEST
        message = (
            f"Resource type {resource.resource_type} has no configs here; ask for topics "
            f"({CONFIG_TOPIC}) or brokers ({CONFIG_BROKER})."
        )
    elif name == str(broker.id):
        configs = _list(BROKER, resource, request, lambda option: _broker_sources(broker, option))
    elif name:
        code = ErrorCode.INVALID_REQUEST
        message = f"Unexpected broker id, expected {broker.id} or empty string, but received {name}"
    return DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=name,
        configs=configs,
    )


def _list(
    table: OptionTable,
    resource: DescribeConfigsResource,
    request: DescribeConfigsRequest,
    find_sources: Callable[[Option], tuple[Value, list[_Source]]],
) -> list[DescribeConfigsResourceResult]:
    wanted = resource.configuration_keys
    options: Iterable[Option] = table
    if wanted:
        options = [table[name] for name in dict.fromkeys(wanted) if name in table]
    listed = []
    for option in options:
        value, sources = find_sources(option)
        doc = option.doc if option.honoured else option.doc + _NOT_HONOURED
        listed.append(
            DescribeConfigsResourceResult(
                name=option.name,
                value=write(value),
                read_only=table is BROKER,
                config_source=sources[0].source,
                is_sensitive=False,
                synonyms=(
                    [
                        DescribeConfigsSynonym(
                            name=each.name, value=write(each.value), source=each.source
                        )
                        for each in sources
                    ]
                    if request.include_synonyms
                    else []
                ),
                config_type=option.type,
                documentation=doc if request.include_documentation else None,
            )
        )
    return listed


def _topic_sources(
    broker: Broker, given: Mapping[str, str], option: Option
) -> tuple[Value, list[_Source]]:
    """A topic option's value, and everything it could come from, what counts first."""
    value = inherited(option, broker.config)
    sources = []
    if option.name in given:
        value = option.check(given[option.name])
        sources.append(_Source(option.name, value, SOURCE_TOPIC))
    sources += [
        _Source(name, broker.config[name], SOURCE_BROKER)
        for name in option.synonyms
        if name in broker.given
    ]
    sources += [
        _Source(name, BROKER[name].default, SOURCE_DEFAULT)
        for name in option.synonyms
        if BROKER[name].default is not None
    ]
    return value, sources or [_Source(option.name, option.default, SOURCE_DEFAULT)]


def _broker_sources(broker: Broker, option: Option) -> tuple[Value, list[_Source]]:
    """A broker option's value, and everything it could come from, what counts first."""
    sources = [_Source(option.name, option.default, SOURCE_DEFAULT)]
    if option.name in broker.given:
        sources.insert(0, _Source(option.name, broker.config[option.name], SOURCE_BROKER))
    return broker.config[option.name], sources
