"""What deciding leads to: records, and what to answer once they are on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from trimtab.errors import ErrorCode

if TYPE_CHECKING:
    from trimtab.controller.partition_limits import Allowance

MAX_RECORDS = 10_000
"""Records that one request may lead to, as in Kafka (`MAX_RECORDS_PER_USER_OP`)."""


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


class Whole:
    """A request as a whole, which is decided at once or in parts: what the parts share.

    Attributes:
        is_cut: whether it is decided in parts.
        times: how often it names each thing.
        records: how many it has led to so far, those of `validate_only` included.
        allowance: what it may still have, if its parts write nothing down.
        taken: names of topics that it has created so far, as they collide with others.
        reach_s: how long its answer waits for brokers.
    """

    __slots__ = ("allowance", "is_cut", "reach_s", "records", "taken", "times")

    def __init__(self, is_cut: bool = False) -> None:
        self.is_cut = is_cut
        self.times: Counter[Hashable] = Counter()
        self.records = 0
        self.allowance: Allowance | None = None
        self.taken: dict[str, str] = {}
        self.reach_s = 0.0

    def count(self, names: Iterable[Hashable]) -> Counter[Hashable]:
        """How often each of its things is named. If it is cut, that has been counted before."""
        if not self.is_cut:
            self.times.update(names)
        return self.times
