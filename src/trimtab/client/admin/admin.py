"""The admin client, from any thread.

    with Admin("127.0.0.1:9092") as admin:
        admin.create_topic("flights", partitions=6)
        print(admin.list_offsets([("flights", 0)], at="latest"))

Requests that only read are repeated, at other brokers too, until `default.api.timeout.ms` is over.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar

from trimtab.client.admin.answers import (
    ClusterDescription,
    ConfigEntry,
    ConfigKind,
    EligibleLeaders,
    LogDirectory,
    NewTopic,
    Reassignment,
    TransactionDescription,
    TransactionListing,
)
from trimtab.client.admin.async_admin import AsyncAdmin, Moment
from trimtab.client.arguments import Partition, refuse_copying
from trimtab.client.fetcher.offsets import OffsetAndTimestamp
from trimtab.client.sender.prepared import ProducerIdentity
from trimtab.client.topic_view import TopicView
from trimtab.errors import UsageError
from trimtab.records import TopicPartition
from trimtab.runtime.loop_thread import LoopThread, shared
from trimtab.wire.sentinels import BROKER_DEFAULT

P = ParamSpec("P")
T = TypeVar("T")


class Admin:
    """Manages topics, configurations, reassignments and transactions, from any thread.

    Args:
        bootstrap_servers: `host:port, …` of the cluster; also as the option of that name. Or a
            dictionary of options, to which keyword arguments may add.
        options: Kafka's admin options, dotted or in snake case.

    Raises:
        UsageError: an unknown option, or a value that is out of range.

    Every method raises `Unavailable`, with the addresses that were tried, if no broker answers
    within `default.api.timeout.ms`, and `BrokerError` if a broker refuses.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None = None,
        **options: object,
    ) -> None:
        self._admin = admin = AsyncAdmin(bootstrap_servers, random=Random(), **options)
        self._thread: LoopThread = shared()
        self._thread.entrust(self, admin.options.name_of(self), lambda timeout: admin.close())

    __reduce_ex__ = refuse_copying

    def topics(self, include_internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        return self._run(self._admin.topics, include_internal)

    def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView]:
        """Partitions, leaders and replicas by topic; of all topics if no names are given.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, with the first unknown topic.
        """
        return self._run(self._admin.describe_topics, names)

    def eligible_leaders(
        self, names: Iterable[str], page_size: int = 2000
    ) -> dict[TopicPartition, EligibleLeaders]:
        """The replicas that may lead these topics' partitions besides the ISR (KIP-966).

        Args:
            page_size: partitions that one response may describe; a broker may choose fewer.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, with the first unknown topic;
                UNSUPPORTED_VERSION, from brokers before Kafka 3.7.
        """
        return self._run(self._admin.eligible_leaders, names, page_size)

    def create_topic(
        self,
        name: str,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        assignment: Mapping[int, Sequence[int]] | None = None,
        config: Mapping[str, object] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Create a topic, and return once all its partitions have leaders.

        Args:
            partitions, replication_factor: -1 for the cluster's defaults.
            assignment: instead of these two, the brokers of each partition, the preferred leader
                first.
            config: topic options, such as `{"retention.ms": 3600000}`.
            validate_only: check the request without creating the topic.

        Raises:
            BrokerError: the cluster refuses; code and message say why.
        """
        topic = NewTopic(name, partitions, replication_factor, assignment, config)
        self._run(self._admin.create_topics, [topic], validate_only)

    def create_topics(self, topics: Iterable[NewTopic], validate_only: bool = False) -> None:
        """Create several topics in one request, as `create_topic` does for one.

        Raises:
            BrokerError: the error of the first refused topic; the others are created all the same.
        """
        self._run(self._admin.create_topics, topics, validate_only)

    def create_partitions(
        self,
        name: str,
        count: int,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Add partitions to a topic, and return once all of them have leaders.

        Args:
            count: the new total number of partitions.
            assignment: the brokers of each new one, the preferred leader first; if not given,
                the cluster chooses.
            validate_only: check the request without adding partitions.

        Raises:
            BrokerError: the cluster refuses; code and message say why.
        """
        self._run(self._admin.create_partitions, name, count, assignment, validate_only)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, or the cluster does not delete topics.
        """
        self._run(self._admin.delete_topic, name)

    def list_offsets(
        self,
        partitions: Iterable[Partition],
        at: Moment = "latest",
        isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """An offset of each partition, looked up at its leader.

        Args:
            at: "earliest", "latest", "max_timestamp" (KIP-734), or a time in ms since the epoch:
                the first record at or after it. Offset and timestamp are -1 if there is none.
            isolation: with "read_committed" a partition ends before its first open transaction.
        """
        return self._run(self._admin.list_offsets, partitions, at, isolation)

    def describe_configs(self, kind: ConfigKind, name: str | int) -> list[ConfigEntry]:
        """All options of a topic, or of a broker by its id, sorted by name. For the broker "":
        the dynamic options that were set for all brokers."""
        return self._run(self._admin.describe_configs, kind, name)

    def alter_configs(
        self,
        kind: ConfigKind,
        name: str | int,
        changes: Mapping[str, object] | None = None,
        *,
        append: Mapping[str, object] | None = None,
        subtract: Mapping[str, object] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change options of a topic, of a broker by its id, or of all brokers (""): all of these
        changes, or none. Other options stay as they are (KIP-339).

        Args:
            changes: new values; None restores the default.
            append, subtract: entries to add to or remove from list options, such as cleanup.policy.
            validate_only: check the request without changing options.

        Raises:
            BrokerError: the cluster refuses; code and message say why.
        """
        self._run(
            self._admin.alter_configs,
            kind,
            name,
            changes,
            append=append,
            subtract=subtract,
            validate_only=validate_only,
        )

    def alter_reassignments(
        self,
        targets: Mapping[Partition, Sequence[int] | None],
        allow_replication_factor_change: bool = True,
    ) -> None:
        """Move partitions to other brokers (KIP-455). Returns once the moves have begun;
        `list_reassignments` lists the unfinished ones.

        Args:
            targets: the new replicas of each partition, the preferred leader first; None cancels a
                move.
            allow_replication_factor_change: whether the number of replicas may change (KIP-860).

        Raises:
            ReassignmentsRefused: some partitions cannot be moved; the other moves have begun.
        """
        self._run(self._admin.alter_reassignments, targets, allow_replication_factor_change)

    def list_reassignments(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The unfinished reassignments of these partitions, or of the whole cluster."""
        return self._run(self._admin.list_reassignments, partitions)

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, list[LogDirectory]]:
        """The log directories of these brokers, or of all, with the logs in them.

        Raises:
            UsageError: there is no such broker.
        """
        return self._run(self._admin.describe_log_dirs, brokers)

    def list_transactions(
        self, prefix: str = "", states: Iterable[str] | None = None
    ) -> list[TransactionListing]:
        """The transactional ids that the cluster knows, sorted (KIP-664).

        Args:
            prefix: only ids that begin with this.
            states: only ids in one of these states, such as `["Ongoing"]`; None for all.
        """
        return self._run(self._admin.list_transactions, prefix, states)

    def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription]:
        """Epoch, state and partitions of these ids; ids that no coordinator knows are left out."""
        return self._run(self._admin.describe_transactions, transactional_ids)

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdentity]:
        """Fence the producers of these transactional ids, and abort the transactions that they have
        open or prepared. Returns once that is done, with the new identity of each id.

        Raises:
            BrokerError: a coordinator refuses; other producers may have been fenced.
        """
        return self._run(self._admin.fence_producers, transactional_ids)

    def list_group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """A consumer group's committed offsets (of the next record to read), by partition.

        Empty for an unknown group.

        Raises:
            BrokerError: UNSUPPORTED_VERSION from a cluster without consumer groups, such as one of
                trimtab's; not authorized.
            Unavailable: its coordinator does not answer in time.
        """
        return self._run(self._admin.list_group_offsets, group)

    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Set a consumer group's committed offsets (of the next record to read), by partition
        (KIP-396).

        Tools that show lag use them, too. The group must have no members.

        Raises:
            BrokerError: UNSUPPORTED_VERSION from a cluster without consumer groups, such as one of
                trimtab's; UNKNOWN_MEMBER_ID if the group has members; not authorized.
            Unavailable: its coordinator does not answer in time.
        """
        self._run(self._admin.alter_group_offsets, group, offsets)

    def cluster(self, timeout_ms: float | None = None) -> ClusterDescription:
        """The cluster's id and its brokers.

        Args:
            timeout_ms: how long to wait for a broker; `default.api.timeout.ms` if None.
        """
        return self._run(self._admin.cluster, timeout_ms)

    def close(self) -> None:
        """Close the connections. Closing again does nothing."""
        self._thread.end(self._admin.close)

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._thread.is_released:
            raise UsageError("the admin client is closed")
        return self._thread.run(function, *args, **kwargs)
