"""Sessions in virtual time: how they end, and when a broker counts as dead."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from trimtab.cluster.controller.sessions import Sessions
from trimtab.sim.world import World

BROKER, EPOCH = 1, 100
OPEN, OTHER = object(), object()
"""Connections."""


class SessionCase:
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
def case() -> Iterator[SessionCase]:
    with World(seed=1) as world:
        case = SessionCase(world)
        yield case
        case.do("close")


def test_a_session_ends_after_its_timeout(case: SessionCase) -> None:
    case.do("touch", BROKER, EPOCH, OPEN)
    case.pass_time(8)
    case.do("touch", BROKER, EPOCH, OPEN)
    case.pass_time(8.9)
    assert (case.ended, case.sessions.is_connected(BROKER, EPOCH)) == ([], True)
    case.pass_time(0.2)
    assert case.ended == [(17, BROKER, "its session timed out")]
    assert not case.sessions.is_connected(BROKER, EPOCH)


def test_a_dropped_session_does_not_end_by_itself(case: SessionCase) -> None:
    case.do("touch", BROKER, EPOCH, OPEN)
    case.do("drop", BROKER)
    case.do("touch", 2, EPOCH, OTHER)
    case.do("close")
    case.pass_time(60)
    assert case.ended == []


def test_a_refused_connection_after_a_lost_one_ends_it_at_once(case: SessionCase) -> None:
    case.do("touch", BROKER, EPOCH, OPEN)
    case.do("touch", 2, EPOCH, OTHER)
    case.pass_time(1)
    case.refused = True
    case.do("lost", OPEN)
    case.pass_time(1)
    ((at, number, reason),) = case.ended
    assert (at, number) == (1.01, BROKER)
    assert "refuses" in reason
    assert case.probes == [(1, "host1", 9092)]


def test_a_lost_connection_alone_proves_nothing(case: SessionCase) -> None:
    case.do("touch", BROKER, EPOCH, OPEN)
    case.do("lost", OPEN)
    case.pass_time(8.9)
    assert case.ended == []
    assert 30 < len(case.probes) < 50
    case.pass_time(0.2)
    assert case.ended == [(9, BROKER, "its session timed out")]
    probes = len(case.probes)
    case.pass_time(5)
    assert len(case.probes) == probes


def test_the_address_is_probed_again_while_the_process_dies(case: SessionCase) -> None:
    case.do("touch", BROKER, EPOCH, OPEN)
    case.do("lost", OPEN)
    case.pass_time(0.5)
    case.refused = True
    case.pass_time(0.5)
    assert [number for _, number, _ in case.ended] == [BROKER]


def test_the_first_probes_come_quickly(case: SessionCase) -> None:
    case.do("touch", BROKER, EPOCH, OPEN)
    case.do("lost", OPEN)
    case.pass_time(0.015)
    case.refused = True
    case.pass_time(0.035)
    assert [number for _, number, _ in case.ended] == [BROKER]


def test_a_broker_that_reconnects_is_not_probed(case: SessionCase) -> None:
    case.do("touch", BROKER, EPOCH, OPEN)
    case.do("lost", OPEN)
    assert not case.sessions.is_connected(BROKER, EPOCH)
    case.pass_time(0.5)
    case.do("touch", BROKER, EPOCH, OTHER)
    case.refused = True
    case.do("lost", OPEN)  # the broker has a newer connection
    case.pass_time(5)
    assert (case.ended, case.sessions.is_connected(BROKER, EPOCH)) == ([], True)


def test_another_incarnation_has_a_session_of_its_own(case: SessionCase) -> None:
    case.do("touch", BROKER, EPOCH, OPEN)
    case.pass_time(5)
    case.do("touch", BROKER, EPOCH + 1, OTHER)
    assert not case.sessions.is_connected(BROKER, EPOCH)
    assert case.sessions.is_connected(BROKER, EPOCH + 1)
    case.pass_time(8)
    assert case.ended == []


def test_a_session_without_a_connection_is_not_taken(case: SessionCase) -> None:
    case.do("touch", BROKER, EPOCH)
    assert not case.sessions.is_connected(BROKER, EPOCH)
    case.pass_time(10)
    assert [number for _, number, _ in case.ended] == [BROKER]
