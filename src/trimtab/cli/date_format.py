"""Patterns of dates, as Java's SimpleDateFormat reads them (`--date-format`)."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, TypeAlias

Field: TypeAlias = Callable[[datetime, int], str]
"""The text of a field whose letter is written so many times."""

_TOKEN: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+|'")
_EXAMPLE: Final = "yyyy-MM-dd HH:mm:ss:SSS"


def parse_date_format(pattern: str) -> Callable[[float], str]:
    """The type of an option: a function from seconds since 1970 to local time, as text.

    Names of months and days are English.
    """
    parts: list[str | tuple[Field, int]] = []
    for token in _TOKEN.finditer(pattern):
        text, letter = token.group(), token.group(2)
        if text == "'":
            raise argparse.ArgumentTypeError(
                f"{pattern!r}: a quotation mark has no second one; write '' for the sign itself"
            )
        if letter is None:
            quoted = token.group(1)
            parts.append(text if quoted is None else quoted.replace("''", "'") or "'")
        elif letter in _FIELDS:
            parts.append((_FIELDS[letter], len(text)))
        else:
            raise argparse.ArgumentTypeError(
                f"{pattern!r}: {letter} is not supported; write {', '.join(_FIELDS)} as in "
                f"{_EXAMPLE}, and other letters in quotation marks '…'"
            )

    def write(seconds: float) -> str:
        at = datetime.fromtimestamp(seconds).astimezone()
        return "".join(part if isinstance(part, str) else part[0](at, part[1]) for part in parts)

    return write


def _number(read: Callable[[datetime], int]) -> Field:
    return lambda at, width: f"{read(at):0{width}}"


def _year(at: datetime, width: int) -> str:
    return f"{at.year % 100:02}" if width == 2 else f"{at.year:0{width}}"


def _month(at: datetime, width: int) -> str:
    return f"{at.month:0{width}}" if width < 3 else f"{at:%b}" if width == 3 else f"{at:%B}"


def _zone(at: datetime, width: int) -> str:
    """An offset of ISO 8601: hours, hours and minutes, or with a colon."""
    offset = f"{at:%z}"
    if not at.utcoffset():
        return "Z"
    return (offset[:3], offset, f"{offset[:3]}:{offset[3:]}")[min(width, 3) - 1]


_FIELDS: Final[Mapping[str, Field]] = {
    "y": _year,
    "M": _month,
    "d": _number(lambda at: at.day),
    "D": _number(lambda at: at.timetuple().tm_yday),
    "E": lambda at, width: f"{at:%a}" if width < 4 else f"{at:%A}",
    "H": _number(lambda at: at.hour),
    "h": _number(lambda at: at.hour % 12 or 12),
    "a": lambda at, width: f"{at:%p}",
    "m": _number(lambda at: at.minute),
    "s": _number(lambda at: at.second),
    "S": _number(lambda at: at.microsecond // 1000),
    "Z": lambda at, width: f"{at:%z}",
    "X": _zone,
}
