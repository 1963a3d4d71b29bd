"""Every option once: its name, type, default, range, unit, meaning and source.

The names and defaults are Apache Kafka's (brokers 4.3, clients 4.4), so that a configuration moves
over as it is. `read` accepts them dotted (`batch.size`) and in snake case (`batch_size`), as Python
values or as the strings that arrive on the wire and on the command line, and refuses what it does
not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from trimtab.errors import UsageError


class Password(NamedTuple):
    """A secret as an option holds it: `text` gives it away, `str` and `repr` do not."""

    text: str

    def __repr__(self) -> str:
        return "[hidden]"


Value: TypeAlias = (
    bool | int | float | str | tuple[str, ...] | Password | Callable[..., object] | None
)
"""A checked value. Lists are tuples; None means "not set", where the default is None."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class OptionType(IntEnum):
    """What a value is, numbered as DescribeConfigs numbers it (`ConfigEntry.ConfigType`)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


BOOLEAN = OptionType.BOOLEAN
STRING = OptionType.STRING
INT = OptionType.INT
SHORT = OptionType.SHORT
LONG = OptionType.LONG
DOUBLE = OptionType.DOUBLE
LIST = OptionType.LIST
CLASS = OptionType.CLASS
"""A callable; Kafka's options of this type name a Java class."""
PASSWORD = OptionType.PASSWORD

_WIDTH_BITS = {INT: 32, SHORT: 16, LONG: 64}


class Range(NamedTuple):
    """Inclusive bounds of a number; `also` are allowed values outside them, such as -1."""

    low: float
    high: float = math.inf
    also: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.high == math.inf:
            text = f"at least {self.low}"
        else:
            text = f"between {self.low} and {self.high}"
        return text + "".join(f" or {value}" for value in self.also)


class Option(NamedTuple):
    """One option.

    Attributes:
        valid: a `Range` for numbers; the allowed words for strings and lists; None if anything
            of the type will do.
        unit: `ms`, `bytes`, … or empty.
        kip: the proposal that introduced it, such as `KIP-794`; empty if older than the KIPs.
        synonyms: for topic options, the broker options its default comes from, the strongest first.
        honoured: False where the value is accepted and described, but does not change anything yet.
    """

    name: str
    type: OptionType
    default: Value
    doc: str
    valid: Range | tuple[str, ...] | None = None
    unit: str = ""
    kip: str = ""
    synonyms: tuple[str, ...] = ()
    honoured: bool = True

    def check(self, given: object, kind: str = "option") -> Value:
        """The given value in this option's type.

        Raises:
            UsageError: another type, or out of range; names the option, the value and the fix.
        """
        if given is None and self.default is None:
            return None
        value = _convert(self.type, given)
        if value is None:
            shown = "[hidden]" if self.type is PASSWORD else repr(given)
            raise UsageError(f"{kind} {self.name}={shown}: must be {_TYPE_WORDS[self.type]}")
        if isinstance(self.valid, Range):
            if value not in self.valid.also and not self.valid.low <= value <= self.valid.high:  # type: ignore[operator]
                raise UsageError(f"{kind} {self.name}={given!r}: must be {self.valid}")
        elif self.valid is not None:
            for word in value if isinstance(value, tuple) else (value,):
                if word not in self.valid:
                    words = ", ".join(self.valid)
                    raise UsageError(f"{kind} {self.name}={given!r}: must be one of {words}")
        return value


class OptionTable:
    """The options of one kind of thing (`topic`, `broker`, `producer`, …), by dotted name.

    Args:
        refused: Kafka's options that have no meaning here, and what to do instead. A name that
            ends in a dot stands for all that begin with it.
    """

    def __init__(
        self, kind: str, options: Iterable[Option], refused: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self._options = {option.name: option for option in options}
        self._dotted = {name.replace(".", "_"): name for name in self._options}
        self._refused = dict(refused or {})

    def __getitem__(self, name: str) -> Option:
        return self._options[name]

    def __contains__(self, name: object) -> bool:
        return name in self._options

    def __iter__(self) -> Iterator[Option]:
        return iter(self._options.values())

    def __len__(self) -> int:
        return len(self._options)

    def find(self, name: str) -> Option:
        """The option of this dotted or snake-case name.

        Raises:
            UsageError: there is none; says why not, or suggests the nearest name.
        """
        option = self._options.get(self._dotted.get(name, name))
        if option is not None:
            return option
        for refused, instead in self._refused.items():
            dotted = name.replace("_", ".")
            if dotted == refused or (refused.endswith(".") and dotted.startswith(refused)):
                raise UsageError(f"{self.kind} option {dotted} is not for trimtab: {instead}")
        import difflib  # only on the way to an error: importing it costs a start-up millisecond

        near = difflib.get_close_matches(name.replace("_", "."), self._options, n=1)
        fix = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(self._options))}"
        raise UsageError(f"unknown {self.kind} option {name!r}: {fix}")


def read(table: OptionTable, given: Mapping[str, object]) -> dict[str, Value]:
    """Every option of the table by its dotted name: given values checked, defaults for the rest.

    Raises:
        UsageError: an unknown name, the same option twice, a wrong type or a value out of range.
    """
    values: dict[str, Value] = {option.name: option.default for option in table}
    values.update(read_given(table, given))
    return values


def read_given(table: OptionTable, given: Mapping[str, object]) -> dict[str, Value]:
    """Like `read`, but only what was given."""
    values: dict[str, Value] = {}
    for name, value in given.items():
        option = table.find(name)
        if option.name in values:
            raise UsageError(
                f"{table.kind} option {option.name} is given twice: keep one of its spellings"
            )
        values[option.name] = option.check(value, table.kind)
    return values


def write(value: Value) -> str | None:
    """The value as the text that Kafka's DescribeConfigs shows; None if not set or secret."""
    if value is None or isinstance(value, Password):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


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


_MILLISECONDS = {"hours": 3_600_000, "minutes": 60_000}


def _in_milliseconds(name: str, value: Value) -> Value:
    scale = _MILLISECONDS.get(name.rpartition(".")[2])
    if scale is None or not isinstance(value, int) or value < 0:
        return value
    return value * scale


_TYPE_WORDS = {
    BOOLEAN: "true or false",
    STRING: "a string",
    INT: "a whole number that fits 32 bits",
    SHORT: "a whole number that fits 16 bits",
    LONG: "a whole number that fits 64 bits",
    DOUBLE: "a number",
    LIST: "a list of strings, or one string with commas",
    CLASS: "a callable",
    PASSWORD: "a string",
}


def _convert(kind: OptionType, given: object) -> Value:
    """The value in the option's type, or None if it cannot be."""
    text = given.strip() if isinstance(given, str) else None
    if kind is STRING:
        return text
    if kind is CLASS:
        return given if callable(given) else None
    if kind is PASSWORD:
        return Password(given) if isinstance(given, str) else None
    if kind is LIST:
        if text is not None:
            return tuple(word.strip() for word in text.split(",")) if text else ()
        if isinstance(given, Sequence) and all(isinstance(word, str) for word in given):
            return tuple(given)
        return None
    if kind is BOOLEAN:
        if isinstance(given, bool):
            return given
        return {"true": True, "false": False}.get(text.lower()) if text is not None else None
    if isinstance(given, bool):
        return None
    if kind is DOUBLE:
        number = given if isinstance(given, (int, float)) else _parse(float, text)
        return None if number is None or math.isnan(number) else float(number)
    whole = given if isinstance(given, int) else _parse(int, text)
    if whole is None or not -(2 ** (_WIDTH_BITS[kind] - 1)) <= whole < 2 ** (_WIDTH_BITS[kind] - 1):
        return None
    return int(whole)


def _parse(kind: type[int] | type[float], text: str | None) -> int | float | None:
    if text is None or "_" in text:  # Python's digit grouping is not Kafka's
        return None
    try:
        return kind(text)
    except ValueError:
        return None


_PERCENT = Range(0, 1)
_POSITIVE = Range(1)
_NOT_NEGATIVE = Range(0)

# --- topic --------------------------------------------------------------------------------------

TOPIC = OptionTable(
    "topic",
    (
        Option(
            "cleanup.policy",
            LIST,
            ("delete",),
            "What happens to old segments: deleted by age and size, compacted by key, or both. "
            "Compaction is not carried out yet, but records without a key are refused.",
            ("compact", "delete"),
            synonyms=("log.cleanup.policy",),
        ),
        Option(
            "compression.gzip.level",
            INT,
            -1,
            "Level if the broker recompresses with gzip.",
            Range(1, 9, (-1,)),
            kip="KIP-390",
            synonyms=("compression.gzip.level",),
            honoured=False,
        ),
        Option(
            "compression.lz4.level",
            INT,
            9,
            "Level if the broker recompresses with lz4.",
            Range(1, 17),
            kip="KIP-390",
            synonyms=("compression.lz4.level",),
            honoured=False,
        ),
        Option(
            "compression.type",
            STRING,
            "producer",
            "Codec of the stored batches. Batches are always kept as the producer sent them.",
            ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
            synonyms=("compression.type",),
            honoured=False,
        ),
        Option(
            "compression.zstd.level",
            INT,
            3,
            "Level if the broker recompresses with zstd.",
            Range(-131072, 22),
            kip="KIP-390",
            synonyms=("compression.zstd.level",),
            honoured=False,
        ),
        Option(
            "delete.retention.ms",
            LONG,
            86_400_000,
            "How long compaction keeps delete markers.",
            _NOT_NEGATIVE,
            "ms",
            synonyms=("log.cleaner.delete.retention.ms",),
            honoured=False,
        ),
        Option(
            "file.delete.delay.ms",
            LONG,
            60_000,
            "Delay between dropping a segment and deleting its files. They are deleted at once.",
            _NOT_NEGATIVE,
            "ms",
            synonyms=("log.segment.delete.delay.ms",),
            honoured=False,
        ),
        Option(
            "flush.messages",
            LONG,
            LONG_MAX,
            "Records after which the log is forced to disk (fsync).",
            _POSITIVE,
            synonyms=("log.flush.interval.messages",),
        ),
        Option(
            "flush.ms",
            LONG,
            LONG_MAX,
            "Time after which the log is forced to disk (fsync).",
            _NOT_NEGATIVE,
            "ms",
            synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        ),
        Option(
            "follower.replication.throttled.replicas",
            LIST,
            (),
            "Replicas throttled on the follower's side: partition:broker,… or *.",
            kip="KIP-73",
            honoured=False,
        ),
        Option(
            "index.interval.bytes",
            INT,
            4096,
            "Bytes of log between two entries of the offset and time indexes.",
            _NOT_NEGATIVE,
            "bytes",
            synonyms=("log.index.interval.bytes",),
        ),
        Option(
            "leader.replication.throttled.replicas",
            LIST,
            (),
            "Replicas throttled on the leader's side: partition:broker,… or *.",
            kip="KIP-73",
            honoured=False,
        ),
        Option(
            "local.retention.bytes",
            LONG,
            -2,
            "With tiered storage: bytes kept locally; -2 is retention.bytes.",
            Range(-2),
            "bytes",
            "KIP-405",
            ("log.local.retention.bytes",),
            honoured=False,
        ),
        Option(
            "local.retention.ms",
            LONG,
            -2,
            "With tiered storage: time kept locally; -2 is retention.ms.",
            Range(-2),
            "ms",
            "KIP-405",
            ("log.local.retention.ms",),
            honoured=False,
        ),
        Option(
            "max.compaction.lag.ms",
            LONG,
            LONG_MAX,
            "Longest time a record stays out of compaction.",
            _POSITIVE,
            "ms",
            "KIP-354",
            ("log.cleaner.max.compaction.lag.ms",),
            honoured=False,
        ),
        Option(
            "max.message.bytes",
            INT,
            1_048_588,
            "Largest record batch accepted, after compression, its 12 leading bytes included.",
            _NOT_NEGATIVE,
            "bytes",
            synonyms=("message.max.bytes",),
        ),
        Option(
            "message.timestamp.after.max.ms",
            LONG,
            3_600_000,
            "How far a batch's largest timestamp may lie ahead of the broker's clock.",
            _NOT_NEGATIVE,
            "ms",
            "KIP-937",
            ("log.message.timestamp.after.max.ms",),
        ),
        Option(
            "message.timestamp.before.max.ms",
            LONG,
            LONG_MAX,
            "How far a batch's first timestamp may lie behind the broker's clock.",
            _NOT_NEGATIVE,
            "ms",
            "KIP-937",
            ("log.message.timestamp.before.max.ms",),
        ),
        Option(
            "message.timestamp.type",
            STRING,
            "CreateTime",
            "Whose clock stamps records: the producer's or the broker's at append.",
            ("CreateTime", "LogAppendTime"),
            kip="KIP-32",
            synonyms=("log.message.timestamp.type",),
        ),
        Option(
            "min.cleanable.dirty.ratio",
            DOUBLE,
            0.5,
            "Share of a log that must be uncompacted before compaction starts.",
            _PERCENT,
            synonyms=("log.cleaner.min.cleanable.ratio",),
            honoured=False,
        ),
        Option(
            "min.compaction.lag.ms",
            LONG,
            0,
            "Shortest time a record stays out of compaction.",
            _NOT_NEGATIVE,
            "ms",
            "KIP-58",
            ("log.cleaner.min.compaction.lag.ms",),
            honoured=False,
        ),
        Option(
            "min.insync.replicas",
            INT,
            1,
            "Replicas that must be in sync for a write with acks=all.",
            _POSITIVE,
            synonyms=("min.insync.replicas",),
            honoured=False,
        ),
        Option(
            "preallocate",
            BOOLEAN,
            False,
            "Whether segment files take their full size when created.",
            synonyms=("log.preallocate",),
            honoured=False,
        ),
        Option(
            "remote.log.copy.disable",
            BOOLEAN,
            False,
            "With tiered storage: stop copying to it.",
            kip="KIP-950",
            honoured=False,
        ),
        Option(
            "remote.log.delete.on.disable",
            BOOLEAN,
            False,
            "With tiered storage: delete there when it is switched off.",
            kip="KIP-950",
            honoured=False,
        ),
        Option(
            "remote.storage.enable",
            BOOLEAN,
            False,
            "Tiered storage.",
            kip="KIP-405",
            honoured=False,
        ),
        Option(
            "retention.bytes",
            LONG,
            -1,
            "Size of a partition beyond which its oldest segments are deleted; -1 is no limit.",
            unit="bytes",
            synonyms=("log.retention.bytes",),
        ),
        Option(
            "retention.ms",
            LONG,
            604_800_000,
            "Age of a segment's newest record beyond which it is deleted; -1 is no limit.",
            Range(-1),
            "ms",
            synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        ),
        Option(
            "segment.bytes",
            INT,
            1_073_741_824,
            "Size at which a new segment file is begun. Kafka 4 refuses less than 1048576 "
            "(KIP-1030); small ones are allowed here, for tests.",
            Range(14),
            "bytes",
            synonyms=("log.segment.bytes",),
        ),
        Option(
            "segment.index.bytes",
            INT,
            10_485_760,
            "Size of an index at which a new segment is begun.",
            Range(4),
            "bytes",
            synonyms=("log.index.size.max.bytes",),
        ),
        Option(
            "segment.jitter.ms",
            LONG,
            0,
            "Largest random time taken off segment.ms.",
            _NOT_NEGATIVE,
            "ms",
            synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
            honoured=False,
        ),
        Option(
            "segment.ms",
            LONG,
            604_800_000,
            "Age at which a new segment is begun even if the last one is not full.",
            _POSITIVE,
            "ms",
            synonyms=("log.roll.ms", "log.roll.hours"),
        ),
        Option(
            "unclean.leader.election.enable",
            BOOLEAN,
            False,
            "Whether a replica that is behind may become leader when no other is left.",
            synonyms=("unclean.leader.election.enable",),
            honoured=False,
        ),
    ),
)

# --- broker -------------------------------------------------------------------------------------


def _broker_form(topic: str, broker: str) -> Option:
    """The broker option that a topic option inherits from: same type, range and meaning."""
    option = TOPIC[topic]
    return option._replace(
        name=broker, doc=f"Default of the topic option {topic}. {option.doc}", synonyms=()
    )


BROKER = OptionTable(
    "broker",
    (
        Option(
            "advertised.listeners", LIST, None, "Addresses told to clients: PLAINTEXT://host:port."
        ),
        Option(
            "auto.create.topics.enable",
            BOOLEAN,
            True,
            "Whether a Metadata request that allows it creates the topics it names.",
        ),
        Option("broker.id", INT, -1, "This broker's number.", Range(-1)),
        Option("broker.rack", STRING, None, "This broker's rack or zone.", kip="KIP-36"),
        Option(
            "connections.max.idle.ms",
            LONG,
            600_000,
            "A connection that sent nothing for this long is closed; -1 is never.",
            Range(-1),
            "ms",
        ),
        Option(
            "default.replication.factor",
            INT,
            1,
            "Replicas of topics that are created without a number of them.",
            Range(1, 32767),
        ),
        Option("delete.topic.enable", BOOLEAN, True, "Whether topics can be deleted."),
        Option(
            "fetch.max.bytes",
            INT,
            57_671_680,
            "Upper bound of record bytes in one fetch response, whatever the request asks for.",
            Range(1024),
            "bytes",
            "KIP-541",
        ),
        Option("listeners", LIST, ("PLAINTEXT://:9092",), "Addresses listened on."),
        Option("log.dirs", LIST, None, "Directories with the partitions' logs."),
        Option(
            "log.retention.check.interval.ms",
            LONG,
            300_000,
            "Time between two looks for segments to delete.",
            _POSITIVE,
            "ms",
        ),
        Option(
            "log.flush.offset.checkpoint.interval.ms",
            INT,
            60_000,
            "Time between two checkpoints of how far each log is on disk.",
            _NOT_NEGATIVE,
            "ms",
        ),
        Option(
            "max.connections",
            INT,
            INT_MAX,
            "Connections open at once; further ones are closed at once.",
            _NOT_NEGATIVE,
            kip="KIP-402",
        ),
        Option("node.id", INT, -1, "This broker's number.", Range(-1), kip="KIP-631"),
        Option(
            "num.partitions",
            INT,
            1,
            "Partitions of topics that are created without a number of them.",
            _POSITIVE,
        ),
        Option(
            "producer.id.expiration.ms",
            INT,
            86_400_000,
            "How long a partition remembers an idempotent producer after its last append.",
            _POSITIVE,
            "ms",
            "KIP-854",
        ),
        Option(
            "socket.listen.backlog.size",
            INT,
            50,
            "Connections the operating system queues until they are accepted.",
            _POSITIVE,
            kip="KIP-764",
        ),
        Option(
            "socket.request.max.bytes",
            INT,
            104_857_600,
            "Largest request; a longer one closes its connection.",
            _POSITIVE,
            "bytes",
        ),
        Option(
            "log.retention.hours",
            INT,
            168,
            "Default of the topic option retention.ms, in hours.",
            unit="hours",
        ),
        Option(
            "log.retention.minutes",
            INT,
            None,
            "Default of the topic option retention.ms, in minutes; stronger than hours.",
            unit="minutes",
        ),
        Option(
            "log.retention.ms",
            LONG,
            None,
            "Default of the topic option retention.ms; stronger than minutes.",
            unit="ms",
        ),
        Option(
            "log.roll.hours",
            INT,
            168,
            "Default of the topic option segment.ms, in hours.",
            _POSITIVE,
            "hours",
        ),
        Option(
            "log.roll.ms",
            LONG,
            None,
            "Default of the topic option segment.ms; stronger than hours.",
            unit="ms",
        ),
        Option(
            "log.roll.jitter.hours",
            INT,
            0,
            "Default of the topic option segment.jitter.ms, in hours.",
            _NOT_NEGATIVE,
            "hours",
            honoured=False,
        ),
        Option(
            "log.roll.jitter.ms",
            LONG,
            None,
            "Default of the topic option segment.jitter.ms; stronger than hours.",
            unit="ms",
            honoured=False,
        ),
        Option(
            "log.flush.interval.ms",
            LONG,
            None,
            "Default of the topic option flush.ms.",
            unit="ms",
        ),
        Option(
            "log.flush.scheduler.interval.ms",
            LONG,
            LONG_MAX,
            "Time between two looks for logs to force to disk; default of flush.ms.",
            unit="ms",
        ),
        *(
            _broker_form(topic.name, synonym)
            for topic in TOPIC
            for synonym in topic.synonyms[:1]
            if topic.name not in ("retention.ms", "segment.ms", "segment.jitter.ms", "flush.ms")
        ),
    ),
)
