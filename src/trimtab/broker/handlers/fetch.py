"""Fetch (1), versions 4-18: whole record batches, within the limits of KIP-74.

- `max_bytes` bounds the record bytes of the response and is spent on the partitions in the order of
  the request; `partition_max_bytes` bounds each. Except for the first partition that has something:
  that one gets at least its first batch, however big.
- Only whole batches are sent (Kafka sends what is cut off at the end as well, and clients drop it).
  A batch may begin before the offset that is asked for.
- With less than `min_bytes` the answer waits up to `max_wait_ms` and is then read anew. An error at
  a partition that could be read ends the wait.
- Sessions (KIP-227): session id 0, "no session", is always answered, so clients keep sending full
  requests; one that continues a session gets FETCH_SESSION_ID_NOT_FOUND.
- Everything that is stored is committed, so both isolation levels read the same.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from trimtab.broker.partition import Partition, Refused
from trimtab.broker.purgatory import DelayedFetch
from trimtab.broker.storage import StorageError
from trimtab.errors import CorruptData, ErrorCode
from trimtab.records import NO_OFFSET
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from trimtab.broker.broker import Broker

_TOPIC_IDS_SINCE = 13
_LEADERS_SINCE = 16
_STORAGE_ERROR_SINCE = 6

_NO_SESSION = 0
_FULL_EPOCHS = (-1, 0)

_READ_COMMITTED = 1

_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_ABOUT_LEADERS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

_log = logging.getLogger(__name__)


def fetch(
    broker: Broker, header: RequestHeader, request: FetchRequest
) -> FetchResponse | Awaitable[FetchResponse]:
    """Read, now or when there is enough."""
    if request.session_epoch not in _FULL_EPOCHS:
        return FetchResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            session_id=_NO_SESSION,
            responses=[],
        )
    reading = _Reading(broker, header.api_version, request)
    response = reading.respond()
    missing = min(request.min_bytes, reading.byte_limit) - reading.size
    if request.max_wait_ms <= 0 or missing <= 0 or reading.failed or not reading.watched:
        return response
    return DelayedFetch(
        request.max_wait_ms / 1000,
        missing,
        reading.watched,
        lambda: _Reading(broker, header.api_version, request).respond(),
    ).response


class _Reading:
    """One pass over the partitions of a request.

    Attributes:
        byte_limit: of the whole response.
        size: record bytes so far.
        failed: whether a partition that this broker has could not be read.
        watched: the partitions that were read, and how many more bytes of each would fit.
    """

    def __init__(self, broker: Broker, version: int, request: FetchRequest) -> None:
        self._broker = broker
        self._version = version
        self._topics = _without_repeats(request.topics)
        self._aborted: list[AbortedTransaction] | None = (
            [] if request.isolation_level == _READ_COMMITTED else None
        )
        self._leaders: dict[int, NodeEndpoint] = {}
        self._min_one = True
        self.byte_limit = max(
            0, min(request.max_bytes, cast(int, broker.config["fetch.max.bytes"]))
        )
        self._left = self.byte_limit
        self.size = 0
        self.failed = False
        self.watched: list[tuple[Partition, int]] = []

    def respond(self) -> FetchResponse:
        """What can be read, in the order of the request; then what this broker does not know."""
        responses: list[FetchableTopicResponse] = []
        unknown: list[FetchableTopicResponse] = []
        for topic in self._topics:
            name: str | None = topic.topic
            if self._version >= _TOPIC_IDS_SINCE:
                image = self._broker.image.topics_by_id.get(topic.topic_id)
                name = None if image is None else image.name
            known = [self._read(name, wanted) for wanted in topic.partitions]
            for partitions, answers in (
                ([each for each in known if each.error_code not in _UNKNOWN], responses),
                ([each for each in known if each.error_code in _UNKNOWN], unknown),
            ):
                if partitions:
                    answers.append(
                        FetchableTopicResponse(
                            topic=topic.topic, topic_id=topic.topic_id, partitions=partitions
                        )
                    )
        return FetchResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            session_id=_NO_SESSION,
            responses=responses + unknown,
            node_endpoints=list(self._leaders.values()),
        )

    def _read(self, topic: str | None, wanted: FetchPartition) -> PartitionData:
        try:
            if topic is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)
            partition = self._broker.find_partition(topic, wanted.partition)
            partition.check_epoch(wanted.current_leader_epoch)
            if wanted.partition_max_bytes < 0:
                raise Refused(ErrorCode.INVALID_REQUEST)
            room = min(wanted.partition_max_bytes, self._left)
            records = partition.read(wanted.fetch_offset, room, self._min_one)
        except Refused as refused:
            return self._refuse(topic, wanted, refused.code)
        except StorageError as error:
            _log.error("cannot read partition=%s-%d error=%s", topic, wanted.partition, error)
            if self._version < _STORAGE_ERROR_SINCE:
                return self._refuse(topic, wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return self._refuse(topic, wanted, ErrorCode.KAFKA_STORAGE_ERROR)
        except CorruptData as error:
            _log.error("cannot read partition=%s-%d error=%s", topic, wanted.partition, error)
            return self._refuse(topic, wanted, ErrorCode.CORRUPT_MESSAGE)
        size = len(records)
        if size:
            self._min_one = False
            self.size += size
            self._left = max(0, self._left - size)
        self.watched.append((partition, max(0, room - size)))
        high_watermark = partition.high_watermark
        return PartitionData(
            partition_index=wanted.partition,
            error_code=ErrorCode.NONE,
            high_watermark=high_watermark,
            last_stable_offset=high_watermark,
            log_start_offset=partition.log.log_start_offset,
            aborted_transactions=self._aborted,
            records=records,
        )

    def _refuse(self, topic: str | None, wanted: FetchPartition, code: ErrorCode) -> PartitionData:
        data = PartitionData(
            partition_index=wanted.partition,
            error_code=code,
            high_watermark=NO_OFFSET,
            aborted_transactions=self._aborted,
            records=b"",
        )
        if code in _UNKNOWN:
            return data
        self.failed = True
        if code in _ABOUT_LEADERS and self._version >= _LEADERS_SINCE and topic is not None:
            leader, epoch, registration = self._broker.find_leader(topic, wanted.partition)
            data.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
            if registration is not None:
                self._leaders[leader] = NodeEndpoint(
                    node_id=leader,
                    host=registration.host,
                    port=registration.port,
                    rack=registration.rack,
                )
        return data


def _without_repeats(topics: list[FetchTopic]) -> list[FetchTopic]:
    """A partition that is listed twice counts where it is first, with what it says last."""
    last = {
        (topic.topic, topic.topic_id, wanted.partition): wanted
        for topic in topics
        for wanted in topic.partitions
    }
    if len(last) == sum(len(topic.partitions) for topic in topics):
        return topics
    unique = []
    for topic in topics:
        keys = [(topic.topic, topic.topic_id, wanted.partition) for wanted in topic.partitions]
        unique.append(
            FetchTopic(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[last.pop(key) for key in keys if key in last],
            )
        )
    return unique
