"""The requests a broker answers: one file per family of APIs, one plain function per API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trimtab.broker.handlers.acls import create_acls, delete_acls, describe_acls
from trimtab.broker.handlers.batch_sizes import list_batch_sizes
from trimtab.broker.handlers.cluster import describe_cluster
from trimtab.broker.handlers.config_resources import list_config_resources
from trimtab.broker.handlers.configs import describe_configs
from trimtab.broker.handlers.coordinators import find_coordinator
from trimtab.broker.handlers.delete_records import delete_records
from trimtab.broker.handlers.epochs import offset_for_leader_epoch
from trimtab.broker.handlers.fetch import fetch
from trimtab.broker.handlers.forwarding import FORWARDED, forward
from trimtab.broker.handlers.groups import consumer_group_heartbeat, fetch_offsets
from trimtab.broker.handlers.log_dirs import alter_replica_log_dirs, describe_log_dirs
from trimtab.broker.handlers.metadata import describe_metadata
from trimtab.broker.handlers.offsets import list_offsets
from trimtab.broker.handlers.produce import produce
from trimtab.broker.handlers.producer_ids import init_producer_id
from trimtab.broker.handlers.producers import describe_producers
from trimtab.broker.handlers.topic_partitions import describe_topic_partitions
from trimtab.wire.messages import (
    AlterReplicaLogDirsRequest,
    ConsumerGroupHeartbeatRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DeleteRecordsRequest,
    DescribeAclsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeTopicPartitionsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListBatchSizesRequest,
    ListConfigResourcesRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)

HANDLERS: dict[int, Callable[..., Any]] = {
    ProduceRequest.api_key: produce,
    FetchRequest.api_key: fetch,
    ListOffsetsRequest.api_key: list_offsets,
    MetadataRequest.api_key: describe_metadata,
    OffsetFetchRequest.api_key: fetch_offsets,
    FindCoordinatorRequest.api_key: find_coordinator,
    DeleteRecordsRequest.api_key: delete_records,
    InitProducerIdRequest.api_key: init_producer_id,
    OffsetForLeaderEpochRequest.api_key: offset_for_leader_epoch,
    DescribeAclsRequest.api_key: describe_acls,
    CreateAclsRequest.api_key: create_acls,
    DeleteAclsRequest.api_key: delete_acls,
    DescribeConfigsRequest.api_key: describe_configs,
    AlterReplicaLogDirsRequest.api_key: alter_replica_log_dirs,
    DescribeLogDirsRequest.api_key: describe_log_dirs,
    DescribeClusterRequest.api_key: describe_cluster,
    DescribeProducersRequest.api_key: describe_producers,
    ConsumerGroupHeartbeatRequest.api_key: consumer_group_heartbeat,
    ListConfigResourcesRequest.api_key: list_config_resources,
    DescribeTopicPartitionsRequest.api_key: describe_topic_partitions,
    ListBatchSizesRequest.api_key: list_batch_sizes,
    **{request.api_key: forward for request in FORWARDED},
}
"""By API key; each is given the broker, the header and the request (`trimtab.server.request`)."""
