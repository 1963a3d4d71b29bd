"""What deciding leads to: records, and what to answer once they are on disk."""

from __future__ import annotations

from typing import Any, NamedTuple

from trimtab.errors import ErrorCode


class Decision(NamedTuple):
    """What to write down and, once it is written, what to answer."""

    records: list[Any]
    response: Any


class Refusal(Exception):
    """One thing that a request asks for cannot be had. Never leaves this room."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
