"""What a leader checks in a producer's batch and makes right before it stores it, as Kafka's
`LogValidator` does."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.steps import finish
from tests.unit.cluster.broker.test_bombs import ask_time, produce
from trimtab.cluster.storage.log import Log
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import Record
from trimtab.kafka.wire.batch_cy import BatchBuilder, BatchHeader, read_records, verify
from trimtab.kafka.wire.batch_header import HEADER_BYTES, LOG_APPEND_TIME, stamp_crc
from trimtab.kafka.wire.compaction_cy import DELETE_HORIZON
from trimtab.kafka.wire.compression import Compression

DAY_MS = 86_400_000
ATTRIBUTES_AT = 21
MAX_TIMESTAMP_AT = 35


def batch(times: list[int], codec: int = 0, size: int = 20, **identity: Any) -> bytearray:
    builder = BatchBuilder(1 << 20, codec)
    for number, time in enumerate(times):
        builder.append(time, b"k%d" % number, b"v" * size, [("h", b"x")])
    return builder.build(**identity)


def put(data: bytearray, at: int, form: str, value: int) -> bytearray:
    struct.pack_into(form, data, at, value)
    stamp_crc(data, 0, len(data))
    return data


def stored(log: Log, offset: int = 0) -> tuple[BatchHeader, list[Record]]:
    data = log.read(offset, 1 << 20)
    assert isinstance(data, (bytes, memoryview))
    return verify(data), read_records("t", 0, data, offset)


def log_of(lab: Any) -> Log:
    log: Log = lab.brokers[0].partitions["t", 0].log
    return log


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("believed", ["too old", "too new", "none"])
async def test_the_largest_timestamp_is_that_of_the_records(
    lab: Any, codec: Compression, believed: str
) -> None:
    """kafkajs 2.2.4 writes the largest one that its caller has set."""
    await lab.create_topic("t", config={"retention.ms": str(7 * DAY_MS)})
    now = lab.world.now_ms()
    old = now - 900 * DAY_MS
    claimed = {"too old": old, "too new": now + 1000, "none": -1}[believed]
    data = put(batch([old, now, now - 5], codec), MAX_TIMESTAMP_AT, ">q", claimed)
    assert (await produce(lab, data)).error_code == 0
    header, records = stored(log_of(lab))
    assert header.max_timestamp == now
    assert [each.timestamp for each in records] == [old, now, now - 5]
    assert (await ask_time(lab, now)).offset == 1
    log = log_of(lab)
    log.roll()
    assert log.enforce_retention(log.high_watermark) == 0
    newest = finish(log.offset_of_max_timestamp())
    assert newest is not None
    assert newest.offset == 1


@pytest.mark.parametrize(
    ("times", "wrong"),
    [([0, -2000, 0, -1001], [1, 3]), ([0, 3_600_001, 0], [1]), ([-2000, 0], [0])],
    ids=["too old", "too new", "the first"],
)
async def test_the_timestamp_of_every_record_is_checked(
    lab: Any, times: list[int], wrong: list[int]
) -> None:
    await lab.create_topic("t", config={"message.timestamp.before.max.ms": "1000"})
    now = lab.world.now_ms()
    refused = await produce(lab, batch([now + time for time in times]))
    assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [each.batch_index for each in refused.record_errors] == wrong
    assert log_of(lab).log_end_offset == 0


async def test_a_record_without_a_timestamp_is_not_too_old(lab: Any) -> None:
    await lab.create_topic("t", config={"message.timestamp.before.max.ms": "1000"})
    assert (await produce(lab, batch([-1, -1]))).error_code == 0
    assert stored(log_of(lab))[0].max_timestamp == -1


@pytest.mark.parametrize("bit", [LOG_APPEND_TIME, DELETE_HORIZON, 0x80, 0x4000])
async def test_attributes_that_a_client_does_not_decide_are_cleared(lab: Any, bit: int) -> None:
    await lab.create_topic("t")
    now = lab.world.now_ms()
    data = put(batch([now - 7, now], Compression.LZ4), ATTRIBUTES_AT, ">h", Compression.LZ4 | bit)
    assert (await produce(lab, data)).error_code == 0
    header, records = stored(log_of(lab))
    assert header.attributes == Compression.LZ4
    assert [each.timestamp for each in records] == [now - 7, now]


async def test_only_a_broker_sets_log_append_time(lab: Any) -> None:
    await lab.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
    data = put(batch([5]), ATTRIBUTES_AT, ">h", LOG_APPEND_TIME)
    refused = await produce(lab, data)
    assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
    assert "only brokers" in refused.error_message


def malformed() -> Iterator[tuple[str, bytearray]]:
    data = batch([1, 2])
    # Each record begins with its length, attributes, timestamp delta and offset delta.
    yield "an offset is missing", put(bytearray(data), HEADER_BYTES + 3, ">b", 2)
    first = data[HEADER_BYTES] // 2 + 1
    yield "an offset is there twice", put(bytearray(data), HEADER_BYTES + first + 3, ">b", 0)
    more = put(bytearray(data), 57, ">i", 3)
    yield "a record is missing", put(more, 23, ">i", 2)
    fewer = put(bytearray(data), 57, ">i", 1)
    yield "a record too many", put(fewer, 23, ">i", 0)
    yield "a wrong length", put(bytearray(data), HEADER_BYTES, ">b", 6)
    yield "no codec's data", put(bytearray(data), ATTRIBUTES_AT, ">h", Compression.GZIP)


MALFORMED = list(malformed())


@pytest.mark.parametrize(("what", "data"), MALFORMED, ids=[each[0] for each in MALFORMED])
async def test_records_that_no_consumer_could_read_are_refused(
    lab: Any, what: str, data: bytearray
) -> None:
    await lab.create_topic("t")
    refused = await produce(lab, bytearray(data))
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert refused.error_message.startswith("t-0: ")
    assert log_of(lab).log_end_offset == 0


@pytest.mark.parametrize("source", list(Compression))
@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"])
async def test_a_topics_codec_is_that_of_its_batches(
    lab: Any, source: Compression, target: str
) -> None:
    await lab.create_topic("t", config={"compression.type": target})
    now = lab.world.now_ms()
    times = [now - number for number in range(50)]
    identity = {"producer_id": 5, "producer_epoch": 0}
    for sequence in (0, 50, 50):  # the last one is a duplicate
        data = batch(times, source, base_sequence=sequence, **identity)
        assert (await produce(lab, data)).error_code == 0
    log = log_of(lab)
    assert log.log_end_offset == 100
    codec = {"uncompressed": 0, "producer": source}.get(target)
    header, records = stored(log, 50)
    assert header.compression == (Compression[target.upper()] if codec is None else codec)
    assert (header.base_offset, header.base_sequence, header.producer_id) == (50, 50, 5)
    assert [(each.timestamp, each.key) for each in records[-50:]] == [
        (time, b"k%d" % number) for number, time in enumerate(times)
    ]


async def test_a_topics_level_is_used(lab: Any) -> None:
    words = [b"%d" % (number * number % 977) for number in range(4000)]
    builder = BatchBuilder(1 << 20)
    builder.append(lab.world.now_ms(), None, b" ".join(words), None)
    sizes = {}
    for level in ("1", "9"):
        config = {"compression.type": "gzip", "compression.gzip.level": level}
        await lab.create_topic(f"t{level}", config=config)
        answer = await lab.connect().ask(lab.produce(f"t{level}", builder.build()), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        sizes[level] = lab.brokers[0].partitions[f"t{level}", 0].log.size
    assert sizes["9"] < sizes["1"]


async def test_a_batch_that_is_too_large_in_the_topics_codec_is_refused(lab: Any) -> None:
    config = {"compression.type": "uncompressed", "max.message.bytes": "1000"}
    await lab.create_topic("t", config=config)
    now = lab.world.now_ms()
    refused = await produce(lab, batch([now], Compression.ZSTD, size=2000))
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert log_of(lab).log_end_offset == 0
    assert (await produce(lab, batch([now], Compression.ZSTD, size=500))).error_code == 0
