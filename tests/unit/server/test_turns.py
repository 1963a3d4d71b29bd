"""Work that is done a step at a time (`trimtab.server.turns`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from trimtab.server.turns import Steps, Turns, in_turns
from trimtab.sim.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=1) as world:
        yield world


def count(steps: int, name: str, seen: list[str]) -> Steps[str]:
    for number in range(steps):
        seen.append(f"{name}{number}")
        yield
    return name


def test_others_have_their_turn_between_two_steps(world: World) -> None:
    seen: list[str] = []

    async def scenario() -> None:
        done = Turns().run(count(3, "a", seen))
        while not done.done():
            seen.append("other")
            await asyncio.sleep(0)
        assert done.result() == "a"

    world.run(scenario())
    assert seen[:6] == ["other", "a0", "other", "a1", "other", "a2"]


def test_one_piece_of_work_is_finished_before_the_next_is_begun(world: World) -> None:
    seen: list[str] = []

    async def scenario() -> None:
        turns = Turns()
        first, second = turns.run(count(2, "a", seen)), turns.run(count(1, "b", seen))
        assert len(turns) == 2
        assert await asyncio.gather(first, second) == ["a", "b"]
        assert len(turns) == 0

    world.run(scenario())
    assert seen == ["a0", "a1", "b0"]


def test_what_frees_memory_goes_first(world: World) -> None:
    seen: list[str] = []

    async def scenario() -> None:
        turns = Turns()
        first = turns.run(count(2, "a", seen))
        await asyncio.sleep(0)
        urgent = turns.run(count(2, "b", seen), goes_first=True)
        assert await asyncio.gather(first, urgent) == ["a", "b"]

    world.run(scenario())
    assert seen == ["a0", "b0", "b1", "a1"]


def test_cancelled_work_ends_where_it_is_and_the_next_goes_on(world: World) -> None:
    seen: list[str] = []

    def steps() -> Steps[None]:
        try:
            yield from count(9, "a", seen)
        finally:
            seen.append("closed")

    async def scenario() -> None:
        turns = Turns()
        first, second = turns.run(steps()), turns.run(count(1, "b", seen))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == "b"

    world.run(scenario())
    assert seen == ["a0", "closed", "b0"]


def test_a_fault_is_told_to_who_asked_and_to_nobody_else(world: World) -> None:
    def faulty() -> Steps[None]:
        yield
        raise ValueError("broken")

    async def scenario() -> None:
        turns = Turns()
        first, second = turns.run(faulty()), turns.run(count(1, "b", []))
        with pytest.raises(ValueError, match="broken"):
            await first
        assert await second == "b"

    world.run(scenario())


def test_steps_can_be_awaited(world: World) -> None:
    async def scenario() -> None:
        assert await in_turns(count(3, "a", [])) == "a"

    world.run(scenario())
