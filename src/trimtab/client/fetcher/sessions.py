"""Fetch sessions, the consumer's side: a request names only what has changed (KIP-227).

The broker keeps the partitions of a session between requests, in an order of its own: those that
it served last are at the end. So the session also keeps the turns of partitions whose data does
not fit into one response.

Source: Kafka's `FetchSessionHandler`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.fetch import FetchResponse
from trimtab.kafka.wire.sentinels import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from trimtab.kafka.wire.types import MAX_INT32

_SESSIONS_SINCE: Final = 7
_TOPIC_IDS_SINCE: Final = 13
_OF_SESSIONS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class Wanted(NamedTuple):
    """What a consumer wants of one partition; if it changes, the broker has to be told."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    last_epoch: int


class Turn(NamedTuple):
    """What the next request of a session contains.

    Attributes:
        named: the partitions to name, in order.
        forgotten: the partitions to remove, with the ids of their topics.
    """

    session_id: int
    epoch: int
    named: list[TopicPartition]
    forgotten: list[tuple[TopicPartition, bytes]]


class FetchSessionHandler:
    """One consumer's session with one broker; at most one request of it is in flight.

    Attributes:
        id: the broker's id of the session; 0 if there is none.
        uses_topic_ids: whether its requests name topics by id.
    """

    def __init__(self) -> None:
        self.id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._first_epoch = INITIAL_EPOCH
        self._known: dict[TopicPartition, Wanted] = {}
        self.uses_topic_ids = False

    def next_turn(self, wanted: Mapping[TopicPartition, Wanted], version: int) -> Turn:
        """What to send so that the broker fetches exactly these partitions.

        Args:
            wanted: in the order in which a full request lists them.
            version: of the request.
        """
        if version < _SESSIONS_SINCE:
            return Turn(NO_SESSION, FINAL_EPOCH, list(wanted), [])
        uses_topic_ids = version >= _TOPIC_IDS_SINCE
        if uses_topic_ids != self.uses_topic_ids:
            self.restart()
            self.uses_topic_ids = uses_topic_ids
        known, self._known = self._known, dict(wanted)
        if self._epoch == self._first_epoch:
            return Turn(self.id, self._epoch, list(wanted), [])
        named = [partition for partition, now in wanted.items() if known.get(partition) != now]
        forgotten = [
            (partition, before.topic_id)
            for partition, before in known.items()
            if partition not in wanted
            or (uses_topic_ids and wanted[partition].topic_id != before.topic_id)
        ]
        return Turn(self.id, self._epoch, named, forgotten)

    def accept(self, response: FetchResponse) -> bool:
        """Note a response; False if it refuses the session only: then ask again at once."""
        if response.error_code == ErrorCode.NONE:
            self.id = response.session_id
            if self.id == NO_SESSION:
                self.restart()
            else:
                self._epoch = 1 if self._epoch == MAX_INT32 else self._epoch + 1
            return True
        was_first = self._epoch == self._first_epoch
        if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.id = NO_SESSION
        self.restart()
        if response.error_code not in _OF_SESSIONS or self._first_epoch == FINAL_EPOCH:
            return True
        if was_first:  # the broker refuses even a new session, so do without
            self.id, self._first_epoch, self._epoch = NO_SESSION, FINAL_EPOCH, FINAL_EPOCH
        return False

    def restart(self) -> None:
        """The broker may not know what was asked last: begin another session in place of it."""
        self._epoch = self._first_epoch
        self._known = {}
