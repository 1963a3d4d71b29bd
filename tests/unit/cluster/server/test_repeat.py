"""Work from time to time (`trimtab.cluster.server.repeat`), in virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from trimtab.cluster.server.repeat import repeat
from trimtab.sim.world import World


@pytest.mark.parametrize("is_async", [True, False])
def test_an_error_ends_this_times_work_only(
    is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[float] = []

    def work() -> None:
        called.append(asyncio.get_running_loop().time())
        if len(called) in (1, 3):
            raise RuntimeError("out of luck")

    async def work_later() -> None:
        work()

    async def scenario() -> None:
        task = asyncio.ensure_future(repeat(10, work_later if is_async else work, "the work"))
        await asyncio.sleep(45)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with caplog.at_level(logging.ERROR), World(seed=1) as world:
        world.run(scenario())
    assert called == [10, 20, 30, 40]
    assert [each.message for each in caplog.records] == [
        "the work failed; it is tried again in 10 s"
    ] * 2
