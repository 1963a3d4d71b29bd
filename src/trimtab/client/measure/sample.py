"""One round of polls of a whole cluster: what is where, how large it is, and who has read how far.

    Metadata ─▶ to each broker, at once ─┬─ DescribeLogDirs      sizes, volumes
                                         ├─ ListOffsets          ends and starts of what it leads
                                         └─ ListGroups, OffsetFetch   committed offsets
             ─▶ to any broker ───────────── reassignments, limits, fenced brokers, cleanup policies,
                                            last fetches of metadata

A part that is not answered in time is missing from the sample, and the sample names the broker. A
part that is refused is missing, too, and the sample names the right to allow.

Source: KIP-113, KIP-827, KIP-1066 (log directories), KIP-578 (limits), KIP-836 (last fetches).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from trimtab.balance.limits import PartitionLimits
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.measure.limits import read_limits
from trimtab.client.measure.polls import (
    BrokerLogs,
    GroupAnswers,
    describe_logs,
    list_leader_offsets,
    read_compaction,
    read_groups,
)
from trimtab.client.network.connection import Connection, Node
from trimtab.client.network.session import Session
from trimtab.client.topic_view import TopicView
from trimtab.kafka.arguments import checked_seconds
from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError, Unavailable, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.sentinels import EARLIEST, LATEST, NO_LEADER
from trimtab.threads.clock import wall_clock

T = TypeVar("T")

_POLICIES_S: Final = 300.0
"""Seconds after which the cleanup policies of all topics are read again, as they may be changed."""
_PATIENCE: Final = (0.25, 0.5, 1.0)
"""Parts of the time-out for which a broker may take for what any broker can answer: a request that
is given up counts as in flight, so the next one goes to another broker."""
_REFUSED: Final = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
}


class Timed(NamedTuple, Generic[T]):
    """An answer, and the loop's time when it arrived."""

    at: float
    value: T


class MissingRight(NamedTuple):
    """A right that the sample would have needed.

    Attributes:
        operation: to allow, such as Describe.
        resource: on which to allow it, such as `topic flights` or `cluster`.
        needed_for: what the sample does not tell without it.
    """

    operation: str
    resource: str
    needed_for: str

    def __str__(self) -> str:
        return f"allow {self.operation} on {self.resource}, for {self.needed_for}"


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One round of polls. What is not known is missing, and never 0.

    Attributes:
        began, ended: the loop's time before the first request, and after the last answer.
        measured_s: the end of the round, in seconds since the epoch.
        topics: all topics that may be described.
        nodes: the brokers that are alive, by id.
        fenced: registered brokers that the controller has fenced; None from brokers before Kafka
            4.0.
        logs: by broker.
        ends, starts: offsets of the partitions that a broker leads, by broker. An end is the high
            watermark.
        groups: committed offsets, by group.
        moving: the partitions in a reassignment.
        compacted: by topic and its id, whether its cleanup policy has `compact`.
        policies_read: the loop's time when the policies of all topics were last read.
        fetch_ages: by broker, how many seconds before the last fetch of any broker it has last
            fetched metadata; None from brokers before Kafka 3.0.
        round_trips: by broker, the seconds until it answered for its starts, or for which it has
            not.
        silent: by broker, what it did not answer, and why.
        refused_groups: groups whose offsets are missing, and why.
        refused: why other parts are missing.
        missing_rights: in the order of resources.
    """

    began: float
    ended: float
    measured_s: float
    topics: Timed[Mapping[str, TopicView]]
    nodes: Mapping[int, Node]
    fenced: Mapping[int, Node] | None = None
    logs: Mapping[int, Timed[BrokerLogs]] = field(default_factory=dict)
    ends: Mapping[int, Timed[Mapping[TopicPartition, int]]] = field(default_factory=dict)
    starts: Mapping[int, Timed[Mapping[TopicPartition, int]]] = field(default_factory=dict)
    groups: Mapping[str, Timed[Mapping[TopicPartition, int]]] = field(default_factory=dict)
    moving: Timed[frozenset[TopicPartition]] | None = None
    limits: PartitionLimits | None = None
    compacted: Mapping[tuple[str, bytes], bool] = field(default_factory=dict)
    policies_read: float = 0.0
    fetch_ages: Timed[Mapping[int, float]] | None = None
    round_trips: Mapping[int, float] = field(default_factory=dict)
    silent: Mapping[int, str] = field(default_factory=dict)
    refused_groups: Mapping[str, BrokerError] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    missing_rights: tuple[MissingRight, ...] = ()

    @property
    def unknown(self) -> list[str]:
        """What the sample does not tell, a line for each broker, part, group and right."""
        return [
            *(f"broker {broker}: {why}" for broker, why in self.silent.items()),
            *(f"{part}: {why}" for part, why in self.refused.items()),
            *(f"committed offsets: {error}" for error in self.refused_groups.values()),
            *map(str, self.missing_rights),
        ]


async def take_sample(
    admin: AsyncAdmin,
    previous: LoadSample | None = None,
    timeout_s: float = 5.0,
    wall: Callable[[], float] = wall_clock,
) -> LoadSample:
    """Poll the cluster once. Takes 3.5 times `timeout_s` at most.

    Rights: Describe on the cluster, on topics and on groups; DescribeConfigs on the cluster and on
    topics.

    Args:
        previous: an earlier sample, whose cleanup policies are used for up to five minutes.
        timeout_s: for each part; seconds above 0.
        wall: seconds since the epoch.

    Raises:
        Unavailable: no broker describes the topics.
        AuthenticationFailed: no broker accepts this client.
        UsageError: a time-out that is not above 0.
    """
    return await _Round(admin, previous, timeout_s, wall).take()


async def take_offsets(
    admin: AsyncAdmin,
    groups: Collection[str] | None = None,
    timeout_s: float = 5.0,
    wall: Callable[[], float] = wall_clock,
) -> LoadSample:
    """Poll the cluster for committed offsets, and then for the ends of their partitions: what is
    then committed beyond an end is lost. Takes 3.75 times `timeout_s` at most.

    Rights: Describe on topics and on groups.

    Args:
        groups: these alone; None for all.
        timeout_s, wall: as of `take_sample`, whose errors it raises.

    Returns: a sample with topics, groups and ends.
    """
    return await _Round(admin, None, timeout_s, wall).take_offsets(groups)


class _Round:
    """The parts of one sample, as their answers arrive."""

    def __init__(
        self,
        admin: AsyncAdmin,
        previous: LoadSample | None,
        timeout_s: float,
        wall: Callable[[], float],
    ) -> None:
        limit = checked_seconds("timeout_s", timeout_s)
        if not limit:
            raise UsageError(f"timeout_s={timeout_s}: give seconds above 0")
        self._admin = admin
        self._session: Session = admin._session
        self._previous = previous
        self._limit = limit
        self._wall = wall
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._logs: dict[int, Timed[BrokerLogs]] = {}
        self._offsets: dict[int, dict[int, Timed[Mapping[TopicPartition, int]]]] = {
            LATEST: {},
            EARLIEST: {},
        }
        self._groups: dict[str, Timed[Mapping[TopicPartition, int]]] = {}
        self._round_trips: dict[int, float] = {}
        self._silent: dict[int, dict[str, str]] = {}
        self._refused_groups: dict[str, BrokerError] = {}
        self._refused: dict[str, str] = {}
        self._missing: set[MissingRight] = set()

    async def take(self) -> LoadSample:
        moving, topics = await asyncio.gather(
            self._try_any("reassignments", "Describe", self._admin.list_reassignments),
            self._read_topics(),
        )
        nodes = dict(self._session.metadata.nodes)
        led: dict[int, list[TopicPartition]] = {broker: [] for broker in nodes}
        for view in topics.value.values():
            for index, leader in enumerate(view.leaders):
                if leader != NO_LEADER:
                    led.setdefault(leader, []).append(TopicPartition(view.name, index))
        limits, fenced, policies, ages, _ = await asyncio.gather(
            self._try_any("limits", "DescribeConfigs", lambda: self._read_limits(min(nodes))),
            self._try_any("fenced brokers", "Describe", self._list_fenced),
            self._read_policies(topics.value),
            self._try_any("last fetches", "Describe", self._read_fetch_ages),
            asyncio.gather(*(self._poll(*each) for each in led.items())),
        )
        compacted, policies_read = policies
        return self._finish(
            topics,
            nodes,
            fenced=None if fenced is None else fenced.value,
            moving=None if moving is None else Timed(moving.at, frozenset(moving.value)),
            limits=None if limits is None else limits.value,
            compacted=compacted,
            policies_read=policies_read,
            fetch_ages=ages,
        )

    async def take_offsets(self, groups: Collection[str] | None) -> LoadSample:
        topics = await self._read_topics()
        read = partial(read_groups, only=groups)
        nodes = dict(self._session.metadata.nodes)
        await asyncio.gather(
            *(self._poll_part(broker, "groups", read, self._take_groups) for broker in nodes)
        )
        led: dict[int, list[TopicPartition]] = {}
        for topic, index in {each for answer in self._groups.values() for each in answer.value}:
            leaders = topics.value[topic].leaders if topic in topics.value else ()
            if index < len(leaders) and leaders[index] != NO_LEADER:
                led.setdefault(leaders[index], []).append(TopicPartition(topic, index))
        await asyncio.gather(
            *(self._poll_offsets(broker, "ends of logs", of, LATEST) for broker, of in led.items())
        )
        return self._finish(topics, nodes)

    async def _read_topics(self) -> Timed[Mapping[str, TopicView]]:
        views = await self._ask_any("describe the topics", self._admin.describe_topics)
        return Timed(self._loop.time(), views)

    def _finish(
        self, topics: Timed[Mapping[str, TopicView]], nodes: Mapping[int, Node], **others: Any
    ) -> LoadSample:
        return LoadSample(
            self._began,
            self._loop.time(),
            self._wall(),
            topics,
            nodes,
            logs=self._logs,
            ends=self._offsets[LATEST],
            starts=self._offsets[EARLIEST],
            groups=self._groups,
            round_trips=self._round_trips,
            silent={
                broker: "; ".join(f"{part}: {why}" for part, why in sorted(parts.items()))
                for broker, parts in sorted(self._silent.items())
            },
            refused_groups=self._refused_groups,
            refused=self._refused,
            missing_rights=tuple(sorted(self._missing, key=lambda right: (right.resource, right))),
            **others,
        )

    # What one broker answers

    async def _poll(self, broker: int, partitions: list[TopicPartition]) -> None:
        polls: list[Awaitable[None]] = [
            self._poll_part(broker, "sizes of logs", describe_logs, self._take_logs),
            self._poll_part(broker, "groups", read_groups, self._take_groups),
        ]
        for moment, part in ((LATEST, "ends of logs"), (EARLIEST, "starts of logs")):
            polls.append(self._poll_offsets(broker, part, partitions, moment))
        await asyncio.gather(*polls)

    async def _poll_part(
        self,
        broker: int,
        part: str,
        ask: Callable[[Connection], Awaitable[T]],
        take: Callable[[int, Timed[T]], None],
    ) -> None:
        try:
            async with asyncio.timeout(self._limit):
                connection = await self._session.connections.connect(broker)
                answer = await ask(connection)
        except TimeoutError:
            self._fail(broker, part, f"no answer within {self._limit:g} s")
        except BrokerError as error:
            if not self._note_right(error, "Describe", part):
                self._fail(broker, part, str(error))
        except KafkaError as error:
            self._fail(broker, part, str(error))
        else:
            take(broker, Timed(self._loop.time(), answer))

    async def _poll_offsets(
        self, broker: int, part: str, partitions: list[TopicPartition], moment: int
    ) -> None:
        began = self._loop.time()

        async def ask(
            connection: Connection,
        ) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, BrokerError]]:
            return await list_leader_offsets(connection, partitions, moment)

        def take(
            broker: int,
            answer: Timed[
                tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, BrokerError]]
            ],
        ) -> None:
            found, refused = answer.value
            self._offsets[moment][broker] = Timed(answer.at, found)
            for error in {str(error): error for error in refused.values()}.values():
                if not self._note_right(error, "Describe", part):
                    self._refused[f"{part} of {error.subject}"] = str(error)

        await self._poll_part(broker, part, ask, take)
        if moment == EARLIEST:
            self._round_trips[broker] = self._loop.time() - began

    def _take_logs(self, broker: int, answer: Timed[BrokerLogs]) -> None:
        self._logs[broker] = answer

    def _take_groups(self, broker: int, answer: Timed[GroupAnswers]) -> None:
        for group, committed in answer.value.committed.items():
            self._groups[group] = Timed(answer.at, committed)
        for group, error in answer.value.refused.items():
            self._refused_groups[group] = error
            self._note_right(error, "Describe", "its committed offsets")

    def _fail(self, broker: int, part: str, why: str) -> None:
        self._silent.setdefault(broker, {})[part] = why

    # What any broker answers

    async def _ask_any(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        for share in _PATIENCE:
            try:
                async with asyncio.timeout(self._limit * share):
                    return await ask()
            except TimeoutError:
                continue
        silence = self._session.connections.describe_silence()
        waited = self._limit * sum(_PATIENCE)
        raise Unavailable(f"cannot {what} within {waited:g} s: {silence}")

    async def _try_any(
        self, part: str, operation: str, ask: Callable[[], Awaitable[T]]
    ) -> Timed[T] | None:
        try:
            answer = await self._ask_any(f"read the {part}", ask)
        except BrokerError as error:
            is_too_old = error.code is ErrorCode.UNSUPPORTED_VERSION
            if not is_too_old and not self._note_right(error, operation, part):
                self._refused[part] = str(error)
        except KafkaError as error:
            self._refused[part] = str(error)
        else:
            return Timed(self._loop.time(), answer)
        return None

    async def _read_limits(self, broker: int) -> PartitionLimits:
        return read_limits(await self._admin.describe_configs("broker", broker))

    async def _list_fenced(self) -> Mapping[int, Node]:
        found = await self._admin.cluster(include_fenced=True)
        return {node.id: node for node in found.nodes if node.id in found.fenced}

    async def _read_fetch_ages(self) -> Mapping[int, float]:
        """Empty if the quorum does not tell, as before Kafka 3.3."""
        observers = (await self._admin.describe_quorum()).observers
        fetched = {each.id: each.last_fetch_ms for each in observers}
        told = {broker: last for broker, last in fetched.items() if last is not None}
        latest = max(told.values(), default=0)
        return {broker: (latest - last) / 1000 for broker, last in told.items()}

    async def _read_policies(
        self, views: Mapping[str, TopicView]
    ) -> tuple[Mapping[tuple[str, bytes], bool], float]:
        """Which topics are compacted, and when all of them were asked for."""
        now = self._loop.time()
        known: dict[tuple[str, bytes], bool] = {}
        read = now
        if self._previous is not None and now - self._previous.policies_read < _POLICIES_S:
            known, read = dict(self._previous.compacted), self._previous.policies_read
        wanted = {view.name: (view.name, view.topic_id) for view in views.values()}
        missing = [name for name, key in wanted.items() if key not in known]

        async def ask() -> tuple[dict[str, bool], dict[str, BrokerError]]:
            return await read_compaction(await self._session.connections.connect_any(), missing)

        if missing:
            found = await self._try_any("cleanup policies", "DescribeConfigs", ask)
            answers, refused = ({}, {}) if found is None else found.value
            known.update((wanted[name], is_compacted) for name, is_compacted in answers.items())
            for error in refused.values():
                self._note_right(error, "DescribeConfigs", "its cleanup policy")
        return {key: known[key] for key in wanted.values() if key in known}, read

    def _note_right(self, error: BrokerError, operation: str, needed_for: str) -> bool:
        """Note the right whose lack is the error; False for another error."""
        if error.code not in _REFUSED:
            return False
        is_cluster = error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        resource = "the cluster" if is_cluster else error.subject
        self._missing.add(MissingRight(operation, resource, needed_for))
        return True
