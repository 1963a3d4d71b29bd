"""The topics in which coordinators keep their state, `__consumer_offsets` and
`__transaction_state`: the first search for a coordinator creates the topic.

The broker that leads a partition coordinates the groups, or transactional ids, that hash to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.link import Link
from trimtab.cluster.metadata.image import BrokerRegistration
from trimtab.cluster.server.peer import PeerLost
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

GROUPS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
_CREATION_S = 5.0

_log = logging.getLogger(__name__)


class _Creation(NamedTuple):
    """How Kafka creates a topic.

    Attributes:
        partitions: the option that has their number.
        replicas: the option that has their number.
        options: of the topic that have the value of an option of the broker.
        configs: other options of the topic.
    """

    partitions: str
    replicas: str
    options: dict[str, str]
    configs: dict[str, str]


_CREATIONS = {
    GROUPS_TOPIC: _Creation(
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        {"segment.bytes": "offsets.topic.segment.bytes"},
        {"cleanup.policy": "compact", "compression.type": "producer"},
    ),
    TRANSACTIONS_TOPIC: _Creation(
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
        {
            "min.insync.replicas": "transaction.state.log.min.isr",
            "segment.bytes": "transaction.state.log.segment.bytes",
        },
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "unclean.leader.election.enable": "false",
        },
    ),
}


class CoordinatorTopic:
    """One of the two topics.

    Args:
        name: of the topic.
        link: the connection to the controller.
        advance: waits until this broker has replayed more of the metadata.
    """

    def __init__(
        self,
        name: str,
        view: ClusterView,
        link: Link,
        advance: Callable[[], Awaitable[object]],
    ) -> None:
        self.name = name
        self._view = view
        self._link = link
        self._advance = advance

    @property
    def exists(self) -> bool:
        return self.name in self._view.image.topics

    def partition_of(self, key: str) -> int | None:
        """The partition that holds a group or a transactional id; None before the topic exists."""
        topic = self._view.image.topics.get(self.name)
        return None if topic is None else partition_of(key, len(topic.partitions))

    def find_leader(self, key: str) -> BrokerRegistration | None:
        """The broker that leads the partition; None if there is none at the moment."""
        index, image = self.partition_of(key), self._view.image
        if index is None:
            return None
        return image.brokers.get(image.topics[self.name].partitions[index].leader)

    async def create(self, is_done: Callable[[], bool]) -> None:
        """Have the topic created, and wait for a while until `is_done`, as clients that are told to
        ask again wait up to a second."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CREATION_S):
                is_there = await self._create()
                while is_there and not is_done():
                    await self._advance()

    async def _create(self) -> bool:
        """Have the controller create the topic, as Kafka configures it; whether it is there now."""
        config = self._view.config
        creation = _CREATIONS[self.name]
        replicas = config.integer(creation.replicas)
        if creation.replicas not in self._view.given:
            live = sum(not each.fenced for each in self._view.image.brokers.values())
            replicas = min(replicas, live)
        configs = {name: str(config[option]) for name, option in creation.options.items()}
        configs |= creation.configs
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=self.name,
                    num_partitions=config.integer(creation.partitions),
                    replication_factor=replicas,
                    configs=[
                        CreatableTopicConfig(name=name, value=value)
                        for name, value in configs.items()
                    ],
                )
            ]
        )
        try:
            response = await self._link.ask(request, _CREATION_S)
        except PeerLost as lost:
            _log.warning("the coordinators' topic was not created topic=%s: %s", self.name, lost)
            return False
        (result,) = response.topics
        if result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return True
        _log.warning(
            "the coordinators' topic was not created topic=%s error=%s reason=%s",
            result.name,
            ErrorCode(result.error_code).name,
            result.error_message,
        )
        return False


def partition_of(key: str, partitions: int) -> int:
    """The partition that holds a group or a transactional id, as in Kafka: by Java's hash of the
    id, a signed number of 32 bits whose smallest value counts as 0."""
    hashed = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        hashed = (31 * hashed + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed & 0x80000000 else hashed
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions
