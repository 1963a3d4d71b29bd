"""Reassignments of partitions (KIP-455): started, cancelled, listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trimtab.client.admin.answers import PartlyRefused, Reassignment
from trimtab.client.admin.calls import (
    Family,
    check,
    check_change,
    read_error,
    sort_answers,
)
from trimtab.kafka.arguments import (
    AnyPartition,
    Partition,
    checked_brokers,
    checked_flag,
    checked_mapping,
    checked_partition,
    checked_partitions,
    shown,
)
from trimtab.kafka.errors import BrokerError
from trimtab.kafka.records import TopicPartition, by_topic
from trimtab.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from trimtab.kafka.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)


class ReassignmentAdmin(Family):
    """Begins, cancels and lists moves of partitions."""

    async def alter_reassignments(
        self,
        targets: Mapping[AnyPartition, Sequence[int] | None],
        allow_replication_factor_change: bool = True,
    ) -> None:
        """Move partitions to other brokers (KIP-455). Returns once the moves have begun;
        `list_reassignments` lists the unfinished ones.

        Args:
            targets: the new replicas of each partition, the preferred leader first; None cancels a
                move.
            allow_replication_factor_change: whether the number of replicas may change (KIP-860).

        Raises:
            PartlyRefused: some partitions cannot be moved; the other moves have begun.
        """
        wanted = {
            checked_partition(partition): None
            if brokers is None
            else checked_brokers(f"the replicas of {shown(partition)}", brokers)
            for partition, brokers in checked_mapping(
                "targets", targets, "{('t', 0): [1, 2]}"
            ).items()
        }
        checked_flag("allow_replication_factor_change", allow_replication_factor_change)
        refusals: dict[TopicPartition, BrokerError] = {}

        async def alter() -> None:
            connection = await self._calls.connect_to_controller()
            request = AlterPartitionReassignmentsRequest(
                timeout_ms=self._calls.timeout_ms,
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
            response = await self._calls.send_once(connection, request, "list_reassignments()")
            check_change(response.error_code, response.error_message, "reassignments")
            answers = (
                (
                    TopicPartition(topic.name, result.partition_index),
                    read_error(
                        result.error_code,
                        result.error_message,
                        f"partition {topic.name}-{result.partition_index}",
                    ),
                )
                for topic in response.responses
                for result in topic.partitions
            )
            sort_answers(answers, wanted, [], refusals)

        if wanted:
            await self._calls.retry("alter reassignments", alter)
        if refusals:
            raise PartlyRefused(refusals, None)

    async def list_reassignments(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The unfinished reassignments of these partitions, or of the whole cluster."""
        wanted = None if partitions is None else checked_partitions(partitions)

        async def ask() -> dict[TopicPartition, Reassignment]:
            connection = await self._calls.connect_to_controller()
            request = ListPartitionReassignmentsRequest(
                timeout_ms=self._calls.timeout_ms,
                topics=None
                if wanted is None
                else [
                    ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
                    for topic, indexes in by_topic(wanted).items()
                ],
            )
            response = await connection.request(request)
            check(response.error_code, response.error_message, "reassignments")
            return {
                TopicPartition(topic.name, partition.partition_index): Reassignment(
                    tuple(partition.replicas),
                    tuple(partition.adding_replicas),
                    tuple(partition.removing_replicas),
                )
                for topic in response.topics
                for partition in topic.partitions
            }

        return await self._calls.retry("list reassignments", ask)
