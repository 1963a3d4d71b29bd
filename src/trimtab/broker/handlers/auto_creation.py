"""Topics that are created because somebody asks Metadata for them (`auto.create.topics.enable`).

A Metadata response has a code for each topic and no message. Refused creations keep the code that
CreateTopics gave, as KIP-578 has it for its limits and as Kafka's brokers answered before KRaft,
where Apache Kafka 4 says UNKNOWN_TOPIC_OR_PARTITION whatever the reason: so Java's producer names
the cause, and kafka-python's and ours fail at once with it. librdkafka passes over codes that it
does not expect there, and says that the message timed out; hence the reason is in the broker's log
too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from trimtab.errors import ErrorCode
from trimtab.server.peer import PeerLost
from trimtab.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
)

if TYPE_CHECKING:
    from trimtab.broker.broker import Broker

_BY_DEFAULT = -1
_TIMEOUT_S = 5.0
_SAY_AGAIN_S = 60.0
_MOST = 100

_IS_COMING: Mapping[int, ErrorCode] = {
    ErrorCode.TOPIC_ALREADY_EXISTS: ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.LEADER_NOT_AVAILABLE,
}
"""Codes of a topic that is there, or may be, and that this broker has not learnt of yet."""

_log = logging.getLogger(__name__)


async def create_missing(broker: Broker, names: Sequence[str]) -> dict[str, int]:
    """Create topics with the default counts; for each that was not, what Metadata says of it."""
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=_BY_DEFAULT,
                replication_factor=_BY_DEFAULT,
                assignments=[],
                configs=[],
            )
            for name in names
        ]
    )
    try:
        response = await broker.controller.ask(request, _TIMEOUT_S)
    except PeerLost:
        return {}
    codes = {
        result.name: _IS_COMING.get(result.error_code, result.error_code)
        for result in response.topics
    }
    broker.refused_creations.say(
        (each for each in response.topics if each.error_code not in (0, *_IS_COMING)), broker.time()
    )
    return codes


class RefusedCreations:
    """Says in the log why topics were not created: of each once in a minute, of 100 in a minute."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}  # the oldest first

    def say(self, results: Iterable[CreatableTopicResult], now_s: float) -> None:
        for name, at in list(self._said.items()):
            if now_s - at < _SAY_AGAIN_S:
                break
            del self._said[name]
        for result in results:
            if len(self._said) >= _MOST:
                break
            if result.name not in self._said:
                self._said[result.name] = now_s
                _log.warning(
                    "a topic that a client asked for was not created topic=%s error=%s reason=%s",
                    result.name,
                    ErrorCode(result.error_code).name,
                    result.error_message,
                )
