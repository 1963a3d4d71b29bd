"""Options, tables of options, and the functions that read given values.

`read` accepts names dotted (`batch.size`) or in snake case (`batch_size`), and values as Python
objects or as text from the wire or the command line. It refuses unknown options.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple, TypeAlias

from trimtab.errors import UsageError


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


class Option(NamedTuple):
    """One option.

    Attributes:
        valid: a `Range` for numbers; the allowed words for strings and lists, or their `Form`;
            None if every value of the type is valid.
        unit: `ms`, `bytes`, … or empty.
        kip: the proposal that introduced it, such as `KIP-794`; empty if older than the KIPs.
        synonyms: for topic options, the broker options that give its default; an earlier one
            overrides the later ones.
        honoured: False if the value is accepted and described, but has no effect.
        dynamic: for broker options, whether they can be changed while the broker runs.
        ignores_case: whether the words of `valid` are accepted in any case (Kafka's
            `ConfigDef.CaseInsensitiveValidString`).
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
        if self.type is STRING and not isinstance(self.valid, Range | Form | None):
            value = self._word(given if value is None else value, self.valid)
        if value is None:
            shown = "[hidden]" if self.type is PASSWORD else repr(given)
            raise UsageError(f"{kind} {self.name}={shown}: must be {_TYPE_WORDS[self.type]}")
        if isinstance(self.valid, Range):
            if value not in self.valid.also and not self.valid.low <= value <= self.valid.high:  # type: ignore[operator]
                raise UsageError(f"{kind} {self.name}={given!r}: must be {self.valid}")
        elif isinstance(self.valid, Form):
            if not self.valid.fits(value if isinstance(value, tuple) else (str(value),)):
                raise UsageError(f"{kind} {self.name}={given!r}: must be {self.valid.says}")
        elif self.valid is not None:
            for word in value if isinstance(value, tuple) else (value,):
                if word not in self.valid:
                    words = ", ".join(self.valid)
                    raise UsageError(f"{kind} {self.name}={given!r}: must be one of {words}")
        return value

    def _word(self, value: object, words: tuple[str, ...]) -> str | None:
        """The value as one of the words; an int counts as its text, as in acks=1."""
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            return None
        if self.ignores_case:
            return next((word for word in words if word.lower() == value.lower()), value)
        return value


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
        self._options = {option.name: option for option in options}
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
        if self.refuses(dotted):
            instead = self._why_refused(dotted)
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
