"""Which value of an option counts, where it can be given in more than one place.

    default < given to the broker < set for all brokers < set for this one (< set for the topic)

Brokers take over what is set while they run (KIP-226); topics take their defaults from their
broker. What is set comes from the cluster's metadata, as text.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from trimtab.config.broker import BROKER
from trimtab.config.options import (
    CLUSTER_WIDE,
    READ_ONLY,
    Option,
    Value,
    read,
    read_given,
)
from trimtab.config.topic import TOPIC
from trimtab.errors import UsageError

_log = logging.getLogger(__name__)

_MILLISECONDS = {"hours": 3_600_000, "minutes": 60_000}


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
    """One place where a value comes from, or would if it did not come from elsewhere."""

    name: str
    value: Value
    source: Source


class Settings(NamedTuple):
    """A broker's options, by the places where they are set."""

    broker: Mapping[str, Value]
    all_brokers: Mapping[str, Value]
    given: Mapping[str, Value]

    @classmethod
    def read(
        cls, given: Mapping[str, Value], all_brokers: Mapping[str, str], broker: Mapping[str, str]
    ) -> Settings:
        """Checks what the metadata holds. What does not fit is as if it were not set, with a
        warning: this broker may be older than the controller that took it. Options that nobody
        knows are passed over: setting one is no mistake (it may be a plugin's)."""
        return cls(
            dict(_usable(broker, for_all=False)), dict(_usable(all_brokers, for_all=True)), given
        )

    def resolve(self) -> dict[str, Value]:
        """Every option's value that counts."""
        return {**read(BROKER, {}), **self.given, **self.all_brokers, **self.broker}

    def of(self, option: Option) -> list[Setting]:
        """Everything one broker option's value could come from, what counts first."""
        names = next((t.synonyms for t in TOPIC if option.name in t.synonyms), (option.name,))
        found = self._of(names)
        # A stronger option that says the same in another unit is no source of this one.
        while found and found[0].name != option.name:
            del found[0]
        return found

    def of_topic(self, option: Option, given: Mapping[str, str]) -> list[Setting]:
        """Everything one topic option's value could come from, what counts first."""
        found = self._of(option.synonyms)
        if option.name in given:
            found.insert(0, Setting(option.name, option.check(given[option.name]), Source.TOPIC))
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
) -> dict[str, Value]:
    """Every option of a broker, as it counts.

    Args:
        given: to it when it started, checked (`read_given`).
        all_brokers: what the metadata has for all brokers (the broker whose name is empty).
        broker: what it has for this one.
    """
    return Settings.read(given, all_brokers, broker).resolve()


def resolve_topic(broker: Mapping[str, Value], given: Mapping[str, str]) -> dict[str, Value]:
    """Every option of a topic, as it counts on a broker.

    Args:
        broker: all of the broker's (`resolve`).
        given: what the metadata has for the topic.

    Raises:
        UsageError: the metadata hold what is no option of a topic.
    """
    return {**inherit(broker), **read_given(TOPIC, given)}


def check_topic(values: Mapping[str, Value]) -> None:
    """Options of a topic, all of them, that each fit: do they fit together?

    Raises:
        UsageError: they do not, or ask for what there is not.
    """
    if values["remote.storage.enable"]:
        raise UsageError("topic remote.storage.enable=true: there is no tiered storage; leave it")
    shortest, longest = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if shortest > longest:  # type: ignore[operator]
        raise UsageError(
            f"topic min.compaction.lag.ms={shortest}: must be at most max.compaction.lag.ms, "
            f"which is {longest}"
        )


def inherit(broker: Mapping[str, Value]) -> dict[str, Value]:
    """The topic options as this broker defaults them, for a topic that sets nothing itself."""
    return {option.name: inherited(option, broker) for option in TOPIC}


def inherited(option: Option, broker: Mapping[str, Value]) -> Value:
    """A topic option's default on this broker: the first synonym that is set, in its unit."""
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
            _log.warning("ignoring what is set in the metadata error=%s", error)
            continue
        yield option.name, value


def _in_milliseconds(name: str, value: Value) -> Value:
    scale = _MILLISECONDS.get(name.rpartition(".")[2])
    if scale is None or not isinstance(value, int) or value < 0:
        return value
    return value * scale
