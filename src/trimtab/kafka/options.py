"""Options, tables of options, and the functions that read given values.

    PRODUCER = OptionTable("producer", (int64("linger.ms", 5, "How long …", NOT_NEGATIVE), …))
    read(PRODUCER, {"linger_ms": "7"}).seconds("linger.ms")         0.007

`read` accepts names dotted (`batch.size`) or in snake case (`batch_size`), and values as Python
objects or as text from the wire or the command line. It refuses unknown options.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Any, NamedTuple, TypeAlias, TypedDict, Unpack

from trimtab.kafka.errors import UsageError


class Password(NamedTuple):
    """A secret option value: only `text` contains it, `str` and `repr` hide it."""

    text: str

    def __repr__(self) -> str:
        return "[hidden]"


Value: TypeAlias = (
    bool | int | float | str | tuple[str, ...] | Password | Callable[..., object] | None
)
"""A checked value. Lists are tuples; None means "not set", if the default is None."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class OptionType(IntEnum):
    """The type of a value, numbered as in DescribeConfigs (`ConfigEntry.ConfigType`)."""

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


class UpdateMode(Enum):
    """Whether a broker option can be changed while the broker runs (KIP-226).

    Attributes:
        READ_ONLY: no: it needs a restart.
        PER_BROKER: for one broker at a time.
        CLUSTER_WIDE: for one broker, or for all of them at once.
    """

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


READ_ONLY = UpdateMode.READ_ONLY
PER_BROKER = UpdateMode.PER_BROKER
CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE


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


PERCENT = Range(0, 1)
POSITIVE = Range(1)
NOT_NEGATIVE = Range(0)


class Form(NamedTuple):
    """The form of a string, or of every word of a list; or a single special word.

    Attributes:
        pattern: a regular expression that matches the whole word.
        alone: the special word.
        says: a description for error messages.
    """

    pattern: str
    alone: str
    says: str

    def fits(self, words: Sequence[str]) -> bool:
        return list(words) == [self.alone] or all(
            re.fullmatch(self.pattern, word, re.ASCII) for word in words
        )


_UNITS = {"ms": "ms", "bytes": "bytes", "seconds": "s", "minutes": "minutes", "hours": "hours"}


class Option(NamedTuple):
    """One option.

    Attributes:
        valid: a `Range` for numbers; the allowed words for strings and lists, or their `Form`;
            None if every value of the type is valid.
        unit: `ms`, `bytes`, … or empty. A table adds the one that ends the name, as in
            `linger.ms`.
        kip: the proposal that introduced it, such as `KIP-794`; empty if older than the KIPs.
        synonyms: for topic options, the broker options that give its default; an earlier one
            overrides the later ones.
        honoured: False if the value is accepted and described, but has no effect.
        dynamic: for broker options, whether they can be changed while the broker runs.
        ignores_case: whether the words of `valid` are accepted in any case (Kafka's
            `ConfigDef.CaseInsensitiveValidString`).
        applies: for Spark's options, `batch` or `stream` if it has an effect on only one of them.
    """

    name: str
    type: OptionType
    default: Value
    doc: str
    valid: Range | Form | tuple[str, ...] | None = None
    unit: str = ""
    kip: str = ""
    synonyms: tuple[str, ...] = ()
    honoured: bool = True
    dynamic: UpdateMode = READ_ONLY
    ignores_case: bool = False
    applies: str = ""

    def with_unit(self) -> Option:
        """The option with the unit that its name ends with, if it has no other one."""
        unit = self.unit or _UNITS.get(self.name.rpartition(".")[2], "")
        return self._replace(unit=unit)

    @property
    def words(self) -> tuple[str, ...]:
        """The allowed words; empty if they are not listed."""
        return () if isinstance(self.valid, Range | Form | None) else self.valid

    def check(self, given: object, kind: str = "option") -> Value:
        """The given value in this option's type.

        Raises:
            UsageError: another type, or out of range; names the option, the value and the fix.
        """
        if given is None and self.default is None:
            return None
        if isinstance(self.valid, Form) and type(given) in (int, float):
            given = str(given)
        value = _convert(self.type, given)
        if self.type is STRING and self.words:
            value = self._word(given if value is None else value)
        if value is None:
            shown = "[hidden]" if self.type is PASSWORD else repr(given)
            raise UsageError(f"{kind} {self.name}={shown}: must be {_TYPE_WORDS[self.type]}")
        if isinstance(self.valid, Range):
            if value not in self.valid.also and not self.valid.low <= value <= self.valid.high:  # type: ignore[operator]
                raise UsageError(f"{kind} {self.name}={given!r}: must be {self.valid}")
        elif isinstance(self.valid, Form):
            if not self.valid.fits(value if isinstance(value, tuple) else (str(value),)):
                raise UsageError(f"{kind} {self.name}={given!r}: must be {self.valid.says}")
        elif self.words:
            for word in value if isinstance(value, tuple) else (value,):
                if word not in self.words:
                    words = ", ".join(self.words)
                    raise UsageError(f"{kind} {self.name}={given!r}: must be one of {words}")
        return value

    def _word(self, value: object) -> str | None:
        """The value as one of the words; an int counts as its text, as in acks=1."""
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            return None
        if self.ignores_case:
            return next((word for word in self.words if word.lower() == value.lower()), value)
        return value


class More(TypedDict, total=False):
    """The rest of an `Option`, which has the meanings."""

    unit: str
    kip: str
    synonyms: tuple[str, ...]
    honoured: bool
    dynamic: UpdateMode
    ignores_case: bool
    applies: str


# An option of each type: a type checker compares default and range with it.


def boolean(name: str, default: bool, doc: str, **more: Unpack[More]) -> Option:
    return Option(name, BOOLEAN, default, doc, **more)


def string(
    name: str,
    default: str | None,
    doc: str,
    valid: Form | tuple[str, ...] | None = None,
    **more: Unpack[More],
) -> Option:
    return Option(name, STRING, default, doc, valid, **more)


def strings(
    name: str,
    default: tuple[str, ...] | None,
    doc: str,
    valid: Form | tuple[str, ...] | None = None,
    **more: Unpack[More],
) -> Option:
    return Option(name, LIST, default, doc, valid, **more)


def int16(
    name: str, default: int | None, doc: str, valid: Range | None = None, **more: Unpack[More]
) -> Option:
    return Option(name, SHORT, default, doc, valid, **more)


def int32(
    name: str, default: int | None, doc: str, valid: Range | None = None, **more: Unpack[More]
) -> Option:
    return Option(name, INT, default, doc, valid, **more)


def int64(
    name: str, default: int | None, doc: str, valid: Range | None = None, **more: Unpack[More]
) -> Option:
    return Option(name, LONG, default, doc, valid, **more)


def double(
    name: str, default: float | None, doc: str, valid: Range | None = None, **more: Unpack[More]
) -> Option:
    return Option(name, DOUBLE, default, doc, valid, **more)


def function(name: str, doc: str, **more: Unpack[More]) -> Option:
    """Kafka's type for it is CLASS."""
    return Option(name, CLASS, None, doc, **more)


def password(name: str, doc: str, **more: Unpack[More]) -> Option:
    return Option(name, PASSWORD, None, doc, **more)


def compression_levels(doc: str) -> tuple[Option, ...]:
    """The levels of the codecs that have them (KIP-390), which producers and topics have alike.

    Args:
        doc: what a level is for; `{}` stands for the codec.
    """
    codecs = (
        ("gzip", -1, Range(1, 9, (-1,)), "; -1 is zlib's default"),
        ("lz4", 9, Range(1, 17), ""),
        ("zstd", 3, Range(-131_072, 22), ""),
    )
    return tuple(
        int32(
            f"compression.{codec}.level",
            default,
            f"{doc.format(codec)}{note}.",
            valid,
            kip="KIP-390",
        )
        for codec, default, valid, note in codecs
    )


class OptionTable:
    """The options of one kind of object (`topic`, `broker`, `producer`, …), by dotted name.

    Args:
        refused: Kafka's options that trimtab does not support, and what to do instead. A name that
            ends in a dot stands for all that begin with it.
        no_ops: values of refused options that are harmless to ignore, as lower-case text; None and
            empty values always are.
        foreign: options of other clients, dotted, and the option to use here.
    """

    def __init__(
        self,
        kind: str,
        options: Iterable[Option],
        refused: Mapping[str, str] | None = None,
        no_ops: Mapping[str, tuple[str, ...]] | None = None,
        foreign: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self._options = {option.name: option.with_unit() for option in options}
        self._dotted = {name.replace(".", "_"): name for name in self._options}
        self.refused = dict(refused or {})
        self._no_ops = dict(no_ops or {})
        self._foreign = dict(foreign or {})

    def __getitem__(self, name: str) -> Option:
        return self._options[name]

    def __contains__(self, name: object) -> bool:
        return name in self._options

    def __iter__(self) -> Iterator[Option]:
        return iter(self._options.values())

    def __len__(self) -> int:
        return len(self._options)

    def defaults(self) -> dict[str, Value]:
        return {option.name: option.default for option in self}

    def find(self, name: str) -> Option:
        """The option of this dotted or snake-case name.

        Raises:
            UsageError: there is none; says why not, or suggests the nearest name.
        """
        if not isinstance(name, str):
            raise UsageError(f"{self.kind} option {name!r}: the name of an option is a str")
        option = self._options.get(self._dotted.get(name, name))
        if option is not None:
            return option
        dotted = name.replace("_", ".")
        instead = self._why_refused(dotted)
        if instead is not None:
            raise UsageError(f"{self.kind} option {dotted} is not for trimtab: {instead}")
        if dotted in self._foreign:
            raise UsageError(f"unknown {self.kind} option {name!r}: {self._foreign[dotted]}")
        near = self.nearest(dotted)
        fix = f"did you mean {near}?" if near else f"known: {', '.join(sorted(self._options))}"
        raise UsageError(f"unknown {self.kind} option {name!r}: {fix}")

    def knows(self, name: str) -> bool:
        """Whether `find` has an option of this name, or a reason to refuse it."""
        return name in self._options or name in self._dotted or self.refuses(name.replace("_", "."))

    def nearest(self, dotted: str) -> str | None:
        """The option with the most similar name; None if none is similar."""
        import difflib  # only on the way to an error: importing it costs a start-up millisecond

        return next(iter(difflib.get_close_matches(dotted, self._options, n=1)), None)

    def refuses(self, dotted: str) -> bool:
        """Whether it is an option of Kafka that trimtab refuses."""
        return self._why_refused(dotted) is not None

    def _why_refused(self, dotted: str) -> str | None:
        """The advice for a refused option; None if it is not refused."""
        for refused, instead in self.refused.items():
            if dotted == refused or (refused.endswith(".") and dotted.startswith(refused)):
                return instead
        return None

    def asks_nothing(self, name: str, value: object) -> bool:
        """Whether a client may ignore this option: None keeps its default, and some values of
        refused options have no effect."""
        if not isinstance(name, str):
            return False
        dotted = name.replace("_", ".")
        if name in self._options or name in self._dotted:
            return value is None
        if self._why_refused(dotted) is None:
            return False
        if value is None or (isinstance(value, Sequence) and not value):
            return True
        words = [value] if not isinstance(value, (list, tuple)) else value
        text = ",".join(str(word) for word in words).strip().lower()
        return text in self._no_ops.get(dotted, ())


class Config(dict[str, Value]):
    """Checked values of options by dotted name, and methods that read one in its type.

    The methods assert the type: the table, which checked the values, has another one.
    """

    def integer(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int), f"{name} is {value!r}"
        return value

    def number(self, name: str) -> float:
        value = self[name]
        assert isinstance(value, float), f"{name} is {value!r}"
        return value

    def seconds(self, name: str) -> float:
        """An option in milliseconds, as seconds."""
        return self.integer(name) / 1000

    def flag(self, name: str) -> bool:
        value = self[name]
        assert isinstance(value, bool), f"{name} is {value!r}"
        return value

    def text(self, name: str) -> str:
        """A text; empty if it is not set."""
        return self.optional_text(name) or ""

    def optional_text(self, name: str) -> str | None:
        value = self[name]
        assert isinstance(value, str | None), f"{name} is {value!r}"
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """A list; empty if it is not set."""
        value = self[name]
        assert isinstance(value, tuple | None), f"{name} is {value!r}"
        return value or ()

    def secret(self, name: str) -> Password | None:
        value = self[name]
        assert isinstance(value, Password | None), f"the type of {name}"
        return value

    def function(self, name: str) -> Callable[..., Any] | None:
        value = self[name]
        assert value is None or callable(value), f"{name} is {value!r}"
        return value


def read(table: OptionTable, given: Mapping[str, object]) -> Config:
    """Every option of the table by its dotted name: given values checked, defaults for the rest.

    Raises:
        UsageError: an unknown name, the same option twice, a wrong type or a value out of range.
    """
    return Config(table.defaults() | read_given(table, given))


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
    """The value as text for Kafka's DescribeConfigs; None if not set or secret."""
    if value is None or isinstance(value, Password):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


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
    """The value in the option's type, or None if it cannot be converted."""
    text = given.strip() if isinstance(given, str) else None
    if kind is STRING:
        return text if text is None or _is_unicode(text) else None
    if kind is CLASS:
        return given if callable(given) else None
    if kind is PASSWORD:
        return Password(given) if isinstance(given, str) else None
    if kind is LIST:
        if text is not None:
            given = [word.strip() for word in text.split(",")] if text else ()
        if isinstance(given, Sequence) and all(isinstance(word, str) for word in given):
            return tuple(dict.fromkeys(given))  # each word once (KIP-1161)
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


def _is_unicode(text: str) -> bool:
    """Whether text can be sent: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parse(kind: type[int] | type[float], text: str | None) -> int | float | None:
    if text is None or "_" in text:  # Python's digit grouping is not Kafka's
        return None
    try:
        return kind(text)
    except ValueError:
        return None
