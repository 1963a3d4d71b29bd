from __future__ import annotations

import asyncio
from collections import Counter
from urllib.request import urlopen

import pytest

pytest.importorskip("prometheus_client")

from trimtab.balance.limits import LimitUsage, PartitionLimits
from trimtab.runtime.metrics_server import MetricsServer

USAGE = LimitUsage(PartitionLimits(40, 50), {1: 16}, 16, Counter())


class Measured:
    """Stands for a controller."""

    def limit_usage(self) -> LimitUsage:
        asyncio.get_running_loop()  # as a controller may only be asked on its own
        return USAGE


def test_an_answer_is_made_on_the_controllers_loop() -> None:
    async def scenario() -> None:
        server = MetricsServer(Measured(), "127.0.0.1", 0)  # type: ignore[arg-type]

        def ask() -> str:
            with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as response:
                return str(response.read().decode())

        assert "trimtab_cluster_replicas 16.0" in await asyncio.to_thread(ask)
        await server.close()
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(ask)

    asyncio.run(scenario())
