"""The result of a decision: metadata records, and the response to send once they are on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from trimtab.balance.limits import Allowance

MAX_RECORDS = 10_000
"""Records that one request may create at most, as in Kafka (`MAX_RECORDS_PER_USER_OP`)."""


class Decision(NamedTuple):
    """Records to append to the journal, and the response to send once they are on disk."""

    records: list[Any]
    response: Any


class WholeRequest:
    """The state that the parts of a request share, which is decided at once or in parts.

    Attributes:
        is_in_parts: whether it is decided in parts.
        name_counts: how often the request names each topic or resource.
        records: records created so far, including those of `validate_only`.
        allowance: the replicas still allowed, if the parts write no records (`validate_only`).
        new_names: names of the topics created so far, by their collision keys.
        reach_s: how long the response waits for brokers to replay.
    """

    __slots__ = ("allowance", "is_in_parts", "name_counts", "new_names", "reach_s", "records")

    def __init__(self, is_in_parts: bool = False) -> None:
        self.is_in_parts = is_in_parts
        self.name_counts: Counter[Hashable] = Counter()
        self.records = 0
        self.allowance: Allowance | None = None
        self.new_names: dict[str, str] = {}
        self.reach_s = 0.0

    def count(self, names: Iterable[Hashable]) -> Counter[Hashable]:
        """How often the request names each topic or resource. In a request decided in parts they
        have been counted before."""
        if not self.is_in_parts:
            self.name_counts.update(names)
        return self.name_counts
