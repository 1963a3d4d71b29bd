"""Colours and marks on a terminal; plain text in files, pipes and dumb terminals.

NO_COLOR (any value) turns colours off, FORCE_COLOR turns them on where there is no terminal; both
as in Python itself. Nothing is imported for it: commands start in milliseconds.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # the same as typing's, which `trimtab cluster` does not import
if TYPE_CHECKING:
    from typing import TextIO

ERROR = "31"
"""Red: failed, or not available."""
WARNING = "33"
"""Yellow: needs attention."""

_START = "\x1b["
_END = "\x1b[0m"


def has_colours(stream: TextIO) -> bool:
    """Whether text on this stream is coloured."""
    environment = os.environ
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR"):
        return True
    return environment.get("TERM") != "dumb" and stream.isatty()


def paint(text: str, colour: str | None, stream: TextIO | None = None) -> str:
    """The text in a colour, where colours are shown; None is the terminal's own.

    Args:
        stream: where it is printed; standard output if None.
    """
    if colour is None or not text or not has_colours(sys.stdout if stream is None else stream):
        return text
    return f"{_START}{colour}m{text}{_END}"


def say_note(text: str) -> None:
    """Print on standard error what people should know, so that results stand alone."""
    print(text, file=sys.stderr, flush=True)


def say_error(text: str) -> None:
    """Print what has failed on standard error."""
    print(paint(text, ERROR, sys.stderr), file=sys.stderr, flush=True)


def say_warning(text: str) -> None:
    """Print on standard error what needs attention."""
    print(paint(text, WARNING, sys.stderr), file=sys.stderr, flush=True)
