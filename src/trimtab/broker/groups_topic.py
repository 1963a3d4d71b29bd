"""The topic of the groups, `__consumer_offsets`: the first search for a coordinator creates it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

from trimtab.broker.cluster_view import ClusterView
from trimtab.broker.controller_link import ControllerLink
from trimtab.broker.groups import GROUPS_TOPIC, group_partition
from trimtab.errors import ErrorCode
from trimtab.metadata.image import BrokerRegistration
from trimtab.server.peer import PeerLost
from trimtab.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

_CREATION_S = 5.0
_REPLICAS = "offsets.topic.replication.factor"

_log = logging.getLogger(__name__)


class GroupsTopic:
    """Finds the broker that leads a group's partition of the topic.

    Args:
        link: the connection to the controller.
        advance: waits until this broker has replayed more of the metadata.
    """

    def __init__(
        self, view: ClusterView, link: ControllerLink, advance: Callable[[], Awaitable[object]]
    ) -> None:
        self._view = view
        self._link = link
        self._advance = advance

    @property
    def exists(self) -> bool:
        return GROUPS_TOPIC in self._view.image.topics

    def find_leader(self, group_id: str) -> BrokerRegistration | None:
        """The broker; None if there is none at the moment."""
        image = self._view.image
        topic = image.topics.get(GROUPS_TOPIC)
        if topic is None:
            return None
        index = group_partition(group_id, len(topic.partitions))
        return image.brokers.get(topic.partitions[index].leader)

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
        replicas = cast(int, config[_REPLICAS])
        if _REPLICAS not in self._view.given:
            live = sum(not each.fenced for each in self._view.image.brokers.values())
            replicas = min(replicas, live)
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config["offsets.topic.segment.bytes"]),
        }
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=GROUPS_TOPIC,
                    num_partitions=cast(int, config["offsets.topic.num.partitions"]),
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
            _log.warning("the topic of groups was not created: %s", lost)
            return False
        (result,) = response.topics
        if result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return True
        _log.warning(
            "the topic of groups was not created topic=%s error=%s reason=%s",
            result.name,
            ErrorCode(result.error_code).name,
            result.error_message,
        )
        return False
