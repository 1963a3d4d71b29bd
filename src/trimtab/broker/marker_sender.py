"""How a coordinator ends a transaction in its partitions: their leaders write markers.

    Ending ─▶ a queue for each leader ─▶ WriteTxnMarkers ─▶ all are written ─▶ done
                 ▲ after a while                └─ not this one

Source: Kafka's `TransactionMarkerChannelManager`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from trimtab.broker.cluster_view import ClusterView
from trimtab.broker.peers import Outbox, Peers
from trimtab.coordinator.effects import Ending
from trimtab.errors import ErrorCode
from trimtab.records import TopicPartition
from trimtab.server.peer import PeerLost
from trimtab.wire.messages.write_txn_markers import (
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

    __slots__ = ("coordinator_epoch", "done", "ending", "is_needed", "missing")

    def __init__(
        self,
        ending: Ending,
        coordinator_epoch: int,
        is_needed: Callable[[], bool],
        done: Callable[[], None],
    ) -> None:
        self.ending = ending
        self.coordinator_epoch = coordinator_epoch
        self.is_needed = is_needed
        self.done = done
        self.missing = set(ending.partitions)

    def settle(self, partition: TopicPartition) -> None:
        """The partition has a marker, or needs none."""
        self.missing.discard(partition)
        if not self.missing and self.is_needed():
            self.done()


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

    def send(
        self,
        ending: Ending,
        coordinator_epoch: int,
        is_needed: Callable[[], bool],
        done: Callable[[], None],
    ) -> None:
        """End a transaction in all its partitions.

        Args:
            coordinator_epoch: the leader epoch of the coordinator's partition.
            is_needed: whether the coordinator still waits for it.
            done: called once every partition has its marker; a partition that was deleted needs
                none.
        """
        sending = _Sending(ending, coordinator_epoch, is_needed, done)
        if sending.missing:
            self._route(sending, ending.partitions)
        else:
            done()

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
        for each in sorted(partitions):
            topic = image.topics.get(each.topic)
            if topic is None or each.partition >= len(topic.partitions):
                # It was deleted: it was there when it became part of the transaction, and this
                # broker's metadata have not gone back since.
                gone.append(each)
                continue
            by_leader.setdefault(topic.partitions[each.partition].leader, []).append(each)
        for leader, some in by_leader.items():
            part = _Part(sending, some)
            if leader in image.brokers:
                self._outbox.add(leader, part)
            else:
                self._try_later(part)
        for each in gone:
            sending.settle(each)

    def _try_later(self, part: _Part) -> None:
        self._later.append(part)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_AGAIN_S, self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        later, self._later = self._later, []
        for part in later:
            if part.sending.is_needed():
                self._route(*part)

    async def _deliver(self, leader: int, parts: Sequence[_Part]) -> None:
        request = WriteTxnMarkersRequest(markers=[_make_marker(each) for each in parts])
        try:
            response = await self._peers.ask(leader, request, _TIMEOUT_S)
        except PeerLost as lost:
            _log.info("markers were not written leader=%d error=%s", leader, lost)
            for part in parts:
                self._try_later(part)
            return
        for part, result in zip(parts, response.markers, strict=True):
            self._take(part, result)

    def _take(self, part: _Part, result: WritableTxnMarkerResult) -> None:
        """Note what a leader has answered about one transaction."""
        sending = part.sending
        failed: list[TopicPartition] = []
        written: list[TopicPartition] = []
        for topic in result.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                code = ErrorCode(each.error_code)
                if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                    _log.info(
                        "another coordinator ends the transaction id=%s epoch=%d",
                        *(sending.ending.transactional_id, sending.coordinator_epoch),
                    )
                    return
                if code is ErrorCode.INVALID_PRODUCER_EPOCH:
                    # A later epoch has written there, so this transaction is not open any more.
                    _log.warning(
                        "the producer has gone on in %s before its transaction ended id=%s",
                        *(partition, sending.ending.transactional_id),
                    )
                if code in (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH):
                    written.append(partition)
                else:
                    failed.append(partition)
        if failed:
            self._try_later(_Part(sending, failed))
        for partition in written:
            sending.settle(partition)


def _make_marker(part: _Part) -> WritableTxnMarker:
    ending = part.sending.ending
    topics: dict[str, list[int]] = {}
    for topic, index in part.partitions:
        topics.setdefault(topic, []).append(index)
    return WritableTxnMarker(
        producer_id=ending.producer_id,
        producer_epoch=ending.producer_epoch,
        transaction_result=ending.is_commit,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ],
        coordinator_epoch=part.sending.coordinator_epoch,
        transaction_version=ending.version,
    )
