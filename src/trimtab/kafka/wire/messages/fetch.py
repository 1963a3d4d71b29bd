"""Fetch (API 1): read batches from partitions."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import (
    CONSUMER,
    FINAL_EPOCH,
    NO_BROKER,
    NO_EPOCH,
    NO_LEADER,
    NO_OFFSET,
)
from trimtab.kafka.wire.types import (
    MAX_INT32,
    MAX_INT64,
    ZERO_UUID,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    uuid,
)


@struct(versions="15+")
class ReplicaState:
    """The fetching replica, if it is a follower."""

    replica_id: int32 = CONSUMER
    replica_epoch: int64 = NO_EPOCH


@struct()
class FetchPartition:
    """The position to read from in one partition, and the limit in bytes."""

    partition: int32
    # -1: the leader does not check its epoch.
    current_leader_epoch: int32 = field(versions="9+", default=NO_EPOCH, ignorable=True)
    fetch_offset: int64
    # The epoch of the follower's last record, by which the leader finds where their logs diverge.
    last_fetched_epoch: int32 = field(versions="12+", default=NO_EPOCH)
    # Only followers set it.
    log_start_offset: int64 = field(versions="5+", default=NO_OFFSET, ignorable=True)
    # The first batch of the first partition that has one may exceed it (KIP-74).
    partition_max_bytes: int32
    replica_directory_id: uuid = field(
        versions="17+", tag=0, tagged_versions="17+", default=ZERO_UUID, ignorable=True
    )
    # -1 if the replica does not know it; the greatest int64 if it does not report it.
    high_watermark: int64 = field(
        versions="18+", tag=1, tagged_versions="18+", default=MAX_INT64, ignorable=True
    )


@struct()
class FetchTopic:
    """One topic, by name up to v12 and by id from v13."""

    topic: string = field(versions="0-12", default="", ignorable=True)
    topic_id: uuid = field(versions="13+", default=ZERO_UUID, ignorable=True)
    partitions: list[FetchPartition]


@struct(versions="7+")
class ForgottenTopic:
    """Partitions to remove from the fetch session."""

    topic: string = field(versions="7-12", default="", ignorable=True)
    topic_id: uuid = field(versions="13+", default=ZERO_UUID, ignorable=True)
    partitions: list[int32]


@message(api_key=1, versions="4-18", flexible="12+")
class FetchRequest(Request["FetchResponse"]):
    """Ask a replica for batches of the listed partitions, in this order (KIP-74).

    v4 adds the isolation level; v5 the follower's log start offset; v7 fetch sessions (KIP-227);
    v9 the leader epoch (KIP-320); v11 the consumer's rack (KIP-392). v12 is flexible and lets the
    leader see where logs part. v13 names topics by id (KIP-516). v15 moves the replica id into
    `replica_state` (KIP-903). v17 adds the directory id (KIP-853); v18 the high watermark
    (KIP-1166).
    """

    cluster_id: string | None = field(
        versions="12+",
        nullable_versions="12+",
        tag=0,
        tagged_versions="12+",
        default=None,
        ignorable=True,
    )
    # The broker id of a follower; -1 for a consumer.
    replica_id: int32 = field(versions="0-14", default=CONSUMER)
    replica_state: ReplicaState = field(
        versions="15+", tag=1, tagged_versions="15+", default_factory=ReplicaState
    )
    # How long the broker may wait for min_bytes.
    max_wait_ms: int32
    min_bytes: int32
    # Of the whole response; the first batch may exceed it (KIP-74).
    max_bytes: int32 = field(versions="3+", default=MAX_INT32, ignorable=True)
    # 0: all records; 1: only up to the last stable offset, with the aborted transactions listed.
    isolation_level: int8 = field(versions="4+", default=0, ignorable=True)
    # 0 without a session, or to request a new one.
    session_id: int32 = field(versions="7+", default=0, ignorable=True)
    # 0 for the first request of a session, -1 for none.
    session_epoch: int32 = field(versions="7+", default=FINAL_EPOCH, ignorable=True)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic] = field(versions="7+", default_factory=list)
    rack_id: string = field(versions="11+", default="", ignorable=True)


@struct(versions="12+")
class EpochEndOffset:
    """The last epoch that follower and leader have in common, and its end offset."""

    epoch: int32 = NO_EPOCH
    end_offset: int64 = NO_OFFSET


@struct(versions="12+")
class LeaderIdAndEpoch:
    """The leader to fetch from instead."""

    leader_id: int32 = NO_LEADER
    leader_epoch: int32 = NO_EPOCH


@struct()
class SnapshotId:
    """The snapshot to fetch if the log no longer contains the offset."""

    end_offset: int64 = NO_OFFSET
    epoch: int32 = NO_EPOCH


@struct(versions="4+")
class AbortedTransaction:
    """The offset from which a producer's records have to be skipped."""

    producer_id: int64
    first_offset: int64


@struct()
class PartitionData:
    partition_index: int32
    error_code: int16 = 0
    high_watermark: int64
    # All transactions before it have ended; -1 if unknown.
    last_stable_offset: int64 = field(versions="4+", default=NO_OFFSET, ignorable=True)
    log_start_offset: int64 = field(versions="5+", default=NO_OFFSET, ignorable=True)
    diverging_epoch: EpochEndOffset = field(
        versions="12+", tag=0, tagged_versions="12+", default_factory=EpochEndOffset
    )
    current_leader: LeaderIdAndEpoch = field(
        versions="12+", tag=1, tagged_versions="12+", default_factory=LeaderIdAndEpoch
    )
    snapshot_id: SnapshotId = field(
        versions="12+", tag=2, tagged_versions="12+", default_factory=SnapshotId
    )
    aborted_transactions: list[AbortedTransaction] | None = field(
        versions="4+", nullable_versions="4+", default_factory=list, ignorable=True
    )
    # The replica that the consumer should read from; -1 for this one (KIP-392).
    preferred_read_replica: int32 = field(versions="11+", default=NO_BROKER)
    records: records | None = field(nullable_versions="0+", default=None)


@struct()
class FetchableTopicResponse:
    """One topic, by name up to v12 and by id from v13."""

    topic: string = field(versions="0-12", default="", ignorable=True)
    topic_id: uuid = field(versions="13+", default=ZERO_UUID, ignorable=True)
    partitions: list[PartitionData]


@struct(versions="16+")
class NodeEndpoint:
    """The address of a broker that some `current_leader` names."""

    node_id: int32
    host: string
    port: int32
    rack: string | None = field(nullable_versions="16+", default=None)


@message(api_key=1, versions="4-18", flexible="12+")
class FetchResponse:
    """Whole batches from the one with the requested offset on.

    v4 adds the fields for transactions; v5 the log start offset; v7 sessions and a top-level error;
    v11 the preferred replica (KIP-392). v12 is flexible and adds the diverging epoch and the
    current leader; v13 names topics by id; v16 adds the addresses of new leaders (KIP-951).
    """

    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    error_code: int16 = field(versions="7+", default=0, ignorable=True)
    session_id: int32 = field(versions="7+", default=0)
    responses: list[FetchableTopicResponse]
    node_endpoints: list[NodeEndpoint] = field(
        versions="16+", tag=0, tagged_versions="16+", default_factory=list
    )
