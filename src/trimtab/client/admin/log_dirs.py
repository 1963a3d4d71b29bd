"""Describes brokers' log directories (KIP-113)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from trimtab.client.admin.answers import LogDirectory, ReplicaLog
from trimtab.client.admin.calls import Calls, check, read_error
from trimtab.records import TopicPartition
from trimtab.wire.messages.describe_log_dirs import DescribeLogDirsRequest


async def describe_log_dirs(
    calls: Calls, brokers: Iterable[int] | None
) -> dict[int, list[LogDirectory]]:
    async def describe() -> dict[int, list[LogDirectory]]:
        if brokers is None:
            await calls.fetch_metadata([])
        wanted = sorted(calls.session.metadata.nodes if brokers is None else set(brokers))
        return dict(
            zip(
                wanted,
                await asyncio.gather(*(_describe_broker(calls, broker) for broker in wanted)),
                strict=True,
            )
        )

    return await calls.retry("describe log directories", describe)


async def _describe_broker(calls: Calls, broker: int) -> list[LogDirectory]:
    connection = await calls.connect_to_broker(broker)
    response = await connection.request(DescribeLogDirsRequest(topics=None))
    check(response.error_code, None, f"broker {broker}")
    return [
        LogDirectory(
            result.log_dir,
            read_error(result.error_code, None, f"log directory {result.log_dir}"),
            {
                TopicPartition(topic.name, each.partition_index): ReplicaLog(
                    each.partition_size, each.offset_lag, each.is_future_key
                )
                for topic in result.topics
                for each in topic.partitions
            },
            result.total_bytes,
            result.usable_bytes,
        )
        for result in response.results
    ]
