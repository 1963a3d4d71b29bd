"""Produce (`trimtab.cluster.broker.batch_rules`): stored batches, refused batches and their
codes."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import pytest

from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TimestampType
from trimtab.kafka.wire.batch_cy import BatchBuilder, read_header, read_records
from trimtab.kafka.wire.compression import Compression


def only(response: Any) -> Any:
    """The one partition's part of a response."""
    ((topic,),) = (response.responses,)
    (partition,) = topic.partition_responses
    return partition


@pytest.mark.parametrize("version", range(3, 14))
async def test_batches_get_consecutive_offsets_in_every_version(lab: Any, version: int) -> None:
    topic_id = await lab.create_topic("t")
    client = lab.connect()
    offsets = []
    for values in ([b"a"], [b"b", b"c"], [b"d"]):
        request = lab.produce("t", lab.batch(*values), topic_id=topic_id)
        response = await client.ask(request, version)
        assert (response.responses[0].topic_id == topic_id) == (version >= 13)
        assert only(response).error_code == 0
        assert only(response).log_append_time_ms == -1
        offsets.append(only(response).base_offset)
    assert offsets == [0, 1, 3]
    stored = lab.brokers[0].partitions["t", 0].read(0, 1 << 20, True)
    assert [record.value for record in read_records("t", 0, stored)] == [b"a", b"b", b"c", b"d"]


def damaged(batch: bytearray) -> bytearray:
    batch[-1] ^= 1
    return batch


def changed(batch: bytearray, position: int, form: str, value: int) -> bytearray:
    """A batch with one header field changed, outside the CRC."""
    struct.pack_into(form, batch, position, value)
    return batch


REFUSED: list[tuple[str, Any, ErrorCode]] = [
    ("nothing", lambda lab: None, ErrorCode.INVALID_RECORD),
    ("no bytes", lambda lab: b"", ErrorCode.INVALID_RECORD),
    ("a wrong CRC", lambda lab: damaged(lab.batch(b"v")), ErrorCode.CORRUPT_MESSAGE),
    ("half a batch", lambda lab: lab.batch(b"v" * 100)[:90], ErrorCode.INVALID_RECORD),
    ("half a header", lambda lab: lab.batch(b"v")[:30], ErrorCode.INVALID_RECORD),
    (
        "a batch of no size",
        lambda lab: changed(lab.batch(b"v"), 8, ">i", 0),
        ErrorCode.CORRUPT_MESSAGE,
    ),
    ("two batches", lambda lab: lab.batch(b"v") + lab.batch(b"w"), ErrorCode.INVALID_RECORD),
    ("magic 1", lambda lab: changed(lab.batch(b"v"), 16, ">b", 1), ErrorCode.INVALID_RECORD),
    ("an offset", lambda lab: changed(lab.batch(b"v"), 0, ">q", 5), ErrorCode.INVALID_RECORD),
    ("control", lambda lab: lab.batch(b"v", is_control=True), ErrorCode.INVALID_RECORD),
    (
        "a producer without a sequence",
        lambda lab: lab.batch(b"v", producer_id=1, producer_epoch=0),
        ErrorCode.INVALID_RECORD,
    ),
    (
        "a transaction",
        lambda lab: lab.batch(
            b"v", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
        ),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    ("too large", lambda lab: lab.batch(b"v" * 2000), ErrorCode.MESSAGE_TOO_LARGE),
    (
        "from the future",
        lambda lab: lab.batch(b"v", timestamp=lab.world.now_ms() + 3_600_001),
        ErrorCode.INVALID_TIMESTAMP,
    ),
    (
        "from too long ago",
        lambda lab: lab.batch(b"v", timestamp=lab.world.now_ms() - 1001),
        ErrorCode.INVALID_TIMESTAMP,
    ),
    ("without a key", lambda lab: lab.batch(b"v", key=None), ErrorCode.INVALID_RECORD),
]


@pytest.mark.parametrize(("what", "make", "code"), REFUSED, ids=[case[0] for case in REFUSED])
async def test_a_batch_that_breaks_a_rule_is_refused(
    lab: Any, what: str, make: Any, code: ErrorCode
) -> None:
    await lab.create_topic(
        "t",
        config={
            "max.message.bytes": "1000",
            "message.timestamp.before.max.ms": "1000",
            "cleanup.policy": "compact",
        },
    )
    client = lab.connect()
    refused = only(await client.ask(lab.produce("t", make(lab)), 9))
    assert refused.error_code == code
    assert refused.base_offset == -1
    assert refused.error_message.startswith("t-0: ")
    good = only(await client.ask(lab.produce("t", lab.batch(b"v")), 9))
    assert (good.error_code, good.base_offset) == (0, 0)


@pytest.mark.kip(467)
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize(
    ("records", "code", "at_fault"),
    [
        ([(b"k", 0), (None, 0), (b"k", 0), (None, 0)], ErrorCode.INVALID_RECORD, [1, 3]),
        ([(b"k", 0), (b"k", 3_700_000), (b"k", 9)], ErrorCode.INVALID_TIMESTAMP, [1]),
        ([(b"k", -2000), (b"k", 0), (b"k", -3000)], ErrorCode.INVALID_TIMESTAMP, [0, 2]),
        ([(Random(1).randbytes(2000), 0)], ErrorCode.MESSAGE_TOO_LARGE, []),
    ],
    ids=["keys", "future", "past", "size"],
)
async def test_an_error_names_the_invalid_records(
    lab: Any,
    compression: Compression,
    records: list[tuple[bytes | None, int]],
    code: ErrorCode,
    at_fault: list[int],
) -> None:
    options = {
        "max.message.bytes": "1000",
        "message.timestamp.before.max.ms": "1000",
        "cleanup.policy": "compact",
    }
    await lab.create_topic("t", config=options)
    builder = BatchBuilder(10_000, compression)
    for key, after in records:
        builder.append(lab.world.now_ms() + after, key, Random(1).randbytes(50), [])
    refused = only(await lab.connect().ask(lab.produce("t", builder.build()), 9))
    assert refused.error_code == code
    assert [each.batch_index for each in refused.record_errors] == at_fault


async def test_zstd_needs_version_7(lab: Any) -> None:
    await lab.create_topic("t")
    client = lab.connect()
    for version, code in ((6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, ErrorCode.NONE)):
        batch = lab.batch(b"v" * 500, compression=Compression.ZSTD)
        assert only(await client.ask(lab.produce("t", batch), version)).error_code == code


@pytest.mark.parametrize("acks", [2, -2, 127])
async def test_other_acks_are_refused(lab: Any, acks: int) -> None:
    await lab.create_topic("t")
    response = await lab.connect().ask(lab.produce("t", lab.batch(b"v"), acks=acks), 9)
    assert only(response).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert lab.brokers[0].partitions["t", 0].high_watermark == 0


async def test_acks_all_is_answered_as_acks_1(lab: Any) -> None:
    await lab.create_topic("t")
    response = await lab.connect().ask(lab.produce("t", lab.batch(b"v"), acks=-1), 9)
    assert (only(response).error_code, only(response).base_offset) == (0, 0)


async def test_acks_0_is_not_answered_and_its_errors_close_the_connection(lab: Any) -> None:
    await lab.create_topic("t")
    client = lab.connect()
    client.send(lab.produce("t", lab.batch(b"v"), acks=0), 9)
    assert lab.brokers[0].partitions["t", 0].high_watermark == 1
    assert not client.responses
    assert not client.transport.closed
    client.send(lab.produce("t", damaged(lab.batch(b"v")), acks=0), 9)
    assert not client.responses
    assert client.transport.closed


async def test_a_batch_sent_twice_is_stored_once(lab: Any) -> None:
    await lab.create_topic("t")
    client = lab.connect()

    async def send(sequence: int, epoch: int = 0) -> tuple[int, int]:
        batch = lab.batch(b"a", b"b", producer_id=7, producer_epoch=epoch, base_sequence=sequence)
        answer = only(await client.ask(lab.produce("t", batch), 9))
        return answer.error_code, answer.base_offset

    assert [await send(0), await send(2), await send(4)] == [(0, 0), (0, 2), (0, 4)]
    assert [await send(2), await send(0)] == [(0, 2), (0, 0)]
    assert await send(8) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert await send(0, epoch=1) == (0, 6)
    assert await send(6, epoch=0) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert lab.brokers[0].partitions["t", 0].high_watermark == 8


async def test_log_append_time_restamps_the_batch(lab: Any) -> None:
    await lab.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
    now = lab.world.now_ms()
    batch = lab.batch(b"v", timestamp=12345)
    answer = only(await lab.connect().ask(lab.produce("t", batch), 9))
    assert now <= answer.log_append_time_ms <= lab.world.now_ms()
    stored = lab.brokers[0].partitions["t", 0].read(0, 1 << 20, True)
    assert read_header(stored).timestamp_type is TimestampType.LOG_APPEND_TIME
    (record,) = read_records("t", 0, stored)  # checks the CRC
    assert record.timestamp == answer.log_append_time_ms


@pytest.mark.run(brokers=2)
async def test_a_broker_that_does_not_lead_names_the_leader(lab: Any) -> None:
    topic_id = await lab.create_topic("t", partitions=2)
    leader = lab.controller.controller.image.topics["t"].partitions[0].leader
    client = lab.connect(1 - leader)
    request = lab.produce("t", lab.batch(b"v"))
    old = await client.ask(request, 9)
    assert only(old).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    for version in (10, 13):
        request = lab.produce("t", lab.batch(b"v"), topic_id=topic_id)
        response = await client.ask(request, version)
        current = only(response).current_leader
        assert (current.leader_id, current.leader_epoch) == (leader, 0)
        (endpoint,) = response.node_endpoints
        assert (endpoint.node_id, endpoint.port) == (leader, 9092 + leader)
        assert endpoint.rack == "ab"[leader]


async def test_a_missing_partition_is_unknown(lab: Any) -> None:
    await lab.create_topic("t")
    client = lab.connect()
    for topic, partition, version, code in (
        ("other", 0, 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 1, 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0, 13, ErrorCode.UNKNOWN_TOPIC_ID),
    ):
        request = lab.produce(topic, lab.batch(b"v"), partition=partition, topic_id=b"\1" * 16)
        assert only(await client.ask(request, version)).error_code == code
