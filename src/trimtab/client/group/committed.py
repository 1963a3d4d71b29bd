"""Commits a group's offsets, and reads them (OffsetCommit, OffsetFetch)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

from trimtab.client.consumer_metrics import ConsumerMetrics
from trimtab.client.group.membership import Identity
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.client.network.coordinator import CoordinatorLink, Verdict
from trimtab.errors import BrokerError, ErrorCode, KafkaError, Unavailable, error_code
from trimtab.records import TopicPartition
from trimtab.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from trimtab.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

_LAST_VERSION_WITH_NAMES = 9
_SEVERAL_GROUPS_SINCE = 8
_STABLE_SINCE = 7
_LOST = {
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has removed this member",
    ErrorCode.ILLEGAL_GENERATION: "the group has rebalanced without this member",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is rebalancing; poll, then commit again",
    ErrorCode.FENCED_INSTANCE_ID: "another member has the same group.instance.id",
}


class CommittedOffsets:
    """The committed offsets of one group.

    Args:
        identity: who commits, at the time of each request. Raises KafkaError if nobody may.
    """

    def __init__(
        self,
        group: str,
        instance_id: str | None,
        link: CoordinatorLink,
        identity: Callable[[], Identity],
        metrics: ConsumerMetrics,
    ) -> None:
        self._group = group
        self._instance_id = instance_id
        self._link = link
        self._identity = identity
        self._metrics = metrics
        self._in_order = asyncio.Lock()
        self._trouble: KafkaError | None = None

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float
    ) -> None:
        """Store offsets. One commit after the other, so that none overtakes a later one.

        Raises:
            BrokerError: the coordinator refuses; if the member has lost its partitions, the
                records after the last commit will be read again, by their new owners.
            Unavailable: no answer within `timeout` seconds.
        """
        if not offsets:
            return
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, index), given in offsets.items():
            by_topic.setdefault(topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=given.offset,
                    committed_leader_epoch=given.leader_epoch,
                    committed_metadata=given.metadata,
                )
            )
        topics = [
            OffsetCommitRequestTopic(name=name, partitions=of) for name, of in by_topic.items()
        ]

        def make(version: int) -> OffsetCommitRequest:
            generation, member_id = self._identity()
            return OffsetCommitRequest(
                group_id=self._group,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                group_instance_id=self._instance_id,
                topics=topics,
            )

        def judge(response: OffsetCommitResponse) -> Verdict:
            for topic in response.topics:
                for each in topic.partitions:
                    code = error_code(each.error_code)
                    if code is ErrorCode.STALE_MEMBER_EPOCH:
                        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # again, in its next epoch
                    if code is not ErrorCode.NONE:
                        subject = f"group {self._group}, {topic.name}-{each.partition_index}"
                        if code in _LOST:
                            raise BrokerError(code, _LOST[code], subject)
                        return code, subject
            return ErrorCode.NONE, ""

        async with self._within(timeout, "committed"), self._in_order:
            with self._metrics.measured("commit"):
                await self._link.ask(
                    *(OffsetCommitRequest, make, judge),
                    at_most=_LAST_VERSION_WITH_NAMES,
                    check=self._note_trouble,
                )

    async def fetch(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets; a partition without one is missing.

        Waits while a transaction that commits offsets is open (KIP-447).

        Raises:
            BrokerError, Unavailable: as for `commit`.
        """
        by_topic: dict[str, list[int]] = {}
        for topic, index in partitions:
            by_topic.setdefault(topic, []).append(index)

        def make(version: int) -> OffsetFetchRequest:
            is_stable = version >= _STABLE_SINCE
            if version < _SEVERAL_GROUPS_SINCE:
                topics = [
                    OffsetFetchRequestTopic(name=name, partition_indexes=of)
                    for name, of in by_topic.items()
                ]
                return OffsetFetchRequest(
                    group_id=self._group, topics=topics, require_stable=is_stable
                )
            group = OffsetFetchRequestGroup(
                group_id=self._group,
                topics=[
                    OffsetFetchRequestTopics(name=name, partition_indexes=of)
                    for name, of in by_topic.items()
                ],
            )
            return OffsetFetchRequest(groups=[group], require_stable=is_stable)

        def judge(response: OffsetFetchResponse) -> Verdict:
            whole = response.groups[0] if response.groups else response
            code = error_code(whole.error_code)
            if code is not ErrorCode.NONE:
                return code, f"group {self._group}"
            for topic in whole.topics:
                for each in topic.partitions:
                    if each.error_code:
                        subject = f"group {self._group}, {topic.name}-{each.partition_index}"
                        return error_code(each.error_code), subject
            return ErrorCode.NONE, ""

        async with self._within(timeout, "read"):
            response = await self._link.ask(
                *(OffsetFetchRequest, make, judge),
                at_most=_LAST_VERSION_WITH_NAMES,
                check=self._note_trouble,
            )
        topics = response.groups[0].topics if response.groups else response.topics
        return {
            TopicPartition(topic.name, each.partition_index): OffsetAndMetadata(
                each.committed_offset, each.metadata or "", each.committed_leader_epoch
            )
            for topic in topics
            for each in topic.partitions
            if each.committed_offset >= 0
        }

    @asynccontextmanager
    async def _within(self, timeout: float, what: str) -> AsyncIterator[None]:
        self._trouble = None
        try:
            async with asyncio.timeout(timeout):
                yield
        except TimeoutError:
            why = self._trouble or "its coordinator did not answer"
            raise Unavailable(
                f"group {self._group}: not {what} within {timeout:g} s: {why}"
            ) from None

    def _note_trouble(self) -> None:
        """Keep the error of the attempt before, to name it if time runs out."""
        self._trouble = self._link.trouble or self._trouble
