"""The members of a group during a simulation: they come, read, commit, stall, leave and die.

A member's host stays the same from one life to the next. A killed member lets its connections
break and says nothing; the group waits for its session to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from random import Random
from typing import Any, Final, NamedTuple

from lab.reliability.group_checker import GroupChecker, Membership
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.group.classic import ClassicMembership
from trimtab.kafka.errors import BrokerError, CorruptData, ErrorCode, KafkaError
from trimtab.kafka.records import TopicPartition
from trimtab.sim.network import ANY
from trimtab.sim.world import World

GROUP_OPTIONS: Final[dict[str, Any]] = {
    "offsets.topic.num.partitions": 2,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.segment.bytes": 4_000,
    "group.min.session.timeout.ms": 1_000,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.assignment.interval.ms": 500,
    "group.consumer.session.timeout.ms": 4_000,
    "group.consumer.heartbeat.interval.ms": 1_000,
}
"""Options of the nodes, so that members are missed soon, and the groups' log is compacted."""

_ASSIGNORS = (
    "range",
    "roundrobin",
    "sticky",
    "cooperative-sticky",
    "load",
    "cooperative-load",
    "range,roundrobin",
)
_REMOTE_ASSIGNORS = (None, "uniform", "range", "load")
_POLL_MS = 1_000
_MOST_POLL_INTERVAL_MS = 5_000
_DAMAGED_RETRY_S = 1.0
_LOOK_S = 0.5
_ENDS = frozenset({ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID})
"""Errors that end the life of a static member whose last life, or its last request, is not over yet
for the coordinator. The next life tries again."""


class GroupPlan(NamedTuple):
    """How the members of a run's group are, drawn once a run.

    Attributes:
        protocols: each life has one of them.
        assignors: of the classic protocol.
    """

    protocols: tuple[str, ...]
    assignors: str
    remote_assignor: str | None

    @classmethod
    def draw(cls, random: Random) -> GroupPlan:
        protocols = random.choice((("classic",), ("consumer",), ("classic", "consumer")))
        return cls(protocols, random.choice(_ASSIGNORS), random.choice(_REMOTE_ASSIGNORS))


class Member:
    """One member, in one life after the other until `stop`.

    Attributes:
        membership: its present life, or the last one.
    """

    def __init__(
        self,
        world: World,
        number: int,
        bootstrap: str,
        topics: Collection[str],
        plan: GroupPlan,
        checker: GroupChecker,
    ) -> None:
        self._world = world
        self._bootstrap = bootstrap
        self._topics = topics
        self._plan = plan
        self._checker = checker
        self._random = world.random(f"member {number}")
        self._instance = f"instance-{number}" if self._random.random() < 0.4 else None
        self._consumer: AsyncConsumer | None = None
        self._is_staying = self._is_stalled = False
        self._leaving = asyncio.Event()
        self._stopping = asyncio.Event()
        self.host = f"member-{number}"
        self.membership = Membership(self.host, 0)

    def finished(self, ends: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """The partitions that it owns and has read to their ends."""
        consumer = self._consumer
        if consumer is None or self._is_stalled or self._uncommitted():
            return []
        finished = []
        for partition in consumer.assignment():
            position = consumer._known_position(partition)
            if position is None:  # it has read nothing yet
                position = consumer._fetcher.origin(
                    partition, consumer._assignments[partition].epoch
                )
            if position == ends[partition]:
                finished.append(partition)
        return finished

    def stay(self) -> None:
        """Neither leave, nor die, nor stall from now on."""
        self._is_staying = True

    def commit_again(self) -> None:
        """As long as it reads nothing new, nothing else repairs what a late commit has changed."""
        self.membership.committed.clear()

    def stop(self) -> None:
        """Leave for good; `run` then ends."""
        self._stopping.set()

    async def run(self) -> None:
        """Live until `stop`."""
        random, loop = self._random, self._world.loop
        while not self._stopping.is_set():
            self._leaving.clear()
            self._is_stalled = False
            self.membership = Membership(self.host, self.membership.life + 1)
            with self._world.network.at(self.host):
                life = loop.create_task(self._live(), name=str(self.membership))
            await self._wait(life)
            if not life.done():
                if random.random() < 0.4 and not self._is_staying:
                    self._kill()
                self._leaving.set()
                await asyncio.wait([life])
            self._consumer = None
            if not life.cancelled():
                life.result()
            if not self._stopping.is_set():
                await asyncio.sleep(self._draw_s(0.1, 2))

    async def _wait(self, life: asyncio.Task[None]) -> None:
        """Until it is time to leave or to die."""
        end_s = self._world.loop.time() + self._draw_s(3, 20)
        while not life.done() and not self._stopping.is_set():
            if self._world.loop.time() > end_s and not self._is_staying:
                return
            await asyncio.wait([life], timeout=_LOOK_S)

    def _kill(self) -> None:
        """End the process: it sends nothing more, and its connections break."""
        self._world.trace.append(f"kill {self.membership}")
        consumer, loop = self._consumer, self._world.loop
        assert consumer is not None
        self._world.network.reset(self.host, ANY)
        for task in loop.tasks():
            if task.context.get(loop.host) == self.host:
                task.cancel()
        group = consumer._group
        assert group is not None
        group._living = group._committing = None  # so that closing tells the coordinator nothing
        consumer._keep_open()
        with self._world.network.at(self.host):
            loop.create_task(consumer._close(), name=f"end of {self.membership}")

    async def _live(self) -> None:
        member = self.membership
        options = self._draw_options()
        self._consumer = consumer = AsyncConsumer(
            self._bootstrap,
            random=self._world.random(f"consumer {member}"),
            **options,
        )
        self._world.trace.append(f"{member} joins: {options}")
        consumer.subscribe(list(self._topics), on_revoked=member.let_go, on_lost=member.let_go)
        try:
            while not self._leaving.is_set():
                await self._poll(consumer, member)
                await self._commit(consumer, member)
        except BrokerError as error:
            if error.code not in _ENDS:
                raise
            self._world.trace.append(f"{member} ends: {error}")
        await consumer.close()

    def _draw_options(self) -> dict[str, Any]:
        random, plan = self._random, self._plan
        options: dict[str, Any] = {
            "group_id": self._checker.name,
            "group_protocol": random.choice(plan.protocols),
            "group_instance_id": self._instance,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": random.random() < 0.3,
            "auto_commit_interval_ms": 1_000,
            "max_poll_interval_ms": _MOST_POLL_INTERVAL_MS,
            "fetch_max_wait_ms": 2_000,
            "request_timeout_ms": 5_000,
            "default_api_timeout_ms": 15_000,
            "metadata_max_age_ms": 10_000,
        }
        if options["group_protocol"] == "classic":
            options |= {
                "partition_assignment_strategy": plan.assignors,
                "session_timeout_ms": 4_000,
                "heartbeat_interval_ms": 1_000,
            }
        else:
            options["group_remote_assignor"] = plan.remote_assignor
        return options

    async def _poll(self, consumer: AsyncConsumer, member: Membership) -> None:
        try:
            records = await consumer.poll(_POLL_MS, self._random.choice((1, 10, 500)))
        except CorruptData:
            await asyncio.sleep(_DAMAGED_RETRY_S)
            return
        self._checker.own(member, _generation_of(consumer), consumer.assignment())
        for record in records:
            self._checker.process(member, record)
        if self._random.random() < 0.02 and not self._is_staying:
            self._is_stalled = True
            await asyncio.sleep(self._draw_s(2, 8))
            self._is_stalled = False

    async def _commit(self, consumer: AsyncConsumer, member: Membership) -> None:
        """Commit what was read since the last commit that was acknowledged."""
        offsets = self._uncommitted()
        if not offsets:
            return
        before = self._checker.ask(member, offsets)
        try:
            await consumer.commit(offsets)
        except KafkaError as error:
            self._checker.refused += 1
            self._world.trace.append(f"{member} commits in vain: {error}")
        else:
            self._checker.acknowledge(member, offsets, before)

    def _uncommitted(self) -> dict[TopicPartition, int]:
        """The positions that it has yet to commit itself."""
        member, consumer = self.membership, self._consumer
        if consumer is None or consumer.options.flag("enable.auto.commit"):
            return {}
        return {
            partition: offset
            for partition, offset in member.next.items()
            if member.committed.get(partition) != offset
        }

    def _draw_s(self, *scales: float) -> float:
        return self._random.choice(scales) * self._random.expovariate(1)


def _generation_of(consumer: AsyncConsumer) -> int:
    """The generation in which it got what is assigned to it; -1 if it has none.

    A classic member that joins again keeps its partitions, or some of them, meanwhile.
    """
    group = consumer._group
    assert group is not None
    member = group._member
    if isinstance(member, ClassicMembership):
        return member._assigned_in
    return consumer.group_metadata().generation_id
