"""ListOffsets (API 2): the offset for a timestamp, or for one end of the log."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP
from trimtab.kafka.wire.types import int8, int16, int32, int64, string


@struct()
class ListOffsetsPartition:
    """The timestamp to look up in one partition."""

    partition_index: int32
    current_leader_epoch: int32 = field(versions="4+", default=NO_EPOCH, ignorable=True)
    # In milliseconds, or -1: the end; -2: the start; -3: the record with the greatest timestamp;
    # -4: the local start; -5: the last tiered; -6: the first that waits to be tiered.
    timestamp: int64


@struct()
class ListOffsetsTopic:
    name: string
    partitions: list[ListOffsetsPartition]


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    """Ask for the first offset at or after a timestamp, or for one end of the log.

    v2 adds the isolation level; v4 the leader epoch. v6 is flexible. v7 to v9 and v11 each allow
    one more special timestamp (KIP-734, 405, 1005, 1023); v10 adds the timeout (KIP-1075).
    """

    # -1 for a consumer, -2 to ask any replica for its own log.
    replica_id: int32
    # 1 ends the log at the last stable offset.
    isolation_level: int8 = field(versions="2+", default=0)
    topics: list[ListOffsetsTopic]
    # For topics on tiered storage.
    timeout_ms: int32 = field(versions="10+", default=0, ignorable=True)


@struct()
class ListOffsetsPartitionResponse:
    """The result for one partition; offset and timestamp are -1 if there is no such record."""

    partition_index: int32
    error_code: int16 = 0
    timestamp: int64 = field(versions="1+", default=NO_TIMESTAMP)
    offset: int64 = field(versions="1+", default=NO_OFFSET)
    leader_epoch: int32 = field(versions="4+", default=NO_EPOCH)


@struct()
class ListOffsetsTopicResponse:
    """The results for one topic."""

    name: string
    partitions: list[ListOffsetsPartitionResponse]


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsResponse:
    """One offset per requested partition.

    v2 adds the throttle time; v4 the leader epoch; v5 may answer OFFSET_NOT_AVAILABLE.
    """

    throttle_time_ms: int32 = field(versions="2+", default=0, ignorable=True)
    topics: list[ListOffsetsTopicResponse]
