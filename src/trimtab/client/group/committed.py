"""Commits a group's offsets, and reads them (OffsetCommit, OffsetFetch)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager

from trimtab.client.consumer_metrics import ConsumerMetrics
from trimtab.client.group.membership import NO_MEMBER, GroupIdentity
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.client.network.coordinator import CoordinatorLink, Verdict
from trimtab.client.network.metadata import Metadata
from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError, Unavailable, error_code
from trimtab.kafka.records import TopicPartition, by_topic
from trimtab.kafka.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from trimtab.kafka.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from trimtab.kafka.wire.types import ZERO_UUID

_LAST_VERSION_WITH_NAMES = 9
_SEVERAL_GROUPS_SINCE = 8
_STABLE_SINCE = 7
_LOST = {
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has removed this member",
    ErrorCode.ILLEGAL_GENERATION: "the group has rebalanced without this member",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is rebalancing; poll, then commit again",
    ErrorCode.FENCED_INSTANCE_ID: "another member has the same group.instance.id",
}
_PASSING = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})
_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
_IDS_AFTER = 0.1
"""Seconds until offsets are asked for once more, if the coordinator does not know a topic's id."""


class CommittedOffsets:
    """The committed offsets of one group.

    Topics go by their ids as soon as all of a request's are known and the coordinator reads them,
    since Kafka 4.2: so an offset of a deleted topic is not taken for one of a new topic with the
    same name.

    Args:
        metadata: has the ids of topics.
        identity: who commits, at the time of each request. Raises KafkaError if nobody may.
        releases: by partition, how often the consumer has let go of it.
        owned: returns the partitions that the group has given to the consumer.
    """

    def __init__(
        self,
        group: str,
        instance_id: str | None,
        link: CoordinatorLink,
        metadata: Metadata,
        identity: Callable[[], GroupIdentity],
        releases: Mapping[TopicPartition, int],
        owned: Callable[[], Collection[TopicPartition]],
        metrics: ConsumerMetrics,
    ) -> None:
        self._group = group
        self._instance_id = instance_id
        self._link = link
        self._metadata = metadata
        self._identity = identity
        self._releases = releases
        self._owned = owned
        self._metrics = metrics
        self._in_order = asyncio.Lock()
        self._trouble: KafkaError | None = None

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        topic_ids: Mapping[TopicPartition, bytes],
        timeout: float,
        waits_for_topics: bool = True,
    ) -> None:
        """Store offsets. One commit after the other, so that none overtakes a later one.

        Args:
            topic_ids: of the topics to which the offsets belong; zero if one is not known.
            waits_for_topics: whether to try again while the coordinator does not know a topic.

        Raises:
            BrokerError: the coordinator refuses; if the member has lost its partitions, the
                records after the last commit will be read again, by their new owners. Or a topic
                was deleted; the offsets of other topics are stored.
            Unavailable: no answer within `timeout` seconds.
        """
        if not offsets:
            return
        names = {topic_ids[partition]: partition.topic for partition in offsets}
        by_topic: dict[tuple[str, bytes], list[OffsetCommitRequestPartition]] = {}
        for partition, given in offsets.items():
            by_topic.setdefault((partition.topic, topic_ids[partition]), []).append(
                OffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=given.offset,
                    committed_leader_epoch=given.leader_epoch,
                    committed_metadata=given.metadata,
                )
            )
        topics = [
            OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=of)
            for (name, topic_id), of in by_topic.items()
        ]
        gone: list[BrokerError] = []
        sent = NO_MEMBER
        before = {partition: self._releases.get(partition, 0) for partition in offsets}

        def make(version: int) -> OffsetCommitRequest:
            nonlocal sent
            gone.clear()
            for partition, count in before.items():
                if self._releases.get(partition, 0) != count:  # others have committed since
                    code = ErrorCode.ILLEGAL_GENERATION
                    raise BrokerError(code, _LOST[code], f"group {self._group}, {partition}")
            sent = self._identity()
            return OffsetCommitRequest(
                group_id=self._group,
                generation_id_or_member_epoch=sent.generation,
                member_id=sent.member_id,
                group_instance_id=self._instance_id,
                topics=topics,
            )

        def judge(response: OffsetCommitResponse) -> Verdict:
            for topic in response.topics:
                name = topic.name or names.get(topic.topic_id, "")
                for answer in topic.partitions:
                    code = error_code(answer.error_code)
                    if code is ErrorCode.STALE_MEMBER_EPOCH:
                        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # again, in its next epoch
                    if code in _PASSING and self._goes_on(code, sent, offsets):
                        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # or its next generation
                    if code is not ErrorCode.NONE:
                        subject = f"group {self._group}, {name}-{answer.partition_index}"
                        if code in _LOST:
                            raise BrokerError(code, _LOST[code], subject)
                        if code in _GONE and not (
                            waits_for_topics and self._may_exist(name, topic.topic_id)
                        ):
                            gone.append(BrokerError(code, "the topic was deleted", subject))
                            continue
                        return code, subject
            return ErrorCode.NONE, ""

        async with self._within(timeout, "committed"), self._in_order:
            with self._metrics.measured("commit"):
                await self._link.ask(
                    *(OffsetCommitRequest, make, judge),
                    at_most=_newest(topic_ids[partition] for partition in offsets),
                    check=self._note_trouble,
                )
        if gone:
            raise gone[0]

    def _goes_on(
        self, code: ErrorCode, sent: GroupIdentity, partitions: Iterable[TopicPartition]
    ) -> bool:
        """Whether a member has kept partitions through the rebalance for which a commit came too
        late, as behind its JoinGroup, or too early."""
        is_member = code is ErrorCode.REBALANCE_IN_PROGRESS or self._identity() != sent
        return is_member and set(partitions) <= set(self._owned())

    def _may_exist(self, name: str, topic_id: bytes) -> bool:
        """Whether a topic that the coordinator does not know is perhaps only new to it."""
        self._metadata.request_update()
        return topic_id in (ZERO_UUID, self._metadata.topic_id(name))

    async def fetch(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets; a partition without one is missing.

        Waits while a transaction that commits offsets is open (KIP-447).

        Raises:
            BrokerError, Unavailable: as for `commit`.
        """
        asked = by_topic(partitions)
        async with self._within(timeout, "read"):
            while (found := await self._fetch(asked)) is None:
                self._metadata.watch(asked)
                await self._metadata.wait_for_update()
                await asyncio.sleep(_IDS_AFTER)
        return found

    async def _fetch(
        self, asked: Mapping[str, list[int]]
    ) -> dict[TopicPartition, OffsetAndMetadata] | None:
        """The committed offsets; None if the coordinator does not know the id of a topic."""
        ids = {name: self._metadata.topic_id(name) for name in asked}
        names = {topic_id: name for name, topic_id in ids.items()}
        unknown: list[str] = []

        def make(version: int) -> OffsetFetchRequest:
            is_stable = version >= _STABLE_SINCE
            if version < _SEVERAL_GROUPS_SINCE:
                topics = [
                    OffsetFetchRequestTopic(name=name, partition_indexes=of)
                    for name, of in asked.items()
                ]
                return OffsetFetchRequest(
                    group_id=self._group, topics=topics, require_stable=is_stable
                )
            group = OffsetFetchRequestGroup(
                group_id=self._group,
                topics=[
                    OffsetFetchRequestTopics(name=name, topic_id=ids[name], partition_indexes=of)
                    for name, of in asked.items()
                ],
            )
            return OffsetFetchRequest(groups=[group], require_stable=is_stable)

        def judge(response: OffsetFetchResponse) -> Verdict:
            whole = response.groups[0] if response.groups else response
            code = error_code(whole.error_code)
            if code is not ErrorCode.NONE:
                return code, f"group {self._group}"
            for name, answer in _answers(response, names):
                if answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID:
                    unknown.append(name)
                elif answer.error_code:
                    subject = f"group {self._group}, {name}-{answer.partition_index}"
                    return error_code(answer.error_code), subject
            return ErrorCode.NONE, ""

        response = await self._link.ask(
            *(OffsetFetchRequest, make, judge),
            at_most=_newest(ids.values()),
            check=self._note_trouble,
        )
        if unknown:
            subject = f"group {self._group}, topic {unknown[0]}"
            self._trouble = BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, "", subject)
            return None
        return {
            TopicPartition(name, answer.partition_index): OffsetAndMetadata(
                answer.committed_offset, answer.metadata or "", answer.committed_leader_epoch
            )
            for name, answer in _answers(response, names)
            if answer.committed_offset >= 0
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


def _newest(topic_ids: Iterable[bytes]) -> int | None:
    """The newest version of a request about topics with these ids."""
    return _LAST_VERSION_WITH_NAMES if ZERO_UUID in topic_ids else None


def _answers(
    response: OffsetFetchResponse, names: Mapping[bytes, str]
) -> Iterator[tuple[str, OffsetFetchResponsePartition | OffsetFetchResponsePartitions]]:
    """The answer about each partition, with the topic's name."""
    for topic in response.topics:
        for partition in topic.partitions:
            yield topic.name, partition
    for group in response.groups:
        for group_topic in group.topics:
            for answer in group_topic.partitions:
                yield group_topic.name or names.get(group_topic.topic_id, ""), answer
