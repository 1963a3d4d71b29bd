"""The HTTP endpoint of a node's metrics (`trimtab.cluster.processes.metrics_server`), on
loopback."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from trimtab import AsyncConsumer, AsyncProducer
from trimtab.cluster.embedded import Cluster
from trimtab.cluster.processes import metrics_server
from trimtab.cluster.processes.metrics_server import BrokerMetrics, ControllerMetrics, MetricsServer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PAGE = Path(__file__).resolve().parents[4] / "docs" / "metrics.md"
GET = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"


class Measured:
    """Stands for a node; `go` lets its measurements end."""

    def __init__(self, lines: int = 0, fault: Exception | None = None, width: int = 1) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.measured = 0
        self.is_closed = False
        self._lines = lines
        self._fault = fault
        self._width = width

    async def measure(self) -> Iterable[Metric]:
        self.measured += 1
        await self.go.wait()
        if self._fault is not None:
            raise self._fault
        many = GaugeMetricFamily("many", "lines", labels=["number"])
        for number in range(self._lines):
            many.add_metric([str(number).zfill(self._width)], number)
        odd = CounterMetricFamily("odd", "a counter", labels=["group"])
        odd.add_metric(['a"b\\c\nd'], float("inf"))
        return [many, odd]

    def close(self) -> None:
        self.is_closed = True


@asynccontextmanager
async def serving(measured: Measured) -> AsyncIterator[MetricsServer]:
    server = MetricsServer(measured)
    await server.listen("127.0.0.1", 0)
    try:
        yield server
    finally:
        server.close()
        assert measured.is_closed


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def ask(server: MetricsServer, request: bytes = GET) -> tuple[str, str]:
    """The status line and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    if body:
        assert f"Content-Length: {len(body.encode())}\r\n" in head
    return head.partition("\r\n")[0], body


def test_the_text_is_prometheus_own() -> None:
    async def scenario() -> None:
        async with serving(Measured(lines=1000)) as server:
            status, body = await ask(server)
        assert status == "HTTP/1.1 200 OK"
        assert body.startswith('# HELP many lines\n# TYPE many gauge\nmany{number="0"} 0.0\n')
        many, odd = text_string_to_metric_families(body)
        assert [each.value for each in many.samples] == list(range(1000))
        assert (odd.type, odd.samples[0].name) == ("counter", "odd_total")
        assert odd.samples[0].labels == {"group": 'a"b\\c\nd'}
        assert body.endswith("+Inf\n")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics?x=1 HTTP/1.1", "HTTP/1.1 200 OK"),
        (b"GET / HTTP/1.1", "HTTP/1.1 404 Not Found"),
        (b"GET", "HTTP/1.1 405 Method Not Allowed"),
        (b"POST /metrics HTTP/1.1", "HTTP/1.1 405 Method Not Allowed"),
        (b"\xff\x00", "HTTP/1.1 405 Method Not Allowed"),
        (bytes(20_000), ""),
    ],
)
def test_other_requests_are_refused(request_line: bytes, status: str) -> None:
    async def scenario() -> None:
        async with serving(Measured()) as server:
            try:
                found = await ask(server, request_line + b"\r\n\r\n")
            except ConnectionError:  # what was not read resets the connection
                found = "", ""
            assert found[0] == status
            assert (await ask(server))[0] == "HTTP/1.1 200 OK"

    asyncio.run(scenario())


def test_scrapes_that_come_meanwhile_get_the_result_of_the_one_under_way() -> None:
    async def scenario() -> None:
        measured = Measured()
        measured.go.clear()
        async with serving(measured) as server:
            asked = [asyncio.ensure_future(ask(server)) for _ in range(5)]
            await until(lambda: measured.measured)
            late = asyncio.ensure_future(ask(server))
            await until(lambda: len(server._open) == 6)
            measured.go.set()
            answers = await asyncio.gather(*asked, late)
            assert {status for status, _ in answers} == {"HTTP/1.1 200 OK"}
            assert measured.measured == 1
            await ask(server)
            assert measured.measured == 2

    asyncio.run(scenario())


def test_a_measurement_that_fails_is_an_error_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with serving(Measured(fault=ValueError("broken"))) as server:
            assert (await ask(server))[0] == "HTTP/1.1 500 Internal Server Error"
            assert "broken" in caplog.text

    asyncio.run(scenario())


def test_idle_connections_do_not_keep_a_scraper_out() -> None:
    async def scenario() -> None:
        async with serving(Measured()) as server:
            idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(100)]
            assert (await ask(server))[0] == "HTTP/1.1 200 OK"
            assert len(server._open) <= metrics_server._MAX_CONNECTIONS
            for _, writer in idle:
                writer.close()

    asyncio.run(scenario())


def test_a_scraper_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "_LIMIT_S", 0.2)

    async def scenario() -> None:
        async with serving(Measured(lines=100, width=200_000)) as server:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1000)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(GET)
            await until(lambda: server._open)
            await until(lambda: not server._open)
            writer.close()

    asyncio.run(scenario())


def documented() -> set[str]:
    rows = re.findall(r"^\| `([a-z_]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    return set(rows)


async def exposed(measured: metrics_server.Measured) -> set[str]:
    """The names of a node's metrics that have a value."""
    server = MetricsServer(measured)
    await server.listen("127.0.0.1", 0)
    _, body = await ask(server)
    server.close()
    return {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(body)
        if family.samples
    }


def test_the_page_has_every_metric_of_a_live_cluster_and_no_other() -> None:
    async def scenario() -> set[str]:
        async with Cluster(brokers=1) as cluster:
            broker, controller = cluster._brokers[0].broker, cluster._controller
            assert controller is not None
            of_broker, of_controller = BrokerMetrics(broker), ControllerMetrics(controller)
            async with (
                AsyncProducer(cluster.bootstrap_servers) as producer,
                AsyncConsumer(cluster.bootstrap_servers, group_id="g") as consumer,
            ):
                await producer.send("t", b"a")
                await producer.flush()
                await consumer.commit({("t", 0): 0})
            return await exposed(of_broker) | await exposed(of_controller)

    assert documented() == asyncio.run(scenario())
