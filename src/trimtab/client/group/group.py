"""A consumer's group: its subscription, its membership, and the offsets that it commits.

    consumer ── subscribe ──▶ Group ──▶ ClassicMember or ConsumerMember ──▶ coordinator
       ▲ poll                   │                    │
       └──── Handover ◀─────────┼────────────────────┘
       └──── commit, committed ─┴──▶ CommittedOffsets ──────────────────▶ coordinator

Everything here is on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

from trimtab.client.consumer_metrics import ConsumerMetrics
from trimtab.client.group.assignors.protocol import Assignor
from trimtab.client.group.classic import ClassicMembership
from trimtab.client.group.committed import CommittedOffsets
from trimtab.client.group.consumer_protocol import ConsumerMembership
from trimtab.client.group.handover import Handover
from trimtab.client.group.membership import GroupIdentity, MemberOptions, Membership
from trimtab.client.group.subscription import SubscriptionPattern, TopicFinder, Topics
from trimtab.client.group_offsets import ConsumerGroup, OffsetAndMetadata
from trimtab.client.network.connections import Connections
from trimtab.client.network.coordinator import CoordinatorKind, CoordinatorLink
from trimtab.client.network.session import Session
from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.types import ZERO_UUID

logger = logging.getLogger("trimtab.client")

_AUTOMATIC_COMMIT = 30.0
"""Seconds that an automatic commit takes at most."""
_CLOSE = 30.0
"""Seconds until a consumer that is being closed stops waiting for its coordinator, as in Java."""


class Group:
    """One consumer's part in its group.

    Args:
        assignors: the ways of assigning that a classic member offers; None: the protocol of
            KIP-848, in which the coordinator assigns.

    Attributes:
        handover: the changes of partitions, for the poll.
        topic_id: returns the id of the topic to which the consumer's position of a partition
            belongs; zero if it is not known.
        is_commit_due: whether `auto.commit.interval.ms` has passed since the last automatic commit.
    """

    def __init__(
        self,
        session: Session,
        options: MemberOptions,
        assignors: Collection[Assignor] | None,
        metrics: ConsumerMetrics,
    ) -> None:
        self.handover = Handover()
        self._session = session
        self._options = options
        # Of its own: a JoinGroup or a fetch that waits holds up the requests behind it.
        self._connections = Connections(
            list(session.connections.bootstrap), session.connections.options, session.random
        )
        link = self._link = CoordinatorLink(
            self._connections,
            CoordinatorKind.GROUP,
            options.group_id,
            session.backoff,
            session.random,
            session.connections,
        )
        self._connections.on_event = metrics.connection_event
        common = link, session.metadata, self.handover, options, metrics
        self._member: Membership = (
            ConsumerMembership(*common, session.random)
            if assignors is None
            else ClassicMembership(*common, list(assignors))
        )
        self._offsets = CommittedOffsets(
            options.group_id,
            options.instance_id,
            link,
            session.metadata,
            self._identity,
            self.handover.releases,
            lambda: self.handover.owned,
            metrics,
        )
        self.topic_id: Callable[[TopicPartition], bytes] = lambda partition: ZERO_UUID
        self.is_commit_due = False
        self._commit_timer: asyncio.TimerHandle | None = None
        self._living: asyncio.Task[None] | None = None
        self._finding: asyncio.Task[None] | None = None
        self._finder: TopicFinder | None = None
        self._topics: frozenset[str] = frozenset()
        """The names of the last subscription to names."""
        self._committing: asyncio.Task[None] | None = None

    @property
    def metadata(self) -> ConsumerGroup:
        """The membership, for a producer's transaction (KIP-447)."""
        generation, member_id = self._member.identity
        return ConsumerGroup(
            self._options.group_id, generation, member_id, self._options.instance_id
        )

    def _identity(self) -> GroupIdentity:
        """Who commits: after `subscribe` only a member, since without members a group accepts
        commits of anybody.

        Raises:
            BrokerError: the member has lost its partitions.
        """
        identity = self._member.identity
        if self._living is not None and identity.generation < 0:
            raise BrokerError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                "this consumer is not a member now; poll, and commit what it reads from then on",
                f"group {self._options.group_id}",
            )
        return identity

    def subscribe(self, topics: Topics) -> None:
        """Be a member that reads these topics."""
        if self._finding is not None:
            self._finding.cancel()
            self._finding = None
        self._finder = None
        self._name(topics if isinstance(topics, frozenset) else frozenset())
        if isinstance(topics, re.Pattern):
            options = self._session.options
            self._finder = TopicFinder(
                self._session.metadata,
                topics,
                options.seconds("metadata.max.age.ms"),
                options.flag("exclude.internal.topics"),
                self._member.subscribe,
            )
            self._finding = self._start(self._finder.run())
        elif isinstance(topics, SubscriptionPattern):
            assert isinstance(self._member, ConsumerMembership), (
                "Subscriber has checked the protocol"
            )
            self._member.subscribe(frozenset(), topics)
        else:
            self._member.subscribe(topics)
        if self._living is None:
            self._living = self._start(self._member.run())

    def _name(self, topics: frozenset[str]) -> None:
        """Have metadata describe the topics that are subscribed to by name: the log then says which
        of them do not exist."""
        metadata = self._session.metadata
        metadata.drop(self._topics - topics)
        self._topics = topics
        if topics:
            metadata.watch(sorted(topics))
            metadata.request_update()

    def problem(self) -> KafkaError | None:
        """Why the consumer has no partitions, as far as is known; None if nothing is wrong."""
        if self._link.trouble is not None:
            return self._link.trouble
        if self._finder is not None:
            return self._finder.problem
        missing = map(self._session.metadata.error, sorted(self._topics))
        return next((error for error in missing if error is not None), None)

    async def leave(self, reason: str) -> None:
        """End the membership; the application has let go of its partitions."""
        tasks = [task for task in (self._living, self._finding) if task is not None]
        self._living = self._finding = self._finder = None
        self._name(frozenset())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks:
            await self._member.leave(reason)
        self._member.subscribe(frozenset())
        self.handover.reset()

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Store offsets (`CommittedOffsets.commit`)."""
        await self._offsets.commit(offsets, self._ids(offsets), self._session.timeout)

    def _ids(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, bytes]:
        return {partition: self.topic_id(partition) for partition in partitions}

    def begin_committing(self) -> None:
        """Make a commit due after each `auto.commit.interval.ms`."""
        if self._commit_timer is None and self._session.options.flag("enable.auto.commit"):
            self._set_commit_timer()

    def _set_commit_timer(self) -> None:
        def make_due() -> None:
            self.is_commit_due = True

        interval = self._session.options.seconds("auto.commit.interval.ms")
        self._commit_timer = asyncio.get_running_loop().call_later(interval, make_due)

    def commit_soon(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Store offsets in the background, unless that is still being done from the last time."""
        self._set_commit_timer()
        if self._committing is None or self._committing.done():
            self._committing = asyncio.get_running_loop().create_task(
                self._commit_unasked(offsets, self._ids(offsets))
            )

    async def commit_automatically(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Store offsets; a failure is logged, as nobody has asked for this commit."""
        await self._commit_unasked(offsets, self._ids(offsets))

    async def _commit_unasked(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        topic_ids: Mapping[TopicPartition, bytes],
    ) -> None:
        timeout = min(self._session.timeout, _AUTOMATIC_COMMIT)
        try:
            await self._offsets.commit(offsets, topic_ids, timeout, waits_for_topics=False)
        except KafkaError as error:
            logger.warning(
                "group %s: automatic commit failed, so records will be read again unless a later"
                " commit succeeds: %s",
                *(self._options.group_id, error),
            )

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's offsets; a partition without one is missing."""
        return await self._offsets.fetch(partitions, self._session.timeout)

    async def close(self) -> None:
        if self._commit_timer is not None:
            self._commit_timer.cancel()
        try:
            async with asyncio.timeout(min(self._session.timeout, _CLOSE)):
                if self._committing is not None:
                    await self._committing
                await self.leave("the consumer was closed")
        except TimeoutError:
            logger.warning(
                "group %s: its coordinator did not answer; the session of this member has to end",
                self._options.group_id,
            )
        finally:
            if self._committing is not None:
                self._committing.cancel()
            await self._connections.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.handover.fail(error)
