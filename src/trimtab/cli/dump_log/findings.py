"""Prints what `trimtab dump-log` finds, as text or as JSON, and counts what is wrong.

Tests: test_command.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from trimtab.cli.results import write_fields
from trimtab.cli.style import say_error, say_warning


class Findings:
    """What was found in the files so far.

    Attributes:
        problems: how many problems were reported.
    """

    def __init__(self, is_json: bool) -> None:
        self.problems = 0
        self._is_json = is_json
        self._path = ""

    def begin_file(self, path: str) -> None:
        """The findings that follow are of this file."""
        self._path = path
        self.say(f"Dumping {path}")

    def say(self, text: str) -> None:
        """A line for people only."""
        if not self._is_json:
            print(text)

    def show(self, kind: str, fields: Mapping[str, object], text: str | None = None) -> None:
        """One batch or entry.

        Args:
            kind: what it is, for JSON.
            text: its line, or lines, for people; by default the fields.
        """
        if self._is_json:
            print(json.dumps({"file": self._path, "kind": kind, **fields}))
        else:
            print(write_fields(fields) if text is None else text)

    def report(self, path: str, position: int, what: str) -> None:
        """Something is wrong in the file, in the bytes from this position on."""
        self.problems += 1
        if self._is_json:
            print(
                json.dumps({"file": path, "kind": "problem", "position": position, "problem": what})
            )
        sys.stdout.flush()
        say_error(f"{path}, position {position}: {what}")

    def note(self, path: str, what: str) -> None:
        """Something that a reader should know, although it need not be wrong."""
        sys.stdout.flush()
        say_warning(f"{path}: {what}")
