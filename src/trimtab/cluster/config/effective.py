"""The effective value of an option that is set in several places.

    default < given to the broker < set for all brokers < set for this one (< set for the topic)

Brokers apply values that are set while they run (KIP-226); topics take their defaults from their
broker. Set values come from the cluster's metadata, as text.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from trimtab.cluster.config.broker import BROKER
from trimtab.cluster.config.topic import TOPIC
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import (
    CLUSTER_WIDE,
    READ_ONLY,
    Config,
    Option,
    Value,
    read_given,
)

_log = logging.getLogger(__name__)

_MILLISECONDS = {"hours": 3_600_000, "minutes": 60_000}


class _Bounded(NamedTuple):
    """An option of consumer groups, and those of the brokers: its default, and its bounds."""

    name: str
    default: str
    low: str
    high: str

    def bounds(self, broker: Mapping[str, Value]) -> tuple[int, int]:
        return _number(broker[self.low]), _number(broker[self.high])

    def check(self, kind: str, name: str, value: int, broker: Mapping[str, Value]) -> None:
        low, high = self.bounds(broker)
        if not low <= value <= high:
            raise UsageError(
                f"{kind} {name}={value}: must be between {self.low}={low} and {self.high}={high}"
            )


_HEARTBEAT = _Bounded(
    "consumer.heartbeat.interval.ms",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.min.heartbeat.interval.ms",
    "group.consumer.max.heartbeat.interval.ms",
)
_SESSION = _Bounded(
    "consumer.session.timeout.ms",
    "group.consumer.session.timeout.ms",
    "group.consumer.min.session.timeout.ms",
    "group.consumer.max.session.timeout.ms",
)
_BOUNDED = (
    _Bounded(
        "consumer.assignment.interval.ms",
        "group.consumer.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
    _HEARTBEAT,
    _SESSION,
)


class Source(IntEnum):
    """Where a value comes from, as Kafka's `ConfigEntry.ConfigSource` numbers it."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    GIVEN = 4
    DEFAULT = 5
    CLIENT_METRICS = 7
    GROUP = 8


class Setting(NamedTuple):
    """A value from one source, effective or overridden by another."""

    name: str
    value: Value
    source: Source


class Settings(NamedTuple):
    """A broker's options, by source."""

    broker: Mapping[str, Value]
    all_brokers: Mapping[str, Value]
    given: Mapping[str, Value]

    @classmethod
    def read(
        cls, given: Mapping[str, Value], all_brokers: Mapping[str, str], broker: Mapping[str, str]
    ) -> Settings:
        """Checks the values in the metadata. An invalid value is ignored with a warning: this
        broker may be older than the controller that accepted it. Unknown options are ignored
        without one: they may belong to a plugin."""
        return cls(
            dict(_usable(broker, for_all=False)), dict(_usable(all_brokers, for_all=True)), given
        )

    def resolve(self) -> Config:
        """Every option's effective value."""
        return Config({**BROKER.defaults(), **self.given, **self.all_brokers, **self.broker})

    def of(self, option: Option) -> list[Setting]:
        """All sources of a broker option's value, the effective one first."""
        names = next((t.synonyms for t in TOPIC if option.name in t.synonyms), (option.name,))
        found = self._of(names)
        # An option in another unit that overrides this one is not a source of it.
        while found and found[0].name != option.name:
            del found[0]
        return found

    def of_topic(self, option: Option, given: Mapping[str, str]) -> list[Setting]:
        """All sources of a topic option's value, the effective one first."""
        found = self._of(option.synonyms)
        if option.name in given:
            found.insert(0, Setting(option.name, option.check(given[option.name]), Source.TOPIC))
        return found

    def of_other(self, option: Option, given: Mapping[str, Value], source: Source) -> list[Setting]:
        """All sources of the value of a group's or a subscription's option, the effective one
        first.

        Args:
            source: of the given values.
        """
        found = self._of(option.synonyms) or [Setting(option.name, option.default, Source.DEFAULT)]
        if option.name in given:
            found.insert(0, Setting(option.name, given[option.name], source))
        return found

    def _of(self, names: tuple[str, ...]) -> list[Setting]:
        defaults = {name: BROKER[name].default for name in names}
        return [
            Setting(name, values[name], source)
            for values, source in (
                (self.broker, Source.BROKER),
                (self.all_brokers, Source.ALL_BROKERS),
                (self.given, Source.GIVEN),
                (defaults, Source.DEFAULT),
            )
            for name in names
            if values.get(name) is not None
        ]


def resolve(
    given: Mapping[str, Value], all_brokers: Mapping[str, str], broker: Mapping[str, str]
) -> Config:
    """Every option of a broker with its effective value.

    Args:
        given: the options that it was started with, checked (`read_given`).
        all_brokers: the metadata's options for all brokers (the broker whose name is empty).
        broker: the metadata's options for this broker.
    """
    return Settings.read(given, all_brokers, broker).resolve()


def resolve_topic(broker: Mapping[str, Value], given: Mapping[str, str]) -> Config:
    """Every option of a topic with its effective value on a broker.

    Args:
        broker: all of the broker's options (`resolve`).
        given: the metadata's options for the topic.

    Raises:
        UsageError: the metadata contain an unknown or invalid topic option.
    """
    return Config(inherit(broker) | read_given(TOPIC, given))


def check_topic(values: Mapping[str, Value]) -> None:
    """Check that all options of a topic, each valid by itself, do not contradict each other.

    Raises:
        UsageError: they do, or they enable a feature that trimtab lacks.
    """
    if values["remote.storage.enable"]:
        raise UsageError(
            "topic remote.storage.enable=true: there is no tiered storage; leave it out"
        )
    shortest, longest = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if shortest > longest:  # type: ignore[operator]
        raise UsageError(
            f"topic min.compaction.lag.ms={shortest}: must be at most max.compaction.lag.ms, "
            f"which is {longest}"
        )


def resolve_group(broker: Mapping[str, Value], given: Mapping[str, str]) -> dict[str, int]:
    """The options of a consumer group with their effective values on a broker: those out of its
    bounds count as the nearest within them. They may have been set before the bounds were.

    Args:
        broker: all of the broker's options (`resolve`).
        given: the metadata's options for the group.
    """
    values = {}
    for option in _BOUNDED:
        low, high = option.bounds(broker)
        value = _number(given.get(option.name, broker[option.default]))
        values[option.name] = min(max(value, low), high)
    return values


def check_group(given: Mapping[str, Value], broker: Mapping[str, Value]) -> None:
    """Check that the options of a group are within the brokers' bounds.

    Args:
        given: those that the group has.
        broker: all of the brokers' options.

    Raises:
        UsageError: one is not, or a session is not longer than the time between heartbeats.
    """
    values = {each: _number(given.get(each.name, broker[each.default])) for each in _BOUNDED}
    for option, value in values.items():
        if option.name in given:
            option.check("group", option.name, value, broker)
    if _SESSION.name in given or _HEARTBEAT.name in given:
        _check_session("group", _SESSION.name, values[_SESSION], values[_HEARTBEAT])


def check_broker(values: Mapping[str, Value]) -> None:
    """Check that all options of a broker, each valid by itself, do not contradict each other.

    Raises:
        UsageError: they do.
    """
    if not values["group.consumer.assignors"]:
        raise UsageError("broker group.consumer.assignors=: name at least one, such as uniform")
    for each in _BOUNDED:
        each.check("broker", each.default, _number(values[each.default]), values)
    for session, heartbeat in (
        (_SESSION.default, _HEARTBEAT.default),
        # Else the controller would fence every broker between its heartbeats, again and again.
        ("broker.session.timeout.ms", "broker.heartbeat.interval.ms"),
    ):
        _check_session("broker", session, _number(values[session]), _number(values[heartbeat]))


def _check_session(kind: str, name: str, session: int, heartbeat: int) -> None:
    if session <= heartbeat:
        raise UsageError(
            f"{kind} {name}={session}: must be more than the time between heartbeats, {heartbeat}"
        )


def _number(value: Value) -> int:
    """A checked number, or its text in the metadata."""
    assert isinstance(value, int | str)
    return int(value)


def inherit(broker: Mapping[str, Value]) -> dict[str, Value]:
    """The topic options of a topic on this broker that sets none itself."""
    return {option.name: inherited(option, broker) for option in TOPIC}


def inherited(option: Option, broker: Mapping[str, Value]) -> Value:
    """A topic option's default on this broker: the first synonym that is set, converted to ms."""
    for name in option.synonyms:
        value = broker[name]
        if value is not None:
            return _in_milliseconds(name, value)
    return option.default


def _usable(texts: Mapping[str, str], for_all: bool) -> Iterator[tuple[str, Value]]:
    for name, text in texts.items():
        if name not in BROKER:
            continue
        option = BROKER[name]
        try:
            if option.dynamic is READ_ONLY or (for_all and option.dynamic is not CLUSTER_WIDE):
                raise UsageError(f"broker option {name} cannot be set there")
            value = option.check(text, BROKER.kind)
        except UsageError as error:
            _log.warning("ignoring an option in the metadata error=%s", error)
            continue
        yield option.name, value


def _in_milliseconds(name: str, value: Value) -> Value:
    scale = _MILLISECONDS.get(name.rpartition(".")[2])
    if scale is None or not isinstance(value, int) or value < 0:
        return value
    return value * scale
