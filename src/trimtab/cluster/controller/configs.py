"""Decisions about dynamic options of topics, brokers, groups and client metrics subscriptions.

IncrementalAlterConfigs (KIP-339) changes single options of a resource, AlterConfigs (KIP-133)
replaces all of them. Error codes and the order of checks are Kafka's: first the checks of its
brokers before they forward a request (`ConfigAdminManager`), then those of its controller
(`ConfigurationControlManager`). Unknown options of brokers are accepted, as they may be a plugin's.
Unlike in Kafka, any broker accepts changes of any other broker's options.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from trimtab.cluster.config import (
    BROKER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    check_group,
    check_topic,
    inherit,
    resolve,
)
from trimtab.cluster.controller.decision import MAX_RECORDS, Decision, WholeRequest
from trimtab.cluster.controller.partition_limits import OPTIONS
from trimtab.cluster.controller.topic_rules import MIN_ISR
from trimtab.cluster.metadata.image import (
    CONFIG_BROKER,
    CONFIG_CLIENT_METRICS,
    CONFIG_GROUP,
    CONFIG_TOPIC,
    ClusterImage,
)
from trimtab.kafka.errors import ErrorCode, Refusal, UsageError
from trimtab.kafka.options import (
    CLUSTER_WIDE,
    LIST,
    READ_ONLY,
    Option,
    OptionTable,
    Value,
    read_given,
    write,
)
from trimtab.kafka.topic_name import find_fault
from trimtab.kafka.wire.messages import alter_configs, incremental_alter_configs
from trimtab.kafka.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from trimtab.kafka.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from trimtab.kafka.wire.messages.metadata_records import ClearElrRecord, ConfigRecord

SET = 0
DELETE = 1
APPEND = 2
SUBTRACT = 3
"""Operations of IncrementalAlterConfigs, numbered as in `AlterConfigOp.OpType`."""

_ALL_BROKERS = ""
_BROKER_LOGGER = 8
_TABLES: Mapping[int, OptionTable] = {
    CONFIG_TOPIC: TOPIC,
    CONFIG_BROKER: BROKER,
    CONFIG_CLIENT_METRICS: CLIENT_METRICS,
    CONFIG_GROUP: GROUP,
}
_OPERATIONS = {APPEND: "append", SUBTRACT: "subtract"}

_log = logging.getLogger(__name__)

R = TypeVar(
    "R", bound=alter_configs.AlterConfigsResource | incremental_alter_configs.AlterConfigsResource
)
"""A resource with changed options, in either request."""
Result = TypeVar("Result")

Texts = Mapping[str, str]
"""Option values by name, as texts, as in the metadata."""


def decide_incremental_alter_configs(
    image: ClusterImage,
    request: IncrementalAlterConfigsRequest,
    broker_config: Mapping[str, Value],
    controller_id: int,
    whole: WholeRequest | None = None,
) -> Decision:
    """Change the named options; of each resource all of them or none.

    Args:
        broker_config: all static broker options; topics inherit from them.
        controller_id: may have options of its own, like a broker.
        whole: state shared with the other parts of a large request.
    """

    def plan(
        resource: incremental_alter_configs.AlterConfigsResource, before: Texts
    ) -> dict[str, str]:
        after = dict(before)
        for config in resource.configs:
            _operate(resource.resource_type, config, after)
        return after

    def is_null(config: incremental_alter_configs.AlterableConfig) -> bool:
        return config.value is None and config.config_operation != DELETE

    changes = _Changes(image, broker_config, controller_id, whole or WholeRequest())
    results = changes.alter(
        request.resources, plan, is_null, incremental_alter_configs.AlterConfigsResourceResponse
    )
    return Decision(
        [] if request.validate_only else changes.records,
        IncrementalAlterConfigsResponse(responses=results),
    )


def decide_alter_configs(
    image: ClusterImage,
    request: AlterConfigsRequest,
    broker_config: Mapping[str, Value],
    controller_id: int,
    whole: WholeRequest | None = None,
) -> Decision:
    """Replace all options of each resource; options that are not named get their defaults.

    Args:
        broker_config: all static broker options; topics inherit from them.
        controller_id: may have options of its own, like a broker.
        whole: state shared with the other parts of a large request.
    """
    changes = _Changes(image, broker_config, controller_id, whole or WholeRequest())
    results = changes.alter(
        request.resources,
        lambda resource, before: {config.name: config.value or "" for config in resource.configs},
        lambda config: config.value is None,
        alter_configs.AlterConfigsResourceResponse,
    )
    return Decision(
        [] if request.validate_only else changes.records, AlterConfigsResponse(responses=results)
    )


def _operate(
    resource_type: int, config: incremental_alter_configs.AlterableConfig, texts: dict[str, str]
) -> None:
    """Apply an operation to one option in `texts`."""
    operation, name = config.config_operation, config.name
    if operation == DELETE:
        texts.pop(name, None)
        return
    value = config.value or ""
    if operation == SET:
        texts[name] = value
        return
    if operation not in _OPERATIONS:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
    option = _find_list(resource_type, name, operation)
    words = _words(texts.get(name, write(option.default) or ""))
    if operation == APPEND:
        words += [word for word in dict.fromkeys(_words(value)) if word not in words]
    else:
        taken = _words(value)
        words = [word for word in words if word not in taken]
    texts[name] = ",".join(words)


def _find_list(resource_type: int, name: str, operation: int) -> Option:
    word = _OPERATIONS[operation]
    if resource_type != CONFIG_BROKER:
        table = _TABLES[resource_type]
        if name not in table or table[name].type is not LIST:
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"Can't {word.upper()} to key {name} because its type is not LIST.",
            )
        return table[name]
    if name not in BROKER:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"Unknown config name: {name}")
    if BROKER[name].type is not LIST:
        raise Refusal(
            ErrorCode.INVALID_CONFIG, f"Config value {word} is not allowed for config key: {name}"
        )
    return BROKER[name]


def _words(text: str) -> list[str]:
    return [word for each in text.split(",") if (word := each.strip())]


class _Changes:
    """Decides the resources of one request, one after the other.

    Attributes:
        records: the records of the decisions so far.
    """

    def __init__(
        self,
        image: ClusterImage,
        broker_config: Mapping[str, Value],
        controller_id: int,
        whole: WholeRequest,
    ) -> None:
        self._image = image
        self._whole = whole
        self._nodes = {controller_id, *image.brokers}
        self._broker = resolve(broker_config, image.configs(CONFIG_BROKER, _ALL_BROKERS), {})
        self._inherited = inherit(self._broker)
        self._static_min_isr = broker_config[MIN_ISR]
        self.records: list[Any] = []

    def alter(
        self,
        resources: Sequence[R],
        plan: Callable[[R, Texts], dict[str, str]],
        is_null: Callable[[Any], bool],
        result: Callable[..., Result],
    ) -> list[Result]:
        """Alter each resource; returns the results.

        Args:
            plan: returns a resource's new options, from the resource and its old options.
            is_null: whether one of its options lacks a value.
            result: makes the result of a resource.
        """
        times = self._whole.count((each.resource_type, each.resource_name) for each in resources)
        results = []
        for resource in resources:
            code, message = ErrorCode.NONE, None
            try:
                if times[resource.resource_type, resource.resource_name] > 1:
                    raise Refusal(
                        ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                    )
                self._check_request(resource, is_null)
                self._alter(resource, plan)
            except Refusal as refusal:
                code, message = refusal.code, refusal.message
            results.append(
                result(
                    error_code=code,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        return results

    def _check_request(self, resource: R, is_null: Callable[[Any], bool]) -> None:
        if len(resource.configs) > MAX_RECORDS:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"{len(resource.configs)} configs lead to more than the {MAX_RECORDS} records "
                "that a request may; name each config once.",
            )
        names = [config.name for config in resource.configs]
        if len(set(names)) != len(names):
            raise Refusal(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        if nulls := [config.name for config in resource.configs if is_null(config)]:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}"
            )
        kind = resource.resource_type
        if kind == _BROKER_LOGGER:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"Resource type {kind} (loggers of brokers) has no configs here: the levels of a "
                "running broker's loggers cannot be changed.",
            )
        if kind not in _TABLES:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")

    def _alter(self, resource: R, plan: Callable[[R, Texts], dict[str, str]]) -> None:
        kind, name = resource.resource_type, resource.resource_name
        before = self._image.configs(kind, name)
        if kind == CONFIG_BROKER:
            _check_broker_name(name)
            after = plan(resource, before)
            self._check_broker(name, before, after)
        else:
            after = plan(resource, before)
            if kind == CONFIG_TOPIC:
                self._check_topic(name, after)
            else:
                _check_group(kind, name, after, self._broker)
        table = _TABLES[kind]
        records: list[Any] = [
            ConfigRecord(resource_type=kind, resource_name=name, name=option, value=text)
            for option in dict.fromkeys((*after, *before))
            if after.get(option) != before.get(option)
            and (text := _normalize(table, option, after.get(option))) != before.get(option)
        ]
        if self._min_isr(kind, after) < self._min_isr(kind, before):
            # ELR members only have all records that were committed under the old minimum. Kafka
            # also forgets them if the minimum rises or stays.
            records.append(ClearElrRecord(topic_name=name if kind == CONFIG_TOPIC else ""))
        if self._whole.records + len(records) > MAX_RECORDS:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"The request would write more than {MAX_RECORDS} records; alter less at a time.",
            )
        self._whole.records += len(records)
        self.records += records

    def _min_isr(self, kind: int, configs: Texts) -> int:
        """`min.insync.replicas` of a resource with these configs; 0 if it has no such option."""
        if kind not in (CONFIG_TOPIC, CONFIG_BROKER):
            return 0
        inherited = self._inherited[MIN_ISR] if kind == CONFIG_TOPIC else self._static_min_isr
        text = configs.get(MIN_ISR)
        value = inherited if text is None else TOPIC[MIN_ISR].check(text)
        assert isinstance(value, int)
        return value

    def _check_topic(self, name: str, after: Texts) -> None:
        if not name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        fault = find_fault(name)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        for option in after:
            if option not in TOPIC:
                raise Refusal(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {option}")
        try:
            values = {**self._inherited, **read_given(TOPIC, after)}
            check_topic(values)
        except UsageError as error:
            raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from error
        if name not in self._image.topics:
            raise Refusal(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
            )
        warn_ignored(TOPIC, f"topic={name}", {option: values[option] for option in after})

    def _check_broker(self, name: str, before: Texts, after: Texts) -> None:
        changed = {option: text for option, text in after.items() if text != before.get(option)}
        known = {option: text for option, text in changed.items() if option in BROKER}
        unknown = sorted(changed.keys() - known.keys())
        for option in filter(BROKER.refuses, unknown):
            try:
                BROKER.find(option)
            except UsageError as error:
                raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from error
        fixed = sorted(option for option in known if BROKER[option].dynamic is READ_ONLY)
        if fixed:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"Cannot update these configs dynamically: [{', '.join(fixed)}]",
            )
        values = {}
        for option, text in known.items():
            try:
                values[option] = BROKER[option].check(text, "broker")
            except UsageError as error:
                # Kafka answers INVALID_REQUEST; INVALID_CONFIG is for trimtab's own options.
                code = ErrorCode.INVALID_CONFIG if option in OPTIONS else ErrorCode.INVALID_REQUEST
                raise Refusal(code, str(error)) from error
        own = sorted(option for option in known if BROKER[option].dynamic is not CLUSTER_WIDE)
        if name == _ALL_BROKERS and own:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                "Cannot update these configs at default cluster level, broker id must be "
                f"specified: [{', '.join(own)}]",
            )
        if name != _ALL_BROKERS and after.get(MIN_ISR) != before.get(MIN_ISR):
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
            )
        if name != _ALL_BROKERS and int(name) not in self._nodes:
            raise Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {name} found.")
        warn_ignored(BROKER, f"broker={name or 'all'}", values)
        if unknown:  # their values may be secrets
            _log.warning(
                "unknown configs are kept broker=%s count=%d first=%.100r",
                name or "all",
                len(unknown),
                unknown[0],
            )


def _check_group(kind: int, name: str, after: Texts, broker: Mapping[str, Value]) -> None:
    """Check the options of a group or of a client metrics subscription."""
    table = _TABLES[kind]
    if not name:
        what = (
            "Default group resources are not allowed."
            if kind == CONFIG_GROUP
            else "Subscription name can't be empty"
        )
        raise Refusal(ErrorCode.INVALID_REQUEST, what)
    for option in after:
        if option not in table:
            if kind == CONFIG_GROUP:
                raise Refusal(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {option}")
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {option}"
            )
    try:
        values = read_given(table, after)
        check_group(values, broker)
    except UsageError as error:
        raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from error
    warn_ignored(table, f"{table.kind.replace(' ', '_')}={name!r:.100}", values)


def _check_broker_name(name: str) -> None:
    number = name.removeprefix("-")
    if name == _ALL_BROKERS:
        return
    if not number.isascii() or not number.isdecimal() or str(int(number)) != number:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if name != number:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Invalid negative broker ID.")


def _normalize(table: OptionTable, name: str, text: str | None) -> str | None:
    """The canonical text of a checked value; an unknown option's value is returned unchanged."""
    return text if text is None or name not in table else write(table[name].check(text))


def warn_ignored(table: OptionTable, of: str, values: Mapping[str, Value]) -> None:
    """Warn of options that have no effect."""
    for name, value in values.items():
        option = table[name]
        if not option.honoured and value != option.default:
            _log.warning(
                "config is kept but has no effect %s config=%s value=%s", of, name, write(value)
            )
