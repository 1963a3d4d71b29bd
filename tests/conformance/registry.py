"""A Schema Registry in memory, for tests: the calls of Confluent's REST API that serializers make.

Source: Confluent's reference of the Schema Registry API, version 1.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

USER, PASSWORD = "reader", "secret"


class Refused(Exception):
    """A response that is an error: its HTTP status, the registry's code, and its message."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.body = status, {"error_code": code, "message": message}


class Registry:
    """Schemas by id, and their ids by subject and version; counts requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[str] = []
        self.needs_password = False
        self.failures = 0
        """How many of the next requests are answered with 503."""
        self.lock = threading.Lock()
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}

    def id_of(self, given: dict[str, Any]) -> int | None:
        schema = _schema_of(given)
        return self.schemas.index(schema) + 1 if schema in self.schemas else None

    def register(self, subject: str, given: dict[str, Any]) -> dict[str, Any]:
        known = self.id_of(given)
        if known is None:
            self.schemas.append(_schema_of(given))
            known = len(self.schemas)
        versions = self.subjects.setdefault(subject, [])
        if known not in versions:
            versions.append(known)
        return self.version(subject, versions.index(known) + 1)

    def find(self, subject: str, given: dict[str, Any]) -> dict[str, Any]:
        versions, known = self.versions(subject), self.id_of(given)
        if known not in versions:
            raise Refused(404, 40403, "Schema not found")
        return self.version(subject, versions.index(known) + 1)

    def version(self, subject: str, number: int) -> dict[str, Any]:
        versions = self.versions(subject)
        if number > len(versions):
            raise Refused(404, 40402, f"Version {number} not found.")
        at = len(versions) if number == -1 else number
        found = versions[at - 1]
        return {"subject": subject, "id": found, "version": at, **self.schema(found)}

    def versions(self, subject: str) -> list[int]:
        if subject not in self.subjects:
            raise Refused(404, 40401, f"Subject '{subject}' not found.")
        return self.subjects[subject]

    def schema(self, number: int) -> dict[str, Any]:
        if not 0 < number <= len(self.schemas):
            raise Refused(404, 40403, f"Schema {number} not found")
        return {"guid": f"00000000-0000-0000-0000-{number:012}", **self.schemas[number - 1]}

    def answer(self, method: str, path: str, given: dict[str, Any]) -> object:
        for wanted, pattern, call in _CALLS:
            if wanted == method and (found := re.fullmatch(pattern, path)):
                with self.lock:
                    return call(self, given, *map(unquote, found.groups()))
        raise Refused(404, 404, f"HTTP 404 Not Found: {method} {path}")


class Call(NamedTuple):
    method: str
    pattern: str
    call: Any


_CALLS = (
    Call("GET", "/subjects", lambda registry, given: list(registry.subjects)),
    Call("POST", "/subjects/([^/]+)/versions", lambda r, given, s: r.register(s, given)),
    Call("POST", "/subjects/([^/]+)", lambda registry, given, s: registry.find(s, given)),
    Call("GET", "/subjects/([^/]+)/versions/latest", lambda r, given, s: r.version(s, -1)),
    Call("GET", r"/subjects/([^/]+)/versions/(\d+)", lambda r, given, s, n: r.version(s, int(n))),
    Call("GET", r"/schemas/ids/(\d+)", lambda registry, given, n: registry.schema(int(n))),
    Call("GET", r"/schemas/guids/[0-]+(\d+)", lambda registry, given, n: registry.schema(int(n))),
)


def _schema_of(given: dict[str, Any]) -> dict[str, Any]:
    kind = given.get("schemaType") or "AVRO"
    text = given["schema"]
    same = text if kind == "PROTOBUF" else json.dumps(json.loads(text), separators=(",", ":"))
    return {"schema": same, "schemaType": kind, "references": given.get("references") or []}


@contextmanager
def running() -> Iterator[Registry]:
    """A registry on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            given = json.loads(self.rfile.read(size)) if size else {}
            path = urlsplit(self.path).path
            registry.requests.append(f"{self.command} {path}")
            status, body = 200, None
            try:
                if registry.failures > 0:
                    registry.failures -= 1
                    raise Refused(503, 50301, "not now")
                if registry.needs_password and self.headers.get("Authorization") != _BASIC:
                    raise Refused(401, 401, "Unauthorized")
                body = registry.answer(self.command, path, given)
            except Refused as refused:
                status, body = refused.status, refused.body
            sent = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = _answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Tests print no log of requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry = Registry(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
