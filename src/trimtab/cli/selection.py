"""Which topics and partitions a command is about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trimtab.cli.reach import unreachable_is_said
from trimtab.errors import UsageError
from trimtab.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.client.admin import Admin
    from trimtab.client.network.metadata import TopicView

ADMIN_TIMEOUT_MS = 15_000
"""How long a command tries to reach a cluster; a person waits less patiently than a program."""


@contextmanager
def connect_admin(options: dict[str, Any]) -> Iterator[Admin]:
    """An admin client with a command's client options; a cluster that does not answer is said."""
    from trimtab.client.admin import Admin

    with (
        unreachable_is_said(options),
        Admin(**{"default.api.timeout.ms": ADMIN_TIMEOUT_MS, **options}) as admin,
    ):
        yield admin


def match_names(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a regular expression matches whole; commas separate several, and blanks and
    quotes around it do not count, as in Kafka.

    Raises:
        UsageError: it is no regular expression.
    """
    try:
        parts = pattern.replace(" ", "").strip("\"'").split(",")
        wanted = re.compile("|".join(f"(?:{part})" for part in parts))
    except re.error as error:
        raise UsageError(f"topic {pattern!r} is no regular expression: {error}") from None
    return sorted(name for name in names if wanted.fullmatch(name))


def select_topics(admin: Admin, pattern: str | None, include_internal: bool = True) -> list[str]:
    """The cluster's topics that match; all of them without a pattern."""
    names = admin.topics(include_internal=include_internal)
    return names if pattern is None else match_names(pattern, names)


def list_partitions(view: TopicView) -> list[TopicPartition]:
    return [TopicPartition(view.name, number) for number in range(view.partition_count)]


def choose_partitions(admin: Admin, topic: str, partition: int | None) -> list[TopicPartition]:
    """A topic's partitions, or the one that is asked for.

    Raises:
        BrokerError: there is no such topic.
        UsageError: it has no such partition.
    """
    partitions = list_partitions(admin.describe_topics([topic])[topic])
    if partition is None:
        return partitions
    if not 0 <= partition < len(partitions):
        raise UsageError(
            f"--partition {partition}: {topic} has {len(partitions)} partitions, counted from 0"
        )
    return [partitions[partition]]
