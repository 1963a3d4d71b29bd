from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator

import pytest

from trimtab.kafka.errors import UsageError
from trimtab.sim.loop import StalledError, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    for task in loop.tasks():
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_time_starts_at_0_and_jumps_to_the_next_timer(loop: VirtualLoop) -> None:
    async def wait() -> list[float]:
        seen = [loop.time()]
        for seconds in (0.5, 86_400.0, 0.0):
            await asyncio.sleep(seconds)
            seen.append(loop.time())
        return seen

    assert loop.run_until_complete(wait()) == [0.0, 0.5, 86_400.5, 86_400.5]


def test_timers_run_by_time_and_then_in_the_order_they_were_set(loop: VirtualLoop) -> None:
    seen: list[str] = []

    async def wait() -> None:
        for number in range(50):
            loop.call_later(2.0, seen.append, f"late {number}")
        for number in range(50):
            loop.call_at(1.0, seen.append, f"early {number}")
        loop.call_at(-5.0, seen.append, "overdue")
        await asyncio.sleep(3.0)

    loop.run_until_complete(wait())
    assert seen == [
        "overdue",
        *(f"early {number}" for number in range(50)),
        *(f"late {number}" for number in range(50)),
    ]


def test_cancelled_timers_neither_run_nor_pile_up(loop: VirtualLoop) -> None:
    seen: list[str] = []

    async def wait() -> None:
        kept = loop.call_later(1.0, seen.append, "kept")
        for _ in range(10_000):
            loop.call_later(60.0, seen.append, "cancelled").cancel()
        loop.call_later(0.5, seen.append, "cancelled").cancel()
        with pytest.raises(UsageError, match=r"uvloop has no when\(\)"):
            kept.when()
        await asyncio.sleep(0.5)
        assert len(loop._timers) < 2_500
        await asyncio.sleep(0.5)

    loop.run_until_complete(wait())
    assert seen == ["kept"]
    assert loop.time() == 1.0


def test_wait_for_timeout_gather_queue_and_event_work(loop: VirtualLoop) -> None:
    async def run() -> list[object]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
        event = asyncio.Event()

        async def produce() -> None:
            for number in range(5):
                await asyncio.sleep(0.1)
                await queue.put(number)
            event.set()

        async def consume() -> list[int]:
            taken = [await queue.get() for _ in range(5)]
            await event.wait()
            return taken

        _, taken = await asyncio.gather(produce(), consume())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 1.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.Event().wait()
        in_time = await asyncio.wait_for(asyncio.sleep(0.25, "in time"), 1.0)
        return [taken, in_time, round(loop.time(), 9)]

    assert loop.run_until_complete(run()) == [[0, 1, 2, 3, 4], "in time", 3.75]


def test_cancellation_reaches_the_innermost_await_and_frees_its_timer(loop: VirtualLoop) -> None:
    seen: list[str] = []

    async def inner() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            seen.append(f"cancelled at {loop.time():g}")

    async def run() -> None:
        task = asyncio.create_task(inner())
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    loop.run_until_complete(run())
    assert seen == ["cancelled at 5"]
    assert loop.time() == 5.0


def test_a_failing_task_group_cancels_its_tasks_in_the_order_of_their_creation() -> None:
    def run() -> list[int]:
        cancelled: list[int] = []

        async def wait(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(number)

        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                for number in range(200):
                    tasks.create_task(wait(number))
                await asyncio.sleep(1)
                raise ValueError("the end")

        loop = VirtualLoop()
        with pytest.raises(ExceptionGroup):
            loop.run_until_complete(group())
        loop.close()
        return cancelled

    first = run()
    garbage = [object() for _ in range(1000)]  # So that addresses differ.
    assert run() == first
    assert sorted(first) == list(range(200))
    del garbage


def test_a_deadlock_is_raised_and_says_who_waits_where(loop: VirtualLoop) -> None:
    async def wait_for_each_other() -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        other = asyncio.create_task(wait_for_each_other(), name="replica fetcher")
        await asyncio.sleep(1.5)
        await other

    with pytest.raises(StalledError) as caught:
        loop.run_until_complete(run())
    text = str(caught.value)
    assert "deadlock at virtual time 1.500000 s" in text
    assert "replica fetcher waits at Event.wait (" in text


def test_a_timer_that_never_comes_is_a_deadlock(loop: VirtualLoop) -> None:
    with pytest.raises(StalledError, match="deadlock at virtual time 0"):
        loop.run_until_complete(asyncio.sleep(math.inf))


def test_spinning_without_a_timer_is_raised(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.sim.loop._TURNS_MAX_AT_ONE_INSTANT", 1000)

    async def spin() -> None:
        await asyncio.sleep(3)
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(StalledError, match=r"1,000 turns .* time 3\.000000 s: a task loops"):
        loop.run_until_complete(spin())


def test_call_soon_threadsafe_is_call_soon_on_the_loops_thread_and_others_end_the_run(
    loop: VirtualLoop,
) -> None:
    seen: list[str] = []
    refused: list[UsageError] = []

    def call() -> None:
        try:
            loop.call_soon_threadsafe(seen.append, "other thread")
        except UsageError as error:
            refused.append(error)

    async def run() -> None:
        loop.call_soon_threadsafe(seen.append, "same thread")
        thread = threading.Thread(target=call, name="intruder")
        thread.start()
        thread.join()
        await loop.create_future()

    with pytest.raises(RuntimeError, match="stopped before Future completed"):
        loop.run_until_complete(run())
    assert seen == ["same thread"]
    assert "'intruder' called into the virtual world" in str(refused[0])


def test_the_outside_is_refused(loop: VirtualLoop) -> None:
    async def run() -> None:
        with pytest.raises(UsageError, match="call the function directly"):
            await loop.run_in_executor(None, print)
        with pytest.raises(UsageError, match="neither TLS nor real sockets"):
            await loop.create_connection(asyncio.Protocol, "a", 1, ssl=True)
        with pytest.raises(UsageError, match="has no network; create a World"):
            await loop.create_connection(asyncio.Protocol, "a", 1)

    loop.run_until_complete(run())


def test_a_closed_loop_refuses_work() -> None:
    loop = VirtualLoop()
    loop.close()
    calls: list[Callable[[], object]] = [
        lambda: loop.call_soon(print),
        lambda: loop.call_later(1, print),
        lambda: loop.call_soon_threadsafe(print),
    ]
    for refused in calls:
        with pytest.raises(RuntimeError, match="closed"):
            refused()
