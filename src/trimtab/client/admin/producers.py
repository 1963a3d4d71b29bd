"""The producers that partitions remember, and ends of transactions that nobody ends (KIP-664)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from trimtab.client.admin.answers import ProducerDescription
from trimtab.client.admin.calls import Calls, Family, check
from trimtab.kafka.arguments import MAX_INT64, Partition, checked_integer, checked_partitions
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.records import TopicPartition, by_topic
from trimtab.kafka.wire.messages.describe_producers import (
    DescribeProducersRequest,
    ProducerState,
    TopicRequest,
)
from trimtab.kafka.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from trimtab.kafka.wire.sentinels import NO_LEADER
from trimtab.kafka.wire.types import MAX_INT16

_WHO_MAY_ABORT: Final = (
    "log in as a user with ALTER on the cluster; to a cluster of trimtab's with cluster.secret, a "
    "file of client options (--command-config) in its controller's directory"
)


class ProducerAdmin(Family):
    """Describes producers, and ends transactions that nobody ends."""

    async def describe_producers(
        self, partitions: Iterable[Partition], broker: int | None = None
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """The producers that partitions remember, with their open transactions (KIP-664).

        Args:
            broker: ask this replica; default: each partition's leader.
        """
        wanted = checked_partitions(partitions)
        replica = None if broker is None else checked_integer("broker", broker, 0)

        async def ask(
            node: int, asked: Sequence[TopicPartition]
        ) -> dict[TopicPartition, list[ProducerDescription]]:
            connection = await self._calls.connect_to_broker(node)
            topics = [
                TopicRequest(name=name, partition_indexes=indexes)
                for name, indexes in by_topic(asked).items()
            ]
            response = await connection.request(DescribeProducersRequest(topics=topics))
            found = {}
            for topic_answer in response.topics:
                for answer in topic_answer.partitions:
                    partition = TopicPartition(topic_answer.name, answer.partition_index)
                    check(answer.error_code, answer.error_message, str(partition))
                    found[partition] = [_describe(state) for state in answer.active_producers]
            return found

        async def describe() -> dict[TopicPartition, list[ProducerDescription]]:
            by_node = (
                await _group_by_leader(self._calls, wanted)
                if replica is None
                else {replica: wanted}
            )
            found = await asyncio.gather(*(ask(*each) for each in by_node.items()))
            return {partition: of for part in found for partition, of in part.items()}

        return await self._calls.retry("describe producers", describe) if wanted else {}

    async def abort_transaction(
        self,
        partition: Partition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = 0,
    ) -> None:
        """Abort a transaction in one partition, where its coordinator does not end it (KIP-664).

        Args:
            producer_epoch: at least that of the transaction's records.
            coordinator_epoch: at least that of `describe_producers`.
        """
        (checked,) = checked_partitions([partition])
        producer_id = checked_integer("producer_id", producer_id, 0, MAX_INT64)
        producer_epoch = checked_integer("producer_epoch", producer_epoch, 0, MAX_INT16)
        coordinator_epoch = checked_integer("coordinator_epoch", coordinator_epoch, 0)
        to_write = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=[
                WritableTxnMarkerTopic(name=checked.topic, partition_indexes=[checked.partition])
            ],
            coordinator_epoch=coordinator_epoch,
        )

        async def abort() -> None:
            (leader,) = await _group_by_leader(self._calls, [checked])
            connection = await self._calls.connect_to_broker(leader)
            response = await connection.request(WriteTxnMarkersRequest(markers=[to_write]))
            for marker in response.markers:
                for topic in marker.topics:
                    for result in topic.partitions:
                        is_refused = result.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                        check(
                            result.error_code, _WHO_MAY_ABORT if is_refused else None, str(checked)
                        )

        await self._calls.retry("abort a transaction", abort)


async def _group_by_leader(
    calls: Calls, partitions: Sequence[TopicPartition]
) -> dict[int, list[TopicPartition]]:
    response = await calls.fetch_metadata(sorted({each.topic for each in partitions}))
    leaders: dict[TopicPartition, int] = {}
    for topic in response.topics:
        check(topic.error_code, None, f"topic {topic.name}")
        for each in topic.partitions:
            leaders[TopicPartition(topic.name or "", each.partition_index)] = each.leader_id
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        leader = leaders.get(partition)
        if leader is None:
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "it does not exist", str(partition)
            )
        if leader == NO_LEADER:
            raise BrokerError(
                ErrorCode.LEADER_NOT_AVAILABLE, "the partition has no leader", str(partition)
            )
        by_leader.setdefault(leader, []).append(partition)
    return by_leader


def _describe(state: ProducerState) -> ProducerDescription:
    return ProducerDescription(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch,
        state.current_txn_start_offset,
    )
