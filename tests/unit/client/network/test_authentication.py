"""SASL's mechanisms, against the RFCs' own examples and against brokers that answer by script."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.client.scripted_broker import ScriptedBroker, ScriptedCluster
from trimtab.client.network.authentication import (
    Credentials,
    OAuthBearer,
    Plain,
    Scram,
)
from trimtab.client.network.backoff import Backoff
from trimtab.client.network.bootstrap import parse_bootstrap_servers
from trimtab.client.network.connection import ConnectionOptions
from trimtab.client.network.connections import Connections
from trimtab.kafka.errors import AuthenticationFailed, ErrorCode, Unavailable
from trimtab.kafka.options import Password
from trimtab.kafka.wire.messages.api_versions import ApiVersionsRequest
from trimtab.kafka.wire.messages.metadata import MetadataRequest
from trimtab.kafka.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from trimtab.kafka.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from trimtab.kafka.wire.scram import ScramServer
from trimtab.sim.world import World

OPTIONS = ConnectionOptions(
    client_id="test", request_timeout=30.0, connect_timeout=10.0, backoff=Backoff(0.05, 1.0)
)
SECRET = "pencil"


# --- over a connection ---------------------------------------------------------------------------


def scram() -> Scram:
    return Scram("SCRAM-SHA-256", "user", Password(SECRET), lambda: "nonce")


def plain(password: str = SECRET) -> Plain:
    return Plain("user", Password(password))


def secured(
    cluster: ScriptedCluster,
    answer: Callable[[SaslAuthenticateRequest], SaslAuthenticateResponse],
    mechanisms: tuple[str, ...] = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"),
) -> ScriptedBroker:
    """A broker that answers each step of an authentication with `answer`."""
    broker = cluster.broker(0)

    def handshake(request: Any) -> SaslHandshakeResponse:
        known = request.mechanism in mechanisms
        return SaslHandshakeResponse(
            error_code=ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            mechanisms=list(mechanisms),
        )

    broker.answers[SaslHandshakeRequest] = handshake
    broker.answers[SaslAuthenticateRequest] = answer
    return broker


def takes_plain(request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    if request.auth_bytes == f"\0user\0{SECRET}".encode():
        return SaslAuthenticateResponse(auth_bytes=b"")
    return SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
        error_message="Authentication failed: Invalid username or password",
        auth_bytes=b"",
    )


def connections_with(cluster: ScriptedCluster, credentials: Credentials) -> Connections:
    return Connections(
        parse_bootstrap_servers(cluster.bootstrap),
        replace(OPTIONS, credentials=credentials, security_protocol="SASL_PLAINTEXT"),
        cluster.world.random("client"),
    )


async def test_authentication_comes_before_anything_else(world: World) -> None:
    cluster = ScriptedCluster(world)
    broker = secured(cluster, takes_plain)
    await broker.start()
    connections = connections_with(cluster, plain())
    await connections.request(-1, MetadataRequest(topics=[]))
    assert [(asked.api, asked.version) for asked in broker.asked] == [
        (ApiVersionsRequest, 4),
        (SaslHandshakeRequest, 1),
        (SaslAuthenticateRequest, 2),
        (MetadataRequest, 13),
    ]


async def test_scram_over_a_connection(world: World) -> None:
    cluster = ScriptedCluster(world)
    server = ScramServer("sha256", "user", SECRET, b"salt", "more")

    def answer(request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        message = request.auth_bytes
        said = server.begin(message) if message.startswith(b"n,,") else server.finish(message)
        return SaslAuthenticateResponse(auth_bytes=said)

    broker = secured(cluster, answer)
    await broker.start()
    assert (await connections_with(cluster, scram()).connect(-1)).is_open


async def test_a_broker_that_skips_its_own_proof_is_refused(world: World) -> None:
    cluster = ScriptedCluster(world)
    server = ScramServer("sha256", "user", SECRET, b"salt", "more")

    def answer(request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        message = request.auth_bytes
        said = server.begin(message) if message.startswith(b"n,,") else b""
        return SaslAuthenticateResponse(auth_bytes=said)

    broker = secured(cluster, answer)
    await broker.start()
    with pytest.raises(AuthenticationFailed, match="could not prove"):
        await connections_with(cluster, scram()).connect(-1)


async def test_a_refusal_names_broker_mechanism_and_cause_and_no_secret(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = ScriptedCluster(world)
    broker = secured(cluster, takes_plain)
    caplog.set_level(logging.DEBUG)
    await broker.start()
    connections = connections_with(cluster, plain("hunter2"))
    with pytest.raises(AuthenticationFailed) as caught:
        await connections.connect_any()
    text = str(caught.value)
    assert "broker -1 (broker-0:9092), PLAIN: SASL_AUTHENTICATION_FAILED (58)" in text
    assert "Invalid username or password" in text
    assert isinstance(connections.last_error(-1), AuthenticationFailed)
    await asyncio.sleep(1)
    assert [link.transport for link in broker.links] == [None]
    assert "hunter2" not in text + repr(connections.options) + caplog.text


async def test_a_mechanism_that_the_broker_does_not_have(world: World) -> None:
    cluster = ScriptedCluster(world)
    broker = secured(cluster, takes_plain, mechanisms=("GSSAPI", "SCRAM-SHA-512"))
    await broker.start()
    expected = r"does not do sasl\.mechanism=PLAIN.*it does GSSAPI, SCRAM-SHA-512"
    with pytest.raises(AuthenticationFailed, match=expected):
        await connections_with(cluster, plain()).connect(-1)


@pytest.mark.kip(368)
async def test_a_session_is_renewed_and_requests_wait_meanwhile(world: World) -> None:
    cluster = ScriptedCluster(world)

    def answer(request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        return SaslAuthenticateResponse(auth_bytes=b"", session_lifetime_ms=200)

    broker = secured(cluster, answer)
    await broker.start()
    connection = await connections_with(cluster, plain()).connect(-1)
    request = MetadataRequest(topics=[])

    async def ask() -> None:
        while world.loop.time() < 1.3:
            await connection.request(request)

    await asyncio.gather(*(ask() for _ in range(3)))
    assert len(broker.links) == 1
    proved = [asked.at for asked in broker.asked if asked.api is SaslAuthenticateRequest]
    gaps = [later - earlier for earlier, later in itertools.pairwise(proved)]
    assert len(gaps) == 7
    assert all(0.17 <= gap < 0.18 for gap in gaps)
    # Nothing comes between the handshake and the outcome.
    order = [asked.api for asked in broker.asked]
    for index, api in enumerate(order):
        if api is SaslHandshakeRequest:
            assert order[index + 1] is SaslAuthenticateRequest


@pytest.mark.kip(368)
async def test_a_session_that_cannot_be_renewed_ends_its_connection(world: World) -> None:
    cluster = ScriptedCluster(world)
    is_welcome = True

    def answer(request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        code = ErrorCode.NONE if is_welcome else ErrorCode.SASL_AUTHENTICATION_FAILED
        return SaslAuthenticateResponse(error_code=code, auth_bytes=b"", session_lifetime_ms=10_000)

    broker = secured(cluster, answer)
    await broker.start()
    connections = connections_with(cluster, plain())
    connection = await connections.connect(-1)
    is_welcome = False
    await asyncio.sleep(8.5005)  # after the handshake was sent, before it was answered
    assert connection.in_flight == 1
    with pytest.raises(AuthenticationFailed, match="SASL_AUTHENTICATION_FAILED"):
        await connection.request(MetadataRequest(topics=[]))
    assert not connection.is_open
    assert isinstance(connections.last_error(-1), AuthenticationFailed)


# --- OAUTHBEARER ---------------------------------------------------------------------------------


@pytest.mark.kip(255)
async def test_a_token_is_asked_for_again_before_it_ends(world: World) -> None:
    asked: list[float] = []

    async def fetch_token() -> tuple[str, float]:
        asked.append(world.loop.time())
        return f"token-{len(asked)}", 100.0

    credentials = OAuthBearer(fetch_token)
    exchanges = await asyncio.gather(*(credentials.start() for _ in range(3)))
    for exchange in exchanges:
        assert exchange.begin() == b"n,,\x01auth=Bearer token-1\x01\x01"
    await asyncio.sleep(79)
    assert b"token-1" in (await credentials.start()).begin()
    await asyncio.sleep(2)
    assert b"token-2" in (await credentials.start()).begin()
    assert asked == [0, 81]


async def test_a_token_without_a_lifetime_is_asked_for_each_time(world: World) -> None:
    tokens = iter(["one", "two"])

    async def fetch_token() -> str:
        return next(tokens)

    credentials = OAuthBearer(fetch_token)
    assert b"Bearer one\x01" in (await credentials.start()).begin()
    assert b"Bearer two\x01" in (await credentials.start()).begin()


def test_a_plain_callable_runs_beside_the_loop() -> None:
    import threading

    threads: list[int] = []

    def fetch_token() -> str:
        threads.append(threading.get_ident())
        return "token"

    async def scenario() -> None:
        assert b"Bearer token\x01" in (await OAuthBearer(fetch_token).start()).begin()

    asyncio.run(scenario())
    assert threads != [threading.get_ident()]


@pytest.mark.parametrize("given", ["", "two words", "line\nbreak", None, 5, ("t",), ("t", 0)])
async def test_what_is_no_token(world: World, given: Any) -> None:
    async def fetch_token() -> Any:
        return given

    with pytest.raises(AuthenticationFailed, match=r"sasl\.oauthbearer\.token returned"):
        await OAuthBearer(fetch_token).start()


async def test_a_source_that_fails_is_asked_again_later(world: World) -> None:
    cluster = ScriptedCluster(world)
    broker = secured(cluster, lambda request: SaslAuthenticateResponse(auth_bytes=b""))
    troubles = [ConnectionError("the token server is away")]

    async def fetch_token() -> str:
        if troubles:
            raise troubles.pop()
        return "token"

    await broker.start()
    connections = connections_with(cluster, OAuthBearer(fetch_token))
    with pytest.raises(Unavailable, match=r"token raised.*the token server is away"):
        await connections.connect(-1)
    assert (await connections.connect(-1)).is_open


async def test_a_refused_token_says_why(world: World) -> None:
    cluster = ScriptedCluster(world)
    broker = secured(
        cluster,
        lambda request: SaslAuthenticateResponse(auth_bytes=b'{"status":"invalid_token"}'),
    )

    async def fetch_token() -> str:
        return "token"

    await broker.start()
    with pytest.raises(AuthenticationFailed, match=r"refused \(invalid_token\)"):
        await connections_with(cluster, OAuthBearer(fetch_token)).connect(-1)
