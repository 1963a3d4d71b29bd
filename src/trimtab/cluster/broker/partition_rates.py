"""How much is written to partitions, for the assignor `load` of consumer groups.

    sizes of the leaders' logs, at intervals (DescribeLogDirs) ─▶ bytes/s

The broker that coordinates a group asks the leaders of its topics, itself among them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.peers import Peers
from trimtab.cluster.server.peer import PeerLost
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

_FIRST_INTERVAL_S: Final = 1.0
_INTERVAL_S: Final = 10.0
_TIMEOUT_S: Final = 5.0
_HALF_LIFE_S: Final = 60.0
"""After which a measurement counts half."""

_log = logging.getLogger(__name__)


class _Sample(NamedTuple):
    """The size of a log on one broker at a time."""

    broker: int
    at: float
    size: int


class PartitionRates:
    """Bytes/s written to partitions: measured from the first question for their topic on, for as
    long as the topic exists.

    What retention or compaction removes is not seen apart: an interval in which a log shrank does
    not count, and one in which it grew all the same counts too little.

    Args:
        view: which broker leads a partition, and the brokers' addresses.

    Attributes:
        version: rises with each measurement.
    """

    def __init__(self, view: ClusterView) -> None:
        self.version = 0
        self._view = view
        self._topics: dict[str, None] = {}
        self._samples: dict[TopicPartition, _Sample] = {}
        self._rates: dict[str, dict[TopicPartition, float]] = {}
        """By topic."""
        self._peers = Peers(view, "rates")
        self._measuring: asyncio.Task[None] | None = None

    def of(self, topics: Iterable[str]) -> Mapping[TopicPartition, float]:
        """Bytes/s of the topics' partitions, without those that are unknown yet."""
        found: dict[TopicPartition, float] = {}
        for name in sorted(topics):
            if name not in self._view.image.topics:
                continue
            self._topics.setdefault(name)
            found.update(self._rates.get(name, {}))
        if self._topics and self._measuring is None:
            self._measuring = asyncio.get_running_loop().create_task(self._measure())
        return found

    def close(self) -> None:
        """Stop."""
        if self._measuring is not None:
            self._measuring.cancel()
        self._peers.close()

    async def _measure(self) -> None:
        interval_s = _FIRST_INTERVAL_S
        while True:
            self._forget()
            asked = (self._ask(*each) for each in self._find_leaders().items())
            for error in await asyncio.gather(*asked, return_exceptions=True):
                if error is not None:
                    _log.error("cannot measure rates", exc_info=error)
            if self._rates:
                self.version += 1
                interval_s = _INTERVAL_S
            await asyncio.sleep(interval_s)

    def _forget(self) -> None:
        """Drop the topics that do not exist any more."""
        topics = self._view.image.topics
        for name in [each for each in self._topics if each not in topics]:
            del self._topics[name]
        for partition in [each for each in self._samples if each.topic not in topics]:
            del self._samples[partition]
            self._rates.pop(partition.topic, None)

    def _find_leaders(self) -> dict[int, dict[str, list[int]]]:
        """By broker the partitions that it leads."""
        found: dict[int, dict[str, list[int]]] = {}
        for name in self._topics:
            for partition in self._view.image.topics[name].partitions:
                if partition.leader in self._view.image.brokers:
                    led = found.setdefault(partition.leader, {})
                    led.setdefault(name, []).append(partition.id)
        return found

    async def _ask(self, broker: int, led: Mapping[str, list[int]]) -> None:
        request = DescribeLogDirsRequest(
            topics=[
                DescribableLogDirTopic(topic=name, partitions=indexes)
                for name, indexes in led.items()
            ]
        )
        try:
            response = await self._peers.ask(broker, request, _TIMEOUT_S)
        except PeerLost as error:
            _log.debug("no sizes of logs broker=%d error=%s", broker, error)
            return
        self._note(broker, asyncio.get_running_loop().time(), response)

    def _note(self, broker: int, now: float, response: DescribeLogDirsResponse) -> None:
        for directory in response.results:
            for topic in directory.topics:
                for partition in topic.partitions:
                    self._note_size(
                        TopicPartition(topic.name, partition.partition_index),
                        _Sample(broker, now, partition.partition_size),
                    )

    def _note_size(self, partition: TopicPartition, sample: _Sample) -> None:
        last = self._samples.get(partition)
        self._samples[partition] = sample
        if last is None or last.broker != sample.broker or sample.at <= last.at:
            return
        if sample.size < last.size:
            return
        rate = (sample.size - last.size) / (sample.at - last.at)
        rates = self._rates.setdefault(partition.topic, {})
        known = rates.get(partition, rate)
        kept = math.pow(0.5, (sample.at - last.at) / _HALF_LIFE_S)
        rates[partition] = rate + (known - rate) * kept
