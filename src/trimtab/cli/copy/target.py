"""The topics of a copy: found, compared, and the one to copy to created if that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from trimtab.cli.selection import list_partitions
from trimtab.cli.style import say_note
from trimtab.cli.table import show_count
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError
from trimtab.kafka.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.client.blocking.admin import Admin
    from trimtab.client.topic_view import TopicView

LEFT_OUT: Final = frozenset(
    {
        # Of the source's brokers.
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "min.insync.replicas",
        "unclean.leader.election.enable",
        # With these the target would refuse, or replace, the times of older records.
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
    }
)
"""Options that a topic of another cluster must not have because this one has them. Kafka's
MirrorMaker leaves out most of them, too."""


class Topics(NamedTuple):
    """What is copied where.

    Attributes:
        partitions: those of the source.
        target_count: how many partitions the target has.
        are_in_one_cluster: whether a transaction can have records and offsets.
    """

    source: str
    target: str
    partitions: list[TopicPartition]
    target_count: int
    are_in_one_cluster: bool


def prepare_topics(
    source: Admin, target: Admin, topic: str, to_topic: str, is_created: bool
) -> Topics:
    """Raises:
    BrokerError: the source does not exist, or the cluster does not create the target.
    UsageError: the target does not exist and is not to be created, or both are the same topic.
    """
    is_one = source.cluster().cluster_id == target.cluster().cluster_id
    if is_one and topic == to_topic:
        raise UsageError(
            f"{topic} would be copied to itself: name another topic with --to-topic, or another "
            "cluster with --to-bootstrap-server"
        )
    view = source.describe_topics([topic])[topic]
    try:
        found = target.describe_topics([to_topic])[to_topic]
    except BrokerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        if not is_created:
            raise UsageError(
                f"there is no topic {to_topic} to copy to: create it, or give --create"
            ) from None
        create_like(source, target, view, to_topic)
        found = target.describe_topics([to_topic])[to_topic]
    return Topics(topic, to_topic, list_partitions(view), found.partition_count, is_one)


def create_like(source: Admin, target: Admin, view: TopicView, to_topic: str) -> None:
    """Create a topic with the partitions and options of another one."""
    from trimtab.client.admin import ConfigSource

    replicas = max(len(each.replicas) for each in view.partitions)
    factor = min(replicas, len(target.cluster().nodes))
    options = {
        each.name: each.value
        for each in source.describe_configs("topic", view.name)
        if each.source is ConfigSource.DYNAMIC_TOPIC_CONFIG and each.name not in LEFT_OUT
    }
    target.create_topic(to_topic, view.partition_count, factor, config=options)
    fewer = f" ({view.name} has {replicas})" if factor < replicas else ""
    say_note(
        f"created {to_topic}: {show_count(view.partition_count, 'partition')}, "
        f"{show_count(factor, 'replica')} of each{fewer}, "
        f"{show_count(len(options), 'option')} of {view.name}"
    )
