"""Sessions in virtual time: how they end, and when a broker counts as dead."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from trimtab.controller.sessions import Sessions
from trimtab.sim.world import World

BROKER, EPOCH = 1, 100
OPEN, OTHER = object(), object()
"""Connections."""


class Desk:
    """Sessions of 9 s, with a probe that returns `refused`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.refused = False
        self.probes: list[tuple[float, str, int]] = []
        self.ended: list[tuple[float, int, str]] = []
        self.sessions = Sessions(9, self._probe, lambda number: (f"host{number}", 9092), self._end)

    async def _probe(self, host: str, port: int) -> bool:
        self.probes.append((self.world.loop.time(), host, port))
        await asyncio.sleep(0.01)
        return self.refused

    def _end(self, number: int, reason: str) -> None:
        self.ended.append((round(self.world.loop.time(), 2), number, reason))

    def pass_time(self, seconds: float) -> None:
        self.world.run(asyncio.sleep(seconds))

    def do(self, method: str, *arguments: object) -> None:
        async def do() -> None:
            getattr(self.sessions, method)(*arguments)

        self.world.run(do())


@pytest.fixture
def desk() -> Iterator[Desk]:
    with World(seed=1) as world:
        desk = Desk(world)
        yield desk
        desk.do("close")


def test_a_session_ends_after_its_timeout(desk: Desk) -> None:
    desk.do("touch", BROKER, EPOCH, OPEN)
    desk.pass_time(8)
    desk.do("touch", BROKER, EPOCH, OPEN)
    desk.pass_time(8.9)
    assert (desk.ended, desk.sessions.is_connected(BROKER, EPOCH)) == ([], True)
    desk.pass_time(0.2)
    assert desk.ended == [(17, BROKER, "its session timed out")]
    assert not desk.sessions.is_connected(BROKER, EPOCH)


def test_a_dropped_session_does_not_end_by_itself(desk: Desk) -> None:
    desk.do("touch", BROKER, EPOCH, OPEN)
    desk.do("drop", BROKER)
    desk.do("touch", 2, EPOCH, OTHER)
    desk.do("close")
    desk.pass_time(60)
    assert desk.ended == []


def test_a_refused_connection_after_a_lost_one_ends_it_at_once(desk: Desk) -> None:
    desk.do("touch", BROKER, EPOCH, OPEN)
    desk.do("touch", 2, EPOCH, OTHER)
    desk.pass_time(1)
    desk.refused = True
    desk.do("lost", OPEN)
    desk.pass_time(1)
    ((at, number, reason),) = desk.ended
    assert (at, number) == (1.01, BROKER)
    assert "refuses" in reason
    assert desk.probes == [(1, "host1", 9092)]


def test_a_lost_connection_alone_proves_nothing(desk: Desk) -> None:
    desk.do("touch", BROKER, EPOCH, OPEN)
    desk.do("lost", OPEN)
    desk.pass_time(8.9)
    assert desk.ended == []
    assert 30 < len(desk.probes) < 50
    desk.pass_time(0.2)
    assert desk.ended == [(9, BROKER, "its session timed out")]
    probes = len(desk.probes)
    desk.pass_time(5)
    assert len(desk.probes) == probes


def test_the_address_is_probed_again_while_the_process_dies(desk: Desk) -> None:
    desk.do("touch", BROKER, EPOCH, OPEN)
    desk.do("lost", OPEN)
    desk.pass_time(0.5)
    desk.refused = True
    desk.pass_time(0.5)
    assert [number for _, number, _ in desk.ended] == [BROKER]


def test_the_first_probes_come_quickly(desk: Desk) -> None:
    desk.do("touch", BROKER, EPOCH, OPEN)
    desk.do("lost", OPEN)
    desk.pass_time(0.015)
    desk.refused = True
    desk.pass_time(0.035)
    assert [number for _, number, _ in desk.ended] == [BROKER]


def test_a_broker_that_reconnects_is_not_probed(desk: Desk) -> None:
    desk.do("touch", BROKER, EPOCH, OPEN)
    desk.do("lost", OPEN)
    assert not desk.sessions.is_connected(BROKER, EPOCH)
    desk.pass_time(0.5)
    desk.do("touch", BROKER, EPOCH, OTHER)
    desk.refused = True
    desk.do("lost", OPEN)  # the broker has a newer connection
    desk.pass_time(5)
    assert (desk.ended, desk.sessions.is_connected(BROKER, EPOCH)) == ([], True)


def test_another_incarnation_has_a_session_of_its_own(desk: Desk) -> None:
    desk.do("touch", BROKER, EPOCH, OPEN)
    desk.pass_time(5)
    desk.do("touch", BROKER, EPOCH + 1, OTHER)
    assert not desk.sessions.is_connected(BROKER, EPOCH)
    assert desk.sessions.is_connected(BROKER, EPOCH + 1)
    desk.pass_time(8)
    assert desk.ended == []


def test_a_session_without_a_connection_is_not_taken(desk: Desk) -> None:
    desk.do("touch", BROKER, EPOCH)
    assert not desk.sessions.is_connected(BROKER, EPOCH)
    desk.pass_time(10)
    assert [number for _, number, _ in desk.ended] == [BROKER]
