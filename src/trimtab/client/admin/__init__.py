"""The admin client: `Admin` from any thread, `AsyncAdmin` on an event loop.

admin, async_admin   the public classes
topics, configs, reassignments, log_dirs, eligible_leaders, transactions, group_offsets
                     build the requests, and read the responses
calls                choose the broker, and retry
answers              the types of arguments and results
"""

from trimtab.client.admin.admin import Admin
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
    "Admin",
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
