"""WriteTxnMarkers (27), versions 1-2: a coordinator ends transactions in partitions led here.

A client that can write a marker decides which records are committed. So only nodes may, and admins
who log in with the cluster's secret. Others get CLUSTER_AUTHORIZATION_FAILED, as from Kafka without
ALTER or CLUSTER_ACTION on the cluster.

The response is sent once all markers are committed. A marker in `__consumer_offsets` also decides
the offsets that were committed in the transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Final

from trimtab.cluster.broker.delayed_response import DelayedResponse
from trimtab.cluster.broker.groups import GroupCoordinator
from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.broker.replicas import Replicas
from trimtab.cluster.server.turns import Pace, Steps
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.end_markers import EndMarker
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_TIMEOUT_S: Final = 25.0
"""Less than the coordinator waits."""
_PER_TURN: Final = 50

_log = logging.getLogger(__name__)


def write_markers(
    replicas: Replicas,
    groups: GroupCoordinator,
    header: RequestHeader,
    request: WriteTxnMarkersRequest,
) -> Steps[Awaitable[WriteTxnMarkersResponse]]:
    """Write the markers, and answer when they are committed."""
    response = WriteTxnMarkersResponse(markers=[])
    delayed = DelayedResponse(response, _refuse)
    pace = Pace(_PER_TURN)
    for marker in request.markers:
        topics: list[WritableTxnMarkerTopicResult] = []
        response.markers.append(
            WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)
        )
        for topic in marker.topics:
            parts: list[WritableTxnMarkerPartitionResult] = []
            topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=parts))
            for index in topic.partition_indexes:
                part = WritableTxnMarkerPartitionResult(partition_index=index)
                parts.append(part)
                if header.is_node:
                    _write(replicas, groups, marker, topic.name, part, delayed)
                else:
                    part.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                if pace.spend():
                    yield
    delayed.start(_TIMEOUT_S)
    return delayed.answer


def _write(
    replicas: Replicas,
    groups: GroupCoordinator,
    marker: WritableTxnMarker,
    topic: str,
    part: WritableTxnMarkerPartitionResult,
    delayed: DelayedResponse,
) -> None:
    """Write one marker, and note that its commit is to be waited for."""
    producer = marker.producer_id, marker.producer_epoch
    written = EndMarker(marker.transaction_result, marker.coordinator_epoch)
    try:
        partition = replicas.find_partition(topic, part.partition_index)
        if topic == groups.topic:
            led = groups.find_partition(part.partition_index)
            if led is None:
                raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            end = led.append_marker(*producer, written, marker.transaction_version)
        else:
            appended = partition.append_marker(*producer, written, marker.transaction_version)
            end = appended.next_offset
    except Refused as refused:
        part.error_code = refused.code
        if refused.message:
            _log.info("a marker was refused error=%s %s", refused.code.name, refused.message)
        return
    except StorageError as error:
        _log.error("cannot append partition=%s-%d error=%s", topic, part.partition_index, error)
        replicas.disk_failed(error)
        part.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return
    if partition.high_watermark >= end:
        return
    assert partition.leadership is not None
    delayed.hold(part)
    partition.leadership.wait(
        end,
        lambda is_committed: delayed.settle(
            part, ErrorCode.NONE if is_committed else ErrorCode.NOT_LEADER_OR_FOLLOWER
        ),
    )


def _refuse(part: WritableTxnMarkerPartitionResult, code: ErrorCode) -> None:
    part.error_code = code
