"""Sends proposed ISRs to the controller: one AlterPartition request at a time, with all that wait.

The leader uses a granted ISR only when it replays it from the metadata log; Kafka's leader uses it
as soon as the response arrives. The difference matters for eligible leader replicas (KIP-966). The
controller decides, by `min.insync.replicas` at that moment, whether a replica that left is still
known to have everything committed. The leader must not commit with the new ISR and an older
`min.insync.replicas`; the metadata log has both changes in order.

Source: Kafka's `AlterPartitionManager` (KIP-497).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from trimtab.cluster.broker.leadership import Proposal
from trimtab.cluster.broker.link import Link
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.server.peer import PeerLost
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    TopicData,
)

_SentProposals: TypeAlias = dict[tuple[bytes, int], tuple[Partition, Proposal]]


_ANSWER_TIMEOUT_S = 10.0
_BACKOFF_S = 0.05
_MAX_BATCH = 2000

_NOT_APPLIED = (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA)

_log = logging.getLogger(__name__)


class IsrProposals:
    """Asks the controller for the ISRs that this broker's leaders propose.

    Args:
        broker_id: this broker's id.
        broker_epoch: returns this broker's current epoch.
        link: the connection to the controller.
    """

    def __init__(self, broker_id: int, broker_epoch: Callable[[], int], link: Link) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._link = link
        self._pending: dict[Partition, None] = {}
        self._task: asyncio.Task[None] | None = None

    def submit(self, partition: Partition) -> None:
        """Queue this partition's proposal (`leadership.proposal`)."""
        self._pending[partition] = None
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._send_all())

    def abort(self) -> list[asyncio.Task[None]]:
        """Drop all proposals and send nothing more; returns the tasks that are about to end."""
        self._pending.clear()
        if self._task is None:
            return []
        self._task.cancel()
        return [self._task]

    async def _send_all(self) -> None:
        while self._pending:
            sent: _SentProposals = {}
            for partition in list(self._pending)[:_MAX_BATCH]:
                del self._pending[partition]
                leadership = partition.leadership
                if leadership is not None and leadership.proposal is not None:
                    sent[partition.topic_id, partition.index] = partition, leadership.proposal
            if not sent:
                continue
            is_answered = False
            try:
                response = await self._link.ask(self._request(sent), _ANSWER_TIMEOUT_S)
                if not response.error_code:
                    self._handle_response(sent, response)
                    is_answered = True
            except PeerLost as error:
                _log.debug("no answer to proposals of ISRs error=%s", error)
            except Exception:  # a bug must not stop the proposals of all partitions
                _log.exception("cannot propose ISRs")
            if not is_answered:
                # Whether the controller applied the request is not known: send it again.
                unanswered = [partition for partition, _ in sent.values()]
                self._pending = {**dict.fromkeys(unanswered), **self._pending}
                await asyncio.sleep(_BACKOFF_S)

    def _request(self, sent: _SentProposals) -> AlterPartitionRequest:
        topics: dict[bytes, TopicData] = {}
        for (topic_id, index), (partition, proposal) in sent.items():
            topic = topics.setdefault(topic_id, TopicData(topic_id=topic_id, partitions=[]))
            topic.partitions.append(
                PartitionData(
                    partition_index=index,
                    leader_epoch=partition.leader_epoch,
                    new_isr_with_epochs=[
                        BrokerState(
                            broker_id=broker,
                            broker_epoch=proposal.broker_epochs.get(broker, self._broker_epoch()),
                        )
                        for broker in proposal.isr
                    ],
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            topics=list(topics.values()),
        )

    def _handle_response(self, sent: _SentProposals, response: AlterPartitionResponse) -> None:
        answers = {
            (topic.topic_id, data.partition_index): data
            for topic in response.topics
            for data in topic.partitions
        }
        for key, (partition, proposal) in sent.items():
            data = answers.get(key)
            if data is None or data.error_code in _NOT_APPLIED:
                leadership = partition.leadership
                if leadership is not None and leadership.proposal is proposal:
                    partition.isr_refused()
            elif data.error_code:
                # The partition has changed, and the metadata log will bring the change. Until then
                # keep the proposal: an earlier copy of the request may have been applied.
                _log.info(
                    "the controller refused an ISR partition=%s error=%s",
                    partition,
                    ErrorCode(data.error_code).name,
                )
