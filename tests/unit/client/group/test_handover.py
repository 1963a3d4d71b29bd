"""Changes of partitions between a membership and the poll that carries them out."""

from __future__ import annotations

import asyncio

from trimtab.client.group.handover import Change, Handover, Kind
from trimtab.kafka.records import TopicPartition
from trimtab.sim.world import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_a_change_waits_for_the_poll_and_then_counts(world: World) -> None:
    handover = Handover()
    woken: list[bool] = []
    handover.on_due = lambda: woken.append(handover.is_due)
    change = Change(Kind.ASSIGNED, frozenset({T0, T1}))
    offering = asyncio.create_task(handover.offer(change))
    await asyncio.sleep(10)
    assert woken == [True]
    assert not offering.done()
    assert handover.owned == frozenset()
    handover.carried_out(change)
    assert not handover.is_due
    await offering
    assert handover.owned == {T0, T1}
    for kind, left in ((Kind.REVOKED, {T1}), (Kind.LOST, set())):
        change = Change(kind, frozenset({T0}))
        offering = asyncio.create_task(handover.offer(change))
        await asyncio.sleep(0)
        handover.carried_out(change)
        await offering
        assert handover.owned == left


async def test_what_a_poll_has_begun_counts_although_the_change_was_withdrawn(world: World) -> None:
    """The membership has ended meanwhile, and the partitions are lost: that is still to be done."""
    handover = Handover()
    assigned = Change(Kind.ASSIGNED, frozenset({T0}))
    offering = asyncio.create_task(handover.offer(assigned))
    await asyncio.sleep(0)
    offering.cancel()
    await asyncio.gather(offering, return_exceptions=True)
    assert handover.change is None
    lost = Change(Kind.LOST, handover.owned)
    offering = asyncio.create_task(handover.offer(lost))
    await asyncio.sleep(0)
    handover.carried_out(assigned)
    assert handover.owned == {T0}
    assert handover.change is lost
    handover.carried_out(lost)
    await offering
    assert handover.owned == frozenset()


def test_the_time_without_a_poll() -> None:
    handover = Handover()
    handover.is_polled = True
    assert handover.seconds_without_poll(100.0) == 0
    assert handover.seconds_without_poll(130.0) == 30
    handover.is_polled = True
    assert handover.seconds_without_poll(140.0) == 0
