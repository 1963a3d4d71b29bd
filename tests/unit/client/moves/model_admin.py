"""An admin client of a model cluster, whose time is the event loop's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.unit.balance.model_cluster import ModelCluster
from trimtab.balance.actions import AppendPairs, CancelMoves, SubtractPairs
from trimtab.balance.throttles import LISTS, RATES, ThrottledLists, mark_rate
from trimtab.client.admin.answers import (
    ClusterDescription,
    ConfigEntry,
    ConfigSource,
    LogDirectory,
    PartlyRefused,
    Reassignment,
    ReplicaLog,
)
from trimtab.client.network.connection import Node
from trimtab.client.topic_view import PartitionView, TopicView
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.records import TopicPartition

NEVER_S = 1e6


class ModelAdmin:
    """Answers for the cluster.

    Attributes:
        errors: raised by calls, by their name, or name and first argument.
        hanging: names of calls that are never answered.
        refused: partitions that cannot be moved.
        calls: the names of all calls so far.
        room: bytes that the disks of each broker have free; -1 if unknown.
        ends: the log ends that `list_replica_ends` tells; 0 if missing, but errors where None.
    """

    def __init__(self, cluster: ModelCluster) -> None:
        self.cluster = cluster
        self.errors: dict[object, Exception] = {}
        self.hanging: set[str] = set()
        self.refused: set[TopicPartition] = set()
        self.calls: list[str] = []
        self.room = -1
        self.ends: dict[tuple[TopicPartition, int], int | None] = {}

    async def _begin(self, name: str, about: object = None) -> None:
        self.calls.append(name)
        if name in self.hanging:
            await asyncio.sleep(NEVER_S)
        await asyncio.sleep(0.001)
        now_s = asyncio.get_running_loop().time()
        self.cluster.advance(now_s - self.cluster.now_s)
        for key in (name, (name, about)):
            if key in self.errors:
                raise self.errors[key]

    async def list_reassignments(self) -> dict[TopicPartition, Reassignment]:
        await self._begin("list_reassignments")
        return {
            each: Reassignment(
                tuple(partition.replicas), tuple(partition.adding), tuple(partition.removing)
            )
            for each, partition in self.cluster.partitions.items()
            if partition.is_moving
        }

    async def describe_topics(self) -> dict[str, TopicView]:
        await self._begin("describe_topics")
        views: dict[str, dict[int, PartitionView]] = {}
        for (topic, index), partition in self.cluster.partitions.items():
            views.setdefault(topic, {})[index] = PartitionView(
                partition.leader, 0, tuple(partition.replicas), tuple(partition.in_sync), ()
            )
        return {
            topic: TopicView(
                topic, b"", False, tuple(each[index] for index in range(len(each))), (), (), ()
            )
            for topic, each in views.items()
        }

    async def cluster_nodes(self) -> list[Node]:
        return [Node(each, "localhost", 9092, None) for each in sorted(self.cluster.alive)]

    async def describe_topic_configs(
        self, names: Iterable[str], options: Iterable[str]
    ) -> dict[str, list[ConfigEntry]]:
        await self._begin("describe_topic_configs")
        assert {*LISTS} < {*options}
        return {
            name: [
                *(
                    _entry(option, ",".join(sorted(side)))
                    for option, side in zip(
                        LISTS, self.cluster.lists.get(name, (set(), set())), strict=True
                    )
                ),
                _entry("min.insync.replicas", str(self.cluster.min_isr)),
            ]
            for name in names
        }

    async def describe_configs(self, kind: str, name: int) -> list[ConfigEntry]:
        await self._begin("describe_configs", name)
        rates = self.cluster.rates.get(name, (None, None))
        return [
            _entry(option, "9223372036854775807", ConfigSource.DEFAULT_CONFIG)
            if rate is None
            else _entry(option, str(rate), ConfigSource.DYNAMIC_BROKER_CONFIG)
            for option, rate in zip(RATES, rates, strict=True)
        ]

    async def alter_configs(
        self,
        kind: str,
        name: str | int,
        changes: Mapping[str, int | None] | None = None,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
    ) -> None:
        await self._begin("alter_configs", name)
        if changes is not None:
            assert isinstance(name, int)
            rate = changes[RATES[0]]
            rates = (None, None) if rate is None else mark_rate(rate)
            assert changes == dict(zip(RATES, rates, strict=True))
            self.cluster.rates.pop(name, None)
            if rate is not None:
                self.cluster.rates[name] = rates
        elif append is not None:
            self.cluster.apply(AppendPairs({str(name): _lists(append)}))
        elif subtract is not None:
            self.cluster.apply(SubtractPairs({str(name): _lists(subtract)}))

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        await self._begin("alter_reassignments")
        refusals = {}
        for partition, replicas in targets.items():
            if partition in self.refused:
                refusals[partition] = BrokerError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no", str(partition)
                )
            elif replicas is None:
                self.cluster.apply(CancelMoves((partition,)))
            else:
                self.cluster.move(partition, tuple(replicas))
        if refusals:
            raise PartlyRefused(refusals, None)

    async def elect_leaders(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        await self._begin("elect_leaders")
        elected = []
        for each in partitions:
            partition = self.cluster.partitions[each]
            if partition.leader != partition.replicas[0]:
                partition.leader = partition.replicas[0]
                elected.append(each)
        return elected

    async def describe_log_dirs(self, brokers: Iterable[int]) -> dict[int, list[LogDirectory]]:
        (broker,) = brokers
        await self._begin("describe_log_dirs", broker)
        logs = {
            each: ReplicaLog(
                int(partition.copied.get(broker, 0))
                if broker in partition.adding
                else partition.size,
                0,
                False,
            )
            for each, partition in self.cluster.partitions.items()
            if broker in partition.replicas
        }
        return {broker: [LogDirectory("/data", None, logs, self.room, self.room)]}

    async def list_replica_ends(
        self, replicas: Mapping[int, Iterable[TopicPartition]]
    ) -> dict[int, dict[TopicPartition, int | BrokerError]]:
        await self._begin("list_replica_ends")
        refusal = BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return {
            broker: {
                each: refusal if end is None else end
                for each in partitions
                for end in [self.ends.get((each, broker), 0)]
            }
            for broker, partitions in replicas.items()
        }


def as_admin(model: ModelAdmin) -> Any:
    """The model with the method `cluster`, whose name is that of an attribute here."""

    class Admin:
        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

        async def cluster(self) -> ClusterDescription:
            await model._begin("cluster")
            return ClusterDescription("id", 0, await model.cluster_nodes())

    return Admin()


def _entry(
    name: str, value: str, source: ConfigSource = ConfigSource.DYNAMIC_TOPIC_CONFIG
) -> ConfigEntry:
    return ConfigEntry(name, value, source, False, False, None, None)


def _lists(options: Mapping[str, str]) -> ThrottledLists:
    leaders, followers = (tuple(filter(None, options.get(name, "").split(","))) for name in LISTS)
    return ThrottledLists(leaders, followers)
