"""A member of a classic consumer group: the members elect a leader, which assigns the partitions.

    run:  ┌▶ wait for a reason to join ─▶ revoke ─▶ JoinGroup ─▶ SyncGroup ─▶ assign ─┐
          └───────────────────────────────────────────────────────────────────────────┘
    beat:      Heartbeat each heartbeat.interval.ms, from SyncGroup to the next JoinGroup

Reasons to join: the first poll; a heartbeat's response says that the group rebalances; other topics
or, at the leader, other partitions; partitions that this member let go of for others (KIP-429).

Source: KIP-62, KIP-345, KIP-394, KIP-429, KIP-814; Kafka's `ConsumerCoordinator`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from trimtab.client.consumer_metrics import ConsumerMetrics
from trimtab.client.group.assignors.protocol import Assignor, Topic
from trimtab.client.group.handover import Change, Handover, Kind
from trimtab.client.group.membership import NO_MEMBER, GroupIdentity, MemberOptions
from trimtab.client.network.coordinator import CoordinatorLink, Verdict
from trimtab.client.network.metadata import Metadata
from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError, error_code
from trimtab.kafka.records import TopicPartition, by_topic
from trimtab.kafka.wire.messages.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_embedded,
    encode_embedded,
)
from trimtab.kafka.wire.messages.consumer_protocol import TopicPartition as TopicPartitions
from trimtab.kafka.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from trimtab.kafka.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from trimtab.kafka.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from trimtab.kafka.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from trimtab.kafka.wire.sentinels import NO_EPOCH

logger = logging.getLogger("trimtab.client")

_SUBSCRIPTION_VERSION = 3
_ASSIGNMENT_VERSION = 0
"""Its fields are the same in all versions; every client reads this one."""
_JOIN_GRACE = 5.0
"""Seconds that the response to JoinGroup may take beyond the rebalance time-out, as in Java."""
_LEAVES_SEVERAL_SINCE = 3
_REJOIN = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
    }
)
"""Errors after which the member joins again. All others that are not retriable end it."""


class _JoinAgain(Exception):
    """Why joining has to be repeated."""

    def __init__(self, error: BrokerError) -> None:
        super().__init__(error)
        self.error = error


class ClassicMembership:
    """Keeps one consumer in its group.

    Args:
        link: to the coordinator, over a connection that nothing else uses: a JoinGroup that waits
            for other members holds up the requests behind it.
        metrics: records how long its steps take.
        assignors: the ways of assigning that it offers, the preferred one first.
    """

    def __init__(
        self,
        link: CoordinatorLink,
        metadata: Metadata,
        handover: Handover,
        options: MemberOptions,
        metrics: ConsumerMetrics,
        assignors: Sequence[Assignor],
    ) -> None:
        self.identity = NO_MEMBER
        self._link = link
        self._metadata = metadata
        self._handover = handover
        self._options = options
        self._metrics = metrics
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._is_cooperative = all(assignor.is_cooperative for assignor in assignors)
        self._topics: frozenset[str] = frozenset()
        self._assigned: frozenset[TopicPartition] = frozenset()
        """The last assignment, also after it was revoked: sticky assignors begin with it."""
        self._assigned_in = NO_EPOCH
        self._counts: dict[str, int | None] = {}
        """At the leader: the number of partitions of each of the group's topics."""
        self._must_join = asyncio.Event()
        self._reason = ""
        self._beats: asyncio.Task[None] | None = None
        metadata.on_update(self._compare_partitions)

    def subscribe(self, topics: frozenset[str]) -> None:
        if topics != self._topics:
            self._topics = topics
            self._join_soon("its subscription has changed")

    async def run(self) -> None:
        try:
            while True:
                await self._must_join.wait()
                await self._rebalance()
        except KafkaError as error:
            self._forget()
            self._handover.fail(self._explained(error))
        finally:
            await self._stop_beating()

    def _explained(self, error: KafkaError) -> KafkaError:
        if not isinstance(error, BrokerError) or (
            error.code is not ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        ):
            return error
        offered = ",".join(self._assignors)
        hint = (
            f"this consumer offers partition.assignment.strategy={offered}, of which the group's"
            " other members support none; give all members one in common, then make a new consumer"
        )
        return BrokerError(error.code, hint, error.subject)

    async def leave(self, reason: str) -> None:
        member_id = self.identity.member_id
        self._forget()
        if not member_id or self._options.instance_id is not None:
            return  # a static member keeps its partitions until its session ends
        self._link.disconnect()

        def make(version: int) -> LeaveGroupRequest:
            if version < _LEAVES_SEVERAL_SINCE:
                return LeaveGroupRequest(group_id=self._options.group_id, member_id=member_id)
            identity = MemberIdentity(member_id=member_id, reason=reason)
            return LeaveGroupRequest(group_id=self._options.group_id, members=[identity])

        def judge(response: LeaveGroupResponse) -> Verdict:
            return error_code(response.error_code), ""

        try:
            await self._link.ask(LeaveGroupRequest, make, judge)
        except KafkaError as error:
            logger.info("leaving group %s: %s", self._options.group_id, error)

    async def _rebalance(self) -> None:
        """Let go, join, and take over the partitions."""
        try:
            with self._metrics.measured("rebalance"):
                await self._let_go()
                self._must_join.clear()
                await self._stop_beating()
                if self.identity.generation == NO_EPOCH and self._handover.owned:
                    await self._let_go()  # a heartbeat learned meanwhile that they are lost
                await self._join()
        except _JoinAgain as again:
            self._metrics.rebalance_failed()
            self._note_end(again.error)

    # before joining

    def _join_soon(self, reason: str) -> None:
        self._reason = reason
        self._must_join.set()

    async def _let_go(self) -> None:
        """Have the application let go of what it must not read while the group rebalances.

        Also without partitions, since a member joins only while its application polls.
        """
        owned = self._handover.owned
        if self.identity.generation == NO_EPOCH:
            change = Change(Kind.LOST, owned)
        elif self._is_cooperative:
            unwanted = frozenset(p for p in owned if p.topic not in self._topics)
            change = Change(Kind.REVOKED, unwanted)
        else:
            change = Change(Kind.REVOKED, owned)
        await self._handover.offer(change)

    def _forget(self, keeps_id: bool = False) -> None:
        """The membership has ended; the next JoinGroup is a new member's."""
        self.identity = GroupIdentity(member_id=self.identity.member_id if keeps_id else "")
        self._counts = {}

    # joining

    async def _join(self) -> None:
        """Become a member of the group's next generation.

        Raises:
            _JoinAgain: the group has gone on without this member.
        """
        logger.info("joining group %s: %s", self._options.group_id, self._reason)
        reason, topics = self._reason, self._topics
        try:
            with self._metrics.measured("join"):
                joined = await self._ask_to_join(reason, topics)
            is_leader = joined.leader == joined.member_id
            assignments = await self._assign(joined) if is_leader else {}
            with self._metrics.measured("sync"):
                synced = await self._ask_to_sync(joined, assignments)
        except BrokerError as error:
            if error.code not in _REJOIN:
                raise
            raise _JoinAgain(error) from error
        self._beats = asyncio.get_running_loop().create_task(self._beat())
        await self._take(joined, synced)

    async def _ask_to_join(self, reason: str, topics: frozenset[str]) -> JoinGroupResponse:
        options = self._options
        protocols = [
            JoinGroupRequestProtocol(name=name, metadata=self._subscription(assignor, topics))
            for name, assignor in self._assignors.items()
        ]

        def make(version: int) -> JoinGroupRequest:
            return JoinGroupRequest(
                group_id=options.group_id,
                session_timeout_ms=int(options.session * 1000),
                rebalance_timeout_ms=int(options.poll_interval * 1000),
                member_id=self.identity.member_id,
                group_instance_id=options.instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=protocols,
                reason=reason,
            )

        def judge(response: JoinGroupResponse) -> Verdict:
            code = error_code(response.error_code)
            if code is ErrorCode.MEMBER_ID_REQUIRED:
                self.identity = GroupIdentity(member_id=response.member_id)
            return code, ""

        timeout = options.poll_interval + _JOIN_GRACE
        before = self.identity.generation
        while True:
            try:
                joined = await self._link.ask(JoinGroupRequest, make, judge, timeout=timeout)
            except BrokerError as error:
                if error.code is not ErrorCode.MEMBER_ID_REQUIRED:
                    raise
            else:
                if self._handover.owned and joined.generation_id not in (before, before + 1):
                    raise BrokerError(
                        ErrorCode.ILLEGAL_GENERATION,
                        f"generation {joined.generation_id} comes after others that began without"
                        f" this member of generation {before}; its partitions may be others' now",
                        str(self._link),
                    )
                self.identity = GroupIdentity(joined.generation_id, joined.member_id)
                return joined

    def _subscription(self, assignor: Assignor, topics: frozenset[str]) -> bytes:
        rates = self._handover.write_rates(asyncio.get_running_loop().time())
        subscription = ConsumerProtocolSubscription(
            topics=sorted(topics),
            user_data=assignor.user_data(self._assigned, self._assigned_in, rates),
            owned_partitions=_named(self._handover.owned),
            generation_id=self._assigned_in,
            rack_id=self._options.rack,
        )
        return encode_embedded(subscription, _SUBSCRIPTION_VERSION)

    async def _assign(self, joined: JoinGroupResponse) -> dict[str, list[TopicPartition]]:
        """The leader's part: the partitions of each member."""
        assignor = self._assignors[joined.protocol_name or ""]
        subscribers = [
            assignor.subscriber(
                member.member_id,
                member.group_instance_id,
                decode_embedded(ConsumerProtocolSubscription, member.metadata)[0],
            )
            for member in joined.members
        ]
        names = sorted({name for each in subscribers for name in each.topics})
        topics = await self._describe(names)
        return {} if joined.skip_assignment else assignor.assign(subscribers, topics)

    async def _describe(self, names: Sequence[str]) -> dict[str, Topic]:
        """The group's topics that exist, and remember their sizes."""
        self._counts = {}
        self._metadata.watch(names)
        await self._metadata.wait_for_update()
        racks = {node.id: node.rack for node in self._metadata.nodes.values()}
        topics: dict[str, Topic] = {}
        for name in names:
            view = self._metadata.topic(name)
            if view is None:
                logger.warning(
                    "group %s subscribes to topic %s, which does not exist yet",
                    *(self._options.group_id, name),
                )
                continue
            near = [frozenset(racks.get(id) or "" for id in p.replicas) for p in view.partitions]
            known = all("" not in of for of in near)
            topics[name] = Topic(view.partition_count, tuple(near) if known else ())
        self._counts = {name: topics[name].partitions if name in topics else None for name in names}
        return topics

    async def _ask_to_sync(
        self, joined: JoinGroupResponse, assignments: Mapping[str, Sequence[TopicPartition]]
    ) -> SyncGroupResponse:
        options, (generation, member_id) = self._options, self.identity

        def make(version: int) -> SyncGroupRequest:
            return SyncGroupRequest(
                group_id=options.group_id,
                generation_id=generation,
                member_id=member_id,
                group_instance_id=options.instance_id,
                protocol_type=joined.protocol_type,
                protocol_name=joined.protocol_name,
                assignments=[
                    SyncGroupRequestAssignment(member_id=member, assignment=_encoded(partitions))
                    for member, partitions in assignments.items()
                ],
            )

        def judge(response: SyncGroupResponse) -> Verdict:
            return error_code(response.error_code), ""

        return await self._link.ask(
            SyncGroupRequest, make, judge, timeout=options.poll_interval + _JOIN_GRACE
        )

    async def _take(self, joined: JoinGroupResponse, synced: SyncGroupResponse) -> None:
        """Have the application carry out the assignment."""
        assigned = _decoded(synced.assignment)
        self._assigned, self._assigned_in = assigned, joined.generation_id
        logger.info(
            "member %s of group %s, generation %d: %d partitions by %s",
            *(joined.member_id, self._options.group_id, joined.generation_id, len(assigned)),
            joined.protocol_name,
        )
        revoked = self._handover.owned - assigned
        if revoked:
            await self._handover.offer(Change(Kind.REVOKED, revoked))
            self._join_soon("it has let go of partitions of other members")
            if self.identity.generation != joined.generation_id:
                return  # the membership has ended meanwhile
        await self._handover.offer(Change(Kind.ASSIGNED, assigned - self._handover.owned))

    # between two rebalances

    async def _beat(self) -> None:
        """Send heartbeats until the membership ends."""
        options, loop = self._options, asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(options.heartbeat)
                if self._handover.seconds_without_poll(loop.time()) > options.poll_interval:
                    logger.warning(
                        "group %s: no poll for %g s (max.poll.interval.ms): the member leaves, and"
                        " others get its partitions; poll more often, or fewer records at once",
                        *(options.group_id, options.poll_interval),
                    )
                    await self.leave("no poll within max.poll.interval.ms")
                    self._join_soon("polled again")
                    return
                await self._ask_whether_all_is_well()
        except BrokerError as error:
            if error.code in _REJOIN:
                self._note_end(error)
            else:
                self._handover.fail(error)
        except Exception as error:  # also one of ours: a member without heartbeats must be noticed
            self._handover.fail(error)

    async def _ask_whether_all_is_well(self) -> None:
        options, (generation, member_id) = self._options, self.identity
        request = HeartbeatRequest(
            group_id=options.group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=options.instance_id,
        )

        def judge(response: HeartbeatResponse) -> Verdict:
            code = error_code(response.error_code)
            if code is ErrorCode.REBALANCE_IN_PROGRESS:
                self._join_soon("the group rebalances")
                code = ErrorCode.NONE  # the member lives until it has let go and joins again
            return code, ""

        with self._metrics.measured("heartbeat"):
            await self._link.ask(
                HeartbeatRequest, lambda version: request, judge, timeout=options.session
            )

    async def _stop_beating(self) -> None:
        beats, self._beats = self._beats, None
        if beats is not None:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    def _note_end(self, error: BrokerError) -> None:
        if error.code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self._forget(keeps_id=error.code is not ErrorCode.UNKNOWN_MEMBER_ID)
        self._join_soon(f"{error.code.name} ended the last generation")

    def _compare_partitions(self) -> None:
        """At the leader: a topic of the group has come, gone or grown."""
        for name, count in self._counts.items():
            view = self._metadata.topic(name)
            if (None if view is None else view.partition_count) != count:
                self._counts = {}
                self._join_soon(f"topic {name} has another number of partitions")
                return


def _named(
    partitions: frozenset[TopicPartition] | Sequence[TopicPartition],
) -> list[TopicPartitions]:
    topics = by_topic(sorted(partitions))
    return [TopicPartitions(topic=name, partitions=of) for name, of in topics.items()]


def _encoded(partitions: Sequence[TopicPartition]) -> bytes:
    assignment = ConsumerProtocolAssignment(assigned_partitions=_named(partitions))
    return encode_embedded(assignment, _ASSIGNMENT_VERSION)


def _decoded(data: bytes | memoryview) -> frozenset[TopicPartition]:
    if not data:  # the leader gave this member nothing
        return frozenset()
    assignment, _ = decode_embedded(ConsumerProtocolAssignment, data)
    return frozenset(
        TopicPartition(topic.topic, partition)
        for topic in assignment.assigned_partitions
        for partition in topic.partitions
    )
