"""The admin client, from any thread.

    with Admin("127.0.0.1:9092") as admin:
        admin.create_topic("flights", partitions=6)
        print(admin.list_offsets([("flights", 0)], at="latest"))

Requests that only read are repeated, at other brokers too, until `default.api.timeout.ms` is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import Unpack

from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.blocking.face import Face, waits
from trimtab.client.network.option_types import AdminOptions
from trimtab.client.options import gather_options
from trimtab.threads.loop_thread import shared


class Admin(Face[AsyncAdmin]):
    """Manages topics, configurations, replicas, groups and transactions, from any thread.

    Args:
        bootstrap_servers: `host:port, …` of the cluster; also as the option of that name. Or a
            dictionary of options, to which keyword arguments may add.
        options: Kafka's admin options, dotted or in snake case.

    Raises:
        UsageError: an unknown option, or a value that is out of range.

    Every method raises `Unavailable`, with the addresses that were tried, if no broker answers
    within `default.api.timeout.ms`, and `BrokerError` if a broker refuses.
    """

    _closed_error = "the admin client is closed"

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None = None,
        **options: Unpack[AdminOptions],
    ) -> None:
        given = gather_options("admin", bootstrap_servers, options)
        admin = AsyncAdmin(given, random=Random())
        self._wrap(admin, admin._leave_closing(), shared())

    topics = waits(AsyncAdmin.topics)
    describe_topics = waits(AsyncAdmin.describe_topics)
    eligible_leaders = waits(AsyncAdmin.eligible_leaders)
    create_topic = waits(AsyncAdmin.create_topic)
    create_topics = waits(AsyncAdmin.create_topics)
    create_partitions = waits(AsyncAdmin.create_partitions)
    delete_topic = waits(AsyncAdmin.delete_topic)
    list_offsets = waits(AsyncAdmin.list_offsets)
    describe_configs = waits(AsyncAdmin.describe_configs)
    describe_topic_configs = waits(AsyncAdmin.describe_topic_configs)
    alter_configs = waits(AsyncAdmin.alter_configs)
    alter_reassignments = waits(AsyncAdmin.alter_reassignments)
    list_reassignments = waits(AsyncAdmin.list_reassignments)
    describe_log_dirs = waits(AsyncAdmin.describe_log_dirs)
    list_replica_ends = waits(AsyncAdmin.list_replica_ends)
    list_transactions = waits(AsyncAdmin.list_transactions)
    describe_transactions = waits(AsyncAdmin.describe_transactions)
    describe_producers = waits(AsyncAdmin.describe_producers)
    abort_transaction = waits(AsyncAdmin.abort_transaction)
    fence_producers = waits(AsyncAdmin.fence_producers)
    list_groups = waits(AsyncAdmin.list_groups)
    describe_groups = waits(AsyncAdmin.describe_groups)
    delete_groups = waits(AsyncAdmin.delete_groups)
    list_group_offsets = waits(AsyncAdmin.list_group_offsets)
    list_offsets_of_groups = waits(AsyncAdmin.list_offsets_of_groups)
    alter_group_offsets = waits(AsyncAdmin.alter_group_offsets)
    delete_group_offsets = waits(AsyncAdmin.delete_group_offsets)
    delete_records = waits(AsyncAdmin.delete_records)
    elect_leaders = waits(AsyncAdmin.elect_leaders)
    cluster = waits(AsyncAdmin.cluster)
    describe_quorum = waits(AsyncAdmin.describe_quorum)
    unregister_broker = waits(AsyncAdmin.unregister_broker)
    describe_features = waits(AsyncAdmin.describe_features)
    update_features = waits(AsyncAdmin.update_features)
