from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from typing import cast

import pytest

from trimtab.sim.loop import StalledError
from trimtab.sim.world import START_MS, World

ROUND_TRIPS = 50_000


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Ping(asyncio.Protocol):
    """Sends a hundred bytes, and again 11.5 ms after each answer."""

    def __init__(self, times: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.times = times
        self.done = self.loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(bytes(100))

    def data_received(self, data: bytes) -> None:
        self.times -= 1
        if self.times == 0:
            self.done.set_result(None)
        else:
            self.loop.call_later(0.0115, self.transport.write, data)


async def ping(times: int) -> float:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "broker", 9092)
    transport, protocol = await loop.create_connection(lambda: Ping(times), "broker", 9092)
    await protocol.done
    transport.close()
    server.close()
    await server.wait_closed()
    return loop.time()


def test_ten_virtual_minutes_of_round_trips_run_alike_for_the_same_seed() -> None:
    def run(seed: int) -> tuple[float, int, str]:
        with World(seed) as world:
            took = world.run(ping(ROUND_TRIPS))
            return took, world.trace.count, world.trace.hash

    first = run(1)
    assert first[0] > 600
    assert first[1] > 2 * ROUND_TRIPS
    assert run(1) == first
    assert run(2)[2] != first[2]


def test_a_trace_is_the_same_in_another_process() -> None:
    script = f"""
import sys
sys.path[:0] = {[os.path.dirname(__file__), *sys.path]!r}
from test_world import ping
from trimtab.sim.world import World
with World(3) as world:
    world.run(ping(200))
    print(world.trace.hash)
"""
    hashes = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert hashes[0] == hashes[1]
    assert len(hashes[0].strip()) == 32


def test_a_kept_trace_shows_what_happened_in_order() -> None:
    with World(seed=1, keep_trace=True) as world:
        world.run(ping(1))
        world.trace.append("the end")
    events = [line.split(" ", 1)[1] for line in world.trace.lines]
    assert events[0] == "c1 localhost:32768 > broker:9092"
    assert events[1].startswith("c1> 100 ")
    assert events[2].startswith("c1< 100 ")
    assert events[3:] == ["c1> end", "the end"]
    assert world.trace.count == 5


def test_wall_time_and_streams_of_random_numbers_come_from_the_seed() -> None:
    with World(seed=1) as world, World(seed=1) as twin, World(seed=2) as other:
        assert world.now_ms() == START_MS
        world.run(asyncio.sleep(1.5))
        assert world.now_ms() == START_MS + 1500
        assert world.wall_clock() == START_MS / 1000 + 1.5
        assert world.random("a") is world.random("a")
        draws = [world.random("a").random() for _ in range(3)]
        assert twin.random("b").random() not in draws
        assert [twin.random("a").random() for _ in range(3)] == draws
        assert other.random("a").random() not in draws


def test_disks_are_kept_by_name() -> None:
    with World(seed=1) as world:
        world.disk("broker-0").write_file("meta", b"1")
        assert world.disk("broker-0").read_file("meta") == b"1"
        assert world.disk("broker-1").read_file("meta") is None


def test_an_error_carries_the_seed_the_time_and_the_last_events() -> None:
    async def fail() -> None:
        world.trace.append("about to fail")
        await asyncio.sleep(2)
        raise LookupError("no leader")

    with World(seed=42) as world, pytest.raises(LookupError) as caught:
        world.run(fail())
    (note,) = caught.value.__notes__
    assert note.startswith("virtual world: seed 42, at 2.000000 s")
    assert note.endswith("  0.000000 about to fail")


def test_a_task_that_fails_unseen_fails_the_run() -> None:
    async def fail() -> None:
        raise LookupError("nobody looks")

    async def run() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(1)
        del task

    with World(seed=1) as world, pytest.raises(LookupError, match="nobody looks"):
        world.run(run())


def test_a_deadlock_behind_a_failure_raises_the_failure() -> None:
    async def run() -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 / 0)
        await asyncio.Event().wait()

    with World(seed=1) as world, pytest.raises(ZeroDivisionError) as caught:
        world.run(run())
    assert isinstance(caught.value.__context__, StalledError)


def test_what_ends_a_test_ends_a_run_that_would_go_on_for_ever() -> None:
    """pytest-timeout raises pytest's Failed, which is no Exception, wherever the signal arrives."""

    def end() -> None:
        pytest.fail("its time is over")

    async def run() -> None:
        asyncio.get_running_loop().call_later(1, end)
        for second in itertools.count():
            await asyncio.sleep(second)

    with World(seed=1) as world, pytest.raises(pytest.fail.Exception, match="its time is over"):
        world.run(run())


def test_close_cancels_the_tasks_that_are_left_and_lets_them_end() -> None:
    ended: list[str] = []

    async def linger(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            ended.append(name)

    async def start() -> None:
        tasks.extend(asyncio.create_task(linger(name)) for name in ("a", "b"))
        await asyncio.sleep(1)

    tasks: list[asyncio.Task[None]] = []
    with World(seed=1) as world:
        world.run(start())
        assert ended == []
    assert ended == ["a", "b"]
    assert world.loop.is_closed()
    world.close()


def test_a_deadlock_leaves_a_world_that_can_be_closed() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with World(seed=1) as world, pytest.raises(StalledError, match=r"Event\.wait"):
        world.run(wait())
    assert world.loop.is_closed()


def test_close_does_not_wait_for_tasks_that_begin_others_for_ever() -> None:
    world = World(3)
    begun: list[int] = []

    async def again() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            begun.append(1)
            task = asyncio.get_running_loop().create_task(again())
            task.add_done_callback(lambda _: None)

    async def slow() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(50)

    async def run() -> None:
        for coroutine in (again(), slow()):
            asyncio.get_running_loop().create_task(coroutine)
        await asyncio.sleep(1)

    world.run(run())
    with pytest.raises(RuntimeError, match=r"begin others when they are cancelled.*again"):
        world.close()
    assert world.loop.is_closed()
    assert 1 < len(begun) < 100
