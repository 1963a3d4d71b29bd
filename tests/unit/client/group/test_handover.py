"""Changes of partitions between a membership and the poll that carries them out."""

from __future__ import annotations

import asyncio

from trimtab.client.group.handover import Change, Handover, Kind
from trimtab.records import TopicPartition
from trimtab.sim.world import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_a_change_waits_for_the_poll_and_then_counts(world: World) -> None:
    handover = Handover()
    woken: list[bool] = []
    handover.on_due = lambda: woken.append(handover.is_due)
    offering = asyncio.create_task(handover.offer(Change(Kind.ASSIGNED, frozenset({T0, T1}))))
    await asyncio.sleep(10)
    assert woken == [True]
    assert not offering.done()
    assert handover.owned == frozenset()
    handover.carried_out()
    assert not handover.is_due
    await offering
    assert handover.owned == {T0, T1}
    for kind in (Kind.REVOKED, Kind.LOST):
        offering = asyncio.create_task(handover.offer(Change(kind, frozenset({T0}))))
        await asyncio.sleep(0)
        handover.carried_out()
        await offering
        assert handover.owned == {T1}


async def test_a_membership_that_ends_withdraws_its_change(world: World) -> None:
    handover = Handover()
    offering = asyncio.create_task(handover.offer(Change(Kind.ASSIGNED, frozenset({T0}))))
    await asyncio.sleep(0)
    offering.cancel()
    await asyncio.gather(offering, return_exceptions=True)
    assert handover.change is None
    handover.carried_out()  # by a poll that had just begun
    assert handover.owned == frozenset()


def test_the_time_without_a_poll() -> None:
    handover = Handover()
    handover.is_polled = True
    assert handover.seconds_without_poll(100.0) == 0
    assert handover.seconds_without_poll(130.0) == 30
    handover.is_polled = True
    assert handover.seconds_without_poll(140.0) == 0
