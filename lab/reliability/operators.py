"""Requests of the cluster's operators during a simulation: topics, options, elections, moves.

Each is sent to a random broker and may be lost; a run only requires that the cluster survives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any

from lab.reliability.checkers import Checkers
from lab.reliability.losses import Losses
from lab.reliability.topic_kinds import TopicKind
from trimtab.cluster.controller.topic_rules import MIN_ISR
from trimtab.cluster.server.peer import Peer, PeerLost
from trimtab.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from trimtab.kafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trimtab.kafka.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from trimtab.kafka.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from trimtab.kafka.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from trimtab.kafka.wire.sentinels import NO_LEADER
from trimtab.sim.virtual_cluster import PORT, VirtualBroker, VirtualCluster

OPERATOR = "operator"
"""The operators' host."""

_PREFERRED = 0
_UNCLEAN = 1
_SET = 0
_TOPIC = 2
_TRANSIENT = "passing"
"""Start of the names of topics that are created and deleted during a run."""
_MAX_TRANSIENT = 3

_ANSWER_S = 10.0
_ANSWER_MS = 10_000

_CONFIGS: dict[str, tuple[str, ...]] = {
    "segment.bytes": ("2000", "20000", "1000000"),
    "flush.messages": ("1", "10", "9223372036854775807"),
    "max.message.bytes": ("100000", "1000000"),
    MIN_ISR: ("2", "3"),
}


class OperatorRequests:
    """Sends one request per call, without waiting for the answer. Each method returns the name of
    what it asked for, empty if it sent nothing.

    Args:
        kinds: the topics' guarantees, by name.
        losses: whether the ELR may be cleared now.
        run: runs a task until the faults end.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        checkers: Checkers,
        kinds: Mapping[str, TopicKind],
        losses: Losses,
        random: Random,
        run: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._cluster = cluster
        self._checkers = checkers
        self._topic_kinds = kinds
        self._losses = losses
        self._random = random
        self._run = run
        self._topics_created = 0

    def _ask(
        self,
        request: Any,
        broker: VirtualBroker | None = None,
        answered: Callable[[Any], None] = lambda response: None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        broker = broker or self._random.choice(self._cluster.brokers)

        async def ask() -> None:
            try:
                peer = await Peer.connect(broker.host, PORT, OPERATOR, _ANSWER_S)
            except PeerLost:
                ended()
                return
            try:
                async with asyncio.timeout(_ANSWER_S):
                    answered(await peer.ask(request))
            except (PeerLost, TimeoutError):
                pass
            finally:
                peer.close()
                ended()

        with self._cluster.world.network.at(OPERATOR):
            self._run(ask())

    def elect_preferred(self) -> str:
        self._ask(
            ElectLeadersRequest(
                election_type=_PREFERRED, topic_partitions=None, timeout_ms=_ANSWER_MS
            )
        )
        return "election of preferred leaders"

    def elect_unclean(self) -> str:
        self._ask(
            ElectLeadersRequest(
                election_type=_UNCLEAN,
                topic_partitions=[
                    TopicPartitions(topic=name, partitions=[0])
                    for name, kind in self._topic_kinds.items()
                    if not kind.keeps
                ],
                timeout_ms=_ANSWER_MS,
            )
        )
        return "unclean election"

    def delete_records(self) -> str:
        """Delete the records before a committed offset, in a topic that allows it."""
        for topic, kind in self._topic_kinds.items():
            history = self._checkers.find_history(topic, 0)
            leader = self._find_leader(topic)
            if kind.shortens and history is not None and history.end_offset and leader is not None:
                break
        else:
            return ""
        offset = max(
            self._random.randint(0, history.end_offset) for _ in range(self._random.randint(1, 2))
        )
        history.delete_requested_before = max(history.delete_requested_before, offset)

        def answered(response: Any) -> None:
            (result,) = response.topics[0].partitions
            if not result.error_code:
                self._checkers.deleted(topic, 0, result.low_watermark)

        self._ask(
            DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=topic,
                        partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)],
                    )
                ],
                timeout_ms=_ANSWER_MS,
            ),
            leader,
            answered,
        )
        return "deletion of records"

    def _find_leader(self, topic: str) -> VirtualBroker | None:
        """The leader of a topic's first partition, by the controller."""
        controller = self._cluster.controller.controller
        image = None if controller is None else controller.image.topics.get(topic)
        leader = NO_LEADER if image is None else image.partitions[0].leader
        return None if leader == NO_LEADER else self._cluster.brokers[leader]

    def alter_config(self) -> str:
        name = self._random.choice(list(_CONFIGS))
        value = self._random.choice(_CONFIGS[name])
        clears_elr = name == MIN_ISR
        if clears_elr and not self._losses.may_clear_elr():
            return ""
        if clears_elr:
            self._losses.elr_changes += 1
        self._ask(
            IncrementalAlterConfigsRequest(
                resources=[
                    AlterConfigsResource(
                        resource_type=_TOPIC,
                        resource_name=topic,
                        configs=[AlterableConfig(name=name, config_operation=_SET, value=value)],
                    )
                    for topic, kind in self._topic_kinds.items()
                    if kind.keeps
                ],
                validate_only=False,
            ),
            ended=self._end_elr_change if clears_elr else lambda: None,
        )
        return "change of a config"

    def _end_elr_change(self) -> None:
        self._losses.elr_changes -= 1

    def create_topic(self) -> str:
        self._topics_created += 1
        self._ask(
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name=f"{_TRANSIENT}-{self._topics_created % _MAX_TRANSIENT}",
                        num_partitions=self._random.randint(1, 3),
                        replication_factor=self._random.randint(1, 3),
                        assignments=[],
                        configs=[],
                    )
                ],
                timeout_ms=_ANSWER_MS,
                validate_only=False,
            )
        )
        return "creation of a topic"

    def delete_topic(self) -> str:
        name = f"{_TRANSIENT}-{self._random.randrange(_MAX_TRANSIENT)}"
        self._ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=_ANSWER_MS))
        return "deletion of a topic"

    def reassign(self) -> str:
        brokers = [broker.id for broker in self._cluster.brokers]
        topic = self._random.choice(list(self._topic_kinds))
        replicas = self._random.sample(brokers, 3) if self._random.random() < 0.9 else None
        self._ask(
            AlterPartitionReassignmentsRequest(
                timeout_ms=_ANSWER_MS,
                topics=[
                    ReassignableTopic(
                        name=topic,
                        partitions=[
                            ReassignablePartition(
                                partition_index=self._random.randrange(3), replicas=replicas
                            )
                        ],
                    )
                ],
            )
        )
        return "reassignment of a partition"
