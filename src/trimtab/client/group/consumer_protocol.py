"""A member of a group of KIP-848: the coordinator assigns the partitions, in heartbeats.

    beat:       ConsumerGroupHeartbeat ─▶ epoch, and the assignment if it has changed
    reconcile:  assignment ─▶ revoke what is not in it ─▶ assign what is new ─▶ heartbeat: owned

Heartbeats go on while the application carries out a change. A partition that the coordinator takes
away is another member's only after a heartbeat without it.

Source: KIP-848; Kafka's `ConsumerMembershipManager`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from random import Random
from uuid import UUID

from trimtab.client.consumer_metrics import ConsumerMetrics
from trimtab.client.group.handover import Change, Handover, Kind
from trimtab.client.group.membership import NO_MEMBER, GroupIdentity, MemberOptions
from trimtab.client.group.subscription import SubscriptionPattern
from trimtab.client.network.coordinator import CoordinatorLink, Verdict
from trimtab.client.network.metadata import Metadata
from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError, UsageError, error_code
from trimtab.kafka.records import TopicPartition, by_topic
from trimtab.kafka.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

logger = logging.getLogger("trimtab.client")

_JOIN, _LEAVE, _LEAVE_STATICALLY = 0, -1, -2
"""Member epochs of requests that join and leave (KIP-848)."""
_REJOIN = frozenset(
    {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}
)
"""Errors after which the member joins again."""
_FIRST_INTERVAL = 5.0
_PATTERNS_SINCE = 1
_NAMES_AFTER = 0.1
"""Seconds until the client asks once more for a topic whose id no broker knew."""


class ConsumerMembership:
    """Keeps one consumer in its group.

    Args:
        link: to the coordinator.
        metrics: records heartbeats and rebalances.
        random: draws the member's id.
    """

    def __init__(
        self,
        link: CoordinatorLink,
        metadata: Metadata,
        handover: Handover,
        options: MemberOptions,
        metrics: ConsumerMetrics,
        random: Random,
    ) -> None:
        self.identity = NO_MEMBER
        self._link = link
        self._metadata = metadata
        self._handover = handover
        self._options = options
        self._metrics = metrics
        self._member_id = str(UUID(int=random.getrandbits(128), version=4))
        self._topics: frozenset[str] = frozenset()
        self._pattern: SubscriptionPattern | None = None
        self._has_told_pattern = False
        self._has_topics = asyncio.Event()
        """An expression may match none yet; who joins must name one."""
        self._target: frozenset[tuple[bytes, int]] | None = None
        """The assignment by topic id; None until one has come."""
        self._topic_ids: dict[TopicPartition, bytes] = {}
        """Of the partitions that the application reads, as they were assigned."""
        self._nameless: frozenset[bytes] = frozenset()
        """The assigned topics whose names the client does not know."""
        self._is_nameless = asyncio.Event()
        self._interval = _FIRST_INTERVAL
        self._due = asyncio.Event()
        """Set when the next heartbeat must not wait for the interval."""
        self._changed = asyncio.Event()
        """Set when the target or the known topics may have changed."""
        self._tells_all = True
        """Whether the next heartbeat has all fields."""
        self._tells_owned = False
        """Whether it has the partitions that the application reads."""
        metadata.on_update(self._changed.set)

    def subscribe(self, topics: frozenset[str], pattern: SubscriptionPattern | None = None) -> None:
        if (topics, pattern) != (self._topics, self._pattern):
            self._topics, self._pattern = topics, pattern
            self._metadata.watch(sorted(topics))
            self._tells_all = True
            self._due.set()
            if topics or pattern is not None:
                self._has_topics.set()
            else:
                self._has_topics.clear()

    async def run(self) -> None:
        try:
            while True:
                await self._has_topics.wait()
                # A member joins only while its application polls.
                await self._handover.offer(Change(Kind.LOST, self._handover.owned))
                await self._live()
        except KafkaError as error:
            self.identity = NO_MEMBER
            if isinstance(error, BrokerError) and error.code is ErrorCode.UNSUPPORTED_VERSION:
                hint = f"{error.detail}; set group.protocol=classic"
                error = BrokerError(error.code, hint, error.subject)
            self._handover.fail(error)

    async def leave(self, reason: str) -> None:
        if self.identity is NO_MEMBER:
            return
        self.identity = NO_MEMBER
        is_static = self._options.instance_id is not None
        try:
            request = self._request(_LEAVE_STATICALLY if is_static else _LEAVE, None)
            await self._ask(lambda: request)
        except KafkaError as error:
            logger.info("leaving group %s (%s): %s", self._options.group_id, reason, error)

    # one membership, from epoch 0 to its end

    async def _live(self) -> None:
        """Return when the membership has ended and the member may join again."""
        self.identity = GroupIdentity(_JOIN, self._member_id)
        self._target, self._tells_all = None, True
        loop = asyncio.get_running_loop()
        living = self._beat(), self._reconcile(), self._find_names()
        parts = [loop.create_task(part) for part in living]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in parts:
                if part.done():
                    part.result()
        except BrokerError as error:
            if error.code not in _REJOIN:
                raise
            self.identity = NO_MEMBER
            logger.info("group %s: %s; joining again", self._options.group_id, error)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _beat(self) -> None:
        """Send heartbeats until the coordinator removes the member, or the application stops
        polling."""
        loop, options = asyncio.get_running_loop(), self._options
        while True:
            self._due.clear()
            with self._metrics.measured("heartbeat"):
                response = await self._ask(self._heartbeats())
            self._take(response)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._due.wait()
            if self._handover.seconds_without_poll(loop.time()) > options.poll_interval:
                logger.warning(
                    "group %s: no poll for %g s (max.poll.interval.ms): the member leaves, and"
                    " others get its partitions; poll more often, or fewer records at once",
                    *(options.group_id, options.poll_interval),
                )
                await self.leave("no poll within max.poll.interval.ms")
                return

    def _heartbeats(self) -> Callable[[], ConsumerGroupHeartbeatRequest]:
        """Makes a heartbeat, and repeats it until it is answered.

        Repeated, it has all fields, so that the coordinator tells the assignment: it may have done
        so in a response that was lost.
        """
        attempts = count()
        return lambda: self._next_request(is_repeated=next(attempts) > 0)

    def _next_request(self, is_repeated: bool) -> ConsumerGroupHeartbeatRequest:
        """All fields in the first heartbeat and after changes; otherwise only what identifies."""
        tells_all = self._tells_all or is_repeated
        tells_owned = tells_all or self._tells_owned
        self._tells_all = self._tells_owned = False
        owned = self._owned_by_id() if tells_owned else None
        request = self._request(self.identity.generation, owned)
        if tells_all:
            request.rebalance_timeout_ms = int(self._options.poll_interval * 1000)
            request.subscribed_topic_names = sorted(self._topics)
            if self._pattern is not None or self._has_told_pattern:  # "" takes it back
                request.subscribed_topic_regex = self._pattern.pattern if self._pattern else ""
                self._has_told_pattern = self._pattern is not None
            request.server_assignor = self._options.server_assignor
            request.rack_id = self._options.rack
        return request

    def _request(
        self, epoch: int, owned: list[TopicPartitions] | None
    ) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=self._options.group_id,
            member_id=self._member_id,
            member_epoch=epoch,
            instance_id=self._options.instance_id,
            topic_partitions=owned,
        )

    async def _ask(
        self, heartbeat: Callable[[], ConsumerGroupHeartbeatRequest]
    ) -> ConsumerGroupHeartbeatResponse:
        def judge(response: ConsumerGroupHeartbeatResponse) -> Verdict:
            code = error_code(response.error_code)
            if code is not ErrorCode.NONE and not code.retriable:
                raise BrokerError(code, response.error_message or "", str(self._link))
            return code, ""

        def make(version: int) -> ConsumerGroupHeartbeatRequest:
            request = heartbeat()
            if request.subscribed_topic_regex is not None and version < _PATTERNS_SINCE:
                raise UsageError(
                    f"{self._pattern}: this coordinator evaluates no expressions, as Kafka does"
                    " since 4.0; subscribe to a compiled one, which the client matches"
                )
            return request

        return await self._link.ask(ConsumerGroupHeartbeatRequest, make, judge)

    def _take(self, response: ConsumerGroupHeartbeatResponse) -> None:
        self._member_id = response.member_id or self._member_id
        self.identity = GroupIdentity(response.member_epoch, self._member_id)
        self._interval = response.heartbeat_interval_ms / 1000
        if response.assignment is not None:
            self._target = frozenset(
                (topic.topic_id, partition)
                for topic in response.assignment.topic_partitions
                for partition in topic.partitions
            )
            self._changed.set()

    # the assignment

    async def _reconcile(self) -> None:
        """Have the application carry out each assignment; tell the coordinator when it has."""
        handover = self._handover
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._target is None:
                continue
            owned, ids = handover.owned, self._topic_ids
            wanted = self._named(self._target)
            if revoked := frozenset(p for p in owned if wanted.get(p) != ids[p]):
                await self._carry_out(Change(Kind.REVOKED, revoked))
            elif added := wanted.keys() - owned:
                ids.update((partition, wanted[partition]) for partition in added)
                await self._carry_out(Change(Kind.ASSIGNED, frozenset(added)))

    async def _carry_out(self, change: Change) -> None:
        with self._metrics.measured("rebalance"):
            await self._handover.offer(change)
        self._changed.set()  # there may be more to do, or another assignment may have come
        self._tells_owned = True
        self._due.set()

    def _named(self, target: Iterable[tuple[bytes, int]]) -> dict[TopicPartition, bytes]:
        """The partitions whose names are known, with the ids of their topics.

        A topic that was deleted and created again has another id: its partitions are other ones.
        """
        names = {view.topic_id: view.name for view in self._metadata.views()}
        names |= {self._topic_ids[owned]: owned.topic for owned in self._handover.owned}
        self._nameless = frozenset(topic_id for topic_id, _ in target if topic_id not in names)
        if self._nameless:
            self._is_nameless.set()
        return {
            TopicPartition(names[topic_id], partition): topic_id
            for topic_id, partition in target
            if topic_id in names
        }

    async def _find_names(self) -> None:
        """Ask for topics that are assigned, and of which the client has only the ids."""
        while True:
            await self._is_nameless.wait()
            self._is_nameless.clear()
            with suppress(KafkaError):
                await self._metadata.fetch_ids(sorted(self._nameless))
            await asyncio.sleep(_NAMES_AFTER)
            self._changed.set()

    def _owned_by_id(self) -> list[TopicPartitions]:
        """The partitions that the application reads, or may begin to read with its next poll."""
        owned, change = self._handover.owned, self._handover.change
        if change is not None and change.kind is Kind.ASSIGNED:
            owned |= change.partitions
        topics = by_topic((self._topic_ids[each], each.partition) for each in sorted(owned))
        return [TopicPartitions(topic_id=id, partitions=of) for id, of in topics.items()]
