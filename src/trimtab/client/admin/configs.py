"""Options of topics and brokers: read, and changed one by one (KIP-226, KIP-339)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from trimtab.client.admin.answers import ConfigEntry, ConfigKind, ConfigSource, ConfigSynonym
from trimtab.client.admin.calls import (
    Calls,
    FinalError,
    raise_change_error,
    read_error,
    unknown_topic,
)
from trimtab.client.arguments import checked_integer, checked_topic, shown
from trimtab.client.network.connection import Connection
from trimtab.config import OptionType
from trimtab.errors import BrokerError, ErrorCode, UsageError
from trimtab.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from trimtab.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

_RESOURCES: Final = {"topic": 2, "broker": 4}
_DOCUMENTED_SINCE: Final = 3
_TOPICS_PER_REQUEST: Final = 200
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_SOURCES: Final = frozenset(ConfigSource)
_TYPES: Final = frozenset(OptionType)


async def describe_configs(calls: Calls, kind: ConfigKind, name: str | int) -> list[ConfigEntry]:
    _check_resource(kind, name)

    async def describe() -> list[ConfigEntry]:
        connection = await _connect(calls, kind, name)
        documented = connection.version_of(DescribeConfigsRequest) >= _DOCUMENTED_SINCE
        found = await _describe(connection, kind, [str(name)], documented)
        return [entry for entries in found.values() for entry in entries]

    return await calls.retry(f"describe the configuration of {kind} {name}", describe)


async def describe_topic_configs(
    calls: Calls, names: Sequence[str]
) -> dict[str, list[ConfigEntry]]:
    found: dict[str, list[ConfigEntry]] = {}

    async def describe(names: Sequence[str]) -> None:
        found.update(await _describe(await calls.connect_any(), "topic", names, False))

    for start in range(0, len(names), _TOPICS_PER_REQUEST):
        some = names[start : start + _TOPICS_PER_REQUEST]
        await calls.retry("describe the configuration of topics", partial(describe, some))
    return found


async def _describe(
    connection: Connection, kind: ConfigKind, names: Sequence[str], documented: bool
) -> dict[str, list[ConfigEntry]]:
    resources = [
        DescribeConfigsResource(
            resource_type=_RESOURCES[kind], resource_name=name, configuration_keys=None
        )
        for name in names
    ]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True)
    if documented:
        request.include_documentation = True
    response = await connection.request(request)
    found: dict[str, list[ConfigEntry]] = {}
    for result in response.results:
        name = result.resource_name
        error = _read_error(result.error_code, result.error_message, kind, name)
        if error is not None and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise FinalError(error)
        if error is not None:
            raise error
        found[name] = sorted(map(_read_entry, result.configs))
    return found


async def alter_configs(
    calls: Calls,
    kind: ConfigKind,
    name: str | int,
    changes: Mapping[str, str | None],
    append: Mapping[str, str | None],
    subtract: Mapping[str, str | None],
    validate_only: bool,
) -> None:
    resource = AlterConfigsResource(
        resource_type=_check_resource(kind, name),
        resource_name=str(name),
        configs=[
            AlterableConfig(
                name=option,
                config_operation=_DELETE if value is None else operation,
                value=value,
            )
            for operation, options in ((_SET, changes), (_APPEND, append), (_SUBTRACT, subtract))
            for option, value in options.items()
        ],
    )

    async def alter() -> None:
        connection = await _connect_to_change(calls, kind, name)
        response = await calls.send_once(
            connection,
            IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only),
            "describe_configs()",
        )
        for result in response.responses:
            raise_change_error(_read_error(result.error_code, result.error_message, kind, name))

    await calls.retry(f"alter the configuration of {kind} {name}", alter)


def _check_resource(kind: object, name: object) -> int:
    if not isinstance(kind, str) or kind not in _RESOURCES:
        raise UsageError(f"kind={shown(kind)}: must be one of {', '.join(_RESOURCES)}")
    if kind == "topic":
        checked_topic(name)
    elif name != "":
        is_text = isinstance(name, str)
        if is_text and not (str(name).isascii() and str(name).isdigit()):
            raise UsageError(f"broker {name!r}: a broker is named by its number, such as 0")
        checked_integer("broker", int(str(name)) if is_text else name)
    return _RESOURCES[kind]


async def _connect(calls: Calls, kind: ConfigKind, name: str | int) -> Connection:
    """The connection for a resource: a broker's own options are known to that broker only."""
    if kind == "topic" or name == "":
        return await calls.connect_any()
    return await calls.connect_to_broker(int(name))


async def _connect_to_change(calls: Calls, kind: ConfigKind, name: str | int) -> Connection:
    """The same for changes. The options of a controller, which is no broker, are changed through
    the broker that takes controller requests."""
    await calls.fetch_metadata([])
    if kind == "broker" and name != "" and int(name) not in calls.session.metadata.nodes:
        return await calls.connect_to_controller()
    return await _connect(calls, kind, name)


def _read_error(
    code: int, message: str | None, kind: ConfigKind, name: str | int
) -> BrokerError | None:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return unknown_topic(str(name))
    return read_error(code, message, f"{kind} {name}".rstrip())


def _read_entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        _source(config.config_source),
        config.read_only,
        config.is_sensitive,
        OptionType(config.config_type) if config.config_type in _TYPES else None,
        config.documentation or None,
        tuple(
            ConfigSynonym(each.name, each.value, _source(each.source)) for each in config.synonyms
        ),
    )


def _source(number: int) -> ConfigSource:
    return ConfigSource(number) if number in _SOURCES else ConfigSource.UNKNOWN
