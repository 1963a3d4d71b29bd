"""Checks the arguments of public calls, before the call changes or sends anything.

Every function returns the argument in the form that the client uses, or raises a UsageError that
names the argument, its value and the fix. A bool is not accepted as a number: the caller probably
meant it for another argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any, NoReturn, SupportsIndex, TypeAlias, TypeVar

from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

Partition: TypeAlias = TopicPartition | tuple[str, int]
"""A partition in a caller's argument: `TopicPartition("t", 0)` or just `("t", 0)`."""

AnyPartition = TypeVar("AnyPartition", bound=tuple[str, int])
"""The same as the keys of a mapping, whose type is invariant."""

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
MAX_TIME = MAX_INT64 - 1
"""One less than the largest: record batches use that one for another purpose."""
_LONGEST_TOPIC = 249
"""Characters (`org.apache.kafka.common.internals.Topic`)."""
_LONGEST_TEXT = 32_767
"""The longest string, in bytes, of Kafka's older message versions."""
_LONGEST_WAIT = 1e8
"""Seconds, three years: the longest timer of an event loop."""
_BYTES = (bytes, bytearray, memoryview)


def refuse_copying(thing: object, protocol: SupportsIndex) -> NoReturn:
    """The `__reduce_ex__` of clients and deliveries: refuses pickling and copying."""
    raise UsageError(
        f"{type(thing).__name__} cannot be pickled or copied: it works only in the process that"
        " made it; make one in each process from the same options, and instead of a delivery pass"
        " its result()"
    )


def shown(value: object) -> str:
    """A value's repr for error messages, shortened to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def checked_text(what: str, value: object, longest: int = _LONGEST_TEXT) -> str:
    """Text of at most `longest` bytes; it may be empty."""
    if isinstance(value, _BYTES):
        raise UsageError(f"{what}={shown(value)}: is bytes; give a str, as by its .decode()")
    if not isinstance(value, str):
        raise UsageError(f"{what}={shown(value)}: is of type {type(value).__name__}; give a str")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise UsageError(
            f"{what}={shown(value)}: half a surrogate pair has no UTF-8 encoding"
        ) from None
    if size > longest:
        raise UsageError(f"{what}={shown(value)}: has {size} bytes; at most {longest} are possible")
    return value


def checked_topic(value: object) -> str:
    """A topic's name; the brokers check Kafka's other rules for it."""
    if not checked_text("topic", value, _LONGEST_TOPIC):
        raise UsageError("topic='': is empty; give the topic's name")
    assert isinstance(value, str)
    return value


def checked_integer(
    what: str, value: object, low: int = 0, high: int = MAX_INT32, fix: str = ""
) -> int:
    """A whole number from `low` to `high`: an int or another integer type, such as NumPy's."""
    if not isinstance(value, bool):
        try:
            number = index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            if low <= number <= high:
                return number
            raise UsageError(f"{what}={shown(value)}: must be from {low} to {high}")
    raise UsageError(
        f"{what}={shown(value)}: is of type {type(value).__name__}; give {fix or 'an int'}"
    )


def checked_time(what: str, value: object, low: int = 0) -> int:
    """Milliseconds since the Unix epoch."""
    fix = "milliseconds since the Unix epoch as an int"
    if hasattr(value, "timestamp"):
        fix += ", as by int(when.timestamp() * 1000)"
    elif isinstance(value, float):
        fix += ", as by int(seconds * 1000)"
    return checked_integer(what, value, low, MAX_TIME, fix)


def checked_seconds(what: str, value: object) -> float | None:
    """A timeout in seconds; None for no timeout; negative numbers count as 0."""
    return None if value is None else _wait(what, value, "seconds", 1)


def checked_wait_ms(what: str, value: object) -> float:
    """A timeout in milliseconds; returned in seconds."""
    return _wait(what, value, "milliseconds", 1000)


def _wait(what: str, value: object, unit: str, in_a_second: int) -> float:
    is_nan = value != value
    if isinstance(value, bool) or not isinstance(value, int | float) or is_nan:
        fix = ""
        if hasattr(value, "total_seconds"):
            factor = "" if in_a_second == 1 else f" * {in_a_second}"
            fix = f", as by its .total_seconds(){factor}"
        raise UsageError(f"{what}={shown(value)}: must be a number of {unit}{fix}")
    return max(0.0, min(value, _LONGEST_WAIT * in_a_second) / in_a_second)


def checked_flag(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{what}={shown(value)}: must be True or False")
    return value


def checked_callable(what: str, value: object, argument: str = "the delivery") -> None:
    """A function of one argument."""
    if not callable(value):
        raise UsageError(
            f"{what}={shown(value)}: is of type {type(value).__name__}, which cannot be called;"
            f" give a function of one argument, {argument}"
        )


def checked_partition(value: object) -> TopicPartition:
    """A partition: a topic's name and a number."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        topic, number = value
        return TopicPartition(checked_topic(topic), checked_integer("partition", number))
    raise UsageError(f"{shown(value)} is no partition; name one as (topic, number), as in ('t', 0)")


def checked_partitions(value: object) -> list[TopicPartition]:
    """A list of partitions, without duplicates."""
    if isinstance(value, (str, TopicPartition)) or not isinstance(value, Iterable):
        raise UsageError(
            f"partitions={shown(value)}: give a list of (topic, number), as in [('t', 0)]"
        )
    return list(dict.fromkeys(checked_partition(each) for each in value))


def checked_each(what: str, values: Iterable[object]) -> list[TopicPartition]:
    """The partitions that a function takes one by one; a list of them is refused."""
    for value in values:
        if isinstance(value, Iterable) and not isinstance(value, (str, *_BYTES)):
            inner = list(value)
            if not inner or isinstance(inner[0], (tuple, list)):
                raise UsageError(
                    f"{what}({shown(value)}): takes partitions one by one; write"
                    f" {what}(*partitions)"
                )
    return [checked_partition(value) for value in values]


def checked_names(what: str, value: object) -> list[str]:
    """A list of topic names; a single name is refused."""
    return [checked_topic(each) for each in _several(what, value, "topics' names")]


def checked_texts(what: str, value: object) -> list[str]:
    """A list of texts; a single text is refused."""
    return [checked_text(what, each) for each in _several(what, value, "them")]


def _several(what: str, value: object, of_what: str, example: str = "['t']") -> Iterable[object]:
    if isinstance(value, (str, *_BYTES)) or not isinstance(value, Iterable):
        raise UsageError(f"{what}={shown(value)}: give a list of {of_what}, as in {example}")
    return value


def checked_mapping(what: str, value: object, example: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{what}={shown(value)}: give a dictionary, as in {example}")
    return value


def checked_brokers(what: str, value: object) -> list[int]:
    """A list of broker ids, the preferred leader first."""
    return [
        checked_integer("broker", each) for each in _several(what, value, "broker ids", "[0, 1]")
    ]


def checked_producers(what: str, value: object) -> list[int]:
    """A list of producer ids."""
    ids = _several(what, value, "producer ids", "[0, 1]")
    return [checked_integer("producer id", each, 0, MAX_INT64) for each in ids]


def checked_headers(value: object) -> Sequence[Any]:
    """A record's headers. Each header is checked later, when it is encoded."""
    if isinstance(value, Sequence) and not isinstance(value, (str, *_BYTES)):
        return value
    fix = "list(headers.items())" if isinstance(value, Mapping) else "a list of (name, value) pairs"
    raise UsageError(f"record headers are of type {type(value).__name__}: give {fix}")


def checked_header_name(value: object) -> str:
    return checked_text("record header name", value, MAX_INT32)
