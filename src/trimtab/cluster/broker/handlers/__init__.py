"""The requests a broker answers: one file per family of APIs, one plain function per API.

Tests: tests/unit/cluster/broker, a file by the API
"""

from __future__ import annotations

from functools import partial
from random import Random

from trimtab.cluster.broker.auto_creation import AutoCreation
from trimtab.cluster.broker.coordinator_topic import CoordinatorTopic
from trimtab.cluster.broker.fetch_session_cache import FetchSessionCache
from trimtab.cluster.broker.groups import GroupCoordinator
from trimtab.cluster.broker.handlers.acls import create_acls, delete_acls, describe_acls
from trimtab.cluster.broker.handlers.cluster import describe_cluster
from trimtab.cluster.broker.handlers.config_resources import list_config_resources
from trimtab.cluster.broker.handlers.configs import describe_configs
from trimtab.cluster.broker.handlers.coordinators import find_coordinator
from trimtab.cluster.broker.handlers.delete_records import delete_records
from trimtab.cluster.broker.handlers.epochs import offset_for_leader_epoch
from trimtab.cluster.broker.handlers.fetch import fetch
from trimtab.cluster.broker.handlers.forwarding import FORWARDED, forward
from trimtab.cluster.broker.handlers.group_offsets import (
    commit_offsets,
    commit_offsets_in_transaction,
    delete_offsets,
    fetch_offsets,
)
from trimtab.cluster.broker.handlers.groups import (
    consumer_group_heartbeat,
    delete_groups,
    describe_consumer_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    sync_group,
)
from trimtab.cluster.broker.handlers.log_dirs import alter_replica_log_dirs, describe_log_dirs
from trimtab.cluster.broker.handlers.markers import write_markers
from trimtab.cluster.broker.handlers.metadata import describe_metadata
from trimtab.cluster.broker.handlers.offsets import list_offsets
from trimtab.cluster.broker.handlers.produce import produce
from trimtab.cluster.broker.handlers.producer_ids import init_producer_id
from trimtab.cluster.broker.handlers.producers import describe_producers
from trimtab.cluster.broker.handlers.topic_partitions import describe_topic_partitions
from trimtab.cluster.broker.handlers.transactions import (
    add_offsets,
    add_partitions,
    describe_transactions,
    end_transaction,
    list_transactions,
)
from trimtab.cluster.broker.link import Link
from trimtab.cluster.broker.producer_ids import ProducerIds
from trimtab.cluster.broker.replicas import Replicas
from trimtab.cluster.broker.transaction_checks import TransactionChecks
from trimtab.cluster.broker.transactions import TransactionCoordinator
from trimtab.cluster.server.request import Handler
from trimtab.cluster.server.turns import Turns
from trimtab.kafka.wire import messages


class Services:
    """What a broker's handlers use.

    Args:
        controller: the link for what clients ask of the controller.
        random: draws the ids of fetch sessions.
    """

    def __init__(
        self,
        replicas: Replicas,
        groups: GroupCoordinator,
        groups_topic: CoordinatorTopic,
        transactions: TransactionCoordinator,
        transactions_topic: CoordinatorTopic,
        producer_ids: ProducerIds,
        controller: Link,
        random: Random,
    ) -> None:
        self.view = replicas.view
        self.replicas = replicas
        self.groups = groups
        self.groups_topic = groups_topic
        self.transactions = transactions
        self.transactions_topic = transactions_topic
        self.transaction_checks = TransactionChecks(self.view, transactions_topic)
        self.controller = controller
        slots = self.view.config.integer("max.incremental.fetch.session.cache.slots")
        self.fetch_sessions = FetchSessionCache(slots, random)
        self.auto_creation = AutoCreation(controller)
        self.producer_ids = producer_ids
        self.turns = Turns()

    def close(self) -> None:
        """Ask other nodes nothing more."""
        self.transaction_checks.close()
        self.producer_ids.close()


def handlers_of(its: Services) -> dict[int, Handler]:
    """The handlers of a broker by API key; each is given the services that it uses."""
    view, replicas, groups = its.view, its.replicas, its.groups
    transactions, checks, ids = its.transactions, its.transaction_checks, its.producer_ids
    return {
        messages.ProduceRequest.api_key: partial(produce, replicas, checks),
        messages.FetchRequest.api_key: partial(fetch, replicas, its.fetch_sessions, its.turns),
        messages.ListOffsetsRequest.api_key: partial(list_offsets, replicas),
        messages.MetadataRequest.api_key: partial(describe_metadata, view, its.auto_creation),
        messages.OffsetCommitRequest.api_key: partial(commit_offsets, groups),
        messages.OffsetFetchRequest.api_key: partial(fetch_offsets, groups),
        messages.FindCoordinatorRequest.api_key: partial(
            find_coordinator, its.groups_topic, its.transactions_topic
        ),
        messages.JoinGroupRequest.api_key: partial(join_group, groups),
        messages.HeartbeatRequest.api_key: partial(heartbeat, groups),
        messages.LeaveGroupRequest.api_key: partial(leave_group, groups),
        messages.SyncGroupRequest.api_key: partial(sync_group, groups),
        messages.DescribeGroupsRequest.api_key: partial(describe_groups, groups),
        messages.ListGroupsRequest.api_key: partial(list_groups, groups),
        messages.DeleteRecordsRequest.api_key: partial(delete_records, replicas),
        messages.InitProducerIdRequest.api_key: partial(init_producer_id, transactions, ids),
        messages.OffsetForLeaderEpochRequest.api_key: partial(offset_for_leader_epoch, replicas),
        messages.AddPartitionsToTxnRequest.api_key: partial(add_partitions, transactions),
        messages.AddOffsetsToTxnRequest.api_key: partial(
            add_offsets, transactions, its.groups_topic
        ),
        messages.EndTxnRequest.api_key: partial(end_transaction, transactions),
        messages.WriteTxnMarkersRequest.api_key: partial(write_markers, replicas, groups),
        messages.TxnOffsetCommitRequest.api_key: partial(
            commit_offsets_in_transaction, groups, checks
        ),
        messages.DescribeAclsRequest.api_key: describe_acls,
        messages.CreateAclsRequest.api_key: create_acls,
        messages.DeleteAclsRequest.api_key: delete_acls,
        messages.DescribeConfigsRequest.api_key: partial(describe_configs, view),
        messages.AlterReplicaLogDirsRequest.api_key: partial(alter_replica_log_dirs, replicas),
        messages.DescribeLogDirsRequest.api_key: partial(describe_log_dirs, replicas),
        messages.DeleteGroupsRequest.api_key: partial(delete_groups, groups),
        messages.OffsetDeleteRequest.api_key: partial(delete_offsets, groups),
        messages.DescribeClusterRequest.api_key: partial(describe_cluster, view),
        messages.DescribeProducersRequest.api_key: partial(describe_producers, replicas),
        messages.DescribeTransactionsRequest.api_key: partial(describe_transactions, transactions),
        messages.ListTransactionsRequest.api_key: partial(list_transactions, transactions),
        messages.ConsumerGroupHeartbeatRequest.api_key: partial(consumer_group_heartbeat, groups),
        messages.ConsumerGroupDescribeRequest.api_key: partial(describe_consumer_groups, groups),
        messages.ListConfigResourcesRequest.api_key: partial(list_config_resources, view),
        messages.DescribeTopicPartitionsRequest.api_key: partial(describe_topic_partitions, view),
        **{each.api_key: partial(forward, its.controller) for each in FORWARDED},
    }
