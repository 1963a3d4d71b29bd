"""The admin client on an event loop; `trimtab.client.blocking.admin` has the one for threads.

async_admin          the public class, which joins these families of methods:
topics, records, configs, reassignments, elections, log_dirs, replica_ends, eligible_leaders,
transactions, producers, groups, group_offsets, brokers, quorum, features
                     check the arguments, build the requests, and read the responses
calls                choose the broker, and retry
answers              the types of arguments and results

Tests: test_async_admin.py
Tests of group_offsets: test_groups.py
Tests of log_dirs, reassignments: tests/unit/client/blocking/test_admin.py
Tests of producers: tests/unit/cli/test_transactions.py
"""

from trimtab.client.admin.answers import (
    ClusterDescription,
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    EligibleLeaders,
    Features,
    GroupDescription,
    GroupListing,
    GroupMember,
    LogDirectory,
    NewTopic,
    PartlyRefused,
    ProducerDescription,
    Quorum,
    QuorumReplica,
    Reassignment,
    ReplicaLog,
    TransactionDescription,
    TransactionListing,
)
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.admin.records import Moment
from trimtab.client.admin.replica_ends import ReplicaEnds

__all__ = [
    "AsyncAdmin",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigSource",
    "ConfigSynonym",
    "EligibleLeaders",
    "Features",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "LogDirectory",
    "Moment",
    "NewTopic",
    "PartlyRefused",
    "ProducerDescription",
    "Quorum",
    "QuorumReplica",
    "Reassignment",
    "ReplicaEnds",
    "ReplicaLog",
    "TransactionDescription",
    "TransactionListing",
]
