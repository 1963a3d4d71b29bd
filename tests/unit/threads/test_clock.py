"""The clocks that are handed in."""

from __future__ import annotations

import asyncio

from trimtab.threads.clock import monotonic_clock, wall_clock, wall_clock_ms
from trimtab.threads.event_loop import new_event_loop


def test_both_wall_clocks_agree() -> None:
    before = int(wall_clock() * 1000)
    assert before <= wall_clock_ms() <= int(wall_clock() * 1000) + 1


def test_the_monotonic_clock_is_the_loops_clock() -> None:
    async def loop_time() -> float:
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        before = monotonic_clock()
        # uvloop counts whole milliseconds.
        assert before - 0.002 <= runner.run(loop_time()) <= monotonic_clock() + 0.002
