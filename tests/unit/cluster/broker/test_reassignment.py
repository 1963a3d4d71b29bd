"""Reassignments (KIP-455): new replicas copy the partition before old ones drop it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from tests.unit.cluster.broker.replicas import (
    address,
    decided,
    in_sync,
    kill,
    leader_of,
    leading,
    reassign,
    replica,
    send,
    start,
    stored,
    until,
    values,
)
from trimtab.kafka.errors import ErrorCode

pytestmark = pytest.mark.kip(455)


async def topic_on(lab: Lab, *brokers: int, records: int = 5) -> None:
    """Topic t on these brokers, the first of which leads."""
    await lab.create_topic("t", replicas=len(brokers))
    await reassign(lab, list(brokers))
    await until(lambda: decided(lab).replicas == brokers and leader_of(lab) in brokers)
    await in_sync(lab, len(brokers))
    for number in range(records):
        assert (await send(lab, b"%d" % number)).error_code == 0


def has_log(lab: Lab, broker: int) -> bool:
    return "t-0" in lab.world.disk(f"broker-{broker}").list("")


@pytest.mark.run(brokers=3)
async def test_an_added_replica_gets_all_records_of_the_leader(lab: Lab) -> None:
    await topic_on(lab, 0)
    await reassign(lab, [0, 1, 2])
    await until(lambda: not decided(lab).is_reassigning)
    await in_sync(lab)
    assert decided(lab).replicas == (0, 1, 2)
    assert stored(replica(lab, 2)) == stored(replica(lab, 0))


@pytest.mark.run(brokers=3)
async def test_a_removed_replica_is_deleted(lab: Lab) -> None:
    await topic_on(lab, 0, 1, 2)
    assert has_log(lab, 2)
    await reassign(lab, [0, 1])
    await until(lambda: ("t", 0) not in lab.brokers[2].partitions)
    assert not has_log(lab, 2)
    await in_sync(lab, 2)
    answer = await send(lab, b"v", to=2)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.run(brokers=4, config={"min.insync.replicas": 2})
async def test_a_partition_moves_while_it_is_written(lab: Lab) -> None:
    await topic_on(lab, 0, 1, records=0)
    sent: list[bytes] = []
    who: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}

    async def write() -> None:
        in_doubt = False
        while in_doubt or decided(lab).replicas != (2, 3):
            answer = await send(lab, b"%d" % len(sent), base_sequence=len(sent), **who)
            in_doubt = answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            if in_doubt:
                await asyncio.sleep(0.01)
            else:
                assert answer.error_code == 0
                sent.append(b"%d" % len(sent))

    writing = asyncio.ensure_future(write())
    await asyncio.sleep(0.2)
    await reassign(lab, [2, 3])
    await writing
    await in_sync(lab, 2)
    assert len(sent) > 50
    assert values(leading(lab)) == sent
    assert leader_of(lab) in (2, 3)
    await until(lambda: not has_log(lab, 0) and not has_log(lab, 1))


@pytest.mark.run(brokers=3)
async def test_the_old_replicas_stay_until_the_copy_is_complete(lab: Lab) -> None:
    await topic_on(lab, 0, 1)
    kill(lab, 2)
    await until(lambda: lab.controller.controller.image.brokers[2].fenced)
    await reassign(lab, [0, 2])
    await asyncio.sleep(20)
    assert decided(lab).replicas == (0, 2, 1)
    assert (decided(lab).adding_replicas, decided(lab).removing_replicas) == ((2,), (1,))
    assert (await send(lab, b"meanwhile")).error_code == 0
    await start(lab, 2)
    await until(lambda: decided(lab).replicas == (0, 2))
    await in_sync(lab, 2)
    assert values(replica(lab, 2))[-1] == b"meanwhile"


@pytest.mark.run(brokers=3)
async def test_a_reassignment_that_is_cancelled_leaves_the_old_replicas(lab: Lab) -> None:
    await topic_on(lab, 0, 1)
    lab.world.network.cut(address(leader_of(lab)))
    await reassign(lab, [2, 1])
    await until(lambda: ("t", 0) in lab.brokers[2].partitions)
    await reassign(lab, None)
    await until(lambda: ("t", 0) not in lab.brokers[2].partitions)
    lab.world.network.heal()
    assert sorted(decided(lab).replicas) == [0, 1]
    await in_sync(lab, 2)
    assert (await send(lab, b"v")).error_code == 0


@pytest.mark.run(brokers=3)
async def test_a_partition_that_is_moved_back_is_copied_again(lab: Lab) -> None:
    await topic_on(lab, 0, 1)
    for target in ([0, 2], [0, 1]):
        await reassign(lab, target)
        await until(partial(lambda target: decided(lab).replicas == tuple(target), target))
        await send(lab, b"at %d" % target[1])
        await in_sync(lab, 2)
        assert stored(replica(lab, target[1])) == stored(replica(lab, 0))


@pytest.mark.run(brokers=3)
async def test_the_leader_may_be_removed(lab: Lab) -> None:
    await topic_on(lab, 0, 1)
    client: Any = lab.connect(0)
    await reassign(lab, [1, 2], broker=1)
    await until(lambda: decided(lab).replicas == (1, 2))
    await until(lambda: ("t", 0) not in lab.brokers[0].partitions)
    assert leader_of(lab) == 1
    request = lab.produce("t", lab.batch(b"v"), acks=-1)
    response = await client.ask(request, 10)
    (part,) = response.responses[0].partition_responses
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (part.current_leader.leader_id, len(response.node_endpoints)) == (1, 1)
    await in_sync(lab, 2)
