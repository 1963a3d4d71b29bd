"""The partitioners' interfaces, the simpler partitioners, and the options that select one.

    partitioner.* ─▶ make_partitioner ─▶ per record: round robin, a user's own
                                     └─▶ by turns:   built in (KIP-794, KIP-1123), sticky (KIP-480)

A *per-record* partitioner chooses a partition for each record. A *turn-taking* partitioner chooses
one for a turn, a run of records: KIP-480's until a new batch is needed, KIP-794's until
`batch.size` bytes were produced. A turn-taking partitioner is not asked about records with keys,
whose partition is `murmur2(key)`, unless keys are ignored.
"""

from __future__ import annotations

import importlib
import logging
import operator
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from trimtab.client.network.metadata import TopicView
from trimtab.client.options import PRODUCER, Options
from trimtab.errors import UsageError

logger = logging.getLogger("trimtab.client")

PartitionFunction: TypeAlias = Callable[
    [str, bytes | None, bytes | None, Sequence[int], Sequence[int]], int
]
"""`(topic, key, value, partitions, available) -> partition`."""


class NodeLoad(Protocol):
    """The load that this producer puts on one broker, live. Times are in seconds.

    Attributes:
        latency: from sending a Produce request to its response, a moving average; 0 while unknown.
        drain_rate: bytes per second that it acknowledges while busy; 0 while unknown.
        not_ready_since: loop time since which it accepts no batches; -1 while it accepts them.
        last_acknowledged: loop time of its last response.
    """

    @property
    def node_id(self) -> int: ...
    @property
    def queued_batches(self) -> int: ...
    @property
    def queued_bytes(self) -> int: ...
    @property
    def in_flight_batches(self) -> int: ...
    @property
    def in_flight_bytes(self) -> int: ...
    @property
    def latency(self) -> float: ...
    @property
    def drain_rate(self) -> float: ...
    @property
    def not_ready_since(self) -> float: ...
    @property
    def last_acknowledged(self) -> float: ...


class TopicLoad(Protocol):
    """The waiting batches of one topic, live: every method returns the current value in O(1)."""

    def queued_batches(self, partition: int) -> int:
        """Batches that wait to be sent, the open one included; those in flight are not."""

    def queued_bytes(self, partition: int) -> int: ...

    def take_resized(self) -> Collection[int]:
        """The partitions whose `queued_batches` may have changed since this was last called."""

    def used(self) -> Collection[int]:
        """The partitions that have had a batch (for `java.py`)."""

    def node(self, partition: int) -> NodeLoad | None:
        """The partition's leader; None if it has none."""

    def unavailable(self) -> frozenset[int]:
        """Node ids of leaders that accepted no batch for `partitioner.availability.timeout.ms`."""

    def now(self) -> float:
        """Loop time in seconds."""


class Weight(NamedTuple):
    """A partition's probability of the next turn, 0 to 1, and why it is excluded (else None)."""

    probability: float
    excluded: str | None = None


class TurnPartitioner(Protocol):
    """Chooses a partition for a turn of many records.

    Attributes:
        turns_by_batch: whether a turn ends when a new batch is needed, not after some bytes.
        is_eager: whether the next partition is chosen when a turn ends, not when the next record
            is sent.
    """

    @property
    def turns_by_batch(self) -> bool: ...
    @property
    def is_eager(self) -> bool: ...

    def next_turn(
        self, view: TopicView, previous: int, overshoot: int, load: TopicLoad
    ) -> tuple[int, int]:
        """The partition of the next turn.

        Args:
            previous: the partition whose turn ends, -1 before the first turn.
            overshoot: bytes by which its turn exceeded the quantum, counting the bytes that were
                used up at its beginning; 0 if it did not exceed it.

        Returns: the partition, and how many bytes of its quantum are already used up.
        """

    def may_stay(self, view: TopicView, partition: int, load: TopicLoad) -> bool:
        """Whether the current turn may go on; if not, the next record begins another. In O(1).

        Called before a record of the turn is appended if `view` or `load.unavailable()` has changed
        since the turn began or the last call, and when the turn would go on in a new batch.
        """

    def weigh(self, view: TopicView, load: TopicLoad) -> Mapping[int, Weight]:
        """Every partition's probability of the next turn now, in O(partitions)."""


class ObservingPartitioner(TurnPartitioner, Protocol):
    """Decides by the load at the last `observe`, as Apache Kafka's producer does."""

    def observe(self, view: TopicView, load: TopicLoad) -> None:
        """Store the load; called in each pass of the sender."""


class PerRecordPartitioner(Protocol):
    """Chooses a partition for each record, with or without key."""

    def partition(self, view: TopicView, key: bytes | None, value: bytes | None) -> int: ...


class NewBatchPartitioner(PerRecordPartitioner, Protocol):
    """Is informed of new batches (KIP-480, deprecated by KIP-794)."""

    def on_new_batch(self, view: TopicView, previous: int) -> None:
        """A record needs a new batch in partition `previous`; `partition` is called again for it.

        Also called for records with a given partition, for which `partition` is not called.
        """


class RoundRobinPartitioner:
    """Each record to the next partition that has a leader; keys are ignored.

    Source: `org.apache.kafka.clients.producer.RoundRobinPartitioner`. That one skips every other
    partition when batches are closed (KAFKA-9965); here the counter moves once per record.
    """

    def __init__(self) -> None:
        self._count = 0

    def partition(self, view: TopicView, key: bytes | None, value: bytes | None) -> int:
        candidates = view.available or range(view.partition_count)
        chosen = candidates[self._count % len(candidates)]
        self._count += 1
        return chosen


class CallablePartitioner:
    """A user's function `(topic, key, value, partitions, available) -> partition`, checked.

    A result that is not in `partitions` raises UsageError at once. Java's producer refuses a
    negative result; with one that is too large its record fails after `delivery.timeout.ms`.
    """

    def __init__(self, function: PartitionFunction) -> None:
        self._function = function

    def partition(self, view: TopicView, key: bytes | None, value: bytes | None) -> int:
        chosen = self._function(view.name, key, value, range(view.partition_count), view.available)
        try:
            index = operator.index(chosen)
        except TypeError:
            index = -1
        if not 0 <= index < view.partition_count:
            raise UsageError(
                f"the partitioner returned {chosen!r} for topic {view.name}, which has partitions"
                f" 0 to {view.partition_count - 1}; return one of these"
            )
        return index


class CallableNewBatchPartitioner(CallablePartitioner):
    """A user's function, and `on_new_batch(topic, partitions, previous)`, for new batches."""

    def __init__(
        self, function: PartitionFunction, on_new_batch: Callable[[str, Sequence[int], int], object]
    ) -> None:
        super().__init__(function)
        self._on_new_batch = on_new_batch

    def on_new_batch(self, view: TopicView, previous: int) -> None:
        self._on_new_batch(view.name, range(view.partition_count), previous)


class StickyPartitioner:
    """One partition until a new batch is needed, then another (KIP-480).

    Never the same partition twice in a row while others have a leader. The turn also ends when a
    record with a key or a given partition opens a batch in this partition.
    Source: `org.apache.kafka.clients.producer.internals.StickyPartitionCache` (2.4 to 3.2).
    """

    turns_by_batch = True
    is_eager = False

    def __init__(self, random: Random) -> None:
        self._random = random

    def next_turn(
        self, view: TopicView, previous: int, overshoot: int, load: TopicLoad
    ) -> tuple[int, int]:
        available = view.available
        if not available:
            return self._random.randrange(view.partition_count), 0
        if len(available) == 1:
            return available[0], 0
        while True:
            chosen = available[self._random.randrange(len(available))]
            if chosen != previous:
                return chosen, 0

    def may_stay(self, view: TopicView, partition: int, load: TopicLoad) -> bool:
        return True

    def weigh(self, view: TopicView, load: TopicLoad) -> Mapping[int, Weight]:
        if not view.available:
            return {p: Weight(1 / view.partition_count) for p in range(view.partition_count)}
        chance = Weight(1 / len(view.available))
        return {
            partition: chance if leader >= 0 else Weight(0.0, "it has no leader")
            for partition, leader in enumerate(view.leaders)
        }


Partitioner: TypeAlias = TurnPartitioner | PerRecordPartitioner


def _close_nothing() -> None:
    """The `close` of a partitioner without one."""


@dataclass(frozen=True, slots=True)
class PartitionerMaker:
    """Creates the partitioners of one producer: called once per topic.

    Attributes:
        ignores_keys: whether records with keys are treated like those without.
        close: called when the producer is closed.
    """

    make: Callable[[], Partitioner]
    ignores_keys: bool = False
    close: Callable[[], object] = _close_nothing

    def __call__(self) -> Partitioner:
        return self.make()


_JAVA = "org.apache.kafka.clients.producer."
_ALIASES = {
    "round_robin": "round_robin",
    "RoundRobinPartitioner": "round_robin",
    f"{_JAVA}RoundRobinPartitioner": "round_robin",
    "sticky": "sticky",
    "uniform_sticky": "uniform_sticky",
    "DefaultPartitioner": "DefaultPartitioner",
    f"{_JAVA}internals.DefaultPartitioner": "DefaultPartitioner",
    "UniformStickyPartitioner": "UniformStickyPartitioner",
    f"{_JAVA}UniformStickyPartitioner": "UniformStickyPartitioner",
}
_BUILT_IN_OPTIONS = (
    "partitioner.adaptive.partitioning.enable",
    "partitioner.adaptive.signal",
    "partitioner.availability.timeout.ms",
    "partitioner.compat",
    "partitioner.ignore.keys",
    "partitioner.rack.aware",
    "partitioner.rack.aware.strict",
)
_ADAPTIVE_OPTIONS = ("partitioner.adaptive.signal", "partitioner.availability.timeout.ms")


def make_partitioner(options: Options, custom: object | None, random: Random) -> PartitionerMaker:
    """The partitioner for the `partitioner.*` options, `batch.size` and `client.rack`.

    Args:
        custom: `partitioner.class` if it was given as an object: a function
            `(topic, key, value, partitions, available) -> partition`, or an instance or a class
            with that as its method `partition`, and optionally `configure(options)`, `close()` and
            the deprecated `on_new_batch(topic, partitions, previous)`. A class is called without
            arguments; one object serves all topics.

    Raises:
        UsageError: the options contradict each other, or `partitioner.class` is not a partitioner.
    """
    rack = _rack_of(options, custom is not None or options["partitioner.class"] is not None)
    name = options["partitioner.class"]
    if custom is None and name is None:
        return _make_built_in(options, rack, random)
    _warn_without_effect(
        options, _BUILT_IN_OPTIONS, "partitioner.class is set, and they are for the built-in logic"
    )
    if custom is None:
        match _ALIASES.get(cast(str, name)):
            case "round_robin":
                return PartitionerMaker(RoundRobinPartitioner, ignores_keys=True)
            case "sticky":
                return PartitionerMaker(lambda: StickyPartitioner(random))
            case "uniform_sticky":
                return PartitionerMaker(lambda: StickyPartitioner(random), ignores_keys=True)
            case "DefaultPartitioner":
                _warn_of_deprecation("DefaultPartitioner", "leave partitioner.class unset")
                return PartitionerMaker(lambda: StickyPartitioner(random))
            case "UniformStickyPartitioner":
                _warn_of_deprecation(
                    "UniformStickyPartitioner",
                    "leave partitioner.class unset and set partitioner.ignore.keys=true",
                )
                return PartitionerMaker(lambda: StickyPartitioner(random), ignores_keys=True)
        custom = _load(cast(str, name))
    return _wrap_custom(custom, options)


def _make_built_in(options: Options, rack: str | None, random: Random) -> PartitionerMaker:
    is_adaptive = options.flag("partitioner.adaptive.partitioning.enable")
    is_java = options.text("partitioner.compat") == "java"
    by_latency = options.text("partitioner.adaptive.signal") == "latency"
    if is_java and by_latency:
        raise UsageError(
            "partitioner.adaptive.signal=latency is not Java's, partitioner.compat is java;"
            " set one of the two"
        )
    if not is_adaptive:
        _warn_without_effect(
            options, _ADAPTIVE_OPTIONS, "partitioner.adaptive.partitioning.enable is false"
        )
    ignores_keys = options.flag("partitioner.ignore.keys")
    # Imported here because they import this module, and so that a producer loads only its own.
    if is_java:
        from trimtab.client.partitioner.java import JavaOptions, JavaPartitioner

        java = JavaOptions(
            batch_size=options.integer("batch.size"),
            is_adaptive=is_adaptive,
            rack=rack,
        )
        return PartitionerMaker(
            lambda: JavaPartitioner(java, lambda: random.getrandbits(31)), ignores_keys
        )
    from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
    from trimtab.client.partitioner.latency import LatencyPartitioner

    kind = LatencyPartitioner if by_latency and is_adaptive else BuiltInPartitioner
    built_in = BuiltInOptions(
        quantum=max(1, options.integer("batch.size")), is_adaptive=is_adaptive, rack=rack
    )
    return PartitionerMaker(lambda: kind(built_in, random), ignores_keys)


def _rack_of(options: Options, is_custom: bool) -> str | None:
    """The rack to prefer, None for none. `java.py` checks its rack itself.

    Raises:
        UsageError: rack-aware without a rack, with `partitioner.rack.aware.strict`, as in Apache
            Kafka 4.4.
    """
    if not options.flag("partitioner.rack.aware"):
        return None
    rack = options.text("client.rack")
    if rack.strip():
        return rack
    if options.flag("partitioner.rack.aware.strict"):
        raise UsageError(
            "partitioner.rack.aware is on but client.rack is empty; set client.rack to this"
            " client's rack, or switch rack awareness off"
        )
    if is_custom:
        return None
    if options.text("partitioner.compat") == "java":
        return rack
    logger.warning(
        "partitioner.rack.aware is on but client.rack is empty: all partitions are used;"
        " set client.rack to this client's rack"
    )
    return None


def _warn_without_effect(options: Options, names: Sequence[str], because: str) -> None:
    given = [name for name in names if name in options.given]
    if given:
        logger.warning("without effect: %s; %s", ", ".join(given), because)


def _warn_of_deprecation(what: str, instead: str) -> None:
    message = f"{what} is deprecated since Apache Kafka 3.3 (KIP-794): {instead}"
    logger.warning("%s", message)
    warnings.warn(message, DeprecationWarning, stacklevel=2)


def _load(path: str) -> object:
    """The object named by `module:Name` or `module.Name`."""
    module, colon, name = path.partition(":")
    if not colon:
        module, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise UsageError(
            f"partitioner.class={path!r} is not known; give round_robin, sticky,"
            " uniform_sticky, module:Name, a callable, a class, or nothing for the built-in logic"
        )
    try:
        found: object = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"partitioner.class={path!r} cannot be loaded: {error}; give the module's full name,"
            " as import takes it, and a name in it"
        ) from error
    return found


def _wrap_custom(custom: object, options: Options) -> PartitionerMaker:
    """A user's partitioner, created and configured; it serves all topics."""
    if isinstance(custom, type):
        try:
            custom = custom()
        except TypeError as error:
            raise UsageError(
                f"partitioner.class={custom!r} cannot be created without arguments: {error};"
                " give an instance instead"
            ) from error
    user = cast(Any, custom)
    function = getattr(user, "partition", user)
    if not callable(function):
        raise UsageError(
            f"partitioner.class={custom!r} is not a partitioner; give a callable (topic, key,"
            " value, partitions, available) -> partition, or an object with that as its method"
            " partition"
        )
    make: Callable[[], Partitioner] = partial(CallablePartitioner, function)
    on_new_batch = getattr(user, "on_new_batch", None)
    if on_new_batch is not None:
        _warn_of_deprecation(
            f"on_new_batch of {type(user).__name__}", "choose in partition, without regard to it"
        )
        make = partial(CallableNewBatchPartitioner, function, on_new_batch)
    configure = getattr(user, "configure", None)
    if configure is not None:
        configure({option.name: options[option.name] for option in PRODUCER})
    return PartitionerMaker(make, close=getattr(user, "close", _close_nothing))
