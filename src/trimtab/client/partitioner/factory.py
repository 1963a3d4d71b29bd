"""Creates the partitioner that the options select.

partitioner.* ─▶ make_partitioner ─▶ per record: round robin, a user's own
                                 └─▶ by turns:   built in (KIP-794, KIP-1123), sticky (KIP-480),
                                                 soonest
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, cast

from trimtab.client.network.options import Options
from trimtab.client.partitioner.per_record import (
    CallableNewBatchPartitioner,
    CallablePartitioner,
    RoundRobinPartitioner,
)
from trimtab.client.partitioner.protocol import Partitioner
from trimtab.client.partitioner.sticky import StickyPartitioner
from trimtab.kafka.errors import UsageError

logger = logging.getLogger("trimtab.client")


def _close_nothing() -> None:
    """The `close` of a partitioner without one."""


@dataclass(frozen=True, slots=True)
class PartitionerMaker:
    """Creates the partitioners of one producer: called once per topic.

    Attributes:
        ignores_keys: whether records with keys are treated like those without.
        is_java: whether they are for `JavaAccumulator`.
        close: called when the producer is closed.
    """

    make: Callable[[], Partitioner]
    ignores_keys: bool = False
    is_java: bool = False
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
    "partitioner.availability.timeout.ms",
    "partitioner.balance",
    "partitioner.compat",
    "partitioner.ignore.keys",
    "partitioner.rack.aware",
    "partitioner.rack.aware.strict",
)


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
    name = options.optional_text("partitioner.class")
    if custom is None and name is None:
        return _make_built_in(options, rack, random)
    _warn_without_effect(
        options, _BUILT_IN_OPTIONS, "partitioner.class is set, and they are for the built-in logic"
    )
    if custom is None:
        assert name is not None
        match _ALIASES.get(name):
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
        custom = _load(name)
    return _wrap_custom(custom, options)


def _make_built_in(options: Options, rack: str | None, random: Random) -> PartitionerMaker:
    is_adaptive = options.flag("partitioner.adaptive.partitioning.enable")
    is_java = options.text("partitioner.compat") == "java"
    balance = options.optional_text("partitioner.balance")
    if not is_adaptive:
        _warn_without_effect(
            options,
            ("partitioner.availability.timeout.ms",),
            "partitioner.adaptive.partitioning.enable is false",
        )
    ignores_keys = options.flag("partitioner.ignore.keys")
    batch_size = options.integer("batch.size")
    # Imported here so that a producer loads only its own.
    if balance is not None:
        _check_balance(options, is_java, is_adaptive)
        from trimtab.client.partitioner.soonest import (
            BOUNDS,
            SoonestOptions,
            SoonestPartitioner,
        )

        soonest = SoonestOptions(
            quantum=max(1, batch_size),
            bound=BOUNDS[balance] if balance in BOUNDS else float(balance),
            linger=options.seconds("linger.ms"),
            rack=rack,
        )
        return PartitionerMaker(lambda: SoonestPartitioner(soonest, random), ignores_keys)
    if is_java:
        from trimtab.client.partitioner.java import JavaOptions, JavaPartitioner

        java = JavaOptions(batch_size=batch_size, is_adaptive=is_adaptive, rack=rack)
        return PartitionerMaker(
            lambda: JavaPartitioner(java, lambda: random.getrandbits(31)),
            ignores_keys,
            is_java=True,
        )
    from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner

    built_in = BuiltInOptions(quantum=max(1, batch_size), is_adaptive=is_adaptive, rack=rack)
    return PartitionerMaker(lambda: BuiltInPartitioner(built_in, random), ignores_keys)


def _check_balance(options: Options, is_java: bool, is_adaptive: bool) -> None:
    """Raise UsageError if `partitioner.balance` contradicts another option."""
    balance = f"partitioner.balance={options['partitioner.balance']}"
    if is_java:
        raise UsageError(
            f"{balance} is not Java's, but partitioner.compat is java; set one of the two"
        )
    if not is_adaptive:
        raise UsageError(
            f"{balance} adapts to the brokers, but partitioner.adaptive.partitioning.enable is"
            " false; set one of the two"
        )
    if options.text("acks") == "0":
        raise UsageError(
            f"{balance} measures the brokers' answers, and with acks=0 there are none; set acks to"
            " 1 or all, or leave partitioner.balance unset"
        )


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
        configure(dict(options))
    return PartitionerMaker(make, close=getattr(user, "close", _close_nothing))
