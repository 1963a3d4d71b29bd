"""DescribeConfigs (32), versions 1-4: the options of topics, of this broker, of all brokers, of
groups and of subscriptions to clients' metrics.

The response has every option of the table with its value, type, source, synonyms (the sources that
would apply next) and documentation. For all brokers (the broker resource with an empty name) it has
only the options that are set. The same, unlike in Kafka, for a broker that is stopped: it cannot
answer itself. An unknown option of a broker is shown without value and type, as it may be a secret.
The documentation of an option without effect says so. Loggers have no options.

Unlike in Kafka, a topic's value that derives from an option in hours or minutes has the source of
that option.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.config import (
    BROKER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    Setting,
    Settings,
    Source,
    resolve_topic,
)
from trimtab.cluster.metadata.image import (
    CONFIG_BROKER,
    CONFIG_CLIENT_METRICS,
    CONFIG_GROUP,
    CONFIG_TOPIC,
)
from trimtab.cluster.server.turns import Steps, answer_each
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.options import PASSWORD, READ_ONLY, Option, OptionTable, Value, read_given, write
from trimtab.kafka.topic_name import find_fault
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

_ALL_BROKERS = ""
_UNSERVED: Mapping[int, tuple[OptionTable, Source, str]] = {
    CONFIG_CLIENT_METRICS: (
        CLIENT_METRICS,
        Source.CLIENT_METRICS,
        "Client metrics subscription name must not be empty",
    ),
    CONFIG_GROUP: (GROUP, Source.GROUP, "Group name must not be empty"),
}
_UNKNOWN_TYPE = 0
_NOT_HONOURED = " (Described for Kafka's sake: it has no effect here.)"


def describe_configs(
    view: ClusterView, header: RequestHeader, request: DescribeConfigsRequest
) -> Steps[DescribeConfigsResponse]:
    """The options of each requested resource."""
    description = _Description(view, request)
    return answer_each(
        request.resources,
        description.describe,
        lambda results: DescribeConfigsResponse(throttle_time_ms=0, results=results),
        cost=lambda resource, result: (
            1 + len(result.configs) + len(resource.configuration_keys or ())
        ),
    )


class _Description:
    """Describes resources for one request, all with the same settings."""

    def __init__(self, view: ClusterView, request: DescribeConfigsRequest) -> None:
        self._view = view
        self._request = request
        self._set = view.image.configs(CONFIG_BROKER, str(view.id))
        self._set_for_all = view.image.configs(CONFIG_BROKER, _ALL_BROKERS)
        self._settings = Settings.read(view.given, self._set_for_all, self._set)

    def describe(self, resource: DescribeConfigsResource) -> DescribeConfigsResult:
        kind, name = resource.resource_type, resource.resource_name
        code, message = ErrorCode.NONE, ""
        configs: list[DescribeConfigsResourceResult] = []
        if kind == CONFIG_TOPIC:
            fault = find_fault(name)
            if fault is not None:
                code, message = ErrorCode.INVALID_TOPIC_EXCEPTION, fault
            elif name not in self._view.image.topics:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                configs = self._topic(resource)
        elif kind in _UNSERVED:
            if name:
                configs = self._unserved(resource)
            else:
                code, message = ErrorCode.INVALID_REQUEST, _UNSERVED[kind][2]
        elif kind != CONFIG_BROKER:
            code = ErrorCode.INVALID_REQUEST
            message = (
                f"Resource type {kind} has no configs here; ask for topics ({CONFIG_TOPIC}), "
                f"brokers ({CONFIG_BROKER}), client metrics ({CONFIG_CLIENT_METRICS}) or groups "
                f"({CONFIG_GROUP})."
            )
        elif name == _ALL_BROKERS:
            configs = self._all_brokers(resource)
        elif name == str(self._view.id):
            configs = self._own(resource)
        elif self._is_stopped(name):
            configs = self._stopped(resource)
        else:
            code = ErrorCode.INVALID_REQUEST
            message = (
                f"Unexpected broker id, expected {self._view.id} or empty string, but received "
                f"{name}"
            )
        return DescribeConfigsResult(
            error_code=code,
            error_message=message,
            resource_type=kind,
            resource_name=name,
            configs=configs,
        )

    def _topic(self, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
        given = self._view.image.configs(CONFIG_TOPIC, resource.resource_name)
        values = resolve_topic(self._settings.resolve(), given)
        return [
            self._entry(option, values[option.name], self._settings.of_topic(option, given), False)
            for option in _wanted(TOPIC, resource)
        ]

    def _own(self, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
        values = self._settings.resolve()
        return [
            self._entry(option, values[option.name], self._settings.of(option))
            for option in _wanted(BROKER, resource)
        ] + self._unknown(
            resource, {Source.BROKER: self._set, Source.ALL_BROKERS: self._set_for_all}
        )

    def _is_stopped(self, name: str) -> bool:
        brokers = self._view.image.brokers
        return name.isdecimal() and int(name) in brokers and brokers[int(name)].fenced

    def _stopped(self, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
        """What is set for another broker, and so in the metadata; not what its files hold."""
        given = self._view.image.configs(CONFIG_BROKER, resource.resource_name)
        settings = Settings.read({}, self._set_for_all, given)
        return [
            self._entry(
                option,
                settings.broker[option.name],
                [each for each in settings.of(option) if each.source is not Source.DEFAULT],
            )
            for option in _wanted(BROKER, resource)
            if option.name in settings.broker
        ] + self._unknown(resource, {Source.BROKER: given, Source.ALL_BROKERS: self._set_for_all})

    def _all_brokers(
        self, resource: DescribeConfigsResource
    ) -> list[DescribeConfigsResourceResult]:
        values = self._settings.all_brokers
        return [
            self._entry(
                option,
                values[option.name],
                [Setting(option.name, values[option.name], Source.ALL_BROKERS)],
            )
            for option in _wanted(BROKER, resource)
            if option.name in values
        ] + self._unknown(resource, {Source.ALL_BROKERS: self._set_for_all})

    def _unknown(
        self, resource: DescribeConfigsResource, places: Mapping[Source, Mapping[str, str]]
    ) -> list[DescribeConfigsResourceResult]:
        """Options that are set but unknown.

        Args:
            places: the sources to look in, by descending precedence.
        """
        wanted = set(resource.configuration_keys or ())
        names = dict.fromkeys(name for texts in places.values() for name in texts)
        return [
            DescribeConfigsResourceResult(
                name=name,
                value=None,
                read_only=True,
                config_source=found[0],
                is_sensitive=True,
                synonyms=[
                    DescribeConfigsSynonym(name=name, value=None, source=source) for source in found
                ]
                if self._request.include_synonyms
                else [],
                config_type=_UNKNOWN_TYPE,
                documentation=None,
            )
            for name in names
            if name not in BROKER
            and (not wanted or name in wanted)
            and (found := [source for source, texts in places.items() if name in texts])
        ]

    def _unserved(self, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
        kind = resource.resource_type
        table, source, _ = _UNSERVED[kind]
        given = read_given(table, self._view.image.configs(kind, resource.resource_name))
        found = {option.name: self._settings.of_other(option, given, source) for option in table}
        return [
            self._entry(option, found[option.name][0].value, found[option.name], False)
            for option in _wanted(table, resource)
        ]

    def _entry(
        self,
        option: Option,
        value: Value,
        settings: list[Setting],
        is_read_only: bool | None = None,
    ) -> DescribeConfigsResourceResult:
        doc = option.doc if option.honoured else option.doc + _NOT_HONOURED
        return DescribeConfigsResourceResult(
            name=option.name,
            value=write(value),
            read_only=option.dynamic is READ_ONLY if is_read_only is None else is_read_only,
            config_source=settings[0].source if settings else Source.DEFAULT,
            is_sensitive=option.type is PASSWORD,
            synonyms=[
                DescribeConfigsSynonym(name=name, value=write(value), source=source)
                for name, value, source in settings
            ]
            if self._request.include_synonyms
            else [],
            config_type=option.type,
            documentation=doc if self._request.include_documentation else None,
        )


def _wanted(table: OptionTable, resource: DescribeConfigsResource) -> Iterable[Option]:
    names = resource.configuration_keys
    return [table[name] for name in dict.fromkeys(names) if name in table] if names else table
