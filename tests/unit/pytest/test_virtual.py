"""The clocks of a test in virtual time."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from trimtab.kafka.errors import UsageError
from trimtab.pytest.virtual import run_in_virtual_time
from trimtab.sim.loop import StalledError
from trimtab.sim.world import START_MS, World


def test_only_the_thread_of_the_test_is_told_the_virtual_time() -> None:
    began = time.monotonic(), time.time()
    told: list[tuple[float, float]] = []

    async def scenario() -> None:
        await asyncio.sleep(86_400)
        told.append((time.monotonic(), time.time()))
        thread = threading.Thread(target=lambda: told.append((time.monotonic(), time.time())))
        thread.start()
        thread.join()

    with World(seed=1) as world:
        run_in_virtual_time(world, scenario(), 100_000)
    (virtual, virtual_wall), (real, real_wall) = told
    assert 86_400 <= virtual < 86_401
    assert 86_400 <= virtual_wall - START_MS / 1000 < 86_401
    assert 0 <= real - began[0] < 3600
    assert 0 <= real_wall - began[1] < 3600
    assert 0 <= time.monotonic() - began[0] < 3600  # and afterwards this thread as well


def test_code_that_asks_until_the_time_has_come_ends() -> None:
    async def poll() -> None:
        end = time.monotonic() + 0.001
        while time.monotonic() <= end:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with World(seed=1) as world:
        run_in_virtual_time(world, poll(), 1)


def test_a_test_that_waits_for_a_thread_fails() -> None:
    async def wait() -> None:
        loop = asyncio.get_running_loop()
        called: asyncio.Future[None] = loop.create_future()

        def call() -> None:
            with pytest.raises(UsageError, match="called into the virtual world"):
                loop.call_soon_threadsafe(called.set_result, None)

        threading.Thread(target=call, name="client").start()
        while not called.done():  # noqa: ASYNC110
            await asyncio.sleep(1)

    with World(seed=1) as world, pytest.raises(UsageError, match="thread 'client' called into"):
        run_in_virtual_time(world, wait(), 1e12)


def test_a_test_ends_within_its_limit() -> None:
    async def ask_for_ever() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(1)

    with World(seed=1) as world:
        place = rf"waits at {re.escape(__file__)}:\d+"
        with pytest.raises(StalledError, match=f"not ended within 5 virtual seconds.*{place}"):
            run_in_virtual_time(world, ask_for_ever(), 5)
        assert 5 <= world.loop.time() < 7
        run_in_virtual_time(world, asyncio.sleep(4), 5)  # counted from its begin


async def wait_for_an_event() -> None:
    await asyncio.Event().wait()


async def wait_for_tasks() -> None:
    event = asyncio.Event()
    await asyncio.gather(event.wait(), event.wait())


async def wait_for_a_queue() -> None:
    await asyncio.Queue[int]().get()


@pytest.mark.parametrize("wait", [wait_for_an_event, wait_for_tasks, wait_for_a_queue])
def test_a_test_that_nothing_can_wake_fails_though_others_go_on(
    wait: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    async def tick() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(1)

    with World(seed=1) as world:
        ticking = world.loop.create_task(tick())
        with pytest.raises(StalledError, match=rf"waits at {re.escape(__file__)}:\d+: no timer"):
            run_in_virtual_time(world, wait(), None)
        assert world.loop.time() < 200
        ticking.cancel()


async def wait_for_a_timer() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(10_000, event.set)
    await event.wait()


async def wait_for_a_task() -> None:
    event = asyncio.Event()

    async def set_later() -> None:
        await asyncio.sleep(10_000)
        event.set()

    setting = asyncio.create_task(set_later())
    await event.wait()
    await setting


async def wait_for_its_time() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10_000):
            await asyncio.Event().wait()


async def wait_for_a_connection() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(10_000)
        writer.write(b"!")
        writer.close()

    server = await asyncio.start_server(answer, "node", 9092)
    reader, writer = await asyncio.open_connection("node", 9092)
    assert await reader.read() == b"!"
    writer.close()
    server.close()


@pytest.mark.parametrize(
    "wait", [wait_for_a_timer, wait_for_a_task, wait_for_its_time, wait_for_a_connection]
)
def test_a_test_that_something_can_wake_goes_on(
    wait: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    with World(seed=1) as world:
        run_in_virtual_time(world, wait(), None)
        assert world.loop.time() >= 10_000
