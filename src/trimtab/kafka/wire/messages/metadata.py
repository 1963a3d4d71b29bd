"""Metadata (API 3): brokers, topics, and the leaders of partitions."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_BROKER, NO_EPOCH, UNKNOWN_AUTHORIZED_OPERATIONS
from trimtab.kafka.wire.types import ZERO_UUID, int16, int32, string, uuid


@struct()
class MetadataRequestTopic:
    """A topic, by name, or by id from v12."""

    topic_id: uuid = field(versions="10+", default=ZERO_UUID, ignorable=True)
    name: string | None = field(nullable_versions="10+", default="")


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataRequest(Request["MetadataResponse"]):
    """Ask for the brokers, and for some topics or all of them.

    All topics are asked for by an empty list in v0 and by null from v1. v4 can forbid automatic
    creation; v8 authorized operations. v9 is flexible. v10 adds topic ids, which work
    from v12. v11 removes the cluster's authorized operations (DescribeCluster has them,
    KIP-700).
    """

    topics: list[MetadataRequestTopic] | None = field(nullable_versions="1+")
    allow_auto_topic_creation: bool = field(versions="4+", default=True)
    include_cluster_authorized_operations: bool = field(versions="8-10", default=False)
    include_topic_authorized_operations: bool = field(versions="8+", default=False)


@struct()
class MetadataResponseBroker:
    """One live broker and its address."""

    node_id: int32
    host: string
    port: int32
    rack: string | None = field(versions="1+", nullable_versions="1+", default=None, ignorable=True)


@struct()
class MetadataResponsePartition:
    """One partition; `leader_id` is -1 if it has no leader."""

    error_code: int16 = 0
    partition_index: int32
    leader_id: int32
    leader_epoch: int32 = field(versions="7+", default=NO_EPOCH, ignorable=True)
    replica_nodes: list[int32]
    isr_nodes: list[int32]
    offline_replicas: list[int32] = field(versions="5+", default_factory=list, ignorable=True)


@struct()
class MetadataResponseTopic:
    """One topic, or the error about it. Without an error both name and id are set."""

    error_code: int16 = 0
    # Null if requested by an unknown id.
    name: string | None = field(nullable_versions="12+")
    topic_id: uuid = field(versions="10+", default=ZERO_UUID, ignorable=True)
    is_internal: bool = field(versions="1+", default=False, ignorable=True)
    partitions: list[MetadataResponsePartition] = field(default_factory=list)
    topic_authorized_operations: int32 = field(versions="8+", default=UNKNOWN_AUTHORIZED_OPERATIONS)


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataResponse:
    """The cluster as the answering broker knows it.

    v1 adds racks, controller and internal topics; v2 the cluster id; v3 the throttle time; v5
    offline replicas; v7 leader epochs. v9 is flexible. v10 adds topic ids; v13 a top-level error.
    """

    throttle_time_ms: int32 = field(versions="3+", default=0, ignorable=True)
    brokers: list[MetadataResponseBroker]
    cluster_id: string | None = field(
        versions="2+", nullable_versions="2+", default=None, ignorable=True
    )
    controller_id: int32 = field(versions="1+", default=NO_BROKER, ignorable=True)
    topics: list[MetadataResponseTopic]
    cluster_authorized_operations: int32 = field(
        versions="8-10", default=UNKNOWN_AUTHORIZED_OPERATIONS
    )
    error_code: int16 = field(versions="13+", default=0, ignorable=True)
