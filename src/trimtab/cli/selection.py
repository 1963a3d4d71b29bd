"""Connects a command to a cluster, and selects topics and partitions by its options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from trimtab.cli.options import read_client_options
from trimtab.cli.reach import report_unreachable
from trimtab.cli.results import unless_refused
from trimtab.cli.table import show_count
from trimtab.kafka.errors import ErrorCode, UsageError
from trimtab.kafka.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.client.admin import ClusterDescription
    from trimtab.client.blocking.admin import Admin
    from trimtab.client.topic_view import TopicView

ADMIN_TIMEOUT_MS = 15_000
"""How long a command tries to reach a cluster: shorter than a client's default, as a user waits."""


@contextmanager
def connect_admin(options: dict[str, Any]) -> Iterator[Admin]:
    """An admin client with a command's client options; reports if no broker can be reached."""
    from trimtab.client.blocking.admin import Admin

    with (
        report_unreachable(options),
        Admin(**{"default.api.timeout.ms": ADMIN_TIMEOUT_MS, **options}) as admin,
    ):
        yield admin


def connect(arguments: argparse.Namespace) -> AbstractContextManager[Admin]:
    """An admin client, as the command's connection options say."""
    return connect_admin(read_client_options(arguments))


def describe_brokers(admin: Admin) -> ClusterDescription:
    """The cluster's brokers, with the fenced ones, such as stopped ones, where the cluster lists
    them."""
    # Apache Kafka before 4.0 does not.
    return unless_refused(
        lambda: admin.cluster(include_fenced=True), admin.cluster, ErrorCode.UNSUPPORTED_VERSION
    )


def match_names(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that match a regular expression in full.

    As in Kafka, commas separate several expressions, and blanks and enclosing quotes are removed.

    Raises:
        UsageError: it is not a regular expression.
    """
    try:
        parts = pattern.replace(" ", "").strip("\"'").split(",")
        wanted = re.compile("|".join(f"(?:{part})" for part in parts))
    except re.error as error:
        raise UsageError(f"topic {pattern!r} is not a regular expression: {error}") from None
    return sorted(name for name in names if wanted.fullmatch(name))


def select_topics(admin: Admin, pattern: str | None, include_internal: bool = True) -> list[str]:
    """The cluster's topics that match the pattern; all topics if it is None."""
    names = admin.topics(include_internal=include_internal)
    return names if pattern is None else match_names(pattern, names)


def list_partitions(view: TopicView) -> list[TopicPartition]:
    return [TopicPartition(view.name, number) for number in range(view.partition_count)]


def choose_partitions(admin: Admin, topic: str, partition: int | None) -> list[TopicPartition]:
    """A topic's partitions, or only the given one.

    Raises:
        BrokerError: the topic does not exist.
        UsageError: the topic has no such partition.
    """
    partitions = list_partitions(admin.describe_topics([topic])[topic])
    if partition is None:
        return partitions
    if not 0 <= partition < len(partitions):
        raise UsageError(
            f"--partition {partition}: {topic} has "
            f"{show_count(len(partitions), 'partition')}, counted from 0"
        )
    return [partitions[partition]]
