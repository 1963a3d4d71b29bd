"""The HTTP endpoint of a controller's process for Prometheus: needs prometheus_client."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, start_http_server

from trimtab.balance.limits import LimitUsage
from trimtab.controller.controller import Controller
from trimtab.controller.prometheus import LimitCollector

_ANSWER_S = 10.0


class MetricsServer:
    """Answers `GET /metrics` on its own threads; each measures on the controller's loop, which is
    the running loop.

    Raises:
        OSError: the address is in use.
    """

    def __init__(self, controller: Controller, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()

        async def measure() -> LimitUsage:
            return controller.limit_usage()

        def look() -> LimitUsage:
            return asyncio.run_coroutine_threadsafe(measure(), loop).result(_ANSWER_S)

        registry = CollectorRegistry()
        registry.register(LimitCollector(look))
        self._server, self._thread = start_http_server(port, host, registry)

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    async def close(self) -> None:
        """Stop the server, without blocking the loop: an answer may be waiting for it."""
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()
        self._thread.join()
