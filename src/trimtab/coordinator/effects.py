"""What a decision of the coordinator leads to: records to append, and responses to send."""

from __future__ import annotations

from typing import Any, NamedTuple

from trimtab.wire.messages.group_records import Key, Value


class Now(NamedTuple):
    """The time of a decision: monotonic in seconds, for deadlines, and wall clock in ms, for
    records."""

    s: float
    ms: int


class Caller(NamedTuple):
    """Who sent a request.

    Attributes:
        request: what the response is for; handed back with it.
        version: of the API.
        client_id: the client's name.
        host: its address.
    """

    request: Any
    version: int
    client_id: str
    host: str


class Effects:
    """What decisions lead to, until it is taken.

    A response may be sent once the records that were appended up to its decision are committed,
    also those of earlier decisions: it may have been made on their ground.

    Attributes:
        records: keys and values; a value of None is a tombstone.
        responses: each with the `request` of its caller.
    """

    __slots__ = ("records", "responses")

    def __init__(self) -> None:
        self.records: list[tuple[Key, Value | None]] = []
        self.responses: list[tuple[Any, Any]] = []

    def take(self) -> Effects:
        """Hand over what there is, and begin again."""
        taken = Effects()
        taken.records, self.records = self.records, []
        taken.responses, self.responses = self.responses, []
        return taken
