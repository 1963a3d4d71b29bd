"""Members that are closed while their coordinator does not answer (KAFKA-17734)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.group.test_group_consumer import QUICK, both, consumer, fill, read
from tests.unit.cluster.broker.conftest import Lab, lab
from trimtab.kafka.errors import Unavailable
from trimtab.sim.network import ANY

__all__ = ["lab"]


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "commits-nothing"])
@both
def test_a_member_with_a_silent_coordinator_is_closed_in_time(
    lab: Lab, protocol: dict[str, Any], commits: bool
) -> None:
    async def scenario() -> None:
        await fill(lab)
        options: dict[str, Any] = {
            "default_api_timeout_ms": 3_000,
            "enable_auto_commit": commits,
        }
        one = consumer(lab, **protocol, **options)
        one.subscribe(["t"])
        assert len(await read(one, 40)) == 40
        lab.world.network.cut(ANY, ANY)
        begin = lab.world.loop.time()
        try:
            await one.close()
        except Unavailable:
            assert commits
        assert lab.world.loop.time() - begin < 6.5, "3 s for the commit, 3 s to leave"
        lab.world.network.heal()

    lab.run(scenario, config=QUICK)
