"""Serves the dashboard: pages from the last snapshot, and a stream of new ones.

A page is drawn once for a snapshot, whatever the number of its readers. One that does not read, or
sends no whole request, is dropped.

Who may see it: on loopback anybody, by an address of loopback only, so that no page of another
site can reach it by a name of its own (DNS rebinding). With a token only who has it: from a cookie
that the login sets, or as `Authorization: Bearer`. Changes need a token always, and the page's own
origin.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import re
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from trimtab.cli.dashboard.assets import CSS, JS
from trimtab.cli.dashboard.pages import NoSuchPage, Page, render, show_state
from trimtab.cli.dashboard.parts import Site, read_whole
from trimtab.cli.live.source import Watched
from trimtab.kafka.errors import UsageError

_MOST_STREAMS: Final = 200
_MOST_PAGES: Final = 200
"""Rendered pages that are kept until the next snapshot."""
_MOST_CONNECTIONS: Final = 1500
_BEAT_S: Final = 15.0
_PATIENCE_S: Final = 10.0
"""For a request to be whole, and for a reader to take what it is sent."""
_FORM_BYTES: Final = 4096
_ADDRESS_BYTES: Final = 2048
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # "no-referrer" makes the Origin of own forms "null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NAMES: Final = {
    "/": "Cluster",
    "/topics": "Topics",
    "/groups": "Groups",
    "/racks": "Racks",
    "/room": "Room",
    "/plan": "Plan",
}


class _Drawn(NamedTuple):
    """A page, and the event that brings it to who looks at it."""

    page: Page
    status: int
    event: str


class _Stream(StreamingResponse):
    """Events until the reader goes, or does not take them in time."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], end: Callable[[], None]) -> None:
        super().__init__(events)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(_PATIENCE_S):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        finally:
            self._end()


class Dashboard:
    """The pages of one source.

    Args:
        token: who has it may come in; None lets in everybody who uses an address of loopback.
    """

    def __init__(self, site: Site, token: str | None) -> None:
        self._site = site
        self._token = token
        self._drawn: dict[tuple[str, str], _Drawn] = {}
        self._drawing = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._version = 0
        self._streams = 0
        self._is_over = False
        routes = [
            Route("/style.css", self._style),
            Route("/script.js", self._script),
            Route("/events", self._events),
            Route("/snapshot.json", self._snapshot),
            *([Route("/login", self._login, methods=["GET", "POST"])] if token else []),
            *([Route("/plan", self._act, methods=["POST"])] if site.allows_changes else []),
            Route("/{path:path}", self._page),
        ]
        self.app = _Guard(Starlette(routes=routes), token)

    def listen(self) -> None:
        """Begin to be told of snapshots; on the loop that serves."""
        loop = asyncio.get_running_loop()
        source = self._site.source

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(lambda: loop.create_task(self._note()))

        source.listen(tell)

    async def end(self) -> None:
        """End all streams."""
        self._is_over = True
        await self._note()

    async def _note(self) -> None:
        async with self._changed:
            self._version += 1
            self._drawn.clear()
            self._changed.notify_all()

    # Routes

    async def _style(self, _: Request) -> Response:
        return Response(CSS, media_type="text/css")

    async def _script(self, _: Request) -> Response:
        return Response(JS, media_type="text/javascript")

    async def _page(self, request: Request) -> Response:
        path = request.scope["raw_path"].decode("ascii", "replace")
        page, status, _ = await self._draw(path, dict(request.query_params))
        return Response(self._whole(path, page), status, media_type="text/html")

    async def _snapshot(self, _: Request) -> Response:
        """The rows that the pages show, as data."""
        summary = self._site.source.summary
        if summary is None:
            return JSONResponse({"trouble": self._site.source.trouble or "measuring"}, 503)
        return JSONResponse(
            {
                "at": summary.snapshot.taken_s,
                "cluster": summary.snapshot.cluster_id,
                "totals": summary.totals._asdict(),
                "brokers": [row._asdict() for row in summary.brokers],
                "topics": [row._asdict() for row in summary.topics],
                "groups": [row._asdict() for row in summary.groups],
                "racks": [row._asdict() for row in summary.racks],
            }
        )

    async def _events(self, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type=_Stream.media_type)
        try:
            address = urlsplit(request.query_params.get("view", "/"))
            query = _read_fields(address.query)
        except ValueError as error:
            return PlainTextResponse(f"view: {error}\n", 400)
        if self._streams >= _MOST_STREAMS:
            return PlainTextResponse(
                f"{_MOST_STREAMS} readers follow this dashboard already; load the page again\n",
                503,
                {"Retry-After": "10"},
            )
        self._streams += 1
        return _Stream(self._follow(address.path, query), self._note_end)

    def _note_end(self) -> None:
        self._streams -= 1

    async def _follow(self, path: str, query: dict[str, str]) -> AsyncIterator[str]:
        seen = -1
        while not self._is_over:
            if seen == self._version:
                state = json.dumps({"state": show_state(self._site.source)})
                yield f"data: {state}\n\n"
            else:
                seen = self._version
                yield f"data: {(await self._draw(path, query)).event}\n\n"
            await self._next(seen)

    async def _next(self, seen: int) -> None:
        """Wait for another version, for some seconds."""
        try:
            async with asyncio.timeout(_BEAT_S), self._changed:
                await self._changed.wait_for(lambda: self._version != seen)
        except TimeoutError:
            return

    async def _draw(self, path: str, query: dict[str, str]) -> _Drawn:
        """A page, drawn once for a snapshot; one at a time, so that other readers get their turn.

        Args:
            path: percent-encoded.
        """
        key = path, urlencode(sorted(query.items()))
        async with self._drawing:
            if key not in self._drawn:
                try:
                    page, status = render(self._site, path, query), 200
                except NoSuchPage:
                    what = escape(unquote(path))
                    main = f"<h1>Not found</h1><p>There is no {what} now.</p>"
                    page, status = Page("Not found", main), 404
                if len(self._drawn) >= _MOST_PAGES:
                    self._drawn.clear()
                parts = {"main": page.main, "state": show_state(self._site.source)}
                self._drawn[key] = _Drawn(page, status, json.dumps(parts))
            return self._drawn[key]

    async def _login(self, request: Request) -> Response:
        form = await _read_form(request) if request.method == "POST" else {}
        is_wrong = request.method == "POST"
        if self._token and _is_same(form.get("token", ""), self._token):
            return _let_in(request, self._token)
        said = '<p class="bad" role="alert">That is not the token.</p>' if is_wrong else ""
        main = f"""<h1>trimtab dashboard</h1>{said}<form method="post" action="/login">
<div><label for="token">Token, as the command has printed it, or from its --token-file</label>
<input id="token" name="token" type="password" autocomplete="current-password" required></div>
<button>Show</button></form>"""
        html = _HTML.format(title="Log in", nav="", state="", main=main, live="", foot="")
        return Response(html, 401 if is_wrong else 200, media_type="text/html")

    async def _act(self, request: Request) -> Response:
        form = await _read_form(request)
        action = form.get("action", "")
        source = self._site.source
        said = ""
        try:
            if not isinstance(source, Watched):
                raise UsageError("a recording cannot be changed")
            if action == "run":
                number = read_whole(form.get("plan", ""), 0)
                await asyncio.to_thread(source.act, lambda each: each.carry_out(number))
            elif action == "pause":
                await asyncio.to_thread(source.act, lambda each: each.pause())
            elif action == "cancel":
                await asyncio.to_thread(source.act, lambda each: each.cancel())
            else:
                raise UsageError(f"action={action!r}: send run with a plan, pause or cancel")
        except UsageError as error:
            said = str(error)
        query = f"?{urlencode({'said': said})}" if said else ""
        return RedirectResponse(f"/plan{query}", 303)

    def _whole(self, path: str, page: Page) -> str:
        first = "/" + path.strip("/").split("/")[0]
        nav = "".join(
            f'<a href="{address}"{" aria-current=page" if address == first else ""}>{name}</a>'
            for address, name in _NAMES.items()
        )
        live = self._site.source.is_live
        return _HTML.format(
            title=escape(page.title),
            nav=f'<nav aria-label="Pages">{nav}</nav>',
            state=show_state(self._site.source),
            main=page.main,
            live=' data-live="1"' if live else "",
            foot="Rates are measured from outside, by what brokers tell of sizes and offsets. "
            "<noscript>Without JavaScript load the page again for newer ones.</noscript>",
        )


_HTML: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · trimtab</title>
<link rel="stylesheet" href="/style.css">
<link rel="icon" href="data:,">
</head>
<body>
<a class="skip" href="#main">To the content</a>
<header><div><b>trimtab</b>{nav}
<button id="pause" type="button" hidden>Pause updates</button></div>
<div><p id="state" class="faint">{state}</p>
<p id="link" class="old" role="status"></p></div></header>
<main id="main" tabindex="-1"{live}>
{main}
</main>
<footer>{foot}</footer>
<script src="/script.js" defer></script>
</body>
</html>
"""


class _Guard:
    """Lets in who may come in, whatever the route."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        request = Request(scope, receive)
        refusal = self._refuse(request)
        await (refusal or self._app)(scope, receive, send)

    def _refuse(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if len(request.url.path) + len(request.url.query) > _ADDRESS_BYTES:
            return PlainTextResponse("the address is too long\n", 414)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("only GET and POST\n", 405)
        if request.method == "POST" and not self._is_own_origin(request, host):
            return PlainTextResponse("only this page's own forms may change anything\n", 403)
        if self._token is None:
            if not is_loopback(re.sub(r":\d*$", "", host).strip("[]")):
                return PlainTextResponse(
                    f"this dashboard is served as localhost, not as {host!r}\n", 421
                )
            return None
        if request.url.path in ("/login", "/style.css"):
            return None
        given = request.query_params.get("token")
        if given is not None and request.method == "GET" and _is_same(given, self._token):
            return _let_in(request, self._token)
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        cookie = request.cookies.get(cookie_name(self._token), "")
        if _is_same(cookie, self._token) or _is_same(bearer, self._token):
            return None
        if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/login", 303)
        return PlainTextResponse("log in at /login, or send Authorization: Bearer TOKEN\n", 401)

    def _is_own_origin(self, request: Request, host: str) -> bool:
        """Whether a form of this page sends it, or a program that has the token."""
        origin = request.headers.get("origin")
        if origin is None:
            return "authorization" in request.headers
        return origin == f"{request.url.scheme}://{host}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def cookie_name(token: str) -> str:
    """Of its own for each dashboard: a browser sends cookies to all ports of a host."""
    return f"trimtab-{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _let_in(request: Request, token: str) -> Response:
    response = RedirectResponse("/", 303)
    is_secure = request.url.scheme == "https"
    response.set_cookie(
        cookie_name(token), token, httponly=True, samesite="strict", secure=is_secure
    )
    return response


async def _read_form(request: Request) -> dict[str, str]:
    """The fields of a short form.

    Raises:
        HTTPException: it is too long, slow, or no form.
    """
    body = b""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            async for part in request.stream():
                body += part
                if len(body) > _FORM_BYTES:
                    raise HTTPException(413, f"a form has {_FORM_BYTES} bytes at most")
        return _read_fields(body.decode("utf-8", "replace"))
    except TimeoutError:
        raise HTTPException(408, f"a form is sent within {_PATIENCE_S:g} s") from None
    except ValueError as error:
        raise HTTPException(400, f"the form: {error}") from None


def _read_fields(text: str) -> dict[str, str]:
    """Raises:
    ValueError: there are too many.
    """
    return dict(parse_qsl(text, max_num_fields=10))


class _Protocol(H11Protocol):
    """Closes a connection on which no whole request arrives, however it drips."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._last = self.cycle
        self._check = self.loop.call_later(_PATIENCE_S, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._check.cancel()
        super().connection_lost(exc)

    def _close_if_idle(self) -> None:
        if self.cycle is self._last and (self.cycle is None or self.cycle.response_complete):
            self.transport.abort()
            return
        self._last = self.cycle
        self._check = self.loop.call_later(_PATIENCE_S, self._close_if_idle)


class ServerLoop(asyncio.SelectorEventLoop):
    """Closes a connection whose TLS handshake does not end."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = _PATIENCE_S
        return await super().create_server(*args, **options)


class _Server(uvicorn.Server):
    """A server that leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(dashboard: Dashboard, certificate: tuple[str, str] | None = None) -> uvicorn.Server:
    """A server to be run with a listener.

    Args:
        certificate: as `serve`.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    config = uvicorn.Config(
        dashboard.app,
        headers=list(_HEADERS.items()),
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
        limit_concurrency=min(_MOST_CONNECTIONS, files // 2),
        h11_max_incomplete_event_size=16_384,
        http=_Protocol,
        ws="none",
        ssl_certfile=certificate and certificate[0],
        ssl_keyfile=certificate and certificate[1],
    )
    return _Server(config)


async def serve(
    site: Site, token: str | None, listener: socket.socket, certificate: tuple[str, str] | None
) -> int:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        token: as `Dashboard`.
        certificate: files with a certificate chain and its key, for HTTPS.

    Returns:
        The signal.
    """
    dashboard = Dashboard(site, token)
    dashboard.listen()
    server = make_server(dashboard, certificate)
    signals: list[int] = []

    def stop(number: int) -> None:
        if signals:
            server.force_exit = True
        signals.append(number)
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    serving = loop.create_task(server.serve(sockets=[listener]))
    try:
        while not serving.done() and not server.should_exit:
            await asyncio.wait([serving], timeout=0.2)
        await dashboard.end()
        await serving
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return signals[0] if signals else 0
