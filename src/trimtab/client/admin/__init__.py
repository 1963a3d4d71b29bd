"""The admin client on an event loop; `trimtab.blocking.admin` has the one for threads.

async_admin          the public class
topics, records, configs, reassignments, elections, log_dirs, eligible_leaders, transactions,
producers, groups, group_offsets, cluster, features
                     build the requests, and read the responses
calls                choose the broker, and retry
answers              the types of arguments and results
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
    Reassignment,
    ReplicaLog,
    TransactionDescription,
    TransactionListing,
)
from trimtab.client.admin.async_admin import AsyncAdmin, Moment

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
    "Reassignment",
    "ReplicaLog",
    "TransactionDescription",
    "TransactionListing",
]
