"""Describes brokers' log directories (KIP-113)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from trimtab.client.admin.answers import LogDirectory, ReplicaLog
from trimtab.client.admin.calls import Calls, Family, check, read_error
from trimtab.kafka.arguments import checked_brokers
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.describe_log_dirs import DescribeLogDirsRequest


class LogDirAdmin(Family):
    """Describes log directories."""

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, list[LogDirectory]]:
        """The log directories of these brokers, or of all, with the logs in them.

        Raises:
            UsageError: there is no such broker.
        """
        chosen = None if brokers is None else checked_brokers("brokers", brokers)

        async def describe() -> dict[int, list[LogDirectory]]:
            if chosen is None:
                await self._calls.fetch_metadata([])
            wanted = sorted(self._calls.session.metadata.nodes if chosen is None else set(chosen))
            found = await asyncio.gather(*(_describe_broker(self._calls, node) for node in wanted))
            return dict(zip(wanted, found, strict=True))

        return await self._calls.retry("describe log directories", describe)


async def _describe_broker(calls: Calls, broker: int) -> list[LogDirectory]:
    connection = await calls.connect_to_broker(broker)
    response = await connection.request(DescribeLogDirsRequest(topics=None))
    check(response.error_code, None, f"broker {broker}")
    return [
        LogDirectory(
            result.log_dir,
            read_error(result.error_code, None, f"log directory {result.log_dir}"),
            {
                TopicPartition(topic.name, partition.partition_index): ReplicaLog(
                    partition.partition_size, partition.offset_lag, partition.is_future_key
                )
                for topic in result.topics
                for partition in topic.partitions
            },
            result.total_bytes,
            result.usable_bytes,
            result.is_cordoned,
        )
        for result in response.results
    ]
