"""The partitions that a group's options name, and the ends of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trimtab.cli.options import read_partition_ids
from trimtab.cli.selection import list_partitions
from trimtab.errors import UsageError
from trimtab.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.blocking.admin import Admin


def read_topics(admin: Admin, words: Sequence[str]) -> list[TopicPartition]:
    """`t:0,1` as these partitions, `t` as all partitions of the topic.

    Raises:
        UsageError: a word has another form.
        BrokerError: a topic named without partitions does not exist.
    """
    named: list[TopicPartition] = []
    whole: list[str] = []
    for word in words:
        topic, colon, numbers = word.partition(":")
        if not colon:
            whole.append(topic)
            continue
        ids = read_partition_ids(numbers)
        if not topic or not ids or min(ids) < 0:
            raise UsageError(f"--topic {word!r}: write a topic, or TOPIC:0,1 for partitions of it")
        named += [TopicPartition(topic, number) for number in ids]
    views = admin.describe_topics(sorted(set(whole))) if whole else {}
    named += [each for view in views.values() for each in list_partitions(view)]
    return sorted(set(named))


def read_leaders(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The leaders of these partitions, -1 for none; those that do not exist are left out."""
    wanted = set(partitions)
    names = sorted({each.topic for each in wanted} & set(admin.topics(include_internal=True)))
    views = admin.describe_topics(names) if names else {}
    return {
        each: views[each.topic].leaders[each.partition]
        for each in wanted
        if each.topic in views and each.partition < views[each.topic].partition_count
    }


def read_ends(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The end of each partition; those without a leader, and those that do not exist, are left
    out."""
    led = [each for each, leader in read_leaders(admin, partitions).items() if leader >= 0]
    found = admin.list_offsets(led) if led else {}
    return {partition: end.offset for partition, end in found.items()}
