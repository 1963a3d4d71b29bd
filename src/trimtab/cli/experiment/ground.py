"""Where an experiment takes place: an embedded cluster in this process, or one that is there.

The producers run in processes of their own, so that embedded brokers on a thread of this one do not
disturb what they measure.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trimtab.cli.options import read_client_options
from trimtab.cli.selection import connect_admin
from trimtab.errors import UsageError
from trimtab.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.client.admin import Admin
    from trimtab.client.network.metadata import TopicView
    from trimtab.cluster import Cluster


class Ground:
    """A cluster to experiment on. Make one with `open_ground`.

    Attributes:
        admin: an admin client of the cluster.
        cluster: the embedded one; None if it is not ours.
        client_words: whom a command is to talk to, as its command line options.
        brokers: the numbers of its brokers, ascending.
    """

    def __init__(self, admin: Admin, cluster: Cluster | None, client_words: Sequence[str]) -> None:
        self.admin = admin
        self.cluster = cluster
        self.client_words = list(client_words)
        self.brokers = sorted(node.id for node in admin.cluster().nodes)

    def slow(self, broker: int, produce_ms: float) -> None:
        """Have a broker of the embedded cluster answer produce requests late.

        Raises:
            UsageError: the cluster is not ours.
        """
        if self.cluster is None:
            raise UsageError("only an embedded cluster has brokers that can be slowed down")
        self.cluster.slow(broker, produce_ms)

    @contextmanager
    def topic(self, name: str, leaders: Sequence[int]) -> Iterator[TopicView]:
        """A new topic with one replica of each partition, on these brokers; deleted at the end.

        Args:
            name: what its name begins with.
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
        """A topic that is there."""
        return self.admin.describe_topics([topic])[topic]

    def count_records(self, view: TopicView) -> list[int]:
        """How many records each partition of a topic has had so far."""
        partitions = [TopicPartition(view.name, number) for number in range(view.partition_count)]
        ends = self.admin.list_offsets(partitions)
        return [ends[partition].offset for partition in partitions]


@contextmanager
def open_ground(
    arguments: argparse.Namespace, racks: Sequence[str], slow: Mapping[int, float]
) -> Iterator[Ground]:
    """The cluster that --bootstrap-server names, else an embedded one for the time being.

    Args:
        racks: of the embedded cluster's brokers, one each.
        slow: which of them answer produce requests how many milliseconds late.
    """
    if arguments.bootstrap_server is not None:
        with connect_admin(read_client_options(arguments)) as admin:
            yield Ground(admin, None, _client_words(arguments))
        return
    from trimtab.cluster import Cluster

    with Cluster(brokers=len(racks), racks=racks) as cluster:
        for broker, produce_ms in slow.items():
            cluster.slow(broker, produce_ms)
        options: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap_servers}
        with connect_admin(options) as admin:
            yield Ground(admin, cluster, ["--bootstrap-server", cluster.bootstrap_servers])


def _client_words(arguments: argparse.Namespace) -> list[str]:
    words = ["--bootstrap-server", arguments.bootstrap_server]
    if arguments.file is not None:
        words += ["--command-config", arguments.file]
    if arguments.properties:
        words += ["--command-property", *arguments.properties]
    return words
