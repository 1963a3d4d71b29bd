"""FetchSnapshot (API 59): read a snapshot of the metadata log, a piece at a time (KIP-630)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import CONSUMER
from trimtab.kafka.wire.types import (
    MAX_INT32,
    ZERO_UUID,
    int16,
    int32,
    int64,
    records,
    string,
    uint16,
    uuid,
)


@struct()
class SnapshotId:
    """The end of the log that the snapshot covers."""

    # The first offset that is not in the snapshot.
    end_offset: int64
    # Of the last record that is in it.
    epoch: int32


@struct()
class PartitionSnapshot:
    """The position to read from in one partition's snapshot."""

    partition: int32
    # -1: the leader does not check its epoch.
    current_leader_epoch: int32
    snapshot_id: SnapshotId
    # In bytes from the start of the snapshot.
    position: int64
    replica_directory_id: uuid = field(
        versions="1+", tag=0, tagged_versions="1+", default=ZERO_UUID, ignorable=True
    )


@struct()
class TopicSnapshot:
    name: string
    partitions: list[PartitionSnapshot]


@message(api_key=59, versions="0-1", flexible="0+")
class FetchSnapshotRequest(Request["FetchSnapshotResponse"]):
    """Ask the leader for a piece of a snapshot. v1 adds the directory id (KIP-853)."""

    cluster_id: string | None = field(
        nullable_versions="0+", tag=0, tagged_versions="0+", default=None
    )
    # The node id of the follower.
    replica_id: int32 = CONSUMER
    # Of the whole response.
    max_bytes: int32 = MAX_INT32
    topics: list[TopicSnapshot]


@struct()
class LeaderIdAndEpoch:
    """The leader to fetch from instead; -1 if there is none."""

    leader_id: int32 = 0
    leader_epoch: int32 = 0


# Kafka gives the next two the names of the request's: PartitionSnapshot and TopicSnapshot.
@struct()
class PartitionSnapshotResponse:
    """A piece of one partition's snapshot."""

    index: int32
    error_code: int16 = 0
    snapshot_id: SnapshotId
    current_leader: LeaderIdAndEpoch = field(
        tag=0, tagged_versions="0+", default_factory=LeaderIdAndEpoch
    )
    # Of the whole snapshot, in bytes.
    size: int64 = 0
    # The position at which the piece begins.
    position: int64 = 0
    # May end in the middle of a batch.
    unaligned_records: records


@struct()
class TopicSnapshotResponse:
    name: string
    partitions: list[PartitionSnapshotResponse]


@struct(versions="1+")
class NodeEndpoint:
    """The address of a node that some `current_leader` names."""

    node_id: int32
    host: string
    port: uint16


@message(api_key=59, versions="0-1", flexible="0+")
class FetchSnapshotResponse:
    """The pieces. v1 adds the addresses of leaders (KIP-853)."""

    throttle_time_ms: int32 = field(default=0, ignorable=True)
    # If it is set, the topics are empty.
    error_code: int16 = 0
    topics: list[TopicSnapshotResponse] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(
        versions="1+", tag=0, tagged_versions="1+", default_factory=list
    )
