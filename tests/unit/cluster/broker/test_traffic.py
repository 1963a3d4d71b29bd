"""What a broker counts of the records that it serves (`trimtab.cluster.broker.traffic`)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cluster.broker.replicas import (
    decided,
    followers_of,
    in_sync,
    kill,
    leading,
    send,
    start,
)
from trimtab.cluster.broker.traffic import TopicTraffic, Traffic
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from trimtab.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic


def counted(traffic: TopicTraffic) -> dict[str, int]:
    """What is not zero."""
    found = dict(vars(traffic))
    return {name: value for name, value in found.items() if value}


def traffic(lab: Any, broker: int = 0) -> Traffic:
    found: Traffic = lab.brokers[broker].replicas.traffic
    return found


def fetch(offset: int, min_bytes: int = 1, wait_ms: int = 0, topic: str = "t") -> FetchRequest:
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        session_id=0,
        session_epoch=-1,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
                ],
            )
        ],
        forgotten_topics_data=[],
    )


def test_counts_of_a_topic_stay_in_the_total_when_its_last_replica_goes() -> None:
    traffic = Traffic()
    first, second = traffic.add_replica("t"), traffic.add_replica("t")
    assert first is second
    first.bytes_in = 5
    traffic.add_replica("u").bytes_in = 2
    traffic.drop_replica("t")
    assert traffic.topics["t"] is first
    traffic.drop_replica("t")
    assert [*traffic.topics] == ["u"]
    assert traffic.total().bytes_in == 7
    assert traffic.add_replica("t").bytes_in == 0
    assert traffic.total().bytes_in == 7


@pytest.mark.parametrize(
    ("before", "after", "shrinks", "expands"), [(3, 2, 1, 0), (2, 3, 0, 1), (2, 2, 0, 0)]
)
def test_changes_of_an_isr(before: int, after: int, shrinks: int, expands: int) -> None:
    traffic = TopicTraffic()
    traffic.count_isr(before, after)
    assert (traffic.isr_shrinks, traffic.isr_expands) == (shrinks, expands)


async def test_what_producers_send_is_counted_by_topic(lab: Any) -> None:
    await lab.create_topic("t")
    sizes = [await lab.append("t", b"a", b"b"), await lab.append("t", b"c")]
    assert counted(traffic(lab).topics["t"]) == {
        "bytes_in": sum(sizes),
        "records_in": 3,
        "produces": 2,
        "replicas": 1,
    }


async def test_refusals_count_as_failed_unless_they_are_ordinary(lab: Any) -> None:
    await lab.create_topic("t", config={"max.message.bytes": "1000", "min.insync.replicas": "1"})
    large = lab.batch(bytes(2000))
    client = lab.connect()
    await client.ask(lab.produce("t", large), 9)
    counts = traffic(lab).topics["t"]
    assert counted(counts) == {"bytes_rejected": len(large), "produces": 1, "replicas": 1}
    await client.ask(lab.produce("missing", lab.batch(b"a")), 9)
    assert counted(traffic(lab).others) == {"produces": 1}
    first = await send(lab, b"a", producer_id=7, producer_epoch=0, base_sequence=5)
    assert first.error_code == ErrorCode.NONE
    refused = await send(lab, b"a", producer_id=7, producer_epoch=0, base_sequence=9)
    assert refused.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (counts.failed_produces, counts.produces) == (1, 3)


async def test_what_consumers_get_is_counted_once_also_if_they_wait_for_more(lab: Any) -> None:
    await lab.create_topic("t")
    size = await lab.append("t", b"a")
    client = lab.connect()
    await client.ask(fetch(0, min_bytes=1000, wait_ms=50), 11)
    counts = traffic(lab).topics["t"]
    assert (counts.bytes_out, counts.fetches, counts.failed_fetches) == (size, 1, 0)
    await client.ask(fetch(9), 11)
    await client.ask(fetch(0, topic="missing"), 11)
    assert (counts.bytes_out, counts.fetches, counts.failed_fetches) == (size, 2, 0)
    assert counted(traffic(lab).others) == {}


async def test_a_fetch_that_fails_unexpectedly_is_counted(lab: Any) -> None:
    await lab.create_topic("t")
    await lab.append("t", b"a")
    request = fetch(0)
    request.topics[0].partitions[0].partition_max_bytes = -1
    await lab.connect().ask(request, 11)
    counts = traffic(lab).topics["t"]
    assert (counts.fetches, counts.failed_fetches, counts.bytes_out) == (1, 1, 0)


@pytest.mark.run(brokers=3)
async def test_replicated_bytes_and_changes_of_the_isr(lab: Any) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    size = await lab.append("t", b"a")
    await in_sync(lab)
    leader = decided(lab).leader
    first, second = followers_of(lab)
    out = traffic(lab, leader).topics["t"]
    assert (out.replication_bytes_out, out.bytes_out) == (2 * size, 0)
    for broker in (first, second):
        assert traffic(lab, broker).topics["t"].replication_bytes_in == size
    kill(lab, first)
    await in_sync(lab, 2)
    assert (out.isr_shrinks, out.isr_expands) == (1, 0)
    await start(lab, first)
    await in_sync(lab, 3)
    assert leading(lab).traffic is out
    assert (out.isr_shrinks, out.isr_expands) == (1, 1)


async def test_a_deleted_topic_stays_in_the_total(lab: Any) -> None:
    await lab.create_topic("t")
    size = await lab.append("t", b"a")
    await lab.controller.controller.delete_topics(
        DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
    )
    await lab.brokers[0].metadata.reach(lab.controller.controller.journal.end_offset)
    assert traffic(lab).topics == {}
    assert traffic(lab).total().bytes_in == size
