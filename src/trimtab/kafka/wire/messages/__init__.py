"""Kafka's messages, one file per API, each class laid out like its definition in Kafka.

`APIS` is the table of them; a node serves those that it has handlers for.

Tests: tests/property/test_messages.py
"""

from __future__ import annotations

from typing import Any, NamedTuple

from trimtab.kafka.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from trimtab.kafka.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from trimtab.kafka.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from trimtab.kafka.wire.messages.alter_configs import AlterConfigsRequest
from trimtab.kafka.wire.messages.alter_partition import AlterPartitionRequest
from trimtab.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from trimtab.kafka.wire.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from trimtab.kafka.wire.messages.api_versions import ApiVersionsRequest
from trimtab.kafka.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from trimtab.kafka.wire.messages.broker_registration import BrokerRegistrationRequest
from trimtab.kafka.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from trimtab.kafka.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from trimtab.kafka.wire.messages.create_acls import CreateAclsRequest
from trimtab.kafka.wire.messages.create_partitions import CreatePartitionsRequest
from trimtab.kafka.wire.messages.create_topics import CreateTopicsRequest
from trimtab.kafka.wire.messages.delete_acls import DeleteAclsRequest
from trimtab.kafka.wire.messages.delete_groups import DeleteGroupsRequest
from trimtab.kafka.wire.messages.delete_records import DeleteRecordsRequest
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest
from trimtab.kafka.wire.messages.describe_acls import DescribeAclsRequest
from trimtab.kafka.wire.messages.describe_cluster import DescribeClusterRequest
from trimtab.kafka.wire.messages.describe_configs import DescribeConfigsRequest
from trimtab.kafka.wire.messages.describe_groups import DescribeGroupsRequest
from trimtab.kafka.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from trimtab.kafka.wire.messages.describe_producers import DescribeProducersRequest
from trimtab.kafka.wire.messages.describe_quorum import DescribeQuorumRequest
from trimtab.kafka.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from trimtab.kafka.wire.messages.describe_transactions import DescribeTransactionsRequest
from trimtab.kafka.wire.messages.elect_leaders import ElectLeadersRequest
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest
from trimtab.kafka.wire.messages.fetch import FetchRequest
from trimtab.kafka.wire.messages.fetch_snapshot import FetchSnapshotRequest
from trimtab.kafka.wire.messages.find_coordinator import FindCoordinatorRequest
from trimtab.kafka.wire.messages.heartbeat import HeartbeatRequest
from trimtab.kafka.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.join_group import JoinGroupRequest
from trimtab.kafka.wire.messages.leave_group import LeaveGroupRequest
from trimtab.kafka.wire.messages.list_config_resources import ListConfigResourcesRequest
from trimtab.kafka.wire.messages.list_groups import ListGroupsRequest
from trimtab.kafka.wire.messages.list_offsets import ListOffsetsRequest
from trimtab.kafka.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from trimtab.kafka.wire.messages.list_transactions import ListTransactionsRequest
from trimtab.kafka.wire.messages.metadata import MetadataRequest
from trimtab.kafka.wire.messages.offset_commit import OffsetCommitRequest
from trimtab.kafka.wire.messages.offset_delete import OffsetDeleteRequest
from trimtab.kafka.wire.messages.offset_fetch import OffsetFetchRequest
from trimtab.kafka.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from trimtab.kafka.wire.messages.produce import ProduceRequest
from trimtab.kafka.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from trimtab.kafka.wire.messages.sasl_handshake import SaslHandshakeRequest
from trimtab.kafka.wire.messages.sync_group import SyncGroupRequest
from trimtab.kafka.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from trimtab.kafka.wire.messages.unregister_broker import UnregisterBrokerRequest
from trimtab.kafka.wire.messages.update_features import UpdateFeaturesRequest
from trimtab.kafka.wire.messages.write_txn_markers import WriteTxnMarkersRequest
from trimtab.kafka.wire.schema import Request, response_of, schema
from trimtab.kafka.wire.types import MAX_INT16


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
        _api(WriteTxnMarkersRequest),
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
        _api(UpdateFeaturesRequest),
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
    "AddPartitionsToTxnRequest",
    "AllocateProducerIdsRequest",
    "AlterConfigsRequest",
    "AlterPartitionReassignmentsRequest",
    "AlterPartitionRequest",
    "AlterReplicaLogDirsRequest",
    "Api",
    "ApiVersionsRequest",
    "BrokerHeartbeatRequest",
    "BrokerRegistrationRequest",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupHeartbeatRequest",
    "CreateAclsRequest",
    "CreatePartitionsRequest",
    "CreateTopicsRequest",
    "DeleteAclsRequest",
    "DeleteGroupsRequest",
    "DeleteRecordsRequest",
    "DeleteTopicsRequest",
    "DescribeAclsRequest",
    "DescribeClusterRequest",
    "DescribeConfigsRequest",
    "DescribeGroupsRequest",
    "DescribeLogDirsRequest",
    "DescribeProducersRequest",
    "DescribeQuorumRequest",
    "DescribeTopicPartitionsRequest",
    "DescribeTransactionsRequest",
    "ElectLeadersRequest",
    "EndTxnRequest",
    "FetchRequest",
    "FetchSnapshotRequest",
    "FindCoordinatorRequest",
    "HeartbeatRequest",
    "IncrementalAlterConfigsRequest",
    "InitProducerIdRequest",
    "JoinGroupRequest",
    "LeaveGroupRequest",
    "ListConfigResourcesRequest",
    "ListGroupsRequest",
    "ListOffsetsRequest",
    "ListPartitionReassignmentsRequest",
    "ListTransactionsRequest",
    "MetadataRequest",
    "OffsetCommitRequest",
    "OffsetDeleteRequest",
    "OffsetFetchRequest",
    "OffsetForLeaderEpochRequest",
    "ProduceRequest",
    "SaslAuthenticateRequest",
    "SaslHandshakeRequest",
    "SyncGroupRequest",
    "TxnOffsetCommitRequest",
    "UnregisterBrokerRequest",
    "UpdateFeaturesRequest",
    "WriteTxnMarkersRequest",
]
