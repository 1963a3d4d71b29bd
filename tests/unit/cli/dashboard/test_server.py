"""The dashboard's server: who is let in, what is refused, and the stream of snapshots."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.cli.dashboard.made_source import PATIENCE_S, MadeSource, Served, serving
from tests.unit.cli.live.made_snapshots import make_snapshot, spread
from trimtab.cli.dashboard import server
from trimtab.cli.dashboard.pages import render
from trimtab.cli.dashboard.parts import Site
from trimtab.cli.dashboard.server import Dashboard, ServerLoop, cookie_name, is_loopback
from trimtab.cli.live.source import Watched
from trimtab.client.collector import Snapshot
from trimtab.kafka.errors import UsageError

TOKEN = "a-token-of-some-length"
PATHS = ["/", "/topics", "/topics/flights", "/groups", "/racks", "/room", "/plan", "/brokers/0"]
OTHERS = ["/snapshot.json", "/events", "/script.js", "/style.css", "/gone"]


def snapshot(number: int = 1, **topics: float) -> Snapshot:
    shown = topics or {"flights": 5000.0}
    rates = {name: spread([rate, 0.0]) for name, rate in shown.items()}
    return make_snapshot(rates, number=number, taken_s=1_780_000_000.0 + 5 * number)


@pytest.fixture(scope="module")
def local() -> Iterator[Served]:
    """Without a token, and read-only."""
    with serving(MadeSource(snapshot())) as served:
        yield served


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    """With a token, and read-only."""
    with serving(MadeSource(snapshot()), TOKEN) as served:
        yield served


class Reader:
    """One who follows a page."""

    def __init__(self, served: Served, view: str = "/") -> None:
        self.connection = served.connect()
        self.connection.request("GET", f"/events?view={view}")
        self.answer = self.connection.getresponse()

    def read(self) -> dict[str, str]:
        line = self.answer.readline().decode()
        assert line.startswith("data: "), line
        assert self.answer.readline() == b"\n"
        parts: dict[str, str] = json.loads(line.removeprefix("data: "))
        return parts

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


# Who is let in


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example#@127.0.0.1",
        "[::2]",
        "0.0.0.0",
        "192.168.0.1:8780",
    ],
)
def test_a_name_that_is_not_of_loopback_is_refused(local: Served, host: str) -> None:
    for path in (*PATHS, *OTHERS):
        answer = local.ask(path, Host=host)
        assert (answer.status, "flights" in answer.text) == (421, False)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "[::1]:1", "127.0.0.2:8780"])
def test_an_address_of_loopback_is_served(local: Served, host: str) -> None:
    assert local.ask("/", Host=host).status == 200


def test_without_a_host_nothing_is_served(local: Served) -> None:
    assert local.send(b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 421 ")


@pytest.mark.parametrize(
    ("host", "yes"),
    [("localhost", True), ("::1", True), ("127.9.9.9", True), ("0.0.0.0", False), ("", False)],
)
def test_loopback(host: str, yes: bool) -> None:
    assert is_loopback(host) is yes


@pytest.mark.parametrize("path", [*PATHS, "/snapshot.json", "/events", "/gone", "/script.js"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {TOKEN}"},
        {"Cookie": "trimtab=wrong"},
        {"Cookie": "trimtab="},
        {"Cookie": f"other={TOKEN}"},
        {"Authorization": "Bearer \xff"},
    ],
)
def test_without_the_token_nothing_is_told(
    guarded: Served, path: str, headers: dict[str, str]
) -> None:
    for query in ("",) if headers else ("", "?token=", "?token=wrong", f"?tokens={TOKEN}"):
        answer = guarded.ask(path + query, **headers)
        assert (answer.status, "flights" in answer.text) == (401, False)
        assert "set-cookie" not in answer.headers


def test_a_browser_is_sent_to_the_login(guarded: Served) -> None:
    answer = guarded.ask("/topics", Accept="text/html")
    assert (answer.status, answer.headers["location"]) == (303, "/login")
    page = guarded.ask("/login")
    assert page.status == 200
    assert 'type="password"' in page.text
    assert "flights" not in page.text


@pytest.mark.parametrize(
    "headers", [{"Cookie": f"{cookie_name(TOKEN)}={TOKEN}"}, {"Authorization": f"Bearer {TOKEN}"}]
)
@pytest.mark.parametrize("host", ["any.example", "127.0.0.1"])
def test_who_has_the_token_is_let_in(guarded: Served, headers: dict[str, str], host: str) -> None:
    answer = guarded.ask("/topics", Host=host, **headers)
    assert (answer.status, "flights" in answer.text) == (200, True)


def test_the_printed_address_sets_a_cookie_and_hides_the_token(guarded: Served) -> None:
    answer = guarded.ask(f"/?token={TOKEN}")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{cookie_name(TOKEN)}={TOKEN};")
    assert {"HttpOnly", "SameSite=strict"} <= {*cookie.split("; ")}
    assert "secure" not in cookie.lower()
    assert guarded.ask(f"/?token={TOKEN}", "HEAD").status == 401


def log_in(served: Served, body: str, origin: str | None = None) -> Any:
    return served.ask("/login", "POST", body, Origin=origin or served.origin)


def test_the_login_takes_the_token_alone(guarded: Served) -> None:
    assert log_in(guarded, f"token={TOKEN}").headers["set-cookie"]
    for body in ("token=wrong", "token=", "x=y", f"token={TOKEN}x", "token=%ff%fe"):
        answer = log_in(guarded, body)
        assert (answer.status, "set-cookie" in answer.headers) == (401, False)
        assert "That is not the token." in answer.text
    for origin in ("https://evil.example", "null"):
        assert log_in(guarded, f"token={TOKEN}", origin).status == 403


def test_there_is_no_login_without_a_token(local: Served) -> None:
    assert local.ask("/login").status == 404


# Changes


class MadeWatched(Watched):
    """A cluster that notes what it is asked to do."""

    def __init__(self, given: Snapshot, refuses: bool = False) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:9"})
        self.done: list[str] = []
        self._refuses = refuses
        MadeSource.show(self, given)  # type: ignore[arg-type]

    def act(self, action: Callable[[Any], object]) -> None:
        if self._refuses:
            raise UsageError("<b>the plan</b> is old & gone")
        action(self)

    def carry_out(self, number: int) -> None:
        self.done.append(f"run {number}")

    def pause(self) -> None:
        self.done.append("pause")

    def cancel(self) -> None:
        self.done.append("cancel")


def test_a_read_only_dashboard_has_nothing_that_changes() -> None:
    for token in (None, TOKEN):
        source = MadeWatched(snapshot())
        with serving(source, token) as served:
            for path in (*PATHS, *OTHERS):
                for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
                    answer = served.ask(
                        path, method, "action=run&plan=1", Origin=served.origin,
                        Authorization=f"Bearer {TOKEN}",
                    )  # fmt: skip
                    assert answer.status == 405
        assert source.done == []
        app = Dashboard(Site(source, 0.0, False), token).app
        routes = app._app.routes  # type: ignore[attr-defined]
        writable = [each.path for each in routes if "POST" in each.methods]
        assert writable == (["/login"] if token else [])


def test_who_has_the_token_may_change_from_the_pages_own_origin() -> None:
    source = MadeWatched(snapshot())
    with serving(source, TOKEN, allows_changes=True) as served:
        cookie = {"Cookie": f"{cookie_name(TOKEN)}={TOKEN}"}
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        own = {"Origin": served.origin}
        refused: list[tuple[int, dict[str, str]]] = [
            (403, {**cookie}),
            (403, {**cookie, "Origin": "https://evil.example"}),
            (403, {**cookie, "Origin": "null"}),
            (403, {**cookie, "Origin": f"https://127.0.0.1:{served.port}"}),
            (403, {**cookie, "Origin": "http://127.0.0.1"}),
            (403, {**bearer, "Origin": "https://evil.example"}),
            (401, {**own}),
            (401, {**own, "Cookie": "trimtab=wrong"}),
            (401, {"Authorization": "Bearer wrong"}),
        ]
        for status, headers in refused:
            assert served.ask("/plan", "POST", "action=run&plan=1", **headers).status == status
            asked = served.ask(f"/plan?token={TOKEN}", "POST", "action=run&plan=1", **headers)
            assert asked.status == status
        assert source.done == []
        for headers in ({**cookie, **own}, bearer):
            answer = served.ask("/plan", "POST", "action=run&plan=7", **headers)
            assert (answer.status, answer.headers["location"]) == (303, "/plan")
        for action in ("pause", "cancel"):
            served.ask("/plan", "POST", f"action={action}", **bearer)
    assert source.done == ["run 7", "run 7", "pause", "cancel"]


@pytest.mark.parametrize("body", ["", "action=", "action=delete", "plan=1", "action=<script>"])
def test_an_action_that_there_is_not_is_refused_and_said(body: str) -> None:
    source = MadeWatched(snapshot())
    with serving(source, TOKEN, allows_changes=True) as served:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        answer = served.ask("/plan", "POST", body, **bearer)
        page = served.ask(answer.headers["location"], **bearer)
    assert "send run with a plan, pause or cancel" in page.text
    assert "<script>" not in page.text
    assert source.done == []


@pytest.mark.parametrize("plan", ["²", "-1", "9" * 4000, "x", ""])
def test_a_plan_that_is_no_number_is_plan_0_which_there_is_not(plan: str) -> None:
    source = MadeWatched(snapshot())
    with serving(source, TOKEN, allows_changes=True) as served:
        body = f"action=run&plan={plan}"
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert served.ask("/plan", "POST", body, **bearer).status in (303, 400)
    assert source.done in (["run 0"], [])


def test_a_refusal_is_shown_escaped_and_only_where_changes_are_allowed(local: Served) -> None:
    with serving(MadeWatched(snapshot(), refuses=True), TOKEN, allows_changes=True) as served:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        answer = served.ask("/plan", "POST", "action=pause", **bearer)
        page = served.ask(answer.headers["location"], **bearer)
        assert "&lt;b&gt;the plan&lt;/b&gt; is old &amp; gone" in page.text
    assert "call+this+number" not in local.ask("/plan?said=call+this+number").text
    assert "call this number" not in local.ask("/plan?said=call+this+number").text


# What is wrong


@pytest.mark.parametrize("fields", ["&".join(f"a{at}=1" for at in range(50)), "a" * 5000])
def test_a_form_that_is_too_long_is_refused(guarded: Served, fields: str) -> None:
    assert log_in(guarded, fields).status in (400, 413)


def test_a_form_of_a_megabyte_is_refused_before_it_is_read(guarded: Served) -> None:
    head = "POST /login HTTP/1.1\r\nHost: h\r\nOrigin: http://h\r\nContent-Length: 1000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=PATIENCE_S) as sent:
        sent.sendall(head.encode() + b"a" * 10_000)
        assert sent.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_form_that_drips_is_given_up(guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PATIENCE_S", 0.1)
    head = "POST /login HTTP/1.1\r\nHost: h\r\nOrigin: http://h\r\nContent-Length: 10\r\n\r\n"
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=PATIENCE_S) as sent:
        sent.sendall(head.encode() + b"a")
        assert sent.recv(100).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"G",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /style.css HTTP/1.1\r\nHost: localhost\r\n\r\nGET",
    ],
)
def test_a_request_that_is_never_whole_is_given_up(
    local: Served, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_PATIENCE_S", 0.1)
    with socket.create_connection(("127.0.0.1", local.port), timeout=PATIENCE_S) as slow:
        slow.sendall(sent)
        try:
            while slow.recv(65_536):
                pass
        except ConnectionResetError:
            pass
    assert local.ask("/").status == 200


def test_a_tls_handshake_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PATIENCE_S", 0.2)

    async def connect() -> bytes:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)
        async with listening, asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            try:
                return await reader.read()
            finally:
                writer.close()

    with asyncio.Runner(loop_factory=ServerLoop) as runner:
        assert runner.run(connect()) == b""


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 17_000, b"400"),
    ],
)
def test_what_is_not_http_is_refused(local: Served, request_: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", local.port), timeout=PATIENCE_S) as sent:
        sent.sendall(request_)
        assert sent.recv(100).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/%", 404),
        ("/%ff", 404),
        ("/topics/%ff", 404),
        ("/topics/%00", 404),
        ("/topics/../racks", 404),
        ("/topics/%2e%2e", 404),
        ("//evil.example", 404),
        ("/topics/flights/x", 404),
        ("/topics/flights%2Fx", 404),
        ("/brokers", 404),
        ("/brokers/-1", 404),
        ("/brokers/00", 404),
        ("/Topics", 404),
        ("/topics//flights", 200),
        ("/topics?sort=%ff&q=%00&page=%F0%9F%92%A9", 200),
        ("/topics?" + "&".join(f"a{at}" for at in range(200)), 200),
        ("/" + "a" * 3000, 414),
        ("/topics?q=" + "a" * 3000, 414),
        ("/events?view=//[", 400),
        ("/events?view=/topics?" + "%26".join(f"a{at}=1" for at in range(50)), 400),
    ],
)
def test_odd_addresses(local: Served, path: str, status: int) -> None:
    answer = local.ask(path)
    assert answer.status == status
    assert "Traceback" not in answer.text


def test_a_head_has_no_body_and_ends(local: Served) -> None:
    for path in (*PATHS, *OTHERS):
        answer = local.ask(path, "HEAD")
        assert (answer.status, answer.text) == (404 if path == "/gone" else 200, "")


def test_every_answer_has_the_headers(local: Served, guarded: Served) -> None:
    answers = [local.ask(path) for path in (*PATHS, "/snapshot.json", "/gone", "/script.js")]
    answers += [
        local.ask("/", Host="evil.example"),
        local.ask("/", "PUT"),
        local.ask("/", "POST", "", Origin=local.origin),
        local.ask("/" + "a" * 3000),
        guarded.ask("/"),
        guarded.ask("/", Accept="text/html"),
        guarded.ask(f"/?token={TOKEN}"),
        log_in(guarded, "a" * 5000),
        log_in(guarded, f"token={TOKEN}", "https://evil.example"),
    ]
    assert {each.status for each in answers} == {200, 303, 401, 403, 404, 405, 413, 414, 421}
    for each in answers:
        policy = each.headers.get_all("content-security-policy")
        assert policy is not None
        assert len(policy) == 1
        assert "default-src 'none'" in policy[0]
        assert "unsafe" not in policy[0]
        assert each.headers["x-content-type-options"] == "nosniff"
        assert each.headers["referrer-policy"] == "same-origin"
        assert each.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in each.headers
        assert "server" not in each.headers


def test_a_fault_is_an_answer_without_what_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the secret")

    monkeypatch.setattr(server, "render", fail)
    with serving(MadeSource(snapshot())) as served:
        answer = served.ask("/")
        assert served.ask("/style.css").status == 200
    assert (answer.status, "secret" in answer.text) == (500, False)
    assert "default-src" in answer.headers["content-security-policy"]
    assert "the secret" in caplog.text


# Data and streams


def test_the_data_are_what_the_pages_show(local: Served) -> None:
    data = json.loads(local.ask("/snapshot.json").text)
    assert [row["topic"] for row in data["topics"]] == ["flights"]
    assert [row["broker"] for row in data["brokers"]] == [0, 1, 2]


def test_before_the_first_snapshot_the_pages_say_so_and_follow() -> None:
    source = MadeSource()
    with serving(source) as served:
        assert "Measuring" in served.ask("/").text
        assert served.ask("/snapshot.json").status == 503
        reader = Reader(served)
        assert "Measuring" in reader.read()["main"]
        source.show(snapshot())
        assert "flights" in reader.read()["main"]
        reader.close()


def test_a_reader_gets_what_it_looks_at_and_each_change_of_it() -> None:
    source = MadeSource(snapshot(1))
    with serving(source) as served:
        reader = Reader(served, "/topics/flights")
        assert reader.answer.headers["content-type"].startswith("text/event-stream")
        assert "default-src" in reader.answer.headers["content-security-policy"]
        first = reader.read()
        assert "<h1>Topic flights</h1>" in first["main"]
        assert "5.0 kB/s" in first["main"]
        assert "cluster-1" in first["state"]
        source.show(snapshot(2, flights=7000.0))
        assert "7.0 kB/s" in reader.read()["main"]
        source.show(snapshot(3, orders=7000.0))
        assert "<h1>Not found</h1>" in reader.read()["main"]
        reader.close()


def test_an_idle_stream_beats_with_the_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_BEAT_S", 0.01)
    with serving(MadeSource(snapshot())) as served:
        reader = Reader(served)
        assert reader.read().keys() == {"main", "state"}
        assert reader.read().keys() == {"state"}
        reader.close()


def test_a_page_is_drawn_once_for_all_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def count(site: Site, path: str, query: Any) -> Any:
        drawn.append(path)
        return render(site, path, query)

    monkeypatch.setattr(server, "render", count)
    source = MadeSource(snapshot())
    with serving(source) as served:
        readers = [Reader(served) for _ in range(20)]
        for number in (2, 3):
            for reader in readers:
                reader.read()
            served.ask("/")
            source.show(snapshot(number))
        for reader in readers:
            reader.read()
            reader.close()
    assert drawn == ["/"] * 3


def test_one_more_reader_than_there_may_be_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MOST_STREAMS", 3)
    source = MadeSource(snapshot())
    with serving(source) as served:
        readers = [Reader(served) for _ in range(3)]
        more = served.ask("/events?view=/")
        assert (more.status, more.headers["retry-after"]) == (503, "10")
        assert served.ask("/").status == 200
        for reader in readers:
            reader.close()
        for number in range(2, 100):  # a send to one that has gone ends its stream
            source.show(snapshot(number))
            served.ask("/")
            if not served.dashboard._streams:
                break
        assert served.dashboard._streams == 0
        again = Reader(served)
        assert again.read()
        again.close()


def test_a_reader_that_does_not_read_holds_nobody_up_and_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_PATIENCE_S", 0.5)
    topics = {f"topic-{at}": 5000.0 for at in range(60)}
    source = MadeSource(snapshot(1, **topics))
    with serving(source) as served:
        stuck = socket.socket()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(("127.0.0.1", served.port))
        stuck.sendall(b"GET /events?view=/topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert stuck.recv(100).startswith(b"HTTP/1.1 200")
        reader = Reader(served)
        reader.read()
        number = 1
        while served.dashboard._streams > 1:
            number += 1
            assert number < 5000
            source.show(snapshot(number, **topics))
            assert reader.read()["main"]
        reader.close()
        stuck.close()


def test_what_is_kept_of_pages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MOST_PAGES", 10)
    source = MadeSource(snapshot())
    with serving(source) as served:
        for at in range(25):
            assert served.ask(f"/topics?q={at}").status == 200
            assert len(served.dashboard._drawn) <= 10
        source.show(snapshot(2))
        served.ask("/")
        assert len(served.dashboard._drawn) == 1


def test_streams_end_with_the_server() -> None:
    with serving(MadeSource(snapshot())) as served:
        reader = Reader(served)
        reader.read()
    assert reader.answer.read() == b""
    reader.close()
    with pytest.raises(ConnectionRefusedError):
        served.ask("/")


def test_more_connections_than_there_may_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 3)
    with serving(MadeSource(snapshot())) as served:
        kept = [served.connect() for _ in range(2)]
        for each in kept:
            each.request("GET", "/style.css")
            each.getresponse().read()
        answer = served.ask("/")
        assert answer.status == 503
        assert "default-src" in answer.headers["content-security-policy"]
        for each in kept:
            each.close()
