"""The admin client for an event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Final, Literal, TypeAlias, Unpack

from trimtab.client.admin import cluster as cluster_calls
from trimtab.client.admin import (
    configs,
    elections,
    eligible_leaders,
    features,
    group_offsets,
    groups,
    log_dirs,
    producers,
    reassignments,
    records,
    transactions,
)
from trimtab.client.admin import topics as topic_calls
from trimtab.client.admin.answers import (
    ClusterDescription,
    ConfigEntry,
    ConfigKind,
    EligibleLeaders,
    Features,
    GroupDescription,
    GroupListing,
    LogDirectory,
    NewTopic,
    ProducerDescription,
    Reassignment,
    TransactionDescription,
    TransactionListing,
)
from trimtab.client.admin.calls import Calls
from trimtab.client.arguments import (
    MAX_INT64,
    AnyPartition,
    Partition,
    checked_brokers,
    checked_flag,
    checked_integer,
    checked_mapping,
    checked_names,
    checked_partition,
    checked_partitions,
    checked_producers,
    checked_text,
    checked_texts,
    checked_time,
    checked_topic,
    checked_wait_ms,
    shown,
)
from trimtab.client.async_client import AsyncClient
from trimtab.client.fetcher.offsets import Isolation, OffsetAndTimestamp, Offsets
from trimtab.client.group_offsets import OffsetAndMetadata, checked_offsets
from trimtab.client.network.option_types import AdminOptions
from trimtab.client.network.session import Session
from trimtab.client.options import ADMIN, client_options
from trimtab.client.sender.prepared import ProducerIdentity
from trimtab.client.topic_view import TopicView
from trimtab.errors import UsageError
from trimtab.records import TopicPartition
from trimtab.wire.sentinels import (
    BROKER_DEFAULT,
    EARLIEST,
    HIGH_WATERMARK,
    LATEST,
    MAX_TIMESTAMP,
)
from trimtab.wire.types import MAX_INT16

Moment: TypeAlias = Literal["earliest", "latest", "max_timestamp"] | int
"""An offset of a partition: its start, its end, its largest timestamp, or a time in ms."""

_ENDS: Final = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}


class AsyncAdmin(AsyncClient):
    """Manages topics, configurations, replicas, groups and transactions, on an event loop.

    Args:
        bootstrap_servers, options: as for `Admin`.
        random: for jitter; a simulation passes its own.

    Every method raises `Unavailable`, with the addresses that were tried, if no broker answers
    within `default.api.timeout.ms`, and `BrokerError` if a broker refuses.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None = None,
        *,
        random: Random | None = None,
        **options: Unpack[AdminOptions],
    ) -> None:
        checked = client_options(ADMIN, bootstrap_servers, options)
        session = Session(checked, random or Random())
        self._calls = Calls(session)
        self._offsets = Offsets(session)
        super().__init__(session, session.close)

    async def topics(self, include_internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        checked_flag("include_internal", include_internal)
        return await topic_calls.list_topics(self._calls, include_internal)

    async def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView]:
        """Partitions, leaders and replicas by topic; of all topics if no names are given.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, with the first unknown topic.
        """
        return await topic_calls.describe_topics(
            self._calls, None if names is None else checked_names("names", names)
        )

    async def eligible_leaders(
        self, names: Iterable[str], page_size: int = 2000
    ) -> dict[TopicPartition, EligibleLeaders]:
        """The replicas that may lead these topics' partitions besides the ISR (KIP-966).

        Args:
            page_size: partitions that one response may describe; a broker may choose fewer.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, with the first unknown topic;
                UNSUPPORTED_VERSION, from brokers before Kafka 3.7.
        """
        return await eligible_leaders.describe_eligible_leaders(
            self._calls, checked_names("names", names), checked_integer("page_size", page_size, 1)
        )

    async def create_topic(
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
        await self.create_topics([topic], validate_only)

    async def create_topics(self, topics: Iterable[NewTopic], validate_only: bool = False) -> None:
        """Create several topics in one request, as `create_topic` does for one.

        Raises:
            BrokerError: the error of the first refused topic; the others are created all the same.
        """
        checked_flag("validate_only", validate_only)
        await topic_calls.create_topics(self._calls, topics, validate_only)

    async def create_partitions(
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
        await topic_calls.create_partitions(
            self._calls,
            checked_topic(name),
            checked_integer("count", count, 1),
            topic_calls.checked_assignment(assignment),
            checked_flag("validate_only", validate_only),
        )

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, or the cluster does not delete topics.
        """
        await topic_calls.delete_topic(self._calls, checked_topic(name))

    async def list_offsets(
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
        self._session.check_open()
        if isinstance(at, str):
            if at not in _ENDS:
                raise UsageError(f"at={at!r}: must be a time in ms or one of {', '.join(_ENDS)}")
            moment = _ENDS[at]
        else:
            moment = checked_time("at", at)
        if isolation not in ("read_uncommitted", "read_committed"):
            raise UsageError(
                f"isolation={shown(isolation)}: must be 'read_uncommitted' or 'read_committed'"
            )
        return await self._offsets.find(
            dict.fromkeys(checked_partitions(partitions), moment),
            self._session.timeout,
            Isolation[isolation.upper()],
        )

    async def describe_configs(self, kind: ConfigKind, name: str | int) -> list[ConfigEntry]:
        """All options of a topic, or of a broker by its id, sorted by name. For the broker "":
        the dynamic options that were set for all brokers."""
        return await configs.describe_configs(self._calls, kind, name)

    async def describe_topic_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        """The options of each of these topics, as `describe_configs` lists them, but without their
        documentation. One request asks for 200 topics.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, with the first unknown topic.
        """
        return await configs.describe_topic_configs(self._calls, checked_names("names", names))

    async def alter_configs(
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
        await configs.alter_configs(
            self._calls,
            kind,
            name,
            topic_calls.write_config("changes", {} if changes is None else changes),
            topic_calls.write_config("append", {} if append is None else append),
            topic_calls.write_config("subtract", {} if subtract is None else subtract),
            checked_flag("validate_only", validate_only),
        )

    async def alter_reassignments(
        self,
        targets: Mapping[AnyPartition, Sequence[int] | None],
        allow_replication_factor_change: bool = True,
    ) -> None:
        """Move partitions to other brokers (KIP-455). Returns once the moves have begun;
        `list_reassignments` lists the unfinished ones.

        Args:
            targets: the new replicas of each partition, the preferred leader first; None cancels a
                move.
            allow_replication_factor_change: whether the number of replicas may change (KIP-860).

        Raises:
            PartlyRefused: some partitions cannot be moved; the other moves have begun.
        """
        await reassignments.alter_reassignments(
            self._calls,
            {
                checked_partition(partition): None
                if brokers is None
                else checked_brokers(f"the replicas of {shown(partition)}", brokers)
                for partition, brokers in checked_mapping(
                    "targets", targets, "{('t', 0): [1, 2]}"
                ).items()
            },
            checked_flag("allow_replication_factor_change", allow_replication_factor_change),
        )

    async def list_reassignments(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The unfinished reassignments of these partitions, or of the whole cluster."""
        return await reassignments.list_reassignments(
            self._calls,
            None if partitions is None else checked_partitions(partitions),
        )

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, list[LogDirectory]]:
        """The log directories of these brokers, or of all, with the logs in them.

        Raises:
            UsageError: there is no such broker.
        """
        return await log_dirs.describe_log_dirs(
            self._calls, None if brokers is None else checked_brokers("brokers", brokers)
        )

    async def list_transactions(
        self,
        prefix: str = "",
        states: Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        longer_than_ms: int | None = None,
        producer_ids: Iterable[int] = (),
    ) -> list[TransactionListing]:
        """The transactional ids that the cluster knows, sorted (KIP-664).

        Args:
            prefix: only ids that begin with this.
            states: only ids in one of these states, such as `["Ongoing"]`; None for all.
            pattern: only ids that this regular expression matches as a whole (KIP-1152).
            longer_than_ms: only ids whose transaction began longer ago, or that have had none yet
                (KIP-994).
            producer_ids: only ids of these producers; none given: of all.
        """
        return await transactions.list_transactions(
            self._calls,
            checked_text("prefix", prefix),
            None if states is None else checked_texts("states", states),
            None if pattern is None else checked_text("pattern", pattern),
            None
            if longer_than_ms is None
            else checked_integer("longer_than_ms", longer_than_ms, 0, MAX_INT64),
            checked_producers("producer_ids", producer_ids),
        )

    async def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription]:
        """Epoch, state and partitions of these ids; ids that no coordinator knows are left out."""
        return await transactions.describe_transactions(
            self._calls, checked_texts("transactional_ids", transactional_ids)
        )

    async def describe_producers(
        self, partitions: Iterable[Partition], broker: int | None = None
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """The producers that partitions remember, with their open transactions (KIP-664).

        Args:
            broker: ask this replica; default: each partition's leader.
        """
        return await producers.describe_producers(
            self._calls,
            checked_partitions(partitions),
            None if broker is None else checked_integer("broker", broker, 0),
        )

    async def abort_transaction(
        self,
        partition: Partition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = 0,
    ) -> None:
        """Abort a transaction in one partition, where its coordinator does not end it (KIP-664).

        Args:
            producer_epoch: at least that of the transaction's records.
            coordinator_epoch: at least that of `describe_producers`.
        """
        (checked,) = checked_partitions([partition])
        await producers.abort_transaction(
            self._calls,
            checked,
            checked_integer("producer_id", producer_id, 0, MAX_INT64),
            checked_integer("producer_epoch", producer_epoch, 0, MAX_INT16),
            checked_integer("coordinator_epoch", coordinator_epoch, 0),
        )

    async def fence_producers(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, ProducerIdentity]:
        """Fence the producers of these transactional ids, and abort the transactions that they have
        open or prepared. Returns once that is done, with the new identity of each id.

        Raises:
            BrokerError: a coordinator refuses; other producers may have been fenced.
        """
        return await transactions.fence_producers(
            self._calls, checked_texts("transactional_ids", transactional_ids)
        )

    async def list_groups(
        self, states: Iterable[str] | None = None, types: Iterable[str] | None = None
    ) -> list[GroupListing]:
        """All groups that the cluster knows, sorted by id.

        Args:
            states: only groups in one of these states, such as `["Stable"]`; None for all.
            types: only groups of these types, such as `["classic", "consumer"]`; None for all.

        Raises:
            BrokerError: UNSUPPORTED_VERSION, if a broker is too old to select by state (Kafka 2.6)
                or by type (3.8).
        """
        return await groups.list_groups(
            self._calls,
            () if states is None else checked_texts("states", states),
            () if types is None else checked_texts("types", types),
        )

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """State and members of these groups, of both protocols; groups that no coordinator knows
        are left out.

        Raises:
            BrokerError: a coordinator refuses, such as GROUP_AUTHORIZATION_FAILED.
        """
        return await groups.describe_groups(self._calls, checked_texts("group_ids", group_ids))

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups without members, and their committed offsets.

        Raises:
            PartlyRefused: some groups have members (NON_EMPTY_GROUP), do not exist
                (GROUP_ID_NOT_FOUND), or may not be deleted; the others are deleted.
        """
        await groups.delete_groups(self._calls, checked_texts("group_ids", group_ids))

    async def list_group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """A consumer group's committed offsets (of the next record to read), by partition.

        Empty for an unknown group.

        Raises:
            BrokerError: not authorized.
            Unavailable: its coordinator does not answer in time.
        """
        name = _checked_group(group)
        return (await group_offsets.list_group_offsets(self._calls, [name]))[name]

    async def list_offsets_of_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """By group what `list_group_offsets` returns, with a request for each coordinator."""
        names = checked_texts("group_ids", group_ids)
        return await group_offsets.list_group_offsets(self._calls, names)

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[AnyPartition, int | OffsetAndMetadata]
    ) -> None:
        """Set a consumer group's committed offsets (of the next record to read), by partition
        (KIP-396).

        Tools that show lag use them, too. The group must have no members.

        Raises:
            BrokerError: UNKNOWN_MEMBER_ID if the group has members; not authorized.
            Unavailable: its coordinator does not answer in time.
        """
        _checked_group(group)
        await group_offsets.alter_group_offsets(self._calls, group, checked_offsets(offsets))

    async def delete_group_offsets(self, group: str, partitions: Iterable[Partition]) -> None:
        """Delete a consumer group's committed offsets of these partitions (KIP-496). Partitions
        without one stay without.

        Raises:
            BrokerError: GROUP_ID_NOT_FOUND; not authorized.
            PartlyRefused: the group reads the topics of some partitions
                (GROUP_SUBSCRIBED_TO_TOPIC), or they do not exist; the others' offsets are deleted.
        """
        _checked_group(group)
        await group_offsets.delete_group_offsets(self._calls, group, checked_partitions(partitions))

    async def delete_records(
        self, offsets: Mapping[AnyPartition, int]
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset of each partition (KIP-107).

        Args:
            offsets: the first offset to keep; -1 for the high watermark, which deletes all records.

        Returns:
            The first offset that every live replica still has.

        Raises:
            PartlyRefused: some partitions do not exist, or the offset is after their high watermark
                (OFFSET_OUT_OF_RANGE); the others' records are deleted, and `done` has their result.
        """
        return await records.delete_records(
            self._calls,
            {
                checked_partition(partition): checked_integer(
                    f"the offset of {shown(partition)}", offset, HIGH_WATERMARK, MAX_INT64
                )
                for partition, offset in checked_mapping(
                    "offsets", offsets, "{('t', 0): 42}"
                ).items()
            },
        )

    async def elect_leaders(
        self, partitions: Iterable[Partition] | None = None, unclean: bool = False
    ) -> list[TopicPartition]:
        """Make the first live replica in sync, the preferred leader, lead again (KIP-183, KIP-460).

        Args:
            partitions: None for all of the cluster.
            unclean: instead elect any live replica for partitions without a leader. Records that it
                lacks are lost.

        Returns:
            The partitions that have a new leader; the others needed no election.

        Raises:
            PartlyRefused: no replica can be elected for some partitions
                (PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE), or they do not
                exist; `done` has the partitions with a new leader.
        """
        return await elections.elect_leaders(
            self._calls,
            None if partitions is None else checked_partitions(partitions),
            checked_flag("unclean", unclean),
        )

    async def cluster(
        self, timeout_ms: float | None = None, include_fenced: bool = False
    ) -> ClusterDescription:
        """The cluster's id and its brokers.

        Args:
            timeout_ms: how long to wait for a broker; `default.api.timeout.ms` if None.
            include_fenced: also brokers that the controller has fenced, such as stopped ones.

        Raises:
            BrokerError: with `include_fenced` UNSUPPORTED_VERSION, from brokers before Kafka 4.0.
        """
        timeout = None if timeout_ms is None else checked_wait_ms("timeout_ms", timeout_ms)
        if checked_flag("include_fenced", include_fenced):
            return await cluster_calls.describe_all(self._calls, timeout)
        return await cluster_calls.describe_live(self._calls, timeout)

    async def unregister_broker(self, broker: int) -> None:
        """Remove the registration of a stopped broker that will not come back (KIP-631).

        A broker of trimtab's that runs registers again at its next heartbeat.

        Raises:
            BrokerError: BROKER_ID_NOT_REGISTERED.
        """
        await cluster_calls.unregister_broker(self._calls, checked_integer("broker", broker, 0))

    async def describe_features(self, broker: int | None = None) -> Features:
        """The levels of features that a broker supports, and those in force (KIP-584).

        trimtab's own cluster has none.

        Args:
            broker: the one to ask; any if None.
        """
        return await features.describe_features(
            self._calls, None if broker is None else checked_integer("broker", broker, 0)
        )

    async def update_features(
        self,
        levels: Mapping[str, int],
        change: features.Change = "upgrade",
        validate_only: bool = False,
    ) -> None:
        """Change the cluster's levels of features, such as `{"metadata.version": 25}`; 0 disables
        one.

        Args:
            change: which changes are meant; an "unsafe_downgrade" may lose metadata.
            validate_only: check the request without changing levels.

        Raises:
            PartlyRefused: with the error of each refused feature. From Kafka 4.0 on all of them are
                refused together.
            BrokerError: UNSUPPORTED_VERSION, if the cluster has no levels that can be changed.
        """
        if not isinstance(change, str) or change not in features.CHANGES:
            raise UsageError(
                f"change={shown(change)}: must be one of {', '.join(features.CHANGES)}"
            )
        await features.update_features(
            self._calls,
            {
                checked_text("the name of a feature", name): checked_integer(
                    f"the level of {name}", level, 0, MAX_INT16
                )
                for name, level in checked_mapping(
                    "levels", levels, "{'metadata.version': 25}"
                ).items()
            },
            change,
            checked_flag("validate_only", validate_only),
        )


def _checked_group(group: object) -> str:
    if not isinstance(group, str) or not group:
        raise UsageError(f"group={shown(group)}: must be a group's id")
    return group
