"""Values of the options of `format("trimtab")`, parsed from the text that Spark passes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NoReturn

from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import INT_MAX, LONG_MAX, POSITIVE, Option, Range, write
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.sentinels import EARLIEST, LATEST

EVERY_PARTITION: Final = -1
"""Stands for the numbers of a topic's partitions, which are not known while options are read."""

WORDS: Final = {EARLIEST: "earliest", LATEST: "latest"}
"""The words for two special offsets."""

_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_SIZE_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}


class GivenOptions:
    """The options that a user gave, by lower-case name; `name` has the guide's spelling.

    Every method returns the table's default if the option was not given, else its own, and raises
    UsageError, which names the option and its value, if the value is invalid.

    Args:
        table: the options whose defaults and ranges count.
    """

    def __init__(self, options: Mapping[str, str], table: Iterable[Option] = ()) -> None:
        self.by_name: Final = {name.lower(): str(value) for name, value in options.items()}
        self._table: Final = {option.name: option for option in table}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self.by_name

    def text(self, name: str) -> str | None:
        """The value without surrounding white space, as the connector reads it."""
        value = self.by_name.get(name.lower())
        return None if value is None else value.strip()

    def text_or_default(self, name: str) -> str | None:
        """The same, or what a user would write to get the table's default."""
        text = self.text(name)
        return write(self._table[name].default) if text is None and name in self._table else text

    def flag(self, name: str, default: bool = False) -> bool:
        text = self.text_or_default(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise UsageError(f"option {name}={text!r}: write true or false")
        return text.lower() == "true"

    def number(self, name: str, default: int = 0) -> int:
        """A whole number of at least 1, or as the table has it."""
        text = self.text_or_default(name)
        if text is None:
            return default
        valid = self._table[name].valid if name in self._table else POSITIVE
        least = int(valid.low) if isinstance(valid, Range) else 1
        if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or not least <= int(text) <= LONG_MAX:
            raise UsageError(f"option {name}={text!r}: write a whole number of at least {least}")
        return int(text)

    def word(self, name: str, words: tuple[str, ...] = ()) -> str:
        """One of these words, the first by default, or of the table's; in any case."""
        words = words or self._table[name].words
        text = self.text_or_default(name)
        if text is None:
            return words[0]
        if text.lower() not in words:
            raise UsageError(f"option {name}={text!r}: write {' or '.join(words)}")
        return text.lower()

    def size(self, name: str) -> int:
        """A number of bytes, written as Spark's sizes (`8m`, `1g`); 0 if not given."""
        text = self.text(name)
        if text is None:
            return 0
        found = re.fullmatch(r"(\d{1,19})\s*(?:([kmgtp]?)b?)", text.lower(), re.ASCII)
        size = int(found[1]) * _SIZE_UNITS[found[2]] if found else 0
        if not 1 <= size <= LONG_MAX:
            raise UsageError(
                f"option {name}={text!r}: write a number of bytes of at least 1, such as 8m or 1g"
            )
        return size

    def seconds(self, name: str, default: float = 0.0) -> float:
        """A time, written as Spark's durations (`15m`, `90s`); a bare number is milliseconds."""
        text = self.text_or_default(name)
        if text is None:
            return default
        found = re.fullmatch(r"(\d{1,19})\s*(us|ms|s|m|min|h|d)?", text.lower(), re.ASCII)
        if found is None:
            raise UsageError(f"option {name}={text!r}: write a time, such as 15m, 90s or 500ms")
        return int(found[1]) * _DURATION_UNITS[found[2] or "ms"]

    def time(self, name: str) -> int | None:
        """A time in milliseconds since the epoch."""
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or int(text) > LONG_MAX:
            raise UsageError(
                f"option {name}={text!r}: write a time in milliseconds since 1970-01-01 UTC,"
                " such as 1767225600000"
            )
        return int(text)

    def topics(self, name: str) -> tuple[str, ...]:
        text = self.text(name)
        if text is None:
            return ()
        topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
        if not topics:
            raise UsageError(f"option {name}={text!r} names no topic: write them as topicA,topicB")
        return topics

    def pattern(self, name: str) -> str:
        text = self.text(name)
        if text is None:
            return ""
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(
                f"option {name}={text!r} is not a valid Python regular expression: {error}"
            ) from error
        if not text:
            raise UsageError(f"option {name} is empty: '.*' matches every topic")
        return text

    def partitions(self, name: str) -> tuple[TopicPartition, ...]:
        text = self.text(name)
        if text is None:
            return ()
        example = '{"topicA":[0,1],"topicB":[2,4]}'
        partitions = []
        for topic, numbers in _read_json(name, text, example).items():
            if not isinstance(numbers, list) or not all(map(_is_partition, numbers)):
                _refuse_json(name, text, example)
            partitions += [TopicPartition(topic, number) for number in numbers]
        if not partitions:
            raise UsageError(f"option {name}={text!r} names no partition: write e.g. {example}")
        return tuple(dict.fromkeys(partitions))

    def offsets(self, name: str, example: int) -> dict[TopicPartition, int]:
        """An offset, or -2 (earliest) or -1 (latest), for each partition, or for
        `EVERY_PARTITION` of a topic."""
        text = f'{{"topicA":{{"0":23,"1":{example}}},"topicB":"{WORDS[example]}"}}'
        return self._by_partition(name, text, _is_offset, {WORDS[each]: each for each in WORDS})

    def times(self, name: str) -> dict[TopicPartition, int]:
        """A time in milliseconds since the epoch for each partition."""
        return self._by_partition(name, '{"topicA":{"0":1767225600000}}', _is_time)

    def _by_partition(
        self,
        name: str,
        example: str,
        is_valid: Callable[[object], bool],
        words: Mapping[str, int] = MappingProxyType({}),
    ) -> dict[TopicPartition, int]:
        text = self.text(name) or ""
        found: dict[TopicPartition, int] = {}
        for topic, by_partition in _read_json(name, text, example).items():
            if isinstance(by_partition, str) and by_partition.lower() in words:
                found[TopicPartition(topic, EVERY_PARTITION)] = words[by_partition.lower()]
                continue
            if not isinstance(by_partition, dict):
                _refuse_json(name, text, example)
            for partition, value in by_partition.items():
                if not re.fullmatch(r"\d{1,10}", partition, re.ASCII) or not is_valid(value):
                    _refuse_json(name, text, example)
                found[TopicPartition(topic, int(partition))] = value
        return found


def _read_json(name: str, text: str, example: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        _refuse_json(name, text, example)
    if not isinstance(value, dict):
        _refuse_json(name, text, example)
    return value


def _refuse_json(name: str, text: str, example: str) -> NoReturn:
    raise UsageError(f"option {name}={text!r} cannot be read: write for instance {example}")


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_partition(value: object) -> bool:
    return _is_whole(value, 0, INT_MAX)


def _is_offset(value: object) -> bool:
    return _is_whole(value, -2, LONG_MAX)


def _is_time(value: object) -> bool:
    return _is_whole(value, 0, LONG_MAX)
