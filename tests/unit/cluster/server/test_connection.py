"""The order in which a connection serves and answers requests
(`trimtab.cluster.server.connection`).

What it makes of frames that are no requests: `tests/unit/cluster/broker/test_dispatch.py`.

Long because the cases are of one order, of requests and answers, and share its scene.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.cluster.broker.conftest import Client
from trimtab.cluster.broker.broker import Broker
from trimtab.cluster.config import BROKER
from trimtab.cluster.server.connection import MAX_AT_ONCE, MAX_PIPELINED
from trimtab.cluster.server.listener import Listener
from trimtab.cluster.server.request import CloseConnection
from trimtab.cluster.server.turns import Steps
from trimtab.kafka.options import read
from trimtab.kafka.wire.framing import decode_correlation_id
from trimtab.kafka.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from trimtab.kafka.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from trimtab.kafka.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from trimtab.kafka.wire.messages.produce import (
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from trimtab.sim.world import World

RESPONSE = ProduceResponse(responses=[], throttle_time_ms=0)


class FakeServer:
    """A listener whose produce requests wait until the test answers them.

    Attributes:
        produced: what is to be answered, by the number of the request.
        others: the future that the next request of another kind is answered with.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.produced: list[asyncio.Future[ProduceResponse]] = []
        self.others: list[asyncio.Future[Any]] = []
        self.described: list[int] = []  # how many topics each Metadata request names
        self.at_once: Callable[[], Any] | None = None
        handlers = {
            ProduceRequest.api_key: self._produce,
            FindCoordinatorRequest.api_key: lambda header, request: FindCoordinatorResponse(),
            InitProducerIdRequest.api_key: self._wait,
            MetadataRequest.api_key: self._describe,
        }
        self.listener = Listener(1, handlers, read(BROKER, {}))

    def _produce(self, header: Any, request: ProduceRequest) -> Any:
        if self.at_once is not None:
            return self.at_once()
        if request.acks == 0:
            return None
        self.produced.append(asyncio.get_running_loop().create_future())
        return self.produced[-1]

    def _describe(self, header: Any, request: MetadataRequest) -> MetadataResponse:
        self.described.append(len(request.topics or ()))
        return MetadataResponse(brokers=[], topics=[])

    def _wait(self, header: Any, request: Any) -> Any:
        self.others.append(asyncio.get_running_loop().create_future())
        return self.others[-1]

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.world.run(scenario())

    def connect(self) -> NumberedClient:
        return NumberedClient(self)


class NumberedClient(Client):
    """A client of the server, whose requests are numbered from 1 on."""

    def __init__(self, server: FakeServer) -> None:
        super().__init__(cast(Broker, SimpleNamespace(listener=server.listener)))

    def produce(self, acks: int = -1) -> None:
        self.send(ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[]), 9)

    def find(self) -> None:
        self.send(FindCoordinatorRequest(key="g", coordinator_keys=[]), 3)

    def wait(self) -> None:
        self.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4)

    def answered(self) -> list[int]:
        """The numbers of the requests that were answered, in that order."""
        content, found = b"".join(self.transport.written), []
        while content:
            end = 4 + int.from_bytes(content[:4], "big")
            found.append(decode_correlation_id(content[4:end]))
            content = content[end:]
        return found


async def turn(times: int = 5) -> None:
    """Let what is due happen."""
    for _ in range(times):
        await asyncio.sleep(0)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with World(seed=1) as world:
        yield FakeServer(world)


# -- produce requests that wait


async def test_produce_requests_are_served_while_others_wait_and_answered_in_order(
    server: FakeServer,
) -> None:
    client = server.connect()
    for _ in range(3):
        client.produce()
    assert len(server.produced) == 3
    server.produced[2].set_result(RESPONSE)
    server.produced[1].set_result(RESPONSE)
    await turn()
    assert client.answered() == []
    server.produced[0].set_result(RESPONSE)
    await turn()
    assert client.answered() == [1, 2, 3]


async def test_a_produce_request_without_a_response_leaves_no_gap(server: FakeServer) -> None:
    client = server.connect()
    client.produce()
    client.produce(acks=0)
    client.produce()
    for each in server.produced:
        each.set_result(RESPONSE)
    await turn()
    assert client.answered() == [1, 3]


async def test_a_known_response_waits_for_earlier_ones(server: FakeServer) -> None:
    client = server.connect()
    client.produce()
    server.at_once = lambda: RESPONSE
    client.produce()
    assert client.answered() == []
    server.produced[0].set_result(RESPONSE)
    await turn()
    assert client.answered() == [1, 2]


async def test_another_kind_of_request_waits_for_all_of_them(server: FakeServer) -> None:
    client = server.connect()
    client.produce()
    client.find()
    client.produce()
    assert len(server.produced) == 1
    assert not client.transport.reading
    server.produced[0].set_result(RESPONSE)
    await turn()
    assert client.answered() == [1, 2]
    assert len(server.produced) == 2
    assert client.transport.reading


async def test_produce_requests_wait_for_another_kind(server: FakeServer) -> None:
    client = server.connect()
    client.wait()
    client.produce()
    assert server.produced == []
    server.others[0].set_result(InitProducerIdResponse(producer_id=1, producer_epoch=0))
    await turn()
    assert client.answered() == [1]
    assert len(server.produced) == 1


async def test_the_number_of_waiting_produce_requests_is_limited(server: FakeServer) -> None:
    client = server.connect()
    for _ in range(MAX_PIPELINED + 2):
        client.produce()
    await turn()
    assert len(server.produced) == MAX_PIPELINED
    assert not client.transport.reading
    server.produced[0].set_result(RESPONSE)
    await turn()
    assert len(server.produced) == MAX_PIPELINED + 1
    for each in server.produced[1:]:
        each.set_result(RESPONSE)
    await turn()
    server.produced[-1].set_result(RESPONSE)
    await turn()
    assert client.answered() == list(range(1, MAX_PIPELINED + 3))
    assert client.transport.reading


async def test_one_connection_does_not_wait_for_another(server: FakeServer) -> None:
    first, second = server.connect(), server.connect()
    first.produce()
    second.find()
    assert (first.answered(), second.answered()) == ([], [1])


async def test_with_a_slow_broker_produce_requests_wait_for_each_other(server: FakeServer) -> None:
    server.listener.faults.slow(produce_ms=20)
    client = server.connect()
    client.produce()
    client.produce()
    assert len(server.produced) == 1
    await asyncio.sleep(1)
    server.produced[0].set_result(RESPONSE)
    await asyncio.sleep(0.019)
    assert client.answered() == []
    await asyncio.sleep(0.002)
    assert client.answered() == [1]
    assert len(server.produced) == 2


# -- limits


async def test_other_connections_are_served_after_a_number_of_requests(server: FakeServer) -> None:
    greedy, other = server.connect(), server.connect()
    for _ in range(3 * MAX_AT_ONCE):
        greedy.find()
    other.find()
    assert len(greedy.answered()) == MAX_AT_ONCE
    assert not greedy.transport.reading
    assert other.answered() == [1]
    await asyncio.sleep(0)
    assert len(greedy.answered()) == 2 * MAX_AT_ONCE
    await turn()
    assert greedy.answered() == list(range(1, 3 * MAX_AT_ONCE + 1))
    assert greedy.transport.reading


async def test_long_requests_of_many_connections_share_a_limit_per_loop_iteration(
    server: FakeServer,
) -> None:
    """Per loop iteration only some of their requests are served, so short ones do not wait."""
    long = MetadataRequest(
        topics=[MetadataRequestTopic(name="x" * 30 + str(n)) for n in range(120)]
    )
    clients, other = [server.connect() for _ in range(50)], server.connect()
    for _ in range(2):
        for client in clients:
            client.send(long, 9)
    served = len(server.described)
    assert 1 <= served < 10
    other.find()
    assert other.answered() == [1]
    assert sum(not client.transport.reading for client in clients) >= 40
    await asyncio.sleep(0)
    assert served < len(server.described) <= 2 * served
    clients[-1].transport.close()
    await turn(60)
    # In the order of the queue: each is served once before any is served twice.
    assert [len(client.answered()) for client in clients] == [2] * 49 + [0]
    assert all(client.transport.reading for client in clients[:-1])


def test_nothing_is_written_to_a_connection_that_closes(server: FakeServer) -> None:
    """asyncio ignores such a write; uvloop raises."""

    async def scenario() -> None:
        client = server.connect()
        client.wait()
        client.transport.writelines = _refuse  # type: ignore[method-assign]
        client.transport.closed = (
            True  # the peer has reset it; `connection_lost` has not been called yet
        )
        server.others[0].set_result(InitProducerIdResponse(producer_epoch=0))
        await turn()
        assert not server.others[0].cancelled()

    failures: list[Any] = []

    def _refuse(parts: Any) -> None:
        failures.append(parts)

    server.run(scenario)
    assert failures == []


async def test_a_closed_connection_does_not_serve_its_next_request(server: FakeServer) -> None:
    client = server.connect()
    for _ in range(2 * MAX_AT_ONCE):
        client.produce()
    client.transport.close()
    await turn()
    assert len(server.produced) == MAX_AT_ONCE


async def test_a_length_alone_takes_no_memory(server: FakeServer) -> None:
    client = server.connect()
    client.send_bytes((100_000_000).to_bytes(4, "big"))
    assert len(client.connection.get_buffer(-1)) < 10_000
    client.send_bytes(bytes(20_000))
    assert len(client.connection.get_buffer(-1)) < 100_000
    client.send_bytes(bytes(200_000))
    assert len(client.connection.get_buffer(-1)) < 1_000_000


async def test_a_client_that_has_sent_a_large_frame_may_announce_others(server: FakeServer) -> None:
    client = server.connect()
    large = ProduceRequest(transactional_id="t" * 30_000, acks=-1, timeout_ms=1000, topic_data=[])
    for _ in range(2):
        client.send(large, 9)
    assert len(server.produced) == 2
    client.connection.trusted_bytes = 0
    client.send(large, 9)
    assert 30_000 < client.connection.trusted_bytes < 31_000


async def test_a_client_that_reads_what_it_asked_for_is_not_idle(server: FakeServer) -> None:
    server.listener.config = read(BROKER, {"connections.max.idle.ms": 1000})
    client = server.connect()
    client.find()
    for _ in range(5):
        client.connection.pause_writing()
        await asyncio.sleep(0.9)
        client.connection.resume_writing()
    assert not client.transport.closed
    client.connection.pause_writing()
    await asyncio.sleep(1.1)
    assert client.transport.closed


# -- closing


async def test_pending_responses_are_cancelled_when_the_connection_is_lost(
    server: FakeServer,
) -> None:
    client = server.connect()
    lost: list[bool] = []
    client.connection.on_lost = lambda: lost.append(True)
    client.produce()
    client.produce()
    client.find()
    client.transport.close()
    await turn()
    assert [each.cancelled() for each in server.produced] == [True, True]
    assert client.answered() == []
    assert lost == [True]
    assert server.listener.counts.open == 0


async def test_pending_responses_are_cancelled_at_once_when_the_connection_is_aborted(
    server: FakeServer,
) -> None:
    """As when a broker is killed, which must not answer any more (seed 30319)."""
    client = server.connect()
    client.produce()
    client.connection.abort()
    assert server.produced[0].cancelled()
    await turn()
    assert client.answered() == []


@pytest.mark.parametrize(
    ("error", "refused", "failed"),
    [(CloseConnection("no answer fits"), 1, 0), (RuntimeError("a fault of ours"), 0, 1)],
)
def test_a_failed_response_closes_its_connection(
    server: FakeServer,
    error: Exception,
    refused: int,
    failed: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        client, other = server.connect(), server.connect()
        client.produce()
        client.produce()
        server.produced[0].set_exception(error)
        await turn()
        assert client.transport.closed
        assert server.produced[1].cancelled()
        other.find()
        assert other.answered() == [1]
        counts = server.listener.counts
        assert (counts.refused, counts.failed) == (refused, failed)

    server.run(scenario)
    assert str(error) in caplog.text


def test_a_response_that_cannot_be_encoded_closes_its_connection(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        server.at_once = lambda: ProduceResponse(responses=None, throttle_time_ms=0)  # type: ignore[arg-type]
        client = server.connect()
        client.produce()
        assert client.transport.closed
        assert server.listener.counts.failed == 1

    server.run(scenario)
    assert "its request failed" in caplog.text


async def test_nothing_is_served_after_the_connection_was_closed(server: FakeServer) -> None:
    client = server.connect()
    client.wait()
    client.produce()
    client.connection.close()
    await turn()
    assert server.others[0].cancelled()
    assert server.produced == []


# -- writing


async def test_a_client_that_does_not_read_delays_only_its_own_requests(server: FakeServer) -> None:
    client, other = server.connect(), server.connect()
    client.connection.pause_writing()
    client.produce()
    client.find()
    other.produce()
    assert len(server.produced) == 1
    client.connection.resume_writing()
    assert len(server.produced) == 2
    server.produced[1].set_result(RESPONSE)
    await turn()
    assert client.answered() == [1, 2]


async def test_responses_known_together_are_sent_together(server: FakeServer) -> None:
    client = server.connect()
    for _ in range(3):
        client.produce()
    for each in reversed(server.produced):
        each.set_result(RESPONSE)
    await turn()
    assert client.answered() == [1, 2, 3]
    assert len(client.transport.written) == 1


async def test_a_handler_can_tell_whose_request_it_serves(server: FakeServer) -> None:
    seen: list[object] = []

    def look() -> ProduceResponse:
        seen.append(server.listener.serving)
        return RESPONSE

    server.at_once = look
    clients = server.connect(), server.connect()
    for client in clients:
        client.produce()
    assert seen == [client.connection for client in clients]
    assert server.listener.serving is None


# -- large requests


def large(topics: int = 5000) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=f"{n:06}") for n in range(topics)])


async def test_other_connections_are_served_while_a_large_request_is_decoded(
    server: FakeServer,
) -> None:
    client, other = server.connect(), server.connect()
    client.send(large(), 12)
    assert server.described == []
    served_meanwhile = 0
    while not server.described:
        other.find()
        served_meanwhile += 1
        await asyncio.sleep(0)
    assert len(other.answered()) == served_meanwhile > 10
    await turn(50)
    assert client.answered() == [1]
    assert server.described == [5000]


async def test_a_handler_in_steps_is_finished_before_the_next_request_of_its_connection(
    server: FakeServer,
) -> None:
    steps: list[int] = []

    def handle() -> Steps[ProduceResponse]:
        for number in range(3):
            steps.append(number)
            yield
        return RESPONSE

    client = server.connect()

    def handle_next() -> ProduceResponse:
        steps.append(99)
        return RESPONSE

    server.at_once = handle
    client.produce()
    server.at_once = handle_next
    client.produce()
    client.find()
    assert steps == [0]
    assert client.answered() == []
    await turn()
    await turn()
    assert steps == [0, 1, 2, 99]
    assert client.answered() == [1, 2, 3]


async def test_steps_without_a_pause_are_answered_at_once(server: FakeServer) -> None:
    def handle() -> Steps[ProduceResponse]:
        yield from ()
        return RESPONSE

    client = server.connect()
    server.at_once = handle
    client.produce()
    assert client.answered() == [1]


async def test_steps_may_end_with_an_awaitable(server: FakeServer) -> None:
    pending: asyncio.Future[ProduceResponse] = asyncio.get_running_loop().create_future()

    def handle() -> Steps[Any]:
        yield
        return pending

    client = server.connect()
    server.at_once = handle
    client.produce()
    await turn()
    server.at_once = lambda: RESPONSE
    client.produce()
    assert client.answered() == []
    pending.set_result(RESPONSE)
    await turn()
    assert client.answered() == [1, 2]


async def test_a_large_response_is_encoded_in_steps_and_sent_in_order(server: FakeServer) -> None:
    client = server.connect()
    client.produce()
    parts = [TopicProduceResponse(name=f"{n}", partition_responses=[]) for n in range(20_000)]
    server.at_once = lambda: ProduceResponse(responses=parts)
    client.produce()
    server.at_once = lambda: RESPONSE
    client.produce()
    server.produced[0].set_result(RESPONSE)
    await turn()
    assert client.answered() == [1]
    await turn(200)
    assert client.answered() == [1, 2, 3]


async def test_a_lost_connection_stops_its_work(server: FakeServer) -> None:
    client = server.connect()
    client.send(large(), 12)
    await asyncio.sleep(0)
    client.connection.abort()
    client.connection.connection_lost(None)
    await turn()
    assert len(server.listener.turns) == 0
    assert server.described == []


def test_a_request_that_exceeds_the_memory_limit_closes_its_connection_with_a_reason(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        client = server.connect()
        body = (1_000_000).to_bytes(4, "big") + bytes(2_000_000)
        client.send_frame(bytes.fromhex("0003 0001 00000001 ffff") + body)
        await turn()
        assert client.transport.closed
        assert server.described == []

    server.run(scenario)
    assert "MetadataRequest.topics has the length 1000000" in caplog.text


async def test_corruption_late_in_a_large_request_closes_the_connection(server: FakeServer) -> None:
    client = server.connect()
    body = (5000).to_bytes(4, "big") + b"\0\x01t" * 4999 + b"\xff\xff"
    client.send_frame(bytes.fromhex("0003 0000 00000001 ffff") + body)
    await turn(200)
    assert client.transport.closed
    assert server.listener.counts.refused == 1


async def test_other_connections_are_served_after_a_long_request(server: FakeServer) -> None:
    client = server.connect()
    client.send(large(300), 12)
    client.find()
    assert client.answered() == [1]
    await turn()
    assert client.answered() == [1, 2]
