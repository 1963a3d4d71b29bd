"""The HTTP endpoint of a node's process for Prometheus: needs prometheus_client.

    GET /metrics ─▶ measured on the node's loop, in steps ─▶ written as text on a thread

Scrapes that come while one is under way get its result. A scraper can occupy neither the loop nor
the memory: a request is short, a scrape ends within seconds, and few connections are open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from itertools import chain
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Final, Protocol

from prometheus_client import ProcessCollector

from trimtab.cluster.broker.figures import BrokerGauge
from trimtab.cluster.broker.prometheus import list_broker_metrics
from trimtab.cluster.controller.prometheus import (
    LimitCollector,
    list_cluster_metrics,
    measure_cluster,
)
from trimtab.cluster.server.prometheus import list_server_metrics
from trimtab.cluster.server.turns import in_turns

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from trimtab.cluster.broker.broker import Broker
    from trimtab.cluster.controller.node import ControllerNode

PATH: Final = "/metrics"

_LIMIT_S: Final = 10.0
"""How long a connection may take, from its begin to its end."""
_MAX_REQUEST_BYTES: Final = 8192
_MAX_CONNECTIONS: Final = 16
_LINES_AT_ONCE: Final = 200
_PAUSE_S: Final = 0.0002
"""Lets the loop's thread run, which would otherwise wait 5 ms for the interpreter's lock, whenever
it has waited for the system."""

_log = logging.getLogger(__name__)


class Measured(Protocol):
    """A node."""

    async def measure(self) -> Iterable[Metric]:
        """The metrics now, measured on the node's loop; another thread lists them."""

    def close(self) -> None:
        """Measure no more."""


class MetricsServer:
    """Answers `GET /metrics` on the running loop.

    Attributes:
        port: of the listening socket, once it listens.
    """

    def __init__(self, measured: Measured) -> None:
        self.port = 0
        self._measured = measured
        self._server: asyncio.Server | None = None
        self._scraping: asyncio.Task[bytes] | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}

    async def listen(self, host: str, port: int) -> None:
        """Listen on this address; 0 is any free port.

        Raises:
            OSError: the address is in use.
        """
        self._server = await asyncio.start_server(self._serve, host, port, limit=_MAX_REQUEST_BYTES)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop, and close all connections."""
        if self._server is not None:
            self._server.close()
        if self._scraping is not None:
            self._scraping.cancel()
        for writer in tuple(self._open):
            writer.transport.abort()
        self._measured.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _MAX_CONNECTIONS:
            next(iter(self._open)).transport.abort()  # the oldest, which may be idle
        self._open[writer] = None
        writer.transport.set_write_buffer_limits(0)  # so that `drain` waits for the last byte
        try:
            async with asyncio.timeout(_LIMIT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head))
                await writer.drain()
                writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()  # it is gone, too slow, or no scraper
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            self._open.pop(writer, None)

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        if method != b"GET":
            return _respond("405 Method Not Allowed", b"only GET is served\n", "Allow: GET\r\n")
        if rest.partition(b" ")[0].partition(b"?")[0] != PATH.encode():
            return _respond("404 Not Found", b"metrics are at /metrics\n")
        if self._scraping is None or self._scraping.done():
            self._scraping = asyncio.get_running_loop().create_task(self._scrape())
        try:
            return _respond("200 OK", await asyncio.shield(self._scraping))
        except Exception:  # a bug in a metric must not end the node
            _log.exception("cannot measure")
            return _respond("500 Internal Server Error", b"cannot measure: see the node's log\n")

    async def _scrape(self) -> bytes:
        return await asyncio.to_thread(_write, await self._measured.measure())


def _respond(status: str, body: bytes, more: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n{more}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _write(metrics: Iterable[Metric]) -> bytes:
    """Prometheus' text format; like `prometheus_client.generate_latest`, but with pauses for the
    loop's thread."""
    lines: list[str] = []
    for number, line in enumerate(_list_lines(metrics), 1):
        lines.append(line)
        if not number % _LINES_AT_ONCE:
            sleep(_PAUSE_S)
    return "".join(lines).encode()


def _list_lines(metrics: Iterable[Metric]) -> Iterator[str]:
    for metric in metrics:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        yield f"# HELP {name} {metric.documentation}\n# TYPE {name} {metric.type}\n"
        for sample in metric.samples:
            labels = ",".join(f'{key}="{_escape(each)}"' for key, each in sample.labels.items())
            of = f"{{{labels}}}" if labels else ""
            value = repr(float(sample.value)).replace("inf", "+Inf")
            yield f"{sample.name}{of} {value}\n"


def _escape(text: str) -> str:
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return text


class BrokerMetrics:
    """What a broker's process serves.

    Requests are counted from now on, on connections that are opened from now on.
    """

    def __init__(self, broker: Broker) -> None:
        broker.listener.measure(perf_counter)
        self._broker = broker
        self._gauge = BrokerGauge(broker)

    async def measure(self) -> Iterator[Metric]:
        figures = await self._gauge.measure()
        return chain(
            list_broker_metrics(figures),
            list_server_metrics(self._broker.listener),
            ProcessCollector(registry=None).collect(),
        )

    def close(self) -> None:
        self._gauge.close()


class ControllerMetrics:
    """What a controller's process serves. Requests are counted as a broker's."""

    def __init__(self, node: ControllerNode) -> None:
        node.listener.measure(perf_counter)
        self._node = node

    async def measure(self) -> Iterator[Metric]:
        controller = self._node.controller
        figures = await in_turns(measure_cluster(controller.image))
        usage = controller.limit_usage()
        return chain(
            list_cluster_metrics(figures),
            LimitCollector(lambda: usage).collect(),
            list_server_metrics(self._node.listener),
            ProcessCollector(registry=None).collect(),
        )

    def close(self) -> None:
        """Nothing is open."""
