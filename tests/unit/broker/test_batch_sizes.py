"""ListBatchSizes: how large record batches are (`trimtab.broker.handlers.batch_sizes`)."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.broker.handlers import batch_sizes
from trimtab.broker.handlers.batch_sizes import list_batch_sizes
from trimtab.errors import ErrorCode
from trimtab.storage.log import Log
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.list_batch_sizes import (
    ListBatchSizesPartition,
    ListBatchSizesRequest,
    ListBatchSizesTopic,
)

VERSION = 0
PLENTY = 2**40


def wanted(
    start: int, end: int = -1, max_bytes: int = PLENTY, partition: int = 0
) -> ListBatchSizesPartition:
    return ListBatchSizesPartition(
        partition_index=partition, start_offset=start, end_offset=end, max_bytes=max_bytes
    )


def request(
    *partitions: ListBatchSizesPartition, topic: str = "t", max_batches: int = 1000
) -> ListBatchSizesRequest:
    return ListBatchSizesRequest(
        max_batches=max_batches,
        topics=[ListBatchSizesTopic(name=topic, partitions=list(partitions))],
    )


async def fill(lab: Any, client: Any, partition: int = 0) -> list[bytes]:
    """Batches of one, two and three records."""
    batches = [lab.batch(*[b"v" * 100] * count, timestamp=count) for count in (1, 2, 3)]
    for each in batches:
        await client.ask(lab.produce("t", each, partition=partition), 9)
    return batches


async def test_batches_are_listed_by_their_ends_bytes_and_times(lab: Any) -> None:
    await lab.create_topic("t")
    client = lab.connect()
    sizes = list(map(len, await fill(lab, client)))
    for asked, ends, bytes_left in (
        (wanted(0), [1, 3, 6], sum(sizes)),
        (wanted(2), [3, 6], sum(sizes[1:])),  # within the second
        (wanted(0, end=3), [1, 3], sum(sizes[:2])),
        (wanted(0, end=2), [1, 3], sizes[0]),
        (wanted(0, end=99), [1, 3, 6], sum(sizes)),
        (wanted(0, max_bytes=1), [1], sum(sizes)),
        (wanted(0, max_bytes=sizes[0] + 1), [1, 3], sum(sizes)),
        (wanted(0, max_bytes=0), [], sum(sizes)),
        (wanted(6), [], 0),
    ):
        response = await client.ask(request(asked), VERSION)
        result = response.topics[0].partitions[0]
        assert (result.error_code, result.next_offsets) == (0, ends), asked
        assert result.sizes == [dict(zip((1, 3, 6), sizes, strict=True))[end] for end in ends]
        assert result.max_timestamps == [{1: 1, 3: 2, 6: 3}[end] for end in ends]
        assert (result.log_start_offset, result.high_watermark) == (0, 6)
        assert result.total_bytes == bytes_left, asked


async def test_partitions_share_the_room_of_an_answer(lab: Any, monkeypatch: Any) -> None:
    await lab.create_topic("t", partitions=3)
    client = lab.connect()
    for partition in (0, 2):
        await fill(lab, client, partition)
    for room, counts in ((1000, [3, 0, 3]), (4, [1, 0, 3]), (3, [1, 0, 2]), (1, [1, 0, 0])):
        asked = request(*(wanted(0, partition=n) for n in range(3)), max_batches=room)
        response = await client.ask(asked, VERSION)
        found = [len(each.sizes) for each in response.topics[0].partitions]
        assert found == counts, room
    monkeypatch.setattr(batch_sizes, "MAX_BATCHES", 2)
    response = await client.ask(request(wanted(0)), VERSION)
    assert len(response.topics[0].partitions[0].sizes) == 2


@pytest.mark.parametrize(
    ("asked", "topic", "code"),
    [
        (wanted(7), "t", ErrorCode.OFFSET_OUT_OF_RANGE),
        (wanted(-1), "t", ErrorCode.OFFSET_OUT_OF_RANGE),
        (wanted(0, partition=9), "t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (wanted(0), "u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_refusals(
    lab: Any, asked: ListBatchSizesPartition, topic: str, code: ErrorCode
) -> None:
    await lab.create_topic("t")
    client = lab.connect()
    await fill(lab, client)
    response = await client.ask(request(asked, topic=topic), VERSION)
    result = response.topics[0].partitions[0]
    assert (result.error_code, result.sizes) == (code, [])
    assert (result.log_start_offset == 0) == (code is ErrorCode.OFFSET_OUT_OF_RANGE)


async def test_others_have_their_turn_after_a_few_reads(lab: Any, monkeypatch: Any) -> None:
    """However many partitions there are, and however many batches in one."""
    reads = 0

    def counted(self: Log, *arguments: int) -> Any:
        nonlocal reads
        reads += 1
        return read(self, *arguments)

    read = Log.sizes
    await lab.create_topic("t", partitions=20)
    client = lab.connect()
    for partition in (*range(20), *[0] * 40):
        # One batch is more than a read shows.
        await client.ask(lab.produce("t", lab.batch(bytes(20_000)), partition=partition), 9)
    monkeypatch.setattr(Log, "sizes", counted)
    asked = request(*(wanted(0, partition=number) for number in range(20)))
    header = RequestHeader(ListBatchSizesRequest.api_key, VERSION, 1, "test", 0)
    steps = list_batch_sizes(lab.brokers[0].replicas, header, asked)
    most, found = 0, None
    while found is None:
        reads = 0
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
        most = max(most, reads)
    assert [len(each.sizes) for each in found.topics[0].partitions] == [41, *[1] * 19]
    assert most <= 5
