"""Compression bombs and batches of very many records, where a broker must decode them
(`trimtab.cluster.broker.batch_rules`, `trimtab.cluster.storage.segment`)."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import pytest

from trimtab.cluster.broker.batch_rules import MAX_AT_FAULT
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.batch_cy import OPENED_LIMIT, BatchBuilder
from trimtab.kafka.wire.compression import Compression
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from trimtab.kafka.wire.messages.metadata import MetadataRequest
from trimtab.kafka.wire.records_cy import SCANNED_AT_ONCE, SURVEYED_AT_ONCE

CODECS = [Compression.GZIP, Compression.LZ4, Compression.ZSTD]


def bomb(codec: int, size: int = OPENED_LIMIT + 1000) -> bytearray:
    """Two records with timestamps 1 and 2, the second of the given size."""
    builder = BatchBuilder(size + 1000, codec)
    builder.append(1, b"k", b"v", None)
    builder.append(2, b"k", bytes(size), None)
    return builder.build()


def many(count: int, keyless: tuple[int, ...] = ()) -> bytearray:
    builder = BatchBuilder(count * 20, Compression.ZSTD)
    for number in range(count):
        builder.append(number, None if number in keyless else b"k", b"v", None)
    return builder.build()


async def ask_time(lab: Any, timestamp: int) -> Any:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[partition])]
    )
    response = await lab.connect().ask(request, 9)
    return response.topics[0].partitions[0]


async def produce(lab: Any, batch: bytearray) -> Any:
    response = await lab.connect().ask(lab.produce("t", batch), 9)
    return response.responses[0].partition_responses[0]


@pytest.mark.parametrize("codec", CODECS)
async def test_a_compression_bomb_for_a_compacted_topic_is_refused_so_that_producers_split_it(
    lab: Any, codec: int
) -> None:
    await lab.create_topic("t", config={"cleanup.policy": "compact"})
    batch = bomb(codec)
    tracemalloc.start()
    try:
        answer = await produce(lab, batch)
        assert tracemalloc.get_traced_memory()[1] < 3 * OPENED_LIMIT
    finally:
        tracemalloc.stop()
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert f"more than the {OPENED_LIMIT} bytes allowed" in answer.error_message
    assert (await produce(lab, bomb(codec, OPENED_LIMIT // 2))).error_code == 0


async def test_a_batch_may_decompress_to_max_message_bytes(lab: Any) -> None:
    limit = OPENED_LIMIT * 5 // 4
    config = {"cleanup.policy": "compact", "max.message.bytes": str(limit)}
    await lab.create_topic("t", config=config)
    for codec in (Compression.NONE, Compression.ZSTD):
        assert (await produce(lab, bomb(codec, limit - 1000))).error_code == 0
    refused = await produce(lab, bomb(Compression.ZSTD, limit))
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert f"more than the {limit} bytes allowed" in refused.error_message


@pytest.mark.parametrize("codec", CODECS)
async def test_a_timestamp_in_a_compression_bomb_is_answered_with_its_first_possible_offset(
    lab: Any, codec: int
) -> None:
    await lab.create_topic("t")
    await lab.append("t", b"a")
    assert (await produce(lab, bomb(codec))).error_code == 0
    tracemalloc.start()
    try:
        found = await ask_time(lab, 2)
        assert tracemalloc.get_traced_memory()[1] < 3 * OPENED_LIMIT
    finally:
        tracemalloc.stop()
    assert (found.error_code, found.offset) == (0, 0), "the batch before is younger than that"


async def test_a_timestamp_in_a_compression_bomb_is_at_its_base_offset(lab: Any) -> None:
    await lab.create_topic("t")
    small = BatchBuilder(1000, Compression.NONE)
    small.append(0, b"k", b"v", None)
    assert (await produce(lab, small.build())).error_code == 0
    assert (await produce(lab, bomb(Compression.ZSTD))).error_code == 0
    found = await ask_time(lab, 2)
    assert (found.error_code, found.offset, found.timestamp) == (0, 1, 2)


async def test_other_requests_are_served_while_very_many_records_are_checked(lab: Any) -> None:
    count = 4 * SURVEYED_AT_ONCE
    await lab.create_topic("t", config={"cleanup.policy": "compact"})
    line, other = lab.connect(), lab.connect()
    line.send(lab.produce("t", many(count)), 9)
    assert not line.responses
    served = 0
    while not line.responses:
        await other.ask(MetadataRequest(topics=[]), 9)
        served += 1
        await asyncio.sleep(0)
    assert served >= 3
    refused = await produce(lab, many(count, keyless=(2, count - 1)))
    assert refused.error_code == ErrorCode.INVALID_RECORD


async def test_other_requests_are_served_while_very_many_timestamps_are_searched(lab: Any) -> None:
    await lab.create_topic("t")
    assert (await produce(lab, many(20_000))).error_code == 0
    asked = asyncio.ensure_future(ask_time(lab, 19_990))
    turns = lab.brokers[0].listener.turns
    await asyncio.sleep(0)
    assert len(turns) == 1, "it is not done at once"
    assert (await asked).offset == 19_990
    assert len(turns) == 0


@pytest.mark.parametrize("what", ["keys", "times"])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
async def test_a_response_names_the_first_of_very_many_invalid_records_while_others_are_served(
    lab: Any, codec: Compression, what: str
) -> None:
    limits = {"max.message.bytes": "2000000", "message.timestamp.before.max.ms": "1000"}
    policy = {"cleanup.policy": "compact" if what == "keys" else "delete"}
    await lab.create_topic("t", config={**limits, **policy})
    builder = BatchBuilder(2_000_000, codec)
    time = lab.world.now_ms() - (2000 if what == "times" else 0)
    for _ in range(MAX_AT_FAULT + 5000):
        builder.append(time, None, b"", None)
    batch = builder.build()
    partition = lab.brokers[0].partitions["t", 0]
    steps = partition.rules.find_times(memoryview(batch), lambda time: True)
    assert len(list(steps)) == MAX_AT_FAULT // SCANNED_AT_ONCE - 1
    line, other = lab.connect(), lab.connect()
    line.send(lab.produce("t", batch), 9)
    served = 0
    while not line.responses:
        await other.ask(MetadataRequest(topics=[]), 9)
        served += 1
        await asyncio.sleep(0)
    assert served >= 3
    refused = await produce(lab, batch)
    assert [each.batch_index for each in refused.record_errors] == list(range(MAX_AT_FAULT))
