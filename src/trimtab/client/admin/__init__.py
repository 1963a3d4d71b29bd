"""The admin client on an event loop; `trimtab.blocking.admin` has the one for threads.

async_admin          the public class
topics, configs, reassignments, log_dirs, eligible_leaders, transactions, group_offsets
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
    LogDirectory,
    NewTopic,
    Reassignment,
    ReassignmentsRefused,
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
    "LogDirectory",
    "Moment",
    "NewTopic",
    "Reassignment",
    "ReassignmentsRefused",
    "ReplicaLog",
    "TransactionDescription",
    "TransactionListing",
]
