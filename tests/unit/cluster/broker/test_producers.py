"""DescribeProducers (`trimtab.cluster.broker.handlers.producers`, KIP-664)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest

pytestmark = pytest.mark.kip(664)


async def describe(lab: Lab, topic: str, partition: int, broker: int = 0) -> Any:
    request = DescribeProducersRequest(
        topics=[TopicRequest(name=topic, partition_indexes=[partition])]
    )
    response = await lab.connect(broker).ask(request, 0)
    assert response.topics[0].name == topic
    (found,) = response.topics[0].partitions
    assert found.partition_index == partition
    return found


async def test_each_producer_is_described_with_its_last_batch(lab: Lab) -> None:
    await lab.create_topic("t")
    await lab.append("t", b"of nobody")
    client = lab.connect()
    for values, timestamp, producer_id, epoch, sequence in (
        ((b"a", b"b"), 1_000_000, 7, 0, 0),
        ((b"c",), 3_000_000, 7, 0, 2),
        ((b"d",), 2_000_000, 8, 3, 0),
    ):
        batch = lab.batch(
            *values,
            timestamp=timestamp,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        answer = await client.ask(lab.produce("t", batch), 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    found = await describe(lab, "t", 0)
    assert found.error_code == ErrorCode.NONE
    assert [
        (each.producer_id, each.producer_epoch, each.last_sequence, each.last_timestamp)
        for each in found.active_producers
    ] == [(7, 0, 2, 3_000_000), (8, 3, 0, 2_000_000)]
    assert all(
        (each.coordinator_epoch, each.current_txn_start_offset) == (-1, -1)
        for each in found.active_producers
    )


@pytest.mark.run(brokers=2)
async def test_a_follower_describes_its_producers(lab: Lab) -> None:
    await lab.create_topic("t", replicas=2)
    leader = lab.controller.controller.image.topics["t"].partitions[0].leader
    batch = lab.batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    await lab.connect(leader).ask(lab.produce("t", batch, acks=-1), 9)
    found = await describe(lab, "t", 0, broker=1 - leader)
    assert [each.producer_id for each in found.active_producers] == [7]


@pytest.mark.parametrize(
    ("topic", "partition", "code"),
    [
        ("unknown", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
@pytest.mark.run(brokers=2)
async def test_a_partition_on_other_brokers_is_an_error(
    lab: Lab, topic: str, partition: int, code: ErrorCode
) -> None:
    await lab.create_topic("t")
    leader = lab.controller.controller.image.topics["t"].partitions[0].leader
    found = await describe(lab, topic, partition, broker=1 - leader)
    assert (found.error_code, found.active_producers) == (code, [])
