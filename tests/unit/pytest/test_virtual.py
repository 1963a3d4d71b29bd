"""The clocks of a test in virtual time."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from trimtab.errors import UsageError
from trimtab.pytest.virtual import run_in_virtual_time
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
        with pytest.raises(UsageError, match="not ended within 5 virtual seconds"):
            run_in_virtual_time(world, ask_for_ever(), 5)
        assert 5 <= world.loop.time() < 7
        run_in_virtual_time(world, asyncio.sleep(4), 5)  # counted from its begin
