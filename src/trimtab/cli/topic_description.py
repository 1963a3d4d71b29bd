"""A topic as `trimtab topics --describe` shows it, in the format of kafka-topics."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from trimtab.cli.style import ERROR, WARNING
from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.client.admin import ConfigEntry, EligibleLeaders, Reassignment
    from trimtab.client.topic_view import PartitionView, TopicView

ZERO_ID: Final = bytes(16)
MIN_IN_SYNC: Final = "min.insync.replicas"


class Description(NamedTuple):
    """A topic.

    Attributes:
        configs: all its options; None if they were not fetched.
        moves: reassignments in progress, by partition.
        eligible: eligible leader replicas by partition; empty if the cluster does not report them.
    """

    view: TopicView
    configs: Mapping[str, ConfigEntry] | None
    moves: Mapping[int, Reassignment]
    eligible: Mapping[int, EligibleLeaders]

    def tell_eligible(self, number: int) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """A partition's eligible leader replicas, and the last known ones; None if not told."""
        found = self.eligible.get(number)
        return (None, None) if found is None else (found.eligible, found.last_known)

    @property
    def overrides(self) -> dict[str, str | None]:
        """Options that were set for the topic or its brokers, and so are not the default."""
        configs = self.configs or {}
        return {name: each.value for name, each in configs.items() if not each.is_default}

    @property
    def replication_factor(self) -> int:
        return self.count_replicas(0) if self.view.partitions else 0

    def count_replicas(self, number: int) -> int:
        """A partition's replication factor: its replicas without those a reassignment adds."""
        partition, move = self.view.partitions[number], self.moves.get(number)
        return len(partition.replicas) - (0 if move is None else len(move.adding))

    def count_in_sync(self, number: int) -> int:
        return len(self.view.partitions[number].in_sync_replicas)

    @property
    def min_in_sync(self) -> int:
        assert self.configs is not None
        return int(self.configs[MIN_IN_SYNC].value or 1)


def is_under_replicated(topic: Description, number: int) -> bool:
    return topic.count_in_sync(number) < topic.count_replicas(number)


def is_unavailable(topic: Description, number: int) -> bool:
    return topic.view.leaders[number] < 0


def is_under_min_isr(topic: Description, number: int) -> bool:
    return is_unavailable(topic, number) or topic.count_in_sync(number) < topic.min_in_sync


def is_at_min_isr(topic: Description, number: int) -> bool:
    return topic.count_in_sync(number) == topic.min_in_sync


CHECKS: Final[Mapping[str, Callable[[Description, int], bool]]] = {
    "under_replicated_partitions": is_under_replicated,
    "unavailable_partitions": is_unavailable,
    "under_min_isr_partitions": is_under_min_isr,
    "at_min_isr_partitions": is_at_min_isr,
}
"""The options that show only some partitions, with the condition of each."""

CHECKS_OF_CONFIGS: Final = ("under_min_isr_partitions", "at_min_isr_partitions")


def choose_partitions(topic: Description, checks: Iterable[str]) -> list[int]:
    """The partitions to which at least one of the checks applies; all if there are no checks."""
    wanted = [CHECKS[name] for name in checks]
    return [
        number
        for number in range(topic.view.partition_count)
        if not wanted or any(check(topic, number) for check in wanted)
    ]


def choose_colour(topic: Description, number: int) -> str | None:
    """The colour of a partition's line; None if nothing is wrong with it."""
    if is_unavailable(topic, number):
        return ERROR
    return WARNING if is_under_replicated(topic, number) else None


def write_topic(topic: Description) -> str:
    """The line of the topic, before those of its partitions."""
    view = topic.view
    topic_id = "" if view.topic_id == ZERO_ID else f"\tTopicId: {write_topic_id(view.topic_id)}"
    configs = ",".join(f"{name}={value}" for name, value in topic.overrides.items())
    return (
        f"Topic: {view.name}{topic_id}\tPartitionCount: {view.partition_count}\t"
        f"ReplicationFactor: {topic.replication_factor}\tConfigs: {configs}"
    )


def write_partition(topic: Description, number: int) -> str:
    """The line of one partition."""
    partition, move = topic.view.partitions[number], topic.moves.get(number)
    eligible, last_known = topic.tell_eligible(number)
    leader = "none" if partition.leader < 0 else partition.leader
    moved = ""
    if move is not None:
        moved = (
            f"Adding Replicas: {_join(move.adding)}\tRemoving Replicas: {_join(move.removing)}\t"
        )
    return (
        f"\tTopic: {topic.view.name}\tPartition: {number}\tLeader: {leader}\t"
        f"Replicas: {_join(partition.replicas)}\tIsr: {_join(partition.in_sync_replicas)}\t"
        f"{moved}Elr: {_join(eligible)}\tLastKnownElr: {_join(last_known)}"
    )


def _join(brokers: tuple[int, ...] | None) -> str:
    return "N/A" if brokers is None else ",".join(map(str, brokers))


def show_topic(topic: Description) -> dict[str, object]:
    """The topic, without its partitions, for JSON."""
    return {
        "topic": topic.view.name,
        "topicId": write_topic_id(topic.view.topic_id),
        "partitionCount": topic.view.partition_count,
        "replicationFactor": topic.replication_factor,
        **({} if topic.configs is None else {"configs": topic.overrides}),
    }


def show_partition(topic: Description, number: int) -> dict[str, object]:
    """One partition, for JSON."""
    partition: PartitionView = topic.view.partitions[number]
    move, (eligible, last_known) = topic.moves.get(number), topic.tell_eligible(number)
    return {
        "partition": number,
        "leader": partition.leader,
        "leaderEpoch": partition.leader_epoch,
        "rack": topic.view.racks[number],
        "replicas": partition.replicas,
        "isr": partition.in_sync_replicas,
        "addingReplicas": () if move is None else move.adding,
        "removingReplicas": () if move is None else move.removing,
        "elr": eligible,
        "lastKnownElr": last_known,
    }


def write_topic_id(topic_id: bytes) -> str:
    """A topic's id as Kafka writes it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).decode("ascii").rstrip("=")


def read_topic_id(text: str) -> bytes:
    """The bytes of an id as Kafka writes it.

    Raises:
        UsageError: the text is not a topic id.
    """
    try:
        topic_id = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except ValueError:
        topic_id = b""
    if len(topic_id) != len(ZERO_ID):
        raise UsageError(
            f"--topic-id {text!r} is not a topic id: copy its 22 characters from "
            "`trimtab topics --describe`"
        )
    return topic_id
