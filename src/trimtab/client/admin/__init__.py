"""The admin client: `Admin` from any thread, `AsyncAdmin` on an event loop.

admin, async_admin   what users call
topics, configs, reassignments, log_dirs, eligible_leaders, transactions
                     what it asks, and what it makes of the answers
calls                whom it asks, and how often
answers              what it is given and gives back
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
