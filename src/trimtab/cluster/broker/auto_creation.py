"""Creates topics that a Metadata request names and that do not exist (`auto.create.topics.enable`).

A Metadata response has an error code for each topic, but no message. The first one says that the
topic is unknown, as Kafka's, and the client's next request finds it. If the controller refuses to
create a topic, the response has the code from CreateTopics, as KIP-578 says for its limits and as
Kafka did before KRaft; Apache Kafka 4 always answers UNKNOWN_TOPIC_OR_PARTITION. So Java's producer
reports the cause, and the producers of kafka-python and trimtab fail with it at once. librdkafka
ignores codes that it does not expect there and reports a time-out, so the broker also logs the
reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from trimtab.cluster.broker.link import Link
from trimtab.cluster.server.peer import PeerLost
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from trimtab.kafka.wire.sentinels import BROKER_DEFAULT

_TIMEOUT_S = 5.0
_LOG_INTERVAL_S = 60.0
_MAX_LOGGED = 100

_MAY_EXIST = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT)
"""Codes of a topic that exists, or may exist."""

_log = logging.getLogger(__name__)


class AutoCreation:
    """Asks the controller to create topics. Logs why topics were not created: each at most once a
    minute, 100 a minute at most."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._logged: dict[str, float] = {}  # when each topic was logged, oldest first

    async def create(self, names: Sequence[str]) -> dict[str, int]:
        """Create topics with the default counts; returns the error codes of those that the
        controller refuses."""
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=BROKER_DEFAULT,
                    replication_factor=BROKER_DEFAULT,
                    assignments=[],
                    configs=[],
                )
                for name in names
            ]
        )
        try:
            response = await self._link.ask(request, _TIMEOUT_S)
        except PeerLost:
            return {}
        refused = [each for each in response.topics if each.error_code not in _MAY_EXIST]
        self._log_refused(refused)
        return {each.name: each.error_code for each in refused}

    def _log_refused(self, results: Iterable[CreatableTopicResult]) -> None:
        now_s = asyncio.get_running_loop().time()
        for name, at in list(self._logged.items()):
            if now_s - at < _LOG_INTERVAL_S:
                break
            del self._logged[name]
        for result in results:
            if len(self._logged) >= _MAX_LOGGED:
                break
            if result.name not in self._logged:
                self._logged[result.name] = now_s
                _log.warning(
                    "a topic that a client asked for was not created topic=%s error=%s reason=%s",
                    result.name,
                    ErrorCode(result.error_code).name,
                    result.error_message,
                )
