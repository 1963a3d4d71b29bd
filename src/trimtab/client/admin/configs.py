"""Options of topics and brokers: read, and changed one by one (KIP-226, KIP-339)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from trimtab.client.admin.answers import ConfigEntry, ConfigKind, ConfigSource, ConfigSynonym
from trimtab.client.admin.calls import (
    Calls,
    Family,
    FinalError,
    raise_change_error,
    read_error,
    unknown_topic,
)
from trimtab.client.admin.topics import write_config
from trimtab.client.network.connection import Connection
from trimtab.kafka.arguments import (
    checked_flag,
    checked_integer,
    checked_names,
    checked_texts,
    checked_topic,
    shown,
)
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError
from trimtab.kafka.options import OptionType
from trimtab.kafka.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from trimtab.kafka.wire.messages.incremental_alter_configs import (
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


class ConfigAdmin(Family):
    """Describes and alters options."""

    async def describe_configs(self, kind: ConfigKind, name: str | int) -> list[ConfigEntry]:
        """All options of a topic, or of a broker by its id, sorted by name. For the broker "":
        the dynamic options that were set for all brokers.

        A broker of trimtab's knows the dynamic options of brokers that are stopped.

        Raises:
            UsageError: this broker is not alive, and the others do not know its options, as in
                Apache Kafka.
        """
        _check_resource(kind, name)

        async def describe() -> list[ConfigEntry]:
            is_dead = await _is_dead(self._calls, kind, name)
            connection = await (
                self._calls.connect_any() if is_dead else _connect(self._calls, kind, name)
            )
            documented = connection.version_of(DescribeConfigsRequest) >= _DOCUMENTED_SINCE
            try:
                found = await _describe(connection, kind, [str(name)], documented)
            except BrokerError as error:
                if not is_dead or error.code is not ErrorCode.INVALID_REQUEST:
                    raise
                alive = ", ".join(map(str, sorted(self._calls.session.metadata.nodes)))
                raise UsageError(
                    f"broker {name} is not alive, and the others do not know its options: start "
                    f"it; alive are {alive}"
                ) from None
            return [entry for entries in found.values() for entry in entries]

        return await self._calls.retry(f"describe the configuration of {kind} {name}", describe)

    async def describe_topic_configs(
        self, names: Iterable[str], options: Iterable[str] | None = None
    ) -> dict[str, list[ConfigEntry]]:
        """The options of each of these topics, as `describe_configs` lists them, but without their
        documentation. One request asks for 200 topics.

        Args:
            options: the names of those to describe; None for all.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, with the first unknown topic.
        """
        wanted = checked_names("names", names)
        keys = None if options is None else checked_texts("options", options)
        found: dict[str, list[ConfigEntry]] = {}

        async def describe(names: Sequence[str]) -> None:
            connection = await self._calls.connect_any()
            found.update(await _describe(connection, "topic", names, False, keys))

        for start in range(0, len(wanted), _TOPICS_PER_REQUEST):
            some = wanted[start : start + _TOPICS_PER_REQUEST]
            await self._calls.retry("describe the configuration of topics", partial(describe, some))
        return found

    async def alter_configs(
        self,
        kind: ConfigKind,
        name: str | int,
        changes: Mapping[str, object] | None = None,
        *,
        append: Mapping[str, object] | None = None,
        subtract: Mapping[str, object] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change options of a topic, of a broker by its id, or of all brokers (""): all of these
        changes, or none. Other options stay as they are (KIP-339).

        Args:
            changes: new values; None restores the default.
            append, subtract: entries to add to or remove from list options, such as cleanup.policy.
            validate_only: check the request without changing options.

        Raises:
            BrokerError: the cluster refuses; code and message say why.
        """
        operations = (
            (_SET, write_config("changes", {} if changes is None else changes)),
            (_APPEND, write_config("append", {} if append is None else append)),
            (_SUBTRACT, write_config("subtract", {} if subtract is None else subtract)),
        )
        checked_flag("validate_only", validate_only)
        resource = AlterConfigsResource(
            resource_type=_check_resource(kind, name),
            resource_name=str(name),
            configs=[
                AlterableConfig(
                    name=option,
                    config_operation=_DELETE if value is None else operation,
                    value=value,
                )
                for operation, options in operations
                for option, value in options.items()
            ],
        )

        async def alter() -> None:
            connection = await _connect_to_change(self._calls, kind, name)
            response = await self._calls.send_once(
                connection,
                IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only),
                "describe_configs()",
            )
            for result in response.responses:
                raise_change_error(_read_error(result.error_code, result.error_message, kind, name))

        await self._calls.retry(f"alter the configuration of {kind} {name}", alter)


async def _describe(
    connection: Connection,
    kind: ConfigKind,
    names: Sequence[str],
    documented: bool,
    keys: list[str] | None = None,
) -> dict[str, list[ConfigEntry]]:
    resources = [
        DescribeConfigsResource(
            resource_type=_RESOURCES[kind], resource_name=name, configuration_keys=keys
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
    """The same for changes. The options of a controller, or of a broker that is not alive, are
    changed through the broker that takes controller requests; Apache Kafka's refuses them."""
    if await _is_dead(calls, kind, name):
        return await calls.connect_to_controller()
    return await _connect(calls, kind, name)


async def _is_dead(calls: Calls, kind: ConfigKind, name: str | int) -> bool:
    """Whether this is the name of a broker, but of none that is alive."""
    if kind == "topic" or name == "":
        return False
    await calls.fetch_metadata([])
    return int(name) not in calls.session.metadata.nodes


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
            ConfigSynonym(synonym.name, synonym.value, _source(synonym.source))
            for synonym in config.synonyms
        ),
    )


def _source(number: int) -> ConfigSource:
    return ConfigSource(number) if number in _SOURCES else ConfigSource.UNKNOWN
