"""Serves the dashboard: pages from the last snapshot, and a stream of new ones.

Who may see it: on loopback anybody, by an address of loopback only, so that no page of another
site can reach it by a name of its own (DNS rebinding). With a token only who has it: from a cookie
that the login sets, or as `Authorization: Bearer`. Changes need a token always, and the page's own
origin.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from trimtab.cli.dashboard.assets import CSS, JS
from trimtab.cli.dashboard.pages import NoSuchPage, Page, render, show_state
from trimtab.cli.dashboard.parts import Site
from trimtab.cli.live.source import Watched
from trimtab.kafka.errors import UsageError

COOKIE: Final = "trimtab"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_MOST_STREAMS: Final = 200
_MOST_PAGES: Final = 200
"""Rendered pages that are kept until the next snapshot."""
_BEAT_S: Final = 15.0
_FORM_BYTES: Final = 4096
_ADDRESS_BYTES: Final = 2048
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
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


class Dashboard:
    """The pages of one source.

    Args:
        token: who has it may come in; None lets in everybody who uses an address of loopback.
    """

    def __init__(self, site: Site, token: str | None) -> None:
        self._site = site
        self._token = token
        self._rendered: dict[tuple[str, str], str] = {}
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
            self._rendered.clear()
            self._changed.notify_all()

    # Routes

    async def _style(self, _: Request) -> Response:
        return Response(CSS, media_type="text/css")

    async def _script(self, _: Request) -> Response:
        return Response(JS, media_type="text/javascript")

    async def _page(self, request: Request) -> Response:
        path, query = request.url.path, dict(request.query_params)
        try:
            page = render(self._site, path, query)
        except NoSuchPage:
            page = Page("Not found", f"<h1>Not found</h1><p>There is no {escape(path)} now.</p>")
            return Response(self._whole(path, page, is_live=False), 404, media_type="text/html")
        return Response(self._whole(path, page), media_type="text/html")

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
        address = urlsplit(request.query_params.get("view", "/"))
        query = dict(parse_qsl(address.query, max_num_fields=10))
        if self._streams >= _MOST_STREAMS:
            return PlainTextResponse(
                f"{_MOST_STREAMS} readers follow this dashboard already; load the page again\n",
                503,
                {"Retry-After": "10"},
            )
        return StreamingResponse(self._follow(address.path, query), media_type="text/event-stream")

    async def _follow(self, path: str, query: dict[str, str]) -> AsyncIterator[str]:
        self._streams += 1
        try:
            seen = -1
            while not self._is_over:
                if seen == self._version:
                    yield ": still here\n\n"
                else:
                    seen = self._version
                    yield f"data: {self._fragment(path, query)}\n\n"
                await self._next(seen)
        finally:
            self._streams -= 1

    async def _next(self, seen: int) -> None:
        """Wait for another version, for some seconds."""
        try:
            async with asyncio.timeout(_BEAT_S), self._changed:
                await self._changed.wait_for(lambda: self._version != seen)
        except TimeoutError:
            return

    def _fragment(self, path: str, query: dict[str, str]) -> str:
        """The content of a page as an event; made once for all who look at it."""
        key = path, urlencode(sorted(query.items()))
        if key not in self._rendered:
            try:
                main = render(self._site, path, query).main
            except NoSuchPage:
                main = f"<h1>Gone</h1><p>There is no {escape(path)} any more.</p>"
            if len(self._rendered) >= _MOST_PAGES:
                self._rendered.clear()
            parts = {"main": main, "state": show_state(self._site.source)}
            self._rendered[key] = json.dumps(parts)
        return self._rendered[key]

    async def _login(self, request: Request) -> Response:
        form = await _read_form(request) if request.method == "POST" else {}
        is_wrong = bool(form)
        if form and self._token and _is_same(form.get("token", ""), self._token):
            return _let_in(request, self._token)
        said = '<p class="bad" role="alert">That is not the token.</p>' if is_wrong else ""
        main = f"""<h1>trimtab dashboard</h1>{said}<form method="post" action="/login">
<div><label for="token">Token, as the command has printed it, or from its --token-file</label>
<input id="token" name="token" type="password" autocomplete="current-password" required></div>
<button>Show</button></form>"""
        html = _HTML.format(
            title="Log in", nav="", state="", main=main, live="", refresh="", foot=""
        )
        return Response(html, 401 if is_wrong else 200, media_type="text/html")

    async def _act(self, request: Request) -> Response:
        form = await _read_form(request)
        action = form.get("action", "")
        source = self._site.source
        said = ""
        try:
            if not isinstance(source, Watched):
                raise UsageError("a recording cannot be changed")
            if action == "run" and form.get("plan", "").isdigit():
                number = int(form["plan"])
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

    def _whole(self, path: str, page: Page, is_live: bool = True) -> str:
        first = "/" + path.strip("/").split("/")[0]
        nav = "".join(
            f'<a href="{address}"{" aria-current=page" if address == first else ""}>{name}</a>'
            for address, name in _NAMES.items()
        )
        live = self._site.source.is_live and is_live
        return _HTML.format(
            title=escape(page.title),
            nav=f'<nav aria-label="Pages">{nav}</nav>',
            state=show_state(self._site.source),
            main=page.main,
            live=' data-live="1"' if live else "",
            refresh='<noscript><meta http-equiv="refresh" content="10"></noscript>' if live else "",
            foot="Rates are measured from outside, by what brokers tell of sizes and offsets.",
        )


_HTML: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · trimtab</title>
<link rel="stylesheet" href="/style.css">
<link rel="icon" href="data:,">
{refresh}
</head>
<body>
<a class="skip" href="#main">To the content</a>
<header><div><b>trimtab</b>{nav}
<button id="pause" type="button" aria-pressed="false" hidden>Pause updates</button></div>
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
    """Lets in who may come in, whatever the route, and sets the headers of each answer."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(k.lower().encode(), v.encode()) for k, v in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        request = Request(scope, receive)
        refusal = self._refuse(request)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refuse(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if len(request.url.path) + len(request.url.query) > _ADDRESS_BYTES:
            return PlainTextResponse("the address is too long\n", 414)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("only GET and POST\n", 405)
        if request.method == "POST" and not self._is_own_origin(request, host):
            return PlainTextResponse("only this page's own forms may change anything\n", 403)
        if self._token is None:
            if host.rsplit(":", 1)[0] not in _LOOPBACK and host not in _LOOPBACK:
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
        if _is_same(request.cookies.get(COOKIE, ""), self._token) or _is_same(bearer, self._token):
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


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _let_in(request: Request, token: str) -> Response:
    response = RedirectResponse("/", 303)
    is_secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=is_secure)
    return response


async def _read_form(request: Request) -> dict[str, str]:
    """The fields of a short form; none of one that is too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _FORM_BYTES:
            return {"": ""}
    return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=10))


class _Server(uvicorn.Server):
    """A server that leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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
    config = uvicorn.Config(
        dashboard.app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
        limit_concurrency=1500,
        h11_max_incomplete_event_size=16_384,
        http="h11",
        ws="none",
        ssl_certfile=certificate and certificate[0],
        ssl_keyfile=certificate and certificate[1],
    )
    server = _Server(config)
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
