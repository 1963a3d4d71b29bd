"""The cluster of an experiment: an embedded one in this process, or an existing one.

The producers run in processes of their own, so that the embedded brokers, which run on a thread of
this process, do not affect the measured latencies.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trimtab.cli.options import read_client_options
from trimtab.cli.selection import connect_admin, list_partitions
from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.client.blocking.admin import Admin
    from trimtab.client.topic_view import TopicView
    from trimtab.cluster.embedded import Cluster


class ExperimentCluster:
    """A cluster to experiment on. Create one with `open_cluster`.

    Attributes:
        admin: an admin client of the cluster.
        embedded: the embedded cluster; None for an existing one.
        client_words: command line options that connect a command to the cluster.
        brokers: the ids of its brokers, ascending.
    """

    def __init__(self, admin: Admin, embedded: Cluster | None, client_words: Sequence[str]) -> None:
        self.admin = admin
        self.embedded = embedded
        self.client_words = list(client_words)
        self.brokers = sorted(node.id for node in admin.cluster().nodes)

    def slow(self, broker: int, produce_ms: float) -> None:
        """Delay an embedded broker's answers to produce requests, in milliseconds.

        Raises:
            UsageError: the cluster is not embedded.
        """
        if self.embedded is None:
            raise UsageError("only an embedded cluster has brokers that can be slowed down")
        self.embedded.slow(broker, produce_ms)

    @contextmanager
    def topic(self, name: str, leaders: Sequence[int]) -> Iterator[TopicView]:
        """Create a topic with one partition on each of these brokers; delete it at the end.

        Args:
            name: the start of the topic's name, which is made unique.
            leaders: the broker of each partition's only replica.
        """
        from trimtab.client.admin import NewTopic

        unique = f"trimtab-{name}-{uuid.uuid4().hex[:8]}"
        assignment = {partition: [leader] for partition, leader in enumerate(leaders)}
        self.admin.create_topics([NewTopic(unique, assignment=assignment)])
        try:
            yield self.admin.describe_topics([unique])[unique]
        finally:
            self.admin.delete_topic(unique)

    def describe(self, topic: str) -> TopicView:
        """The metadata of an existing topic."""
        return self.admin.describe_topics([topic])[topic]

    def count_records(self, view: TopicView) -> list[int]:
        """The end offset of each partition of a topic."""
        partitions = list_partitions(view)
        ends = self.admin.list_offsets(partitions)
        return [ends[partition].offset for partition in partitions]


@contextmanager
def open_cluster(
    arguments: argparse.Namespace, racks: Sequence[str], slow: Mapping[int, float]
) -> Iterator[ExperimentCluster]:
    """The cluster that --bootstrap-server names; without it an embedded one, stopped at the end.

    Args:
        racks: one rack for each broker of an embedded cluster.
        slow: by embedded broker, the delay of its answers to produce requests in milliseconds.
    """
    if arguments.bootstrap_server is not None:
        with connect_admin(read_client_options(arguments)) as admin:
            yield ExperimentCluster(admin, None, _client_words(arguments))
        return
    from trimtab.cluster.embedded import Cluster

    with Cluster(brokers=len(racks), racks=racks) as cluster:
        for broker, produce_ms in slow.items():
            cluster.slow(broker, produce_ms)
        options: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap_servers}
        with connect_admin(options) as admin:
            yield ExperimentCluster(
                admin, cluster, ["--bootstrap-server", cluster.bootstrap_servers]
            )


def _client_words(arguments: argparse.Namespace) -> list[str]:
    words = ["--bootstrap-server", arguments.bootstrap_server]
    if arguments.command_config is not None:
        words += ["--command-config", arguments.command_config]
    if arguments.command_property:
        words += ["--command-property", *arguments.command_property]
    return words
