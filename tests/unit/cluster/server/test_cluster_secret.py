"""Nodes that prove to each other that they know the cluster's secret, and those that pretend."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from trimtab.cluster.config import BROKER
from trimtab.cluster.server.cluster_secret import ClusterSecret, name_broker
from trimtab.cluster.server.listener import Listener
from trimtab.cluster.server.peer import Peer, PeerLost, PeerRefused
from trimtab.cluster.server.secret_file import MECHANISM, USER
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.options import read
from trimtab.kafka.wire.framing import RequestHeader, encode_request
from trimtab.kafka.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from trimtab.kafka.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from trimtab.kafka.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from trimtab.kafka.wire.scram import ScramClient
from trimtab.sim.world import World

TEXT = "a secret of forty-three random characters.."
OURS, THEIRS = ClusterSecret(TEXT), ClusterSecret("another cluster's secret, as random as ours")
ASK = AllocateProducerIdsRequest(broker_id=0, broker_epoch=0)
STRANGER, NODE = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.NONE
T = TypeVar("T")


class Node:
    """Broker 1, which says who asked, on the host `node`."""

    def __init__(self, secret: ClusterSecret = OURS, broker_id: int = 1) -> None:
        self.asked: list[bool] = []
        self.listener = Listener(
            broker_id,
            {AllocateProducerIdsRequest.api_key: self._say},
            read(BROKER, {}),
            secret=secret,
            name=name_broker(broker_id),
        )

    async def start(self, host: str = "node") -> None:
        await self.listener.bind(host, 9092)
        await self.listener.start()

    def _say(self, header: RequestHeader, request: Any) -> AllocateProducerIdsResponse:
        self.asked.append(header.is_node)
        return AllocateProducerIdsResponse(error_code=NODE if header.is_node else STRANGER)


class Relay(asyncio.Protocol):
    """Stands between a node that connects to it and another address, and notes what is sent."""

    def __init__(self, to: str) -> None:
        self.to = to
        self.sent = b""
        self.out: asyncio.Transport | None = None

    async def start(self, host: str) -> None:
        server = await asyncio.get_running_loop().create_server(lambda: self, host, 9092)
        await server.start_serving()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.back = transport
        asyncio.ensure_future(self._connect())  # noqa: RUF006

    async def _connect(self) -> None:
        relay = self

        class Outward(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                relay.back.write(data)

            def connection_lost(self, error: Exception | None) -> None:
                relay.back.close()

        loop = asyncio.get_running_loop()
        self.out, _ = await loop.create_connection(Outward, self.to, 9092)
        self.out.write(self.sent)

    def data_received(self, data: bytes) -> None:
        self.sent += data
        if self.out is not None:
            self.out.write(data)


class Hand(asyncio.Protocol):
    """A connection of which a test writes every byte."""

    def __init__(self) -> None:
        self.heard = b""
        self.lost = asyncio.Event()

    @classmethod
    async def reach(cls, host: str = "node") -> Hand:
        transport, hand = await asyncio.get_running_loop().create_connection(cls, host, 9092)
        hand.transport = transport
        return hand

    transport: asyncio.Transport

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()


@pytest.fixture
def run() -> Iterator[Callable[[Callable[[], Awaitable[Any]]], Any]]:
    with World(seed=1) as world:

        def in_world(scenario: Callable[[], Awaitable[T]]) -> T:
            async def limited() -> T:
                async with asyncio.timeout(600):
                    return await scenario()

            return world.run(limited())

        yield in_world


Run = Callable[[Callable[[], Awaitable[Any]]], Any]


async def dial(
    secret: ClusterSecret | None = OURS, broker: int = 1, host: str = "node", limit_s: float = 5
) -> Peer:
    return await Peer.connect(
        host, 9092, "broker-0", limit_s, secret=secret, whom=name_broker(broker)
    )


def test_only_who_proves_that_he_knows_the_secret_is_a_node(run: Run) -> None:
    async def scenario() -> None:
        node = Node()
        await node.start()
        stranger, peer = await dial(None), await dial()
        assert (await stranger.ask(ASK)).error_code == STRANGER
        assert (await peer.ask(ASK)).error_code == NODE
        assert (await stranger.ask(ASK)).error_code == STRANGER
        assert (await (await dial(None)).ask(ASK)).error_code == STRANGER
        await node.listener.close()

    run(scenario)


def test_another_clusters_node_is_refused_and_so_is_its_server(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        ours, theirs = Node(), Node(THEIRS)
        await ours.start()
        await theirs.start("other")
        with pytest.raises(PeerRefused, match=r"node:9092 is not broker-1 .* know the password"):
            await dial(THEIRS)
        with pytest.raises(PeerRefused, match="other:9092 is not broker-1 of this cluster"):
            await dial(OURS, host="other")
        await asyncio.sleep(1)
        for node in (ours, theirs):
            assert (node.asked, node.listener.counts.open) == ([], 0)
            assert (node.listener.counts.refused, node.listener.counts.failed) == (1, 0)
            await node.listener.close()

    caplog.set_level(logging.DEBUG)
    run(scenario)
    assert "failed login of a node" in caplog.text
    assert TEXT not in caplog.text + repr(OURS) + repr(vars(OURS))


def test_nothing_but_the_proof_is_sent_to_a_server_that_has_not_proven_itself(run: Run) -> None:
    """A man in the middle that passes on what it gets, to a server with another secret."""

    async def scenario() -> None:
        theirs, relay = Node(THEIRS), Relay("other")
        await theirs.start("other")
        await relay.start("node")
        with pytest.raises(PeerRefused):
            await dial()
        await asyncio.sleep(1)
        assert TEXT.encode() not in relay.sent
        assert theirs.asked == []
        await theirs.listener.close()

    run(scenario)


def test_a_login_cannot_be_passed_on_to_another_node(run: Run) -> None:
    async def scenario() -> None:
        meant, other, relay = Node(), Node(broker_id=2), Relay("other")
        await meant.start()
        await other.start("other")
        await relay.start("false")
        with pytest.raises(PeerRefused, match=r"false:9092 is not broker-1 .* this is broker-2"):
            await dial(broker=1, host="false")
        (await dial(broker=2, host="other")).close()
        assert other.asked == []
        await meant.listener.close()
        await other.listener.close()

    run(scenario)


def test_a_recorded_login_is_worth_nothing(run: Run) -> None:
    async def scenario() -> None:
        node, relay = Node(), Relay("node")
        await node.start()
        await relay.start("seen")
        peer = await dial(host="seen")
        assert (await peer.ask(ASK)).error_code == NODE
        replayed = await Hand.reach()
        replayed.transport.write(relay.sent)
        await replayed.lost.wait()
        assert node.asked == [True]
        peer.close()
        await asyncio.sleep(1)
        await node.listener.close()

    run(scenario)


def frame(request: Any, version: int, number: int = 1) -> bytes:
    return b"".join(bytes(each) for each in encode_request(request, version, number, "t"))


def forged(message: bytes) -> bytes:
    return frame(SaslAuthenticateRequest(auth_bytes=message), 2)


SHAKE = frame(SaslHandshakeRequest(mechanism=MECHANISM), 1)
FIRST = forged(ScramClient("sha256", USER, "guess", "nonce").begin())
WRONG = forged(b"c=biws,r=nonce,p=" + b"A" * 43 + b"=")


@pytest.mark.parametrize(
    "message",
    [
        SHAKE + FIRST + WRONG,
        SHAKE + WRONG + FIRST,
        SHAKE + forged(b""),
        SHAKE + forged(bytes(100)),
        SHAKE + forged(b"n,,n=node,r=" + b"x" * 60_000),
        SHAKE + FIRST + forged(b"c=biws"),
        SHAKE + FIRST + FIRST,
        frame(SaslHandshakeRequest(mechanism="PLAIN"), 1),
        frame(SaslHandshakeRequest(mechanism=MECHANISM.lower()), 1),
        frame(SaslHandshakeRequest(mechanism=MECHANISM), 0),
    ],
)
def test_a_failed_login_costs_its_sender_the_connection(run: Run, message: bytes) -> None:
    async def scenario() -> None:
        node = Node()
        await node.start()
        peer, hand = await dial(), await Hand.reach()
        # What follows it is not served, as whose it is could be mistaken.
        hand.transport.write(message + frame(ASK, 0) + SHAKE + FIRST)
        await hand.lost.wait()
        assert node.asked == []
        assert (await peer.ask(ASK)).error_code == NODE
        assert (node.listener.counts.refused, node.listener.counts.failed) == (1, 0)
        await node.listener.close()

    run(scenario)


def test_messages_out_of_order_are_refused_with_illegal_sasl_state(run: Run) -> None:
    async def scenario() -> None:
        node = Node()
        await node.start()
        stranger, peer = await dial(None), await dial()
        first = SaslAuthenticateRequest(auth_bytes=b"n,,n=node,r=nonce")
        shake = SaslHandshakeRequest(mechanism=MECHANISM)
        illegal = ErrorCode.ILLEGAL_SASL_STATE
        assert (await stranger.ask(first)).error_code == illegal
        assert (await stranger.ask(shake)).error_code == ErrorCode.NONE
        assert (await stranger.ask(shake)).error_code == illegal
        assert (await stranger.ask(ASK)).error_code == STRANGER  # before the end of the login
        assert (await stranger.ask(first)).error_code == ErrorCode.NONE
        assert (await stranger.ask(ASK)).error_code == STRANGER
        assert (await peer.ask(shake)).error_code == illegal
        assert (await peer.ask(first)).error_code == illegal
        assert (await peer.ask(ASK)).error_code == NODE
        await node.listener.close()

    run(scenario)


def test_a_thousand_wrong_logins_keep_nobody_waiting(run: Run) -> None:
    async def scenario() -> None:
        node = Node()
        await node.start()
        peer = await dial()
        loop = asyncio.get_running_loop()
        for _ in range(1000):
            (await Hand.reach()).transport.write(SHAKE + FIRST + WRONG)
        begun = loop.time()
        assert (await peer.ask(ASK)).error_code == NODE
        (await dial()).close()
        assert loop.time() - begun < 0.1  # virtual seconds: it waited for none of them
        await asyncio.sleep(5)
        counts = node.listener.counts
        assert (counts.open, counts.refused, counts.failed) == (1, 1000, 0)
        await node.listener.close()

    run(scenario)


@pytest.mark.parametrize(
    ("iterations", "signature", "why"),
    [
        *((4096, each, "prove") for each in (b"", b"v=", b"v=" + b"A" * 43 + b"=")),
        (4096, b"e=other-error", "other-error"),
        (100_000, b"", "100000 SCRAM iterations"),
    ],
)
def test_a_server_that_takes_any_proof_and_gives_none_is_refused(
    run: Run, iterations: int, signature: bytes, why: str
) -> None:
    asked = []

    def authenticate(header: Any, request: Any) -> SaslAuthenticateResponse:
        said = bytes(request.auth_bytes)
        if said.startswith(b"n,,"):
            nonce = said.partition(b"r=")[2].partition(b",")[0]
            return SaslAuthenticateResponse(
                auth_bytes=b"r=%s+,s=c2FsdA==,i=%d" % (nonce, iterations)
            )
        return SaslAuthenticateResponse(auth_bytes=signature)

    async def scenario() -> None:
        listener = Listener(
            1,
            {
                17: lambda header, request: SaslHandshakeResponse(mechanisms=[MECHANISM]),
                36: authenticate,
                AllocateProducerIdsRequest.api_key: lambda header, request: asked.append(1),
            },
            read(BROKER, {}),
        )
        await listener.bind("node", 9092)
        await listener.start()
        with pytest.raises(PeerRefused, match=f"node:9092 is not broker-1.*{why}"):
            await dial()
        await asyncio.sleep(1)
        assert (asked, listener.counts.open) == ([], 0)
        await listener.close()

    run(scenario)


@pytest.mark.parametrize(
    "said",
    [
        b"",  # nothing, for ever
        b"\x7f\xff\xff\xff",
        b"\0\1\0\1" + bytes(8),  # a frame just too long
        b"\0\0\0\4" + bytes(4),
        b"\0\0\0\6" + bytes(3) + b"\1\0\0",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_a_false_server_gets_no_memory_and_no_more_time_than_any(run: Run, said: bytes) -> None:
    lost = []

    class FalseServer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(said)

        def connection_lost(self, error: Exception | None) -> None:
            lost.append(error)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(FalseServer, "node", 9092)
        await server.start_serving()
        begun = loop.time()
        with pytest.raises(PeerLost, match="node:9092"):
            await dial(limit_s=5)
        assert loop.time() - begun < (1 if said else 5.5)
        await asyncio.sleep(1)
        assert len(lost) == 1
        server.close()

    run(scenario)
