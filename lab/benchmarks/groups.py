"""Large groups and many of them: how soon a group settles, commits/s, memory; with Apache Kafka.

All members are in this process and speak the bare protocol, so their own time is small. In the
consumer protocol each sends a heartbeat twice a second, and at once when it has let go of
partitions. A group has settled when each of its members has its share, in one epoch or generation.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Coroutine
from typing import Any

from lab.benchmarks.apache_kafka import ApacheKafka
from lab.benchmarks.jars import KAFKA_VERSION, RivalMissing
from lab.benchmarks.report import progress, report
from lab.processes import Broker, Trimtab
from trimtab import Admin
from trimtab.cluster.broker.coordinator_topic import GROUPS_TOPIC
from trimtab.cluster.server.peer import Peer
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from trimtab.kafka.wire.messages.find_coordinator import FindCoordinatorRequest
from trimtab.kafka.wire.messages.heartbeat import HeartbeatRequest
from trimtab.kafka.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from trimtab.kafka.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from trimtab.kafka.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

MEMBERS = 100
PARTITIONS = 1000
GROUPS = 10_000
CONNECTIONS = 10
_TOPIC = "groups"
_BEAT_S = 0.5
_RETRY_S = 0.05
_PATIENCE_S = 120.0
_LOADING = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


class GroupsOfKafka(ApacheKafka):
    """Apache Kafka with the options that an embedded cluster of trimtab has."""

    def settings(self) -> dict[str, str]:
        return {
            **super().settings(),
            "group.initial.rebalance.delay.ms": "0",
            "group.consumer.assignment.interval.ms": "0",
            "group.consumer.min.heartbeat.interval.ms": "500",
            "group.consumer.heartbeat.interval.ms": "500",
        }


async def connect(broker: Broker) -> Peer:
    return await Peer.connect("127.0.0.1", broker.port, "member", _PATIENCE_S)


class ConsumerMember:
    """A member of a KIP-848 group."""

    def __init__(self, name: str, group: str, assignor: str | None) -> None:
        self.epoch = 0
        self.partitions: dict[bytes, list[int]] = {}
        self._name = name
        self._group = group
        self._assignor = assignor

    @property
    def count(self) -> int:
        return sum(map(len, self.partitions.values()))

    async def live(self, peer: Peer, changed: Callable[[], None]) -> None:
        """Send heartbeats without end."""
        while True:
            response = await peer.ask(
                ConsumerGroupHeartbeatRequest(
                    group_id=self._group,
                    member_id=self._name,
                    member_epoch=self.epoch,
                    rebalance_timeout_ms=60_000 if not self.epoch else -1,
                    subscribed_topic_names=[_TOPIC] if not self.epoch else None,
                    server_assignor=self._assignor if not self.epoch else None,
                    topic_partitions=[
                        TopicPartitions(topic_id=each, partitions=indexes)
                        for each, indexes in self.partitions.items()
                    ],
                ),
                1,
            )
            if response.error_code in _LOADING:
                await asyncio.sleep(_RETRY_S)
                continue
            if response.error_code:
                raise RuntimeError(f"{response.error_code}: {response.error_message}")
            self.epoch = response.member_epoch
            loses = False
            if response.assignment is not None:
                before = {(t, i) for t, found in self.partitions.items() for i in found}
                self.partitions = {
                    each.topic_id: each.partitions for each in response.assignment.topic_partitions
                }
                after = {(t, i) for t, found in self.partitions.items() for i in found}
                loses = not before <= after
            changed()
            if not loses:
                await asyncio.sleep(_BEAT_S)


class ClassicMember:
    """A member of a classic group; the leader assigns partitions round robin."""

    def __init__(self, name: str, group: str, _: str | None) -> None:
        self.epoch = 0
        self.count = 0
        self._group = group
        self._member_id = ""

    async def live(self, peer: Peer, changed: Callable[[], None]) -> None:
        """Join again whenever the group asks for it."""
        subscription = struct.pack(f">hih{len(_TOPIC)}si", 0, 1, len(_TOPIC), _TOPIC.encode(), -1)
        while True:
            joined = await peer.ask(
                JoinGroupRequest(
                    group_id=self._group,
                    session_timeout_ms=45_000,
                    rebalance_timeout_ms=60_000,
                    member_id=self._member_id,
                    protocol_type="consumer",
                    protocols=[JoinGroupRequestProtocol(name="bench", metadata=subscription)],
                ),
                9,
            )
            self._member_id = joined.member_id or self._member_id
            if joined.error_code:
                if joined.error_code in _LOADING:
                    await asyncio.sleep(_RETRY_S)
                continue
            members = [each.member_id for each in joined.members]
            synced = await peer.ask(
                SyncGroupRequest(
                    group_id=self._group,
                    generation_id=joined.generation_id,
                    member_id=self._member_id,
                    protocol_type="consumer",
                    protocol_name="bench",
                    assignments=[
                        SyncGroupRequestAssignment(
                            member_id=each,
                            assignment=_assign(range(place, PARTITIONS, len(members))),
                        )
                        for place, each in enumerate(members)
                    ],
                ),
                5,
            )
            if synced.error_code:
                continue
            self.epoch = joined.generation_id
            self.count = _count(bytes(synced.assignment))
            changed()
            await self._stay(peer)

    async def _stay(self, peer: Peer) -> None:
        """Send heartbeats until the group asks for something else."""
        beat = HeartbeatRequest(
            group_id=self._group, generation_id=self.epoch, member_id=self._member_id
        )
        while True:
            await asyncio.sleep(_BEAT_S)
            if (await peer.ask(beat, 4)).error_code:
                return


def _assign(indexes: range) -> bytes:
    head = struct.pack(f">hih{len(_TOPIC)}si", 0, 1, len(_TOPIC), _TOPIC.encode(), len(indexes))
    return head + struct.pack(f">{len(indexes)}i", *indexes) + struct.pack(">i", -1)


def _count(assignment: bytes) -> int:
    return int(struct.unpack_from(">i", assignment, 8 + len(_TOPIC))[0]) if assignment else 0


async def settle(broker: Broker, kind: Any, group: str, assignor: str | None = None) -> float:
    """Seconds until a new group of all members has settled."""
    members = [kind(f"member-{number}", group, assignor) for number in range(MEMBERS)]
    peers = [await connect(broker) for _ in members]
    settled = asyncio.Event()

    def look() -> None:
        if len({each.epoch for each in members}) == 1 and members[0].epoch:
            counts = [each.count for each in members]
            if sum(counts) == PARTITIONS and (assignor or max(counts) == PARTITIONS // MEMBERS):
                settled.set()

    began = time.perf_counter()
    tasks = [
        asyncio.create_task(member.live(peer, look))
        for member, peer in zip(members, peers, strict=True)
    ]
    waiting = asyncio.create_task(settled.wait())
    await asyncio.wait((waiting, *tasks), timeout=_PATIENCE_S, return_when="FIRST_COMPLETED")
    took = time.perf_counter() - began
    for task in (waiting, *tasks):
        task.cancel()
    ended = await asyncio.gather(waiting, *tasks, return_exceptions=True)
    for peer in peers:
        peer.close()
    if not settled.is_set():
        failed = [each for each in ended if isinstance(each, Exception)]
        raise RuntimeError(f"{group} has not settled: {failed[:1]}")
    return took


async def commit(broker: Broker, commits: int) -> float:
    """Commits/s, each of one offset, of so many groups in turn."""
    peers = [await connect(broker) for _ in range(CONNECTIONS)]

    async def work(peer: Peer, numbers: range) -> None:
        for number in numbers:
            response = await peer.ask(
                OffsetCommitRequest(
                    group_id=f"group-{number % GROUPS}",
                    topics=[
                        OffsetCommitRequestTopic(
                            name=_TOPIC,
                            partitions=[
                                OffsetCommitRequestPartition(
                                    partition_index=number % PARTITIONS,
                                    committed_offset=number,
                                    committed_metadata="",
                                )
                            ],
                        )
                    ],
                ),
                8,
            )
            code = response.topics[0].partitions[0].error_code
            if code:
                raise RuntimeError(f"a commit was refused: {ErrorCode(code).name}")

    began = time.perf_counter()
    await asyncio.gather(
        *(work(peer, range(place, commits, CONNECTIONS)) for place, peer in enumerate(peers))
    )
    took = time.perf_counter() - began
    for peer in peers:
        peer.close()
    return commits / took


async def prepare(broker: Broker) -> None:
    """Have the topic of the groups made, and its partitions led."""
    with Admin(broker.address) as admin:
        await asyncio.to_thread(admin.create_topic, _TOPIC, PARTITIONS)
    peer = await connect(broker)
    deadline = time.monotonic() + _PATIENCE_S
    while (await peer.ask(FindCoordinatorRequest(key="g"), 3)).error_code:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{GROUPS_TOPIC} has no leaders")
        await asyncio.sleep(_RETRY_S)
    peer.close()


def measure(side: Broker, runs: int) -> dict[str, list[float]]:
    """By metric the results of all runs on one cluster."""
    found: dict[str, list[float]] = {"classic": [], "consumer": [], "load": [], "commits": []}

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    with side as broker:
        run(prepare(broker))
        for number in range(runs):
            progress(f"groups: {broker.name}, run {number + 1} of {runs}")
            found["classic"].append(run(settle(broker, ClassicMember, f"classic-{number}")))
            found["consumer"].append(run(settle(broker, ConsumerMember, f"consumer-{number}")))
            if isinstance(broker, Trimtab):
                found["load"].append(run(settle(broker, ConsumerMember, f"load-{number}", "load")))
        before = broker.resident_mib()
        found["commits"] += [run(commit(broker, 2 * GROUPS)) for _ in range(runs)]
        found["memory"] = [broker.resident_mib() - before]
    return found


def run(runs: int, records: int) -> None:
    """Measure both sides; `records` is ignored."""
    ours = measure(Trimtab(), runs)
    rival, note, theirs = f"Apache Kafka {KAFKA_VERSION}", "", {}
    try:
        theirs = measure(GroupsOfKafka(), runs)
    except RivalMissing as missing:
        note = str(missing)
    size = f"{MEMBERS} members, {PARTITIONS} partitions"
    for key, metric, unit, more_is_better in (
        ("classic", f"a classic group settles, {size}", "s", False),
        ("consumer", f"a consumer group settles, {size}", "s", False),
        ("load", f"a consumer group of the assignor load settles, {size}", "s", False),
        ("commits", f"commits/s, {CONNECTIONS} connections, one offset each", "commits/s", True),
        ("memory", f"{GROUPS} groups with an offset each", "MiB", False),
    ):
        report(
            *("groups", metric, unit),
            *(ours[key], rival, theirs.get(key, [])),
            more_is_better=more_is_better,
            note=note,
        )
