"""Reassignments of partitions (KIP-455): started, cancelled, listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trimtab.client.admin.answers import PartlyRefused, Reassignment
from trimtab.client.admin.calls import (
    Calls,
    by_topic,
    check,
    may_be_sent_again,
    raise_change_error,
    read_error,
)
from trimtab.errors import BrokerError
from trimtab.records import TopicPartition
from trimtab.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from trimtab.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)


async def alter_reassignments(
    calls: Calls,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    allow_replication_factor_change: bool,
) -> None:
    wanted = {
        partition: None if replicas is None else list(replicas)
        for partition, replicas in targets.items()
    }
    refusals: dict[TopicPartition, BrokerError] = {}

    async def alter() -> None:
        connection = await calls.connect_to_controller()
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=calls.timeout_ms,
            allow_replication_factor_change=allow_replication_factor_change,
            topics=[
                ReassignableTopic(
                    name=topic,
                    partitions=[
                        ReassignablePartition(
                            partition_index=index, replicas=wanted[TopicPartition(topic, index)]
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(wanted).items()
            ],
        )
        response = await calls.send_once(
            connection,
            request,
            "list_reassignments()",
        )
        raise_change_error(read_error(response.error_code, response.error_message, "reassignments"))
        again: list[BrokerError] = []
        for topic in response.responses:
            for result in topic.partitions:
                partition = TopicPartition(topic.name, result.partition_index)
                error = read_error(
                    result.error_code,
                    result.error_message,
                    f"partition {partition.topic}-{partition.partition}",
                )
                if error is not None and may_be_sent_again(error):
                    again.append(error)
                    continue
                wanted.pop(partition, None)
                if error is not None:
                    refusals[partition] = error
        if again:
            raise again[0]

    if wanted:
        await calls.retry("alter reassignments", alter)
    if refusals:
        raise PartlyRefused(refusals, None)


async def list_reassignments(
    calls: Calls, partitions: list[TopicPartition] | None
) -> dict[TopicPartition, Reassignment]:
    async def ask() -> dict[TopicPartition, Reassignment]:
        connection = await calls.connect_to_controller()
        request = ListPartitionReassignmentsRequest(
            timeout_ms=calls.timeout_ms,
            topics=None
            if partitions is None
            else [
                ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic(partitions).items()
            ],
        )
        response = await connection.request(request)
        check(response.error_code, response.error_message, "reassignments")
        return {
            TopicPartition(topic.name, each.partition_index): Reassignment(
                tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
            )
            for topic in response.topics
            for each in topic.partitions
        }

    return await calls.retry("list reassignments", ask)
