"""A connection from one node to another (`trimtab.cluster.server.peer`), which is faked here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator

import pytest

from trimtab.cluster.server.peer import Peer, PeerLost
from trimtab.kafka.wire.framing import RequestHeader, decode_request_header, encode_response
from trimtab.kafka.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from trimtab.kafka.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from trimtab.sim.world import World

REQUEST = AllocateProducerIdsRequest(broker_id=1, broker_epoch=11)


class Node(asyncio.Protocol):
    """The other node's end of its last connection: the requests, and methods to answer them.

    Attributes:
        lost: set once that connection is gone.
    """

    def __init__(self) -> None:
        self.received = b""
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def requests(self) -> list[RequestHeader]:
        rest, found = self.received, []
        while rest:
            end = 4 + int.from_bytes(rest[:4], "big")
            found.append(decode_request_header(rest[4:end]))
            rest = rest[end:]
        return found

    def answer(self, correlation_id: int, first: int = 0) -> None:
        response = AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=1)
        self.transport.writelines(encode_response(response, 0, correlation_id))


class PeerCase:
    def __init__(self, world: World) -> None:
        self.world = world

    def run(self, scenario: Callable[[], Coroutine[None, None, None]]) -> None:
        async def run() -> None:
            self.node = Node()
            loop = asyncio.get_running_loop()
            server = await loop.create_server(lambda: self.node, "node", 9092)
            async with asyncio.timeout(100):
                await scenario()
            server.close()

        self.world.run(run())

    async def connect(self) -> Peer:
        return await Peer.connect("node", 9092, "broker-1", 5)


@pytest.fixture
def case() -> Iterator[PeerCase]:
    with World(seed=1) as world:
        yield PeerCase(world)


async def test_responses_are_matched_to_requests_in_order(case: PeerCase) -> None:
    peer = await case.connect()
    asked = [peer.ask(REQUEST) for _ in range(3)]
    await asyncio.sleep(0.1)
    headers = case.node.requests()
    assert {each.client_id for each in headers} == {"broker-1"}
    for header in headers:
        case.node.answer(header.correlation_id, 100 + header.correlation_id)
    answers = await asyncio.gather(*asked)
    assert [each.producer_id_start for each in answers] == [101, 102, 103]
    peer.close()


async def test_a_request_goes_in_the_newest_version_unless_one_is_given(case: PeerCase) -> None:
    peer = await case.connect()
    asked = [peer.ask(MetadataRequest(topics=None), version) for version in (None, 5)]
    await asyncio.sleep(0.1)
    assert [each.api_version for each in case.node.requests()] == [13, 5]
    peer.close()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_an_unreachable_peer_is_reported_with_its_address(case: PeerCase) -> None:
    with pytest.raises(PeerLost, match="node:9999 cannot be reached"):
        await Peer.connect("node", 9999, "broker-1", 5)
    case.world.network.cut("node")
    began = case.world.loop.time()
    with pytest.raises(PeerLost, match="no answer in time"):
        await case.connect()
    assert case.world.loop.time() - began == pytest.approx(5)


@pytest.mark.parametrize("how", ["the other ends it", "this one closes it", "it breaks"])
async def test_waiting_requests_fail_when_the_connection_is_lost(case: PeerCase, how: str) -> None:
    peer = await case.connect()
    asked = [peer.ask(REQUEST) for _ in range(2)]
    await asyncio.sleep(0.1)
    case.node.answer(1, 7)
    await asyncio.sleep(0.1)
    assert not peer.is_lost
    if how == "the other ends it":
        case.node.transport.close()
    elif how == "this one closes it":
        peer.close()
    else:
        case.world.network.reset()
    assert (await asked[0]).producer_id_start == 7
    with pytest.raises(PeerLost, match="the connection to node:9092 is lost"):
        await asked[1]
    assert peer.is_lost
    with pytest.raises(PeerLost):
        await peer.ask(REQUEST)
    peer.close()


async def test_a_response_to_a_cancelled_request_is_ignored(case: PeerCase) -> None:
    peer = await case.connect()
    given_up, wanted = peer.ask(REQUEST), peer.ask(REQUEST)
    given_up.cancel()
    await asyncio.sleep(0.1)
    case.node.answer(1, 100)
    case.node.answer(2, 200)
    assert (await wanted).producer_id_start == 200
    peer.close()


@pytest.mark.parametrize(
    ("what", "frame"),
    [
        ("of another request", (2).to_bytes(4, "big") + bytes(16)),
        ("too short for a header", b"\0\0"),
        ("not what was asked for", (1).to_bytes(4, "big") + b"\0\1\2"),
    ],
)
async def test_an_undecodable_response_closes_the_connection(
    case: PeerCase, what: str, frame: bytes
) -> None:
    peer = await case.connect()
    asked = [peer.ask(REQUEST) for _ in range(2)]
    await asyncio.sleep(0.1)
    case.node.transport.write(len(frame).to_bytes(4, "big") + frame)
    for each in asked:
        with pytest.raises(PeerLost):
            await each
    assert peer.is_lost
    await case.node.lost.wait()


async def test_an_unexpected_response_closes_the_connection(case: PeerCase) -> None:
    peer = await case.connect()
    case.node.answer(1)
    await asyncio.sleep(0.1)
    assert peer.is_lost


async def test_an_invalid_frame_length_closes_the_connection(case: PeerCase) -> None:
    peer = await case.connect()
    asked = peer.ask(REQUEST)
    await asyncio.sleep(0.1)
    case.node.transport.write(b"\xff\xff\xff\xff")
    with pytest.raises(PeerLost):
        await asked


async def test_a_large_request_is_written_in_turns_and_a_smaller_one_overtakes_it(
    case: PeerCase,
) -> None:
    peer = await case.connect()
    topics = [MetadataRequestTopic(name=f"{n}") for n in range(5000)]
    large = peer.ask(MetadataRequest(topics=topics))
    small = peer.ask(REQUEST)
    await asyncio.sleep(0.1)
    assert [each.api_key for each in case.node.requests()] == [67, 3]
    case.node.answer(1, first=7)
    parts = [MetadataResponseTopic(name=f"{n}", partitions=[]) for n in range(5000)]
    response = MetadataResponse(brokers=[], topics=parts)
    case.node.transport.writelines(encode_response(response, 13, 2))
    assert (await small).producer_id_start == 7
    assert (await large).topics == parts


async def test_a_connection_that_is_lost_fails_a_large_request_too(case: PeerCase) -> None:
    peer = await case.connect()
    topics = [MetadataRequestTopic(name=f"{n}") for n in range(5000)]
    asked = peer.ask(MetadataRequest(topics=topics))
    peer.close()
    with pytest.raises(PeerLost):
        await asked
