"""Reads Java's properties files, which configure Kafka's tools and nodes.

    name=value     name: value     name value      the same; a value may be empty
    # a comment    ! another
    long=first, \\
         second                                    continues in the next line
    \\t \\n \\r \\f \\u20AC \\\\ \\= \\:                   escapes, in names and values

Source: `java.util.Properties.load`. Unlike there, a duplicate name, a name without value and an
incomplete escape are refused, as they are probably mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from trimtab.kafka.errors import UsageError

_BLANK = " \t\f"
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.|$)", re.DOTALL)
_NAME = re.compile(r"(?:[^\\=: \t\f]|\\.)+")
_SEPARATOR = re.compile(r"[ \t\f]*[=:][ \t\f]*|[ \t\f]+")


class Property(NamedTuple):
    """A property's value, and the line of the file in which it begins, from 1."""

    value: str
    line: int


def parse_properties(text: str, source: str) -> dict[str, Property]:
    """The properties of a file, by name.

    Args:
        source: the file's name for errors.

    Raises:
        UsageError: a line is no property; names the line and the fix.
    """
    properties: dict[str, Property] = {}
    for number, line in _logical_lines(text):
        where = f"{source}, line {number}"
        found = _NAME.match(line)
        name_end = found.end() if found else 0
        separator = _SEPARATOR.match(line, name_end)
        if not name_end or separator is None:
            raise UsageError(f"{where}: {line!r} is not name=value; write for instance {line}=1")
        name = _unescape(line[:name_end], where)
        value = _unescape(line[separator.end() :], where)
        if name in properties:
            raise UsageError(
                f"{where}: {name}={value} is given in line {properties[name].line} already, as "
                f"{properties[name].value!r}; keep one"
            )
        properties[name] = Property(value, number)
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, continuation lines joined; without comments and empty lines."""
    begun: list[str] = []
    first = 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = natural.lstrip(_BLANK)
        if not begun:
            if not line or line[0] in "#!":
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun.append(line[:-1])
            continue
        begun.append(line)
        yield first, "".join(begun)
        begun.clear()
    if any(begun):
        yield first, "".join(begun)


def _unescape(text: str, where: str) -> str:
    def replace(found: re.Match[str]) -> str:
        escaped = found[1]
        if len(escaped) == 5:
            return chr(int(escaped[1:], 16))
        if escaped == "u":
            raise UsageError(
                f"{where}: {text!r}: \\u wants four hexadecimal digits; for the letter u write u"
            )
        return _CONTROL.get(escaped, escaped)

    unescaped = _ESCAPE.sub(replace, text)
    if "\\u" in text:  # a character beyond 16 bits is written as two surrogates
        unescaped = unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return unescaped
