"""Consumers that read from a replica in their rack (KIP-392). Brokers are in racks a, b, c, a, …"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from tests.unit.cluster.broker.replicas import (
    address,
    alter,
    decided,
    in_sync,
    kill,
    leadership,
    move_leader,
    replica,
    send,
    until,
)
from trimtab.kafka.wire.batch_cy import read_records
from trimtab.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

pytestmark = pytest.mark.kip(392)

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
AWARE = {"replica.selector.class": SELECTOR}


async def led_by_1(lab: Lab) -> bytes:
    """Topic t everywhere, with three records; broker 1, in rack b, leads."""
    topic_id = await lab.create_topic("t", replicas=len(lab.brokers))
    await in_sync(lab, len(lab.brokers))
    await move_leader(lab, 1)
    for number in range(3):
        await send(lab, b"%d" % number)
    await in_sync(lab, len(lab.brokers))
    await asyncio.sleep(1)  # until followers know what is committed
    return topic_id


async def fetch(lab: Lab, topic_id: bytes, rack: str, offset: int = 0, to: int = 1) -> Any:
    """The partition's response to a consumer in this rack."""
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic_id=topic_id, partitions=[wanted])],
        rack_id=rack,
    )
    response = await lab.connect(to).ask(request, 13)
    (data,) = response.responses[0].partitions
    assert data.error_code == 0
    return data


def read(data: Any) -> list[bytes | None]:
    return [record.value for record in read_records("t", 0, data.records)]


@pytest.mark.run(brokers=3, config=AWARE)
async def test_a_consumer_is_sent_to_the_replica_in_its_rack_and_reads_there(lab: Lab) -> None:
    topic_id = await led_by_1(lab)
    told = await fetch(lab, topic_id, "c")
    assert (told.preferred_read_replica, len(told.records)) == (2, 0)
    found = await fetch(lab, topic_id, "c", to=2)
    assert (found.preferred_read_replica, read(found)) == (-1, [b"0", b"1", b"2"])
    assert found.high_watermark == 3


@pytest.mark.parametrize(
    ("why", "rack"),
    [("the leader is there", "b"), ("nobody is there", "x"), ("it has none", "")],
)
@pytest.mark.run(brokers=3, config=AWARE)
async def test_a_consumer_stays_with_the_leader_if(lab: Lab, why: str, rack: str) -> None:
    topic_id = await led_by_1(lab)
    found = await fetch(lab, topic_id, rack)
    assert (found.preferred_read_replica, read(found)) == (-1, [b"0", b"1", b"2"])


@pytest.mark.parametrize("selector", [None, "org.apache.kafka.common.replica.LeaderSelector"])
def test_without_a_replica_selector_all_consumers_read_from_the_leader(
    lab: Lab, selector: str | None
) -> None:
    async def scenario() -> None:
        topic_id = await led_by_1(lab)
        assert (await fetch(lab, topic_id, "c")).preferred_read_replica == -1

    lab.run(scenario, brokers=3, config={"replica.selector.class": selector} if selector else {})


@pytest.mark.run(brokers=3, config=AWARE)
async def test_a_replica_that_is_out_of_sync_or_lacks_the_offset_is_not_named(lab: Lab) -> None:
    topic_id = await led_by_1(lab)
    lab.world.network.cut(address(1))
    await send(lab, b"3", acks=1)
    assert (await fetch(lab, topic_id, "c", offset=3)).preferred_read_replica == 2
    assert (await fetch(lab, topic_id, "c", offset=4)).preferred_read_replica == -1
    kill(lab, 2)
    await until(lambda: 2 not in decided(lab).isr)
    await until(lambda: 2 not in leadership(lab).isr)
    assert (await fetch(lab, topic_id, "c")).preferred_read_replica == -1
    lab.world.network.heal()


@pytest.mark.run(brokers=5, config=AWARE)
async def test_a_consumer_in_the_leaders_rack_reads_from_the_leader(lab: Lab) -> None:
    topic_id = await led_by_1(lab)
    assert lab.brokers[4].view.config["broker.rack"] == "b"
    assert (await fetch(lab, topic_id, "b")).preferred_read_replica == -1


@pytest.mark.parametrize("what", ["out of the ISR", "fenced"])
@pytest.mark.run(brokers=3, config=AWARE)
async def test_a_replica_is_not_named_that_is(lab: Lab, what: str) -> None:
    topic_id = await led_by_1(lab)
    if what == "fenced":
        brokers = lab.brokers[1].image.brokers
        brokers[2] = brokers[2]._replace(fenced=True)
    else:
        leadership(lab).isr = (0, 1)
    assert (await fetch(lab, topic_id, "c")).preferred_read_replica == -1
    assert (await fetch(lab, topic_id, "a")).preferred_read_replica == 0


@pytest.mark.run(brokers=4, config=AWARE)
async def test_of_several_in_the_rack_the_highest_end_offset_is_named_then_the_lowest_id(
    lab: Lab,
) -> None:
    topic_id = await led_by_1(lab)
    assert (await fetch(lab, topic_id, "a")).preferred_read_replica == 0
    followers = leadership(lab).followers
    followers[0].end_offset = 2  # as if it were a record behind
    assert (await fetch(lab, topic_id, "a")).preferred_read_replica == 3


@pytest.mark.run(brokers=3, config=AWARE)
async def test_a_follower_returns_only_committed_records_to_consumers(lab: Lab) -> None:
    topic_id = await led_by_1(lab)
    await send(lab, b"3")
    follower = replica(lab, 2)
    assert (follower.log.log_end_offset, follower.high_watermark) == (4, 3)
    assert read(await fetch(lab, topic_id, "c", to=2)) == [b"0", b"1", b"2"]
    await until(lambda: follower.high_watermark == 4)
    assert read(await fetch(lab, topic_id, "c", offset=3, to=2)) == [b"3"]


@pytest.mark.run(brokers=3, config={**AWARE, "log.retention.check.interval.ms": 1000})
async def test_a_consumer_before_a_followers_own_start_is_not_sent_there(lab: Lab) -> None:
    """Each replica applies retention by itself, so log start offsets differ for a while."""
    topic_id = await led_by_1(lab)
    assert (await fetch(lab, topic_id, "c", offset=1)).preferred_read_replica == 2
    await alter(lab, {"log.retention.ms": "1"}, topic=None, broker="2")
    await asyncio.sleep(3)
    assert replica(lab, 2).log.log_start_offset == 3
    assert (await fetch(lab, topic_id, "c", offset=3)).preferred_read_replica == 2
    found = await fetch(lab, topic_id, "c", offset=1)
    assert (found.preferred_read_replica, read(found)) == (-1, [b"1", b"2"])


@pytest.mark.run(brokers=3, config=AWARE)
async def test_an_unregistered_leader_names_no_preferred_replica(lab: Lab) -> None:
    topic_id = await led_by_1(lab)
    del lab.brokers[1].image.brokers[1]  # as UnregisterBroker does
    data = await fetch(lab, topic_id, rack="c")
    assert data.preferred_read_replica == -1
    assert read(data) == [b"0", b"1", b"2"]
