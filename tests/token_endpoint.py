"""An OAuth token endpoint in this process, which answers as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Asked(NamedTuple):
    """A request, as it came."""

    path: str
    headers: dict[str, str]
    body: str


class Endpoint:
    """Attributes:
    url: where it listens.
    asked: the requests so far.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []


@contextmanager
def token_endpoint(answer: Callable[[int], tuple[int, object]]) -> Iterator[Endpoint]:
    """An endpoint.

    Args:
        answer: from how many requests came before to the status and the JSON to answer with;
            a status of 0 closes the connection.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, said = answer(len(endpoint.asked))
            endpoint.asked.append(Asked(self.path, dict(self.headers), body))
            if status:
                text = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Location", f"{endpoint.url}/elsewhere")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint = Endpoint(f"http://127.0.0.1:{server.server_port}/token")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
