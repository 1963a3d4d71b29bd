"""Long work in steps (`trimtab.cluster.server.turns`)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from tests.steps import count_steps
from trimtab.cluster.server.turns import (
    Steps,
    Turns,
    answer_each,
    answer_partitions,
    divide,
    in_turns,
    results_of,
)
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


def test_other_tasks_run_between_two_steps(world: World) -> None:
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
        assert list(await asyncio.gather(first, second)) == ["a", "b"]
        assert len(turns) == 0

    world.run(scenario())
    assert seen == ["a0", "a1", "b0"]


def test_work_that_frees_memory_goes_first(world: World) -> None:
    seen: list[str] = []

    async def scenario() -> None:
        turns = Turns()
        first = turns.run(count(2, "a", seen))
        await asyncio.sleep(0)
        urgent = turns.run(count(2, "b", seen), goes_first=True)
        assert list(await asyncio.gather(first, urgent)) == ["a", "b"]

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


async def test_an_exception_goes_to_the_caller_only(world: World) -> None:
    def faulty() -> Steps[None]:
        yield
        raise ValueError("broken")

    turns = Turns()
    first, second = turns.run(faulty()), turns.run(count(1, "b", []))
    with pytest.raises(ValueError, match="broken"):
        await first
    assert await second == "b"


async def test_steps_can_be_awaited(world: World) -> None:
    assert await in_turns(count(3, "a", [])) == "a"


def test_close_stops_unfinished_work(world: World) -> None:
    seen: list[str] = []

    def steps(name: str) -> Steps[None]:
        try:
            yield from count(9, name, seen)
        finally:
            seen.append(f"{name} closed")

    async def scenario() -> None:
        turns = Turns()
        works = turns.run(steps("a")), turns.run(steps("b"))
        await asyncio.sleep(0)
        turns.close()
        await asyncio.sleep(0)
        assert all(work.cancelled() for work in works)
        assert len(turns) == 0
        assert await turns.run(count(1, "c", seen)) == "c", "it can go on"

    world.run(scenario())
    assert seen == ["a0", "a closed", "c0"]  # "b" had not begun


def test_work_may_close_its_turns_object(world: World) -> None:
    seen: list[str] = []

    async def scenario() -> None:
        turns = Turns()

        def steps() -> Steps[None]:
            turns.close()
            yield
            seen.append("went on")

        first, second = turns.run(steps()), turns.run(count(2, "b", seen))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert first.cancelled()
        assert second.cancelled()

    world.run(scenario())
    assert seen == []


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(5000, 7, 9)
    yield 5000, 7, 9
    gc.set_threshold(*before)


async def test_garbage_is_not_collected_whole_while_large_work_is_done(
    world: World, thresholds: tuple[int, int, int]
) -> None:
    one, other = Turns(), Turns()
    first, second = one.run(count(1, "a", [])), other.run(count(3, "b", []))
    assert gc.get_threshold()[2] > 1_000_000
    await first
    assert gc.get_threshold()[2] > 1_000_000, "the other still runs"
    await second
    assert gc.get_threshold() == thresholds


async def test_gc_thresholds_set_by_a_user_are_kept(
    world: World, thresholds: tuple[int, int, int]
) -> None:
    turns = Turns()
    work = turns.run(count(3, "a", []))
    gc.set_threshold(700, 10, 10)
    more = Turns().run(count(3, "b", []))
    await work
    await more
    assert gc.get_threshold() == (700, 10, 10)
    gc.set_threshold(0, 10, 10)  # off
    work = turns.run(count(1, "c", []))
    assert gc.get_threshold()[0] == 0
    await work
    assert gc.get_threshold() == (0, 10, 10)


@pytest.mark.parametrize("end", ["close", "fault", "cancel"])
def test_garbage_is_collected_as_before_however_the_work_ends(
    world: World, thresholds: tuple[int, int, int], end: str
) -> None:
    def steps() -> Steps[None]:
        yield
        if end == "fault":
            raise ValueError("broken")
        yield

    async def scenario() -> None:
        turns = Turns()
        work = turns.run(steps())
        await asyncio.sleep(0)
        assert gc.get_threshold() != thresholds
        if end == "close":
            turns.close()
        elif end == "cancel":
            work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await asyncio.sleep(0)
        assert gc.get_threshold() == thresholds

    world.run(scenario())


def test_an_interrupt_stops_all_work(thresholds: tuple[int, int, int]) -> None:
    def steps() -> Steps[None]:
        yield
        raise KeyboardInterrupt

    async def scenario() -> None:
        turns = Turns()
        turns.run(steps())
        turns.run(count(1, "a", []))
        await asyncio.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(scenario())
    assert gc.get_threshold() == thresholds


# -- large requests


def test_elements_are_answered_in_order_with_pauses() -> None:
    for elements, pauses in ((0, 0), (199, 0), (200, 1), (1001, 5)):
        steps = answer_each(range(elements), str, "-".join)
        assert count_steps(steps) == (pauses, "-".join(map(str, range(elements))))


def test_no_element_is_answered_before_its_step() -> None:
    answered: list[int] = []
    steps = answer_each(iter(range(500)), answered.append, len)
    for told in (200, 400):
        next(steps)
        assert len(answered) == told


def test_costly_answers_make_more_pauses() -> None:
    steps = answer_each(range(10), str, len, cost=lambda element, _: 150 if element < 4 else 0)
    assert count_steps(steps) == (2, 10)


Asked = tuple[str, list[int]]


def ask(
    topics: list[Asked], costs: dict[str, int] | None = None
) -> tuple[int, list[tuple[str, list[str]]]]:
    return count_steps(
        answer_partitions(
            topics,
            lambda topic: topic[1],
            lambda topic, partition: f"{topic[0]}-{partition}",
            lambda topic, answers: (topic[0], answers),
            list,
            cost=None if costs is None else costs.__getitem__,
        )
    )


def test_partitions_are_answered_in_the_order_of_the_request() -> None:
    pauses, answered = ask([("b", [1, 0]), ("a", []), ("b", [1])])
    assert (pauses, answered) == (0, [("b", ["b-1", "b-0"]), ("a", []), ("b", ["b-1"])])


def test_neither_topics_nor_partitions_make_a_long_step() -> None:
    assert ask([("t", [])] * 1000)[0] == 5
    assert ask([("t", [0])] * 1000)[0] == 10
    many = list(range(1000))
    pauses, answered = ask([("t", many)])
    assert (pauses, answered) == (5, [("t", [f"t-{index}" for index in many])])


def test_a_partition_with_a_long_answer_is_followed_by_a_pause() -> None:
    assert ask([("t", [0, 1, 2, 3])], {"t-0": 200, "t-1": 1, "t-2": 300, "t-3": 1})[0] == 2


def test_elements_are_divided_into_parts() -> None:
    assert divide("abcde", 2) == ["ab", "cd", "e"]
    assert divide("") == []


async def test_other_tasks_run_while_very_many_results_are_collected(world: World) -> None:
    passes = 0

    def count_passes() -> None:
        nonlocal passes
        passes += 1
        asyncio.get_running_loop().call_soon(count_passes)

    async def collect(count: int) -> list[int]:
        asked = [asyncio.get_running_loop().create_future() for _ in range(count)]
        for number, answer in enumerate(asked):
            answer.set_result(number)
        return [each async for each in results_of(asked)]

    count_passes()
    for results, expected in ((200, 0), (201, 1), (1000, 4)):
        before = passes
        assert await collect(results) == list(range(results))
        assert passes - before == expected
