"""The admin client for an event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Final, Literal, TypeAlias

from trimtab.client.admin import (
    configs,
    eligible_leaders,
    group_offsets,
    log_dirs,
    reassignments,
    topics,
    transactions,
)
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
from trimtab.client.admin.calls import Calls
from trimtab.client.arguments import (
    MAX_INT64,
    Partition,
    checked_brokers,
    checked_flag,
    checked_integer,
    checked_mapping,
    checked_names,
    checked_partition,
    checked_partitions,
    checked_text,
    checked_texts,
    checked_time,
    checked_topic,
    checked_wait_ms,
    refuse_copying,
    shown,
)
from trimtab.client.fetcher.offsets import Isolation, OffsetAndTimestamp
from trimtab.client.options import ADMIN, Options
from trimtab.client.sender.prepared import ProducerIdentity
from trimtab.client.session import Session
from trimtab.client.topic_view import TopicView
from trimtab.errors import UsageError
from trimtab.records import TopicPartition
from trimtab.runtime.unclosed import close_when_collected
from trimtab.wire.sentinels import BROKER_DEFAULT, EARLIEST, LATEST, MAX_TIMESTAMP

Moment: TypeAlias = Literal["earliest", "latest", "max_timestamp"] | int
"""An offset of a partition: its start, its end, its largest timestamp, or a time in ms."""

_ENDS: Final = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}


class AsyncAdmin:
    """`Admin` for an event loop: the same methods, awaited.

    Args:
        bootstrap_servers, options: as for `Admin`.
        random: for jitter; a simulation passes its own.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None = None,
        *,
        random: Random | None = None,
        **options: object,
    ) -> None:
        self._session = session = Session(ADMIN, bootstrap_servers, options, random or Random())
        self._calls = Calls(session)
        self._keep_open = close_when_collected(self, session.options.name_of(self), session.close)

    __reduce_ex__ = refuse_copying

    @property
    def options(self) -> Options:
        """Its checked options."""
        return self._session.options

    async def topics(self, include_internal: bool = False) -> list[str]:
        """As `Admin.topics`."""
        checked_flag("include_internal", include_internal)
        return await topics.list_topics(self._calls, include_internal)

    async def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView]:
        """As `Admin.describe_topics`."""
        return await topics.describe_topics(
            self._calls, None if names is None else checked_names("names", names)
        )

    async def eligible_leaders(
        self, names: Iterable[str], page_size: int = 2000
    ) -> dict[TopicPartition, EligibleLeaders]:
        """As `Admin.eligible_leaders`."""
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
        """As `Admin.create_topic`."""
        topic = NewTopic(name, partitions, replication_factor, assignment, config)
        await self.create_topics([topic], validate_only)

    async def create_topics(
        self, new_topics: Iterable[NewTopic], validate_only: bool = False
    ) -> None:
        """As `Admin.create_topics`."""
        checked_flag("validate_only", validate_only)
        await topics.create_topics(self._calls, new_topics, validate_only)

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """As `Admin.create_partitions`."""
        await topics.create_partitions(
            self._calls,
            checked_topic(name),
            checked_integer("count", count, 1),
            topics.checked_assignment(assignment),
            checked_flag("validate_only", validate_only),
        )

    async def delete_topic(self, name: str) -> None:
        """As `Admin.delete_topic`."""
        await topics.delete_topic(self._calls, checked_topic(name))

    async def list_offsets(
        self,
        partitions: Iterable[Partition],
        at: Moment = "latest",
        isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """As `Admin.list_offsets`."""
        self._calls.check_open()
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
        return await self._session.offsets.find(
            dict.fromkeys(checked_partitions(partitions), moment),
            self._session.timeout,
            Isolation[isolation.upper()],
        )

    async def describe_configs(self, kind: ConfigKind, name: str | int) -> list[ConfigEntry]:
        """As `Admin.describe_configs`."""
        return await configs.describe_configs(self._calls, kind, name)

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
        """As `Admin.alter_configs`."""
        await configs.alter_configs(
            self._calls,
            kind,
            name,
            topics.write_config("changes", {} if changes is None else changes),
            topics.write_config("append", {} if append is None else append),
            topics.write_config("subtract", {} if subtract is None else subtract),
            checked_flag("validate_only", validate_only),
        )

    async def alter_reassignments(
        self,
        targets: Mapping[Partition, Sequence[int] | None],
        allow_replication_factor_change: bool = True,
    ) -> None:
        """As `Admin.alter_reassignments`."""
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
        """As `Admin.list_reassignments`."""
        return await reassignments.list_reassignments(
            self._calls,
            None if partitions is None else checked_partitions(partitions),
        )

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, list[LogDirectory]]:
        """As `Admin.describe_log_dirs`."""
        return await log_dirs.describe_log_dirs(
            self._calls, None if brokers is None else checked_brokers("brokers", brokers)
        )

    async def list_transactions(
        self, prefix: str = "", states: Iterable[str] | None = None
    ) -> list[TransactionListing]:
        """As `Admin.list_transactions`."""
        return await transactions.list_transactions(
            self._calls,
            checked_text("prefix", prefix),
            None if states is None else checked_texts("states", states),
        )

    async def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription]:
        """As `Admin.describe_transactions`."""
        return await transactions.describe_transactions(
            self._calls, checked_texts("transactional_ids", transactional_ids)
        )

    async def fence_producers(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, ProducerIdentity]:
        """As `Admin.fence_producers`."""
        return await transactions.fence_producers(
            self._calls, checked_texts("transactional_ids", transactional_ids)
        )

    async def list_group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """As `Admin.list_group_offsets`."""
        return await group_offsets.list_group_offsets(self._calls, _checked_group(group))

    async def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """As `Admin.alter_group_offsets`."""
        _checked_group(group)
        await group_offsets.alter_group_offsets(
            self._calls,
            group,
            {
                checked_partition(partition): checked_integer(
                    f"the offset of {shown(partition)}", offset, 0, MAX_INT64
                )
                for partition, offset in checked_mapping(
                    "offsets", offsets, "{('t', 0): 42}"
                ).items()
            },
        )

    async def cluster(self, timeout_ms: float | None = None) -> ClusterDescription:
        """As `Admin.cluster`."""
        calls = self._calls
        timeout = None if timeout_ms is None else checked_wait_ms("timeout_ms", timeout_ms)
        response = await calls.retry(
            "describe the cluster", lambda: calls.fetch_metadata([]), timeout
        )
        return ClusterDescription(
            response.cluster_id,
            response.controller_id,
            [node for _, node in sorted(self._session.metadata.nodes.items())],
        )

    async def close(self) -> None:
        """Close the connections. Closing again does nothing."""
        if not self._calls.is_closed:
            self._calls.is_closed = True
            self._keep_open()
            await self._session.close()

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _checked_group(group: object) -> str:
    if not isinstance(group, str) or not group:
        raise UsageError(f"group={shown(group)}: must be a group's id")
    return group
