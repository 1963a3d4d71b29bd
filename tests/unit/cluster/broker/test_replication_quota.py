"""The quota of throttled replication (`trimtab.cluster.broker.replication_quota`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from tests.unit.cluster.broker.replicas import (
    alter,
    decided,
    followers_of,
    in_sync,
    kill,
    leader_of,
    reassign,
    replica,
    send,
    start,
    until,
)
from trimtab.cluster.broker.replication_quota import ReplicationQuota, lists_replica

LEADERS, FOLLOWERS = "leader.replication.throttled", "follower.replication.throttled"


@pytest.mark.kip(73)
def test_eleven_seconds_may_take_eleven_times_the_rate() -> None:
    quota = ReplicationQuota()
    assert not quota.is_exceeded(0, 100.0)
    quota.record(600, 100.0)
    quota.record(500, 105.9)
    assert not quota.is_exceeded(100, 106)
    quota.record(1, 110.9)
    assert quota.is_exceeded(100, 110.9)


def test_bytes_older_than_eleven_seconds_do_not_count() -> None:
    quota = ReplicationQuota()
    quota.record(1101, 100.5)
    assert quota.is_exceeded(100, 110.9)
    assert not quota.is_exceeded(100, 111.0)
    quota.record(1100, 111.0)
    assert not quota.is_exceeded(100, 111.0)


def test_a_raised_limit_applies_at_once() -> None:
    quota = ReplicationQuota()
    quota.record(2000, 1.0)
    assert quota.is_exceeded(100, 1.0)
    assert not quota.is_exceeded(200, 1.0)


@pytest.mark.parametrize(
    ("throttled", "is_listed"),
    [
        ((), False),
        (("*",), True),
        (("3:7",), True),
        (("1:2", "3:7"), True),
        (("7:3",), False),
        (("3:70", "13:7"), False),
    ],
)
def test_a_replica_is_throttled_if_it_is_listed(
    throttled: tuple[str, ...], is_listed: bool
) -> None:
    assert lists_replica(throttled, partition=3, broker_id=7) == is_listed


# -- a follower that comes back has 40 records of 1 KB to copy


async def return_throttled(lab: Lab, throttle: dict[str, str], rate: str) -> float:
    """Seconds until the follower is in sync, at 500 bytes a second."""
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    away = followers_of(lab)[0]
    kill(lab, away)
    await until(lambda: away not in decided(lab).isr)
    await asyncio.sleep(30.1)  # longer than the lag limit, so that commits do not wait for it
    for _ in range(40):
        await send(lab, b"v" * 1000, acks=1)
    await alter(lab, throttle)
    await alter(lab, {rate: "500"}, topic=None)
    began = lab.world.loop.time()
    await start(lab, away, SMALL)
    # Others are not held up: the leader and the one that is in sync.
    answer = await send(lab, b"v")
    assert answer.error_code == 0
    assert lab.world.loop.time() - began < 1
    await until(lambda: away in decided(lab).isr, limit_s=200)
    return float(lab.world.loop.time() - began)


SMALL = {"replica.fetch.response.max.bytes": 2000}


@pytest.mark.parametrize(
    ("side", "rate"), [(LEADERS, f"{LEADERS}.rate"), (FOLLOWERS, f"{FOLLOWERS}.rate")]
)
@pytest.mark.kip(73)
@pytest.mark.run(brokers=3)
async def test_a_follower_that_catches_up_keeps_to_the_rate(lab: Lab, side: str, rate: str) -> None:
    took_s = await return_throttled(lab, {f"{side}.replicas": "*"}, rate)
    # 43 KB: the bytes of 11 seconds come at once, the rest at the rate.
    assert 60 < took_s < 100


@pytest.mark.run(brokers=3)
async def test_only_listed_replicas_are_throttled(lab: Lab) -> None:
    other = {f"{LEADERS}.replicas": "1:0,1:1,1:2", f"{FOLLOWERS}.replicas": "1:0"}
    assert await return_throttled(lab, other, f"{LEADERS}.rate") < 2


@pytest.mark.kip(455)
@pytest.mark.run(brokers=3, config=SMALL)
async def test_a_throttled_reassignment_ends_sooner_when_the_throttle_does(lab: Lab) -> None:
    await lab.create_topic("t")
    for _ in range(40):
        await send(lab, b"v" * 1000, acks=1)
    first = leader_of(lab)
    target = (first + 1) % 3
    await alter(lab, {f"{LEADERS}.replicas": f"0:{first}", f"{FOLLOWERS}.replicas": "*"})
    for side in (LEADERS, FOLLOWERS):
        await alter(lab, {f"{side}.rate": "100"}, topic=None, broker=str(first))
        await alter(lab, {f"{side}.rate": "100"}, topic=None, broker=str(target))
    await reassign(lab, [target])
    await asyncio.sleep(30)
    assert decided(lab).adding_replicas == (target,)
    assert 0 < copied(lab, target) < 40
    for side in (LEADERS, FOLLOWERS):
        await alter(lab, {f"{side}.rate": None}, topic=None, broker=str(first))
        await alter(lab, {f"{side}.rate": None}, topic=None, broker=str(target))
    await until(lambda: decided(lab).replicas == (target,), limit_s=5)
    assert copied(lab, target) == 40


def copied(lab: Any, broker: int) -> int:
    end: int = replica(lab, broker).log.log_end_offset
    return end
