"""OffsetFetch (9), versions 1-10, and ConsumerGroupHeartbeat (68), versions 0-1: refused.

Consumer groups are not served; both requests are answered with UNSUPPORTED_VERSION. They are
advertised because librdkafka crashes without OffsetFetch, and waits for ever without
ConsumerGroupHeartbeat. `trimtab.broker.handlers.coordinators` explains which clients send them.
"""

from __future__ import annotations

from trimtab.broker.handlers.coordinators import NO_GROUPS
from trimtab.errors import ErrorCode
from trimtab.records import NO_OFFSET
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from trimtab.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

_CODE = ErrorCode.UNSUPPORTED_VERSION
_SEVERAL_GROUPS_SINCE = 8
_ONE_CODE_SINCE = 2


def fetch_offsets(header: RequestHeader, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Refuse each group. Before version 2 only partitions have an error code in the response."""
    if header.api_version >= _SEVERAL_GROUPS_SINCE:
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponseGroup(group_id=each.group_id, topics=[], error_code=_CODE)
                for each in request.groups
            ]
        )
    if header.api_version >= _ONE_CODE_SINCE:
        return OffsetFetchResponse(error_code=_CODE)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=NO_OFFSET,
                        metadata="",
                        error_code=_CODE,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )


def consumer_group_heartbeat(
    header: RequestHeader, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Refuse the heartbeat."""
    return ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=_CODE,
        error_message=NO_GROUPS,
        member_epoch=0,
        heartbeat_interval_ms=0,
    )
