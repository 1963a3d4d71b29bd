"""Asks trimtab's brokers for the sizes of record batches before they are read (ListBatchSizes)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from trimtab.client.arguments import (
    MAX_INT64,
    checked_integer,
    checked_mapping,
    checked_partition,
    shown,
)
from trimtab.client.network.connections import Connections
from trimtab.client.network.metadata import Metadata
from trimtab.errors import BrokerError, ErrorCode, Unavailable, UsageError, error_code
from trimtab.records import TopicPartition
from trimtab.wire.messages.list_batch_sizes import (
    ListBatchSizesPartition,
    ListBatchSizesPartitionResult,
    ListBatchSizesRequest,
    ListBatchSizesTopic,
)
from trimtab.wire.sentinels import NO_LEADER, NO_OFFSET

_MAX_BATCHES: Final = 20_000


class Ahead(NamedTuple):
    """The batches to list of one partition: from offset `start` to `end`, up to the batch that
    brings their sum to `size` bytes."""

    start: int
    end: int
    size: int


class BatchSizes(NamedTuple):
    """Record batches of one partition: the offset after each, its bytes, its largest timestamp.

    Attributes:
        high_watermark: no batch beyond it is listed.
        total_bytes: bytes of all batches in the range, listed or not.
        error: why no batches are listed; None if the request succeeded.
    """

    next_offsets: Sequence[int]
    sizes: Sequence[int]
    max_timestamps: Sequence[int]
    log_start_offset: int
    high_watermark: int
    total_bytes: int
    error: BrokerError | None


def checked_ahead(wanted: object) -> dict[TopicPartition, Ahead]:
    """The argument `wanted` of `list_batch_sizes`, checked."""
    checked = {}
    for partition, ahead in checked_mapping("wanted", wanted, "{('t', 0): (0, 99, 1)}").items():
        name = shown(partition)
        if not isinstance(ahead, tuple) or len(ahead) != len(Ahead._fields):
            raise UsageError(f"wanted[{name}]={shown(ahead)}: give (start, end, size in bytes)")
        checked[checked_partition(partition)] = Ahead(
            *(
                checked_integer(f"the {field} of {name}", number, 0, MAX_INT64)
                for field, number in zip(Ahead._fields, ahead, strict=True)
            )
        )
    return checked


async def list_batch_sizes(
    connections: Connections, metadata: Metadata, wanted: Mapping[TopicPartition, Ahead]
) -> dict[TopicPartition, BatchSizes]:
    """The sizes of each partition's batches, as many as fit into one response of its leader.

    A partition without a leader gets the error LEADER_NOT_AVAILABLE.

    Raises:
        UsageError: `wanted` does not map partitions to `Ahead`.
        BrokerError: UNSUPPORTED_VERSION if a leader does not serve this API; Apache Kafka's brokers
            do not.
        Unavailable: no leader can be reached.
    """
    wanted = checked_ahead(wanted)
    if unsure := metadata.unsure(wanted):
        await metadata.fetch(unsure)
    by_leader: dict[int, list[TopicPartition]] = {}
    found: dict[TopicPartition, BatchSizes] = {}
    for partition in wanted:
        leader = metadata.leader(*partition)
        if leader == NO_LEADER:
            found[partition] = _refused(partition, ErrorCode.LEADER_NOT_AVAILABLE)
        else:
            by_leader.setdefault(leader, []).append(partition)
    lost: Unavailable | None = None
    try:
        for answer in await asyncio.gather(
            *(
                _ask(connections, leader, {partition: wanted[partition] for partition in of})
                for leader, of in by_leader.items()
            ),
            return_exceptions=True,
        ):
            if isinstance(answer, dict):
                found |= answer
            elif isinstance(answer, Unavailable):
                lost = answer
            else:
                raise answer
    finally:
        metadata.doubt(
            partition.topic
            for partition in wanted
            if partition not in found or _is_outdated(found[partition].error)
        )
    if lost is not None and not found:
        raise lost
    return found


def _is_outdated(error: BrokerError | None) -> bool:
    return error is not None and error.code.refreshes_metadata


async def _ask(
    connections: Connections, leader: int, wanted: Mapping[TopicPartition, Ahead]
) -> dict[TopicPartition, BatchSizes]:
    connection = await connections.connect(leader)
    version = connection.version_of(ListBatchSizesRequest)
    topics: dict[str, list[ListBatchSizesPartition]] = {}
    for (topic, index), ahead in wanted.items():
        topics.setdefault(topic, []).append(
            ListBatchSizesPartition(
                partition_index=index,
                start_offset=ahead.start,
                end_offset=ahead.end,
                max_bytes=ahead.size,
            )
        )
    request = ListBatchSizesRequest(
        max_batches=_MAX_BATCHES,
        topics=[ListBatchSizesTopic(name=name, partitions=of) for name, of in topics.items()],
    )
    response = await connection.request(request, version)
    return {
        TopicPartition(topic.name, result.partition_index): _read(topic.name, result)
        for topic in response.topics
        for result in topic.partitions
    }


def _read(topic: str, result: ListBatchSizesPartitionResult) -> BatchSizes:
    code = error_code(result.error_code)
    if code is not ErrorCode.NONE:
        partition = TopicPartition(topic, result.partition_index)
        return _refused(partition, code)._replace(log_start_offset=result.log_start_offset)
    return BatchSizes(
        result.next_offsets,
        result.sizes,
        result.max_timestamps,
        result.log_start_offset,
        result.high_watermark,
        result.total_bytes,
        None,
    )


def _refused(partition: TopicPartition, code: ErrorCode) -> BatchSizes:
    error = BrokerError(code, "while listing the sizes of batches", str(partition))
    return BatchSizes((), (), (), NO_OFFSET, NO_OFFSET, 0, error)
