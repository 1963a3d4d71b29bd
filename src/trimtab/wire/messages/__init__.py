"""Kafka's messages, one file per API, each class laid out like its definition in Kafka.

`APIS` is the table of them; a node serves those that it has handlers for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from trimtab.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from trimtab.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from trimtab.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from trimtab.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from trimtab.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from trimtab.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from trimtab.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
)
from trimtab.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from trimtab.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from trimtab.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from trimtab.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from trimtab.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from trimtab.wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from trimtab.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from trimtab.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from trimtab.wire.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from trimtab.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from trimtab.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from trimtab.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from trimtab.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from trimtab.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from trimtab.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from trimtab.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from trimtab.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from trimtab.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from trimtab.wire.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from trimtab.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from trimtab.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from trimtab.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from trimtab.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from trimtab.wire.messages.fetch import FetchRequest, FetchResponse
from trimtab.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from trimtab.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from trimtab.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from trimtab.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from trimtab.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from trimtab.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from trimtab.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from trimtab.wire.messages.list_batch_sizes import ListBatchSizesRequest, ListBatchSizesResponse
from trimtab.wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from trimtab.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from trimtab.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from trimtab.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from trimtab.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from trimtab.wire.messages.metadata import MetadataRequest, MetadataResponse
from trimtab.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from trimtab.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from trimtab.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from trimtab.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from trimtab.wire.messages.produce import ProduceRequest, ProduceResponse
from trimtab.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from trimtab.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from trimtab.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from trimtab.wire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from trimtab.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from trimtab.wire.schema import Request, response_of, schema
from trimtab.wire.types import MAX_INT16


class Api(NamedTuple):
    """One API, in the versions that trimtab supports.

    Attributes:
        key: its number on the wire.
        name: Kafka's name of it.
        request: the class of the request.
        response: the class of the response.
        min_version: the lowest supported version.
        max_version: the highest version that is advertised, and that clients use unless they ask
            for a later one.
        flexible_from: the first flexible version, whose headers have tags; beyond all versions if
            there is none.
    """

    key: int
    name: str
    request: type[Any]
    response: type[Any]
    min_version: int
    max_version: int
    flexible_from: int

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version


def _api(request: type[Request[object]], max_version: int | None = None) -> Api:
    kind = schema(request)
    response = response_of(request)
    # The client's and the server's code take the header's form from the request alone.
    assert schema(response)[2:] == kind[2:], request
    return Api(
        key=request.api_key,
        name=request.__name__.removesuffix("Request"),
        request=request,
        response=response,
        min_version=kind.versions.low,
        max_version=kind.versions.high if max_version is None else max_version,
        flexible_from=kind.flexible.low if kind.flexible else MAX_INT16 + 1,
    )


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        _api(ProduceRequest),
        _api(FetchRequest),
        _api(ListOffsetsRequest),
        _api(MetadataRequest),
        _api(OffsetCommitRequest),
        _api(OffsetFetchRequest),
        _api(FindCoordinatorRequest),
        _api(JoinGroupRequest),
        _api(SyncGroupRequest),
        _api(HeartbeatRequest),
        _api(LeaveGroupRequest),
        _api(DescribeGroupsRequest),
        _api(ListGroupsRequest),
        _api(DeleteGroupsRequest),
        _api(OffsetDeleteRequest),
        _api(ConsumerGroupHeartbeatRequest),
        _api(ConsumerGroupDescribeRequest),
        _api(ApiVersionsRequest),
        _api(CreateTopicsRequest),
        _api(DeleteTopicsRequest),
        # Version 6 is unstable in Kafka 4.3: it is not advertised, and clients must ask for it.
        _api(InitProducerIdRequest, max_version=5),
        _api(DescribeConfigsRequest),
        _api(DescribeClusterRequest),
        _api(SaslHandshakeRequest),
        _api(DeleteRecordsRequest),
        _api(OffsetForLeaderEpochRequest),
        _api(AddPartitionsToTxnRequest),
        _api(AddOffsetsToTxnRequest),
        _api(EndTxnRequest),
        _api(TxnOffsetCommitRequest),
        _api(DescribeAclsRequest),
        _api(CreateAclsRequest),
        _api(DeleteAclsRequest),
        _api(AlterConfigsRequest),
        _api(AlterReplicaLogDirsRequest),
        _api(DescribeLogDirsRequest),
        _api(SaslAuthenticateRequest),
        _api(CreatePartitionsRequest),
        _api(ElectLeadersRequest),
        _api(IncrementalAlterConfigsRequest),
        _api(AlterPartitionReassignmentsRequest),
        _api(ListPartitionReassignmentsRequest),
        _api(DescribeQuorumRequest),
        _api(AlterPartitionRequest),
        _api(FetchSnapshotRequest),
        _api(DescribeProducersRequest),
        _api(DescribeTransactionsRequest),
        _api(ListTransactionsRequest),
        _api(BrokerRegistrationRequest),
        _api(BrokerHeartbeatRequest),
        _api(UnregisterBrokerRequest),
        _api(AllocateProducerIdsRequest),
        _api(ListConfigResourcesRequest),
        _api(DescribeTopicPartitionsRequest),
        _api(ListBatchSizesRequest),
    )
}
"""The supported APIs by key: those of trimtab's nodes, and those its clients use with Kafka."""

APIS_BY_REQUEST: dict[type, Api] = {api.request: api for api in APIS.values()}
"""The same by the class of the request."""

OWN_APIS_FROM = 32_000
"""Keys from here on are APIs of trimtab that Kafka does not have. Kafka's keys are below 100."""

__all__ = [
    "APIS",
    "APIS_BY_REQUEST",
    "OWN_APIS_FROM",
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AllocateProducerIdsRequest",
    "AllocateProducerIdsResponse",
    "AlterConfigsRequest",
    "AlterConfigsResponse",
    "AlterPartitionReassignmentsRequest",
    "AlterPartitionReassignmentsResponse",
    "AlterPartitionRequest",
    "AlterPartitionResponse",
    "AlterReplicaLogDirsRequest",
    "AlterReplicaLogDirsResponse",
    "Api",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "BrokerHeartbeatRequest",
    "BrokerHeartbeatResponse",
    "BrokerRegistrationRequest",
    "BrokerRegistrationResponse",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "CreateAclsRequest",
    "CreateAclsResponse",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeleteAclsRequest",
    "DeleteAclsResponse",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DescribeAclsRequest",
    "DescribeAclsResponse",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribeProducersRequest",
    "DescribeProducersResponse",
    "DescribeQuorumRequest",
    "DescribeQuorumResponse",
    "DescribeTopicPartitionsRequest",
    "DescribeTopicPartitionsResponse",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "ElectLeadersRequest",
    "ElectLeadersResponse",
    "EndTxnRequest",
    "EndTxnResponse",
    "FetchRequest",
    "FetchResponse",
    "FetchSnapshotRequest",
    "FetchSnapshotResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListBatchSizesRequest",
    "ListBatchSizesResponse",
    "ListConfigResourcesRequest",
    "ListConfigResourcesResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListPartitionReassignmentsRequest",
    "ListPartitionReassignmentsResponse",
    "ListTransactionsRequest",
    "ListTransactionsResponse",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "ProduceRequest",
    "ProduceResponse",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
    "UnregisterBrokerRequest",
    "UnregisterBrokerResponse",
]
