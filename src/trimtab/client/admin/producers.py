"""The producers that partitions remember, and ends of transactions that nobody ends (KIP-664)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from trimtab.client.admin.answers import ProducerDescription
from trimtab.client.admin.calls import Calls, check
from trimtab.errors import BrokerError, ErrorCode
from trimtab.records import TopicPartition
from trimtab.wire.messages.describe_producers import (
    DescribeProducersRequest,
    ProducerState,
    TopicRequest,
)
from trimtab.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from trimtab.wire.sentinels import NO_LEADER


async def describe_producers(
    calls: Calls, partitions: Sequence[TopicPartition], broker: int | None
) -> dict[TopicPartition, list[ProducerDescription]]:
    """Asks the partitions' leaders, or one broker."""

    async def ask(
        node: int, asked: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        connection = await calls.connect_to_broker(node)
        topics: dict[str, list[int]] = {}
        for topic, index in asked:
            topics.setdefault(topic, []).append(index)
        response = await connection.request(
            DescribeProducersRequest(
                topics=[
                    TopicRequest(name=name, partition_indexes=indexes)
                    for name, indexes in topics.items()
                ]
            )
        )
        found = {}
        for topic_answer in response.topics:
            for each in topic_answer.partitions:
                partition = TopicPartition(topic_answer.name, each.partition_index)
                check(each.error_code, each.error_message, str(partition))
                found[partition] = [_describe(state) for state in each.active_producers]
        return found

    async def describe() -> dict[TopicPartition, list[ProducerDescription]]:
        by_node = (
            await _group_by_leader(calls, partitions)
            if broker is None
            else {broker: list(partitions)}
        )
        found = await asyncio.gather(*(ask(*each) for each in by_node.items()))
        return {partition: of for part in found for partition, of in part.items()}

    return await calls.retry("describe producers", describe) if partitions else {}


async def abort_transaction(
    calls: Calls,
    partition: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
) -> None:
    """Has the partition's leader write a marker."""

    async def abort() -> None:
        (leader,) = await _group_by_leader(calls, [partition])
        connection = await calls.connect_to_broker(leader)
        response = await connection.request(
            WriteTxnMarkersRequest(
                markers=[
                    WritableTxnMarker(
                        producer_id=producer_id,
                        producer_epoch=producer_epoch,
                        transaction_result=False,
                        topics=[
                            WritableTxnMarkerTopic(
                                name=partition.topic, partition_indexes=[partition.partition]
                            )
                        ],
                        coordinator_epoch=coordinator_epoch,
                    )
                ]
            )
        )
        for marker in response.markers:
            for topic in marker.topics:
                for each in topic.partitions:
                    check(each.error_code, None, str(partition))

    await calls.retry("abort a transaction", abort)


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
