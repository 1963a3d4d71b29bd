"""The figures of a broker at one moment, for its metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from trimtab.cluster.broker.peers import Peers
from trimtab.cluster.broker.traffic import TopicTraffic
from trimtab.cluster.server.peer import PeerLost
from trimtab.cluster.server.turns import Pace, Steps, divide, in_turns
from trimtab.cluster.storage.storage import Space, StorageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from trimtab.kafka.wire.sentinels import LATEST, NO_BROKER, NO_LEADER

if TYPE_CHECKING:
    from trimtab.cluster.broker.broker import Broker

_PER_STEP: Final = 100
"""Partitions or offsets that are looked at before other requests are served."""
_PER_REQUEST: Final = 1000
"""Partitions that one request asks for."""
_TIMEOUT_S: Final = 2.0

_log = logging.getLogger(__name__)


class LogFigures(NamedTuple):
    """One replica's log: its bytes, and where its records begin and end."""

    topic: str
    partition: int
    size: int
    start_offset: int
    end_offset: int


class CommittedFigures(NamedTuple):
    """The offset that a group has committed of a partition."""

    group: str
    partition: TopicPartition
    offset: int


class BrokerFigures:
    """The figures of one broker.

    Attributes:
        logs: of all its replicas.
        leaders: partitions that it leads, and of these those
        under_replicated: with fewer replicas in sync than they have,
        under_min_isr: with fewer than `min.insync.replicas` in sync,
        at_min_isr: with just as many in sync,
        reassigning: that are being reassigned.
        offline: replicas whose logs could not be opened.
        groups, members: that this broker coordinates.
        transactional_ids: that it coordinates.
        coordinator_bytes: that it remembers of all these, about.
        producer_ids: that its replicas remember, each counted once for each replica.
        committed: by the groups that this broker coordinates.
        ends: high watermarks of the partitions in `committed`, without those whose leaders do not
            answer.
        total: counts of all topics.
        traffic: counts by topic.
        space: of the volume that holds the logs; None if it is unknown.
    """

    def __init__(self) -> None:
        self.logs: list[LogFigures] = []
        self.leaders = 0
        self.under_replicated = 0
        self.under_min_isr = 0
        self.at_min_isr = 0
        self.reassigning = 0
        self.offline = 0
        self.groups = self.members = self.transactional_ids = 0
        self.coordinator_bytes = 0
        self.producer_ids = 0
        self.committed: list[CommittedFigures] = []
        self.ends: dict[TopicPartition, int] = {}
        self.total = TopicTraffic()
        self.traffic: Mapping[str, TopicTraffic] = {}
        self.space: Space | None = None


class BrokerGauge:
    """Measures a broker, on its loop, without holding up its requests.

    The high watermarks of partitions that other brokers lead are asked of those.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._peers = Peers(broker.view, "lags")

    async def measure(self) -> BrokerFigures:
        """The figures now."""
        figures = BrokerFigures()
        replicas = self._broker.replicas
        await in_turns(self._look_at_replicas(figures))
        elsewhere = await in_turns(self._look_at_groups(figures))
        groups = await in_turns(self._broker.groups.measure())
        transactions = await in_turns(self._broker.transactions.measure())
        figures.groups, figures.members, _ = groups
        figures.transactional_ids = transactions.things
        figures.coordinator_bytes = groups.size + transactions.size
        await asyncio.gather(*(self._ask(figures, *each) for each in elsewhere))
        figures.offline = len(replicas.offline)
        figures.total = replicas.traffic.total()
        figures.traffic = dict(replicas.traffic.topics)
        try:
            space = replicas.logs.space()
            figures.space = space if space.total_bytes >= 0 else None
        except StorageError as error:
            _log.warning("cannot measure the volume broker=%d error=%s", self._broker.id, error)
        return figures

    def close(self) -> None:
        """Close the connections to other brokers."""
        self._peers.close()

    def _look_at_replicas(self, figures: BrokerFigures) -> Steps[None]:
        pace = Pace(_PER_STEP)
        for partition in list(self._broker.partitions.values()):
            log, registration = partition.log, partition.registration
            figures.logs.append(
                LogFigures(
                    partition.topic,
                    partition.index,
                    log.size,
                    log.log_start_offset,
                    log.log_end_offset,
                )
            )
            figures.producer_ids += len(log.producers)
            leadership = partition.leadership
            if leadership is not None:
                in_sync = len(leadership.isr)
                wanted = len(registration.replicas) - len(registration.adding_replicas)
                figures.leaders += 1
                figures.under_replicated += in_sync < wanted
                figures.under_min_isr += leadership.is_under_min_isr
                figures.at_min_isr += in_sync == leadership.effective_min_isr
                figures.reassigning += registration.is_reassigning
            if pace.spend():
                yield

    def _look_at_groups(
        self, figures: BrokerFigures
    ) -> Steps[list[tuple[int, Sequence[TopicPartition]]]]:
        """What the groups have committed; returns what to ask of which broker."""
        elsewhere: dict[int, dict[TopicPartition, None]] = {}
        pace = Pace(_PER_STEP)
        loaded = [each.shard for each in self._broker.groups if each.shard is not None]
        for shard in loaded:
            for group in shard.list_groups((), ()):
                if pace.spend():
                    yield
                for partition, committed in list(shard.offsets(group.group_id).items()):
                    figures.committed.append(
                        CommittedFigures(group.group_id, partition, committed.offset)
                    )
                    self._find_end(partition, figures, elsewhere)
                    if pace.spend():
                        yield
        return [
            (broker, part)
            for broker, partitions in elsewhere.items()
            for part in divide(list(partitions), _PER_REQUEST)
        ]

    def _find_end(
        self,
        partition: TopicPartition,
        figures: BrokerFigures,
        elsewhere: dict[int, dict[TopicPartition, None]],
    ) -> None:
        replica = self._broker.partitions.get(partition)
        if replica is not None and replica.is_leader:
            figures.ends[partition] = replica.high_watermark
            return
        found = self._broker.view.find_leader(*partition)
        if found is not None and found[0] != NO_LEADER:
            elsewhere.setdefault(found[0], {})[partition] = None

    async def _ask(
        self, figures: BrokerFigures, broker_id: int, led: Sequence[TopicPartition]
    ) -> None:
        topics: dict[str, ListOffsetsTopic] = {}
        for partition in led:
            topic = topics.setdefault(
                partition.topic, ListOffsetsTopic(name=partition.topic, partitions=[])
            )
            topic.partitions.append(
                ListOffsetsPartition(partition_index=partition.partition, timestamp=LATEST)
            )
        request = ListOffsetsRequest(replica_id=NO_BROKER, topics=list(topics.values()))
        try:
            response = await self._peers.ask(broker_id, request, _TIMEOUT_S)
        except PeerLost as error:
            _log.debug("no high watermarks broker=%d error=%s", broker_id, error)
            return
        for answer in response.topics:
            for part in answer.partitions:
                if not part.error_code:
                    figures.ends[TopicPartition(answer.name, part.partition_index)] = part.offset
