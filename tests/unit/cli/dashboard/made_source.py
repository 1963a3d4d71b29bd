"""A source of snapshots that a test makes, and a dashboard of it that is served on loopback."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import uvicorn

from trimtab.cli.dashboard.parts import Site
from trimtab.cli.dashboard.server import Dashboard, make_server
from trimtab.cli.live.findings import find
from trimtab.cli.live.rows import summarize
from trimtab.cli.live.source import Source
from trimtab.client.collector import Snapshot
from trimtab.threads.loop_thread import LoopThread

PATIENCE_S = 60.0


class MadeSource(Source):
    """Shows what a test gives it."""

    def __init__(self, snapshot: Snapshot | None = None, is_live: bool = True) -> None:
        super().__init__(is_live)
        if snapshot is not None:
            self.show(snapshot)

    def show(self, snapshot: Snapshot) -> None:
        self.history.add(snapshot.taken_s, snapshot.topics, snapshot.metered.load, snapshot.levels)
        self.summary = summarize(snapshot)
        self.findings = find(self.summary)
        self.snapshot = snapshot
        self._tell()


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: http.client.HTTPMessage
    text: str


class Served:
    """A dashboard that is served."""

    def __init__(self, dashboard: Dashboard, port: int) -> None:
        self.dashboard = dashboard
        self.port = port

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def ask(
        self, path: str, method: str = "GET", body: str | None = None, **headers: str
    ) -> Answer:
        """One request.

        Args:
            headers: of which "Host" is that of the server if it is not given.
        """
        connection = self.connect()
        try:
            connection.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(None if body is None else body.encode())
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read().decode())
        finally:
            connection.close()

    def send(self, request: bytes) -> bytes:
        """What is answered to these bytes, until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as sent:
            sent.sendall(request)
            return b"".join(iter(lambda: sent.recv(65_536), b""))

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(
    source: Source, token: str | None = None, allows_changes: bool = False
) -> Iterator[Served]:
    """A dashboard on a free port of loopback, as `serve` serves it."""
    thread = LoopThread("dashboard")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # to fill it soon

        async def begin() -> tuple[Dashboard, asyncio.Task[None]]:
            dashboard = Dashboard(Site(source, 0.01, allows_changes), token)
            dashboard.listen()
            server.append(make_server(dashboard))
            running = asyncio.get_running_loop().create_task(server[0].serve([listener]))
            return dashboard, running

        async def end() -> None:
            server[0].should_exit = True
            await dashboard.end()
            await asyncio.wait_for(running, PATIENCE_S)

        server: list[uvicorn.Server] = []
        try:
            dashboard, running = thread.run(begin)
            try:
                yield Served(dashboard, listener.getsockname()[1])
            finally:
                thread.run(end)
        finally:
            thread.stop()
