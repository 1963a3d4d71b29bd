"""How a coordinator ends a transaction in its partitions: their leaders write markers.

    Ending ─▶ a queue for each leader ─▶ WriteTxnMarkers ─▶ all are written ─▶ done
                 ▲ after a while                └─ not this one

Source: Kafka's `TransactionMarkerChannelManager`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.coordinator_partition import CoordinatorPartition
from trimtab.cluster.broker.peers import Outbox, Peers
from trimtab.cluster.coordinator.effects import Ending
from trimtab.cluster.coordinator.topics import by_topic
from trimtab.cluster.coordinator.transaction_shard import TransactionShard
from trimtab.cluster.server.peer import PeerLost
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

_TIMEOUT_S: Final = 30.0
_AGAIN_S: Final = 0.1

_log = logging.getLogger(__name__)


class _Sending:
    """A transaction, and its partitions that have no marker yet."""

    __slots__ = ("_coordinator", "_shard", "coordinator_epoch", "ending", "missing")

    def __init__(self, coordinator: CoordinatorPartition[TransactionShard], ending: Ending) -> None:
        self._coordinator = coordinator
        self._shard = coordinator.shard
        self.coordinator_epoch = coordinator.leader_epoch
        self.ending = ending
        self.missing = set(ending.partitions)

    @property
    def is_needed(self) -> bool:
        """Whether the shard still waits for it. Another one that was loaded since has found the
        ending in the log, and sends it itself."""
        return self._coordinator.shard is self._shard

    def settle(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions have markers, or need none. Completes the transaction with the last."""
        self.missing.difference_update(partitions)
        if not self.missing and self.is_needed:
            self._coordinator.act(lambda shard, now: shard.complete(now, self.ending))


class _Part(NamedTuple):
    """Markers of one transaction for one leader."""

    sending: _Sending
    partitions: list[TopicPartition]


class MarkerSender:
    """Sends markers until each is written.

    Args:
        view: the leaders of partitions.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._peers = Peers(view, "markers")
        self._outbox: Outbox[_Part] = Outbox(self._deliver)
        self._later: list[_Part] = []
        self._timer: asyncio.TimerHandle | None = None

    def send(self, coordinator: CoordinatorPartition[TransactionShard], ending: Ending) -> None:
        """End a transaction in all its partitions, then have the coordinator complete it."""
        self._route(_Sending(coordinator, ending), ending.partitions)

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._outbox.close()
        self._peers.close()

    def _route(self, sending: _Sending, partitions: Iterable[TopicPartition]) -> None:
        """Give the markers to the leaders of the partitions."""
        image = self._view.image
        by_leader: dict[int, list[TopicPartition]] = {}
        gone = []
        for partition in sorted(partitions):
            topic = image.topics.get(partition.topic)
            if topic is None or partition.partition >= len(topic.partitions):
                # It was deleted: it was there when it became part of the transaction, and this
                # broker's metadata have not gone back since.
                gone.append(partition)
                continue
            by_leader.setdefault(topic.partitions[partition.partition].leader, []).append(partition)
        for leader, some in by_leader.items():
            part = _Part(sending, some)
            if leader in image.brokers:
                self._outbox.queue_item(leader, part)
            else:
                self._try_later(part)
        sending.settle(gone)

    def _try_later(self, part: _Part) -> None:
        self._later.append(part)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_AGAIN_S, self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        later, self._later = self._later, []
        for part in later:
            if part.sending.is_needed:
                self._route(*part)

    async def _deliver(self, leader: int, parts: Sequence[_Part]) -> None:
        request = WriteTxnMarkersRequest(markers=[_make_marker(each) for each in parts])
        try:
            response = await self._peers.ask(leader, request, _TIMEOUT_S)
            answered = list(zip(parts, response.markers, strict=True))
        except (PeerLost, ValueError) as error:
            _log.info("markers were not written leader=%d error=%s", leader, error)
            for part in parts:
                self._try_later(part)
            return
        for part, result in answered:
            self._take(part, result)

    def _take(self, part: _Part, result: WritableTxnMarkerResult) -> None:
        """Note what a leader has answered about one transaction."""
        sending = part.sending
        failed = dict.fromkeys(part.partitions)
        for topic in result.topics:
            for partition_result in topic.partitions:
                partition = TopicPartition(topic.name, partition_result.partition_index)
                code = partition_result.error_code
                if code == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                    _log.info(
                        "another coordinator ends the transaction id=%s epoch=%d",
                        *(sending.ending.transactional_id, sending.coordinator_epoch),
                    )
                    return
                if code == ErrorCode.INVALID_PRODUCER_EPOCH:
                    # A later epoch has written there, so this transaction is not open any more.
                    _log.warning(
                        "the producer has gone on in %s before its transaction ended id=%s",
                        *(partition, sending.ending.transactional_id),
                    )
                if code in (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH):
                    failed.pop(partition, None)
        if failed:
            self._try_later(_Part(sending, list(failed)))
        sending.settle(each for each in part.partitions if each not in failed)


def _make_marker(part: _Part) -> WritableTxnMarker:
    ending = part.sending.ending
    return WritableTxnMarker(
        producer_id=ending.producer_id,
        producer_epoch=ending.producer_epoch,
        transaction_result=ending.is_commit,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in by_topic(part.partitions)
        ],
        coordinator_epoch=part.sending.coordinator_epoch,
        transaction_version=ending.version,
    )
