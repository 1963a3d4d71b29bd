"""The options of `format("trimtab")`: those of Spark's own Kafka source, by the same names.

Source: `KafkaSourceProvider.validateBatchOptions` and `JsonUtils` of spark-sql-kafka-0-10 (4.2).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

from trimtab.errors import UsageError
from trimtab.records import TopicPartition

EARLIEST: Final = -2
"""In offsets given as JSON: the first offset there is."""

LATEST: Final = -1
"""In offsets given as JSON: the offset after the last record."""

Offsets = Literal["earliest", "latest"] | Mapping[TopicPartition, int]
"""Where to start or end: the same for every partition, or an offset for each."""

_PREFIX = "kafka."
_BOOTSTRAP_SERVERS = "bootstrap.servers"
_CHOICES = ("subscribe", "subscribePattern", "assign")
_NAMES = (
    _BOOTSTRAP_SERVERS,
    *_CHOICES,
    "startingOffsets",
    "endingOffsets",
    "minPartitions",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "includeHeaders",
    "includeBatches",
)

_DECIDED_HERE = {
    "auto.offset.reset": "startingOffsets says where to start",
    "key.deserializer": "keys are bytes: cast them in Spark",
    "value.deserializer": "values are bytes: cast them in Spark",
    "enable.auto.commit": "Spark's source commits no offsets",
    "interceptor.classes": "it may change what is read",
}


@dataclass(frozen=True)
class SourceOptions:
    """What to read, checked. Exactly one of `topics`, `pattern`, `partitions` is set."""

    client: Mapping[str, str]
    topics: tuple[str, ...]
    pattern: str
    partitions: tuple[TopicPartition, ...]
    starting: Offsets
    ending: Offsets
    min_partitions: int
    """At least so many Spark partitions, if there are as many offsets; 0: as the topics have."""
    fail_on_data_loss: bool
    poll_timeout_ms: int
    """How long a task may wait for data, milliseconds."""
    include_headers: bool
    include_batches: bool


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """Check what a user gave `spark.read.options`.

    Args:
        options: by name in any case (Spark lower-cases the names).

    Raises:
        UsageError: an unknown name, a value out of range, a missing or a contradicting option.
    """
    given = {name.lower(): value for name, value in options.items()}
    client = {
        name.removeprefix(_PREFIX): value
        for name, value in given.items()
        if name.startswith(_PREFIX)
    }
    known = {name.lower(): name for name in _NAMES}
    for name in given:
        if name not in known and not name.startswith(_PREFIX):
            _refuse_unknown(name, known)
    for name, reason in _DECIDED_HERE.items():
        if name in client:
            raise UsageError(f"option kafka.{name} cannot be set here: {reason}")
    servers = given.get(_BOOTSTRAP_SERVERS)
    if servers is not None and client.setdefault(_BOOTSTRAP_SERVERS, servers) != servers:
        raise UsageError(
            f"options {_BOOTSTRAP_SERVERS}={servers!r} and kafka.{_BOOTSTRAP_SERVERS}="
            f"{client[_BOOTSTRAP_SERVERS]!r} contradict each other: give one of them"
        )
    if not client.get(_BOOTSTRAP_SERVERS, "").strip():
        raise UsageError(
            "option kafka.bootstrap.servers is missing: say where the cluster is, as HOST:PORT,…"
        )
    chosen = [name for name in _CHOICES if name.lower() in given]
    if len(chosen) != 1:
        raise UsageError(
            f"give exactly one of the options {', '.join(_CHOICES)}, not "
            f"{' and '.join(chosen) or 'none'}"
        )
    return SourceOptions(
        client=client,
        topics=_read_topics(given.get("subscribe")),
        pattern=_read_pattern(given.get("subscribepattern")),
        partitions=_read_assignment(given.get("assign")),
        starting=_read_offsets("startingOffsets", given, EARLIEST),
        ending=_read_offsets("endingOffsets", given, LATEST),
        min_partitions=_read_count("minPartitions", given, default=0),
        fail_on_data_loss=_read_flag("failOnDataLoss", given, default=True),
        poll_timeout_ms=_read_count("kafkaConsumer.pollTimeoutMs", given, default=120_000),
        include_headers=_read_flag("includeHeaders", given, default=False),
        include_batches=_read_flag("includeBatches", given, default=False),
    )


def _refuse_unknown(name: str, known: Mapping[str, str]) -> NoReturn:
    nearest = difflib.get_close_matches(name, [*known, *(_PREFIX + each for each in known)], n=1)
    if nearest:
        hint = f"did you mean {known.get(nearest[0], nearest[0])}?"
    else:
        hint = f"known are {', '.join(_NAMES)}, and the client's options as kafka.NAME"
    raise UsageError(f"unknown option {name}: {hint}")


def _read_topics(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise UsageError(f"option subscribe={text!r} names no topic: write them as topicA,topicB")
    return topics


def _read_pattern(text: str | None) -> str:
    if text is None:
        return ""
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(
            f"option subscribePattern={text!r} is no regular expression: {error}"
        ) from error
    if not text:
        raise UsageError("option subscribePattern is empty: '.*' stands for every topic")
    return text


def _read_assignment(text: str | None) -> tuple[TopicPartition, ...]:
    if text is None:
        return ()
    example = '{"topicA":[0,1],"topicB":[2,4]}'
    topics = _read_json("assign", text, example)
    partitions = []
    for topic, numbers in topics.items():
        if not isinstance(numbers, list) or not all(_is_number(each, 0) for each in numbers):
            _refuse_json("assign", text, example)
        partitions += [TopicPartition(topic, number) for number in numbers]
    if not partitions:
        raise UsageError(f"option assign={text!r} names no partition: write for instance {example}")
    return tuple(dict.fromkeys(partitions))


def _read_offsets(name: str, given: Mapping[str, str], default: int) -> Offsets:
    """`earliest`, `latest` or JSON; a batch cannot start at the end nor end at the start."""
    text = given.get(name.lower())
    words: dict[str, Literal["earliest", "latest"]] = {"earliest": "earliest", "latest": "latest"}
    refused = LATEST if default == EARLIEST else EARLIEST
    refused_word = "latest" if refused == LATEST else "earliest"
    if text is None:
        return "earliest" if default == EARLIEST else "latest"
    word = words.get(text.strip().lower())
    if word == refused_word:
        raise UsageError(f"option {name}={text!r}: a batch would hold nothing")
    if word is not None:
        return word
    example = '{"topicA":{"0":23,"1":' + str(default) + "}}"
    offsets: dict[TopicPartition, int] = {}
    for topic, by_partition in _read_json(name, text, example).items():
        if not isinstance(by_partition, dict):
            _refuse_json(name, text, example)
        for partition, offset in by_partition.items():
            if not partition.isdecimal() or not _is_number(offset, EARLIEST):
                _refuse_json(name, text, example)
            if offset == refused:
                raise UsageError(
                    f"option {name}: {offset} ({refused_word}) for {topic}-{partition}: "
                    "a batch would hold nothing"
                )
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def _read_json(name: str, text: str, example: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        _refuse_json(name, text, example)
    if not isinstance(value, dict):
        _refuse_json(name, text, example)
    return value


def _refuse_json(name: str, text: str, example: str) -> NoReturn:
    raise UsageError(f"option {name}={text!r} cannot be read: write for instance {example}")


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _read_count(name: str, given: Mapping[str, str], *, default: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) == 0:
        raise UsageError(f"option {name}={text!r}: write a whole number of at least 1")
    return int(text)


def _read_flag(name: str, given: Mapping[str, str], *, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise UsageError(f"option {name}={text!r}: write true or false")
    return text.strip().lower() == "true"
