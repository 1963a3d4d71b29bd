"""One shard of groups, and what its clients ask and are answered, in a time that tests set."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import count, pairwise
from typing import Any, cast

from trimtab.cluster.coordinator.classic_group import Rules
from trimtab.cluster.coordinator.consumer_group import ConsumerRules
from trimtab.cluster.coordinator.effects import Caller, Now
from trimtab.cluster.coordinator.group_shard import Commit, GroupShard, OffsetRules
from trimtab.cluster.coordinator.topics import Topic
from trimtab.cluster.coordinator.transaction import ProducerIdAndEpoch
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from trimtab.kafka.wire.messages.group_records import Key, Value
from trimtab.kafka.wire.messages.heartbeat import HeartbeatRequest
from trimtab.kafka.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from trimtab.kafka.wire.messages.sync_group import SyncGroupRequest

GROUP = "g"
DAY_MS = 86_400_000


class FixedTopics:
    """Topics that tests create; the id of each is its name, filled up.

    Attributes:
        racks: of the replicas of partitions.
        measured: what has been measured of partitions, in bytes/s; `measure` changes it.
        asked: the topics for whose rates somebody has asked.
    """

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self.version = 0
        self.racks: dict[TopicPartition, str] = {}
        self.measured: dict[TopicPartition, float] = {}
        self.asked: set[str] = set()
        self.rates_version = 0

    def create(self, name: str, partitions: int) -> None:
        """Create a topic, or let it grow."""
        self._topics[name] = Topic(name, topic_id(name), partitions)
        self.version += 1

    def delete(self, name: str) -> None:
        del self._topics[name]
        self.version += 1

    def measure(self, topic: str, *rates: float) -> None:
        """The bytes/s of a topic's partitions from now on."""
        for index, rate in enumerate(rates):
            self.measured[TopicPartition(topic, index)] = rate
        self.rates_version += 1

    def racks_of(self, partition: TopicPartition) -> Collection[str]:
        rack = self.racks.get(partition)
        return () if rack is None else (rack,)

    def rates(self, topics: Iterable[str]) -> dict[TopicPartition, float]:
        asked = set(topics)
        self.asked |= asked
        return {each: rate for each, rate in self.measured.items() if each.topic in asked}

    def find(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def find_id(self, topic_id: bytes) -> Topic | None:
        return next((each for each in self._topics.values() if each.id == topic_id), None)

    def names(self) -> Iterable[str]:
        return self._topics


def topic_id(name: str) -> bytes:
    """The id of a topic of `FixedTopics`."""
    return name.encode().ljust(16, b".")


class Scene:
    """A shard without an initial delay, unless `initial_delay_s` says otherwise.

    Attributes:
        records: all that were appended.
        units: begin and end of those that belong into one batch.
        warnings: for the operator.
        now_s: the time; `pass_time` moves it.
        max_batch: bytes of the largest batch that the log takes.
    """

    def __init__(self, initial_delay_s: float = 0.0, max_size: int = 100) -> None:
        self.rules = Rules(6.0, 1800.0, initial_delay_s, max_size)
        self.consumer_rules = ConsumerRules(
            10.0, 500, 0, max_size, True, True, ("uniform", "range", "load")
        )
        self.topics = FixedTopics()
        self.max_batch = 1_048_588
        self.records: list[tuple[Key, Value | None]] = []
        self.units: list[tuple[int, int]] = []
        self.warnings: list[str] = []
        self.now_s = 1000.0
        self._ids = count()
        self._tickets = count()
        self._answers: dict[int, Any] = {}
        self.shard = self._make_shard()

    def _make_shard(self) -> GroupShard:
        rules = OffsetRules(max_metadata=10, retention_ms=7 * DAY_MS)
        return GroupShard(
            self.rules,
            lambda _: self.consumer_rules,
            rules,
            self.topics,
            self._make_id,
            lambda: self.max_batch,
            lambda _: None,
        )

    def _make_id(self) -> str:
        return f"id{next(self._ids)}"

    @property
    def now(self) -> Now:
        return Now(self.now_s, int(self.now_s * 1000))

    def take(self) -> None:
        """Note what the shard has decided."""
        effects = self.shard.effects.take()
        begin = len(self.records)
        self.records += [cast(Any, (each.key, each.value)) for each in effects.records]
        cuts = sorted({0, *effects.cuts, len(effects.records)})
        self.units += [(begin + first, begin + last) for first, last in pairwise(cuts)]
        self.warnings += effects.warnings
        for ticket, response in effects.responses:
            assert ticket not in self._answers, "a request was answered twice"
            self._answers[ticket] = response

    def answer(self, ticket: int) -> Any:
        """The response to a request; it fails if there is none yet."""
        return self._answers[ticket]

    def is_answered(self, ticket: int) -> bool:
        return ticket in self._answers

    def pass_time(self, seconds: float) -> None:
        """Move the time on, with every deadline in its place."""
        end = self.now_s + seconds
        while (due := self.shard.next_due) is not None and due <= end:
            self.now_s = max(self.now_s, due)
            self.shard.look(self.now)
            self.take()
        self.now_s = end

    def restart(self) -> None:
        """Another coordinator takes over, with what is in the log."""
        self.take()
        self.shard = self._make_shard()
        for key, value in self.records:
            self.shard.replay(key, value)
        self.shard.resume(self.now)

    def _caller(self, version: int, client_id: str = "client") -> Caller:
        return Caller(next(self._tickets), version, client_id, "/127.0.0.1")

    def join(
        self,
        member: str = "",
        instance: str | None = None,
        protocols: Iterable[tuple[str, bytes]] = (("range", b"topics"),),
        *,
        version: int = 9,
        kind: str = "consumer",
        session_s: float = 10.0,
        rebalance_s: float = 60.0,
        group: str = GROUP,
    ) -> int:
        """Ask to join; returns the request's ticket."""
        caller = self._caller(version)
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=round(session_s * 1000),
            rebalance_timeout_ms=round(rebalance_s * 1000),
            member_id=member,
            group_instance_id=instance,
            protocol_type=kind,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in protocols
            ],
        )
        self.shard.join(self.now, caller, request)
        self.take()
        return int(caller.request)

    def new_member(self, **more: Any) -> tuple[str, int]:
        """Join as a new member, with the id that the group gives; returns id and ticket."""
        refused = self.answer(self.join(**more))
        assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return refused.member_id, self.join(refused.member_id, **more)

    def sync(
        self,
        member: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        instance: str | None = None,
        **more: Any,
    ) -> int:
        """Ask for an assignment, as the leader with those of all; returns the request's ticket."""
        caller = self._caller(5)
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
            assignments=[],
            **more,
        )
        self.shard.sync(self.now, caller, request, assignments or {})
        self.take()
        return int(caller.request)

    def heartbeat(
        self, member: str, generation: int, instance: str | None = None, group: str = GROUP
    ) -> ErrorCode:
        caller = self._caller(4)
        request = HeartbeatRequest(
            group_id=group,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
        )
        self.shard.heartbeat(self.now, caller, request)
        self.take()
        return ErrorCode(self.answer(caller.request).error_code)

    def beat(
        self,
        member: str,
        epoch: int = 0,
        owned: Iterable[tuple[str, int]] | None = None,
        topics: Iterable[str] | None = None,
        *,
        instance: str | None = None,
        assignor: str | None = None,
        rebalance_s: float = -0.001,
        version: int = 1,
        group: str = GROUP,
        **more: Any,
    ) -> Any:
        """The response to a heartbeat in a consumer group. A member that joins owns nothing."""
        if epoch == 0:
            owned = () if owned is None else owned
            topics = ("t",) if topics is None else topics
            rebalance_s = 30.0 if rebalance_s < 0 else rebalance_s
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            instance_id=instance,
            rebalance_timeout_ms=round(rebalance_s * 1000),
            subscribed_topic_names=None if topics is None else list(topics),
            server_assignor=assignor,
            topic_partitions=None
            if owned is None
            else [TopicPartitions(topic_id=topic_id(name), partitions=[at]) for name, at in owned],
            **more,
        )
        keys = None if owned is None else frozenset((topic_id(name), at) for name, at in owned)
        response = self.shard.consumer_heartbeat(self.now, self._caller(version), request, keys)
        self.take()
        return response

    def leave(self, *members: tuple[str, str | None]) -> list[ErrorCode]:
        codes = self.shard.leave(self.now, GROUP, members)
        self.take()
        return codes

    def commit(
        self,
        offset: int,
        member: str = "",
        generation: int = -1,
        *,
        instance: str | None = None,
        topic: str = "t",
        metadata: str = "",
        keep_ms: int = -1,
        group: str = GROUP,
        version: int = 8,
        producer: ProducerIdAndEpoch | None = None,
    ) -> ErrorCode:
        """Commit one offset of a topic's first partition, perhaps in a producer's transaction."""
        partition = TopicPartition(topic, 0)
        commit = Commit(
            group, member, instance, generation, {partition: (offset, 0, metadata)}, keep_ms
        )
        code = self.shard.commit(self.now, version, commit, producer)[partition]
        self.take()
        return code

    def expire_offsets(self) -> None:
        """Delete the offsets whose time is over, step by step."""
        for _ in self.shard.expire(lambda: self.now):
            self.take()
        self.take()

    def committed(self, topic: str = "t", group: str = GROUP) -> int | None:
        """The offset that is committed for a topic's first partition."""
        found = self.shard.offsets(group).get(TopicPartition(topic, 0))
        return None if found is None else found.offset

    def state(self, group: str = GROUP) -> str:
        return self.shard.describe(5, group).group_state

    def stable_group(self, size: int = 2, **more: Any) -> list[str]:
        """A group of that many members with an assignment; its leader first."""
        joined = [self.new_member(**more) for _ in range(size)]
        for member, ticket in joined:
            if self.is_answered(ticket):  # joined before the others came
                self.join(member, **more)
        self.settle()
        return [member for member, _ in joined]

    def settle(self) -> None:
        """Have every member synchronize, if the group waits for it."""
        group = self.shard._groups[GROUP]
        if group.phase != "CompletingRebalance":
            return
        followers = [each for each in group.members.values() if each.id != group.leader]
        for each in followers:
            self.sync(each.id, group.generation, instance=each.instance_id)
        assert group.leader is not None
        self.sync(
            group.leader,
            group.generation,
            {each: each.encode() for each in group.members},
            group.members[group.leader].instance_id,
        )
