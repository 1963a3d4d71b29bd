"""The order in which a connection serves and answers requests (`trimtab.server.connection`).

What it makes of frames that are no requests: `tests/unit/broker/test_dispatch.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.broker.conftest import Client
from trimtab import config
from trimtab.broker.broker import Broker
from trimtab.config import BROKER
from trimtab.server.connection import MAX_AT_ONCE, MAX_PIPELINED
from trimtab.server.listener import Listener
from trimtab.server.request import CloseConnection
from trimtab.server.turns import Steps
from trimtab.sim.world import World
from trimtab.wire.framing import decode_correlation_id
from trimtab.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from trimtab.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from trimtab.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from trimtab.wire.messages.produce import ProduceRequest, ProduceResponse, TopicProduceResponse

PRODUCE, METADATA, FIND_COORDINATOR, INIT_PRODUCER_ID = 0, 3, 10, 22
RESPONSE = ProduceResponse(responses=[], throttle_time_ms=0)


class Desk:
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
            PRODUCE: self._produce,
            FIND_COORDINATOR: lambda header, request: FindCoordinatorResponse(),
            INIT_PRODUCER_ID: self._wait,
            METADATA: self._describe,
        }
        self.listener = Listener(1, handlers, config.read(BROKER, {}))

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

    def connect(self) -> Line:
        return Line(self)


class Line(Client):
    """A client of the desk, whose requests are numbered from 1 on."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(cast(Broker, SimpleNamespace(listener=desk.listener)))

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
def desk() -> Iterator[Desk]:
    with World(seed=1) as world:
        yield Desk(world)


# -- produce requests that wait


def test_produce_requests_are_served_while_others_wait_and_answered_in_order(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        for _ in range(3):
            line.produce()
        assert len(desk.produced) == 3
        desk.produced[2].set_result(RESPONSE)
        desk.produced[1].set_result(RESPONSE)
        await turn()
        assert line.answered() == []
        desk.produced[0].set_result(RESPONSE)
        await turn()
        assert line.answered() == [1, 2, 3]

    desk.run(scenario)


def test_a_produce_request_without_a_response_leaves_no_gap(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        line.produce()
        line.produce(acks=0)
        line.produce()
        for each in desk.produced:
            each.set_result(RESPONSE)
        await turn()
        assert line.answered() == [1, 3]

    desk.run(scenario)


def test_a_known_response_waits_for_earlier_ones(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        line.produce()
        desk.at_once = lambda: RESPONSE
        line.produce()
        assert line.answered() == []
        desk.produced[0].set_result(RESPONSE)
        await turn()
        assert line.answered() == [1, 2]

    desk.run(scenario)


def test_another_kind_of_request_waits_for_all_of_them(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        line.produce()
        line.find()
        line.produce()
        assert len(desk.produced) == 1
        assert not line.transport.reading
        desk.produced[0].set_result(RESPONSE)
        await turn()
        assert line.answered() == [1, 2]
        assert len(desk.produced) == 2
        assert line.transport.reading

    desk.run(scenario)


def test_produce_requests_wait_for_another_kind(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        line.wait()
        line.produce()
        assert desk.produced == []
        desk.others[0].set_result(InitProducerIdResponse(producer_id=1, producer_epoch=0))
        await turn()
        assert line.answered() == [1]
        assert len(desk.produced) == 1

    desk.run(scenario)


def test_the_number_of_waiting_produce_requests_is_limited(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        for _ in range(MAX_PIPELINED + 2):
            line.produce()
        await turn()
        assert len(desk.produced) == MAX_PIPELINED
        assert not line.transport.reading
        desk.produced[0].set_result(RESPONSE)
        await turn()
        assert len(desk.produced) == MAX_PIPELINED + 1
        for each in desk.produced[1:]:
            each.set_result(RESPONSE)
        await turn()
        desk.produced[-1].set_result(RESPONSE)
        await turn()
        assert line.answered() == list(range(1, MAX_PIPELINED + 3))
        assert line.transport.reading

    desk.run(scenario)


def test_one_connection_does_not_wait_for_another(desk: Desk) -> None:
    async def scenario() -> None:
        first, second = desk.connect(), desk.connect()
        first.produce()
        second.find()
        assert (first.answered(), second.answered()) == ([], [1])

    desk.run(scenario)


def test_with_a_slow_broker_produce_requests_wait_for_each_other(desk: Desk) -> None:
    async def scenario() -> None:
        desk.listener.faults.slow(produce_ms=20)
        line = desk.connect()
        line.produce()
        line.produce()
        assert len(desk.produced) == 1
        await asyncio.sleep(1)
        desk.produced[0].set_result(RESPONSE)
        await asyncio.sleep(0.019)
        assert line.answered() == []
        await asyncio.sleep(0.002)
        assert line.answered() == [1]
        assert len(desk.produced) == 2

    desk.run(scenario)


# -- limits


def test_other_connections_are_served_after_a_number_of_requests(desk: Desk) -> None:
    async def scenario() -> None:
        greedy, other = desk.connect(), desk.connect()
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

    desk.run(scenario)


def test_long_requests_of_many_connections_share_a_limit_per_loop_iteration(desk: Desk) -> None:
    """Per loop iteration only some of their requests are served, so short ones do not wait."""
    long = MetadataRequest(
        topics=[MetadataRequestTopic(name="x" * 30 + str(n)) for n in range(120)]
    )

    async def scenario() -> None:
        lines, other = [desk.connect() for _ in range(50)], desk.connect()
        for _ in range(2):
            for line in lines:
                line.send(long, 9)
        served = len(desk.described)
        assert 1 <= served < 10
        other.find()
        assert other.answered() == [1]
        assert sum(not line.transport.reading for line in lines) >= 40
        await asyncio.sleep(0)
        assert served < len(desk.described) <= 2 * served
        lines[-1].transport.close()
        await turn(60)
        # In the order of the queue: each is served once before any is served twice.
        assert [len(line.answered()) for line in lines] == [2] * 49 + [0]
        assert all(line.transport.reading for line in lines[:-1])

    desk.run(scenario)


def test_nothing_is_written_to_a_connection_that_closes(desk: Desk) -> None:
    """asyncio ignores such a write; uvloop raises."""

    async def scenario() -> None:
        line = desk.connect()
        line.wait()
        line.transport.writelines = _refuse  # type: ignore[method-assign]
        line.transport.closed = (
            True  # the peer has reset it; `connection_lost` has not been called yet
        )
        desk.others[0].set_result(InitProducerIdResponse(producer_epoch=0))
        await turn()
        assert not desk.others[0].cancelled()

    failures: list[Any] = []

    def _refuse(parts: Any) -> None:
        failures.append(parts)

    desk.run(scenario)
    assert failures == []


def test_a_closed_connection_does_not_serve_its_next_request(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        for _ in range(2 * MAX_AT_ONCE):
            line.produce()
        line.transport.close()
        await turn()
        assert len(desk.produced) == MAX_AT_ONCE

    desk.run(scenario)


def test_a_length_alone_takes_no_memory(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        line.send_bytes((100_000_000).to_bytes(4, "big"))
        assert len(line.connection.get_buffer(-1)) < 10_000
        line.send_bytes(bytes(20_000))
        assert len(line.connection.get_buffer(-1)) < 100_000
        line.send_bytes(bytes(200_000))
        assert len(line.connection.get_buffer(-1)) < 1_000_000

    desk.run(scenario)


def test_a_client_that_has_sent_a_large_frame_may_announce_others(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        large = ProduceRequest(
            transactional_id="t" * 30_000, acks=-1, timeout_ms=1000, topic_data=[]
        )
        for _ in range(2):
            line.send(large, 9)
        assert len(desk.produced) == 2
        line.connection.trusted_bytes = 0
        line.send(large, 9)
        assert 30_000 < line.connection.trusted_bytes < 31_000

    desk.run(scenario)


def test_a_client_that_reads_what_it_asked_for_is_not_idle(desk: Desk) -> None:
    async def scenario() -> None:
        desk.listener.config = config.read(BROKER, {"connections.max.idle.ms": 1000})
        line = desk.connect()
        line.find()
        for _ in range(5):
            line.connection.pause_writing()
            await asyncio.sleep(0.9)
            line.connection.resume_writing()
        assert not line.transport.closed
        line.connection.pause_writing()
        await asyncio.sleep(1.1)
        assert line.transport.closed

    desk.run(scenario)


# -- closing


def test_pending_responses_are_cancelled_when_the_connection_is_lost(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        lost: list[bool] = []
        line.connection.on_lost = lambda: lost.append(True)
        line.produce()
        line.produce()
        line.find()
        line.transport.close()
        await turn()
        assert [each.cancelled() for each in desk.produced] == [True, True]
        assert line.answered() == []
        assert lost == [True]
        assert desk.listener.counts.open == 0

    desk.run(scenario)


def test_pending_responses_are_cancelled_at_once_when_the_connection_is_aborted(desk: Desk) -> None:
    """As when a broker is killed, which must not answer any more (seed 30319)."""

    async def scenario() -> None:
        line = desk.connect()
        line.produce()
        line.connection.abort()
        assert desk.produced[0].cancelled()
        await turn()
        assert line.answered() == []

    desk.run(scenario)


@pytest.mark.parametrize(
    ("error", "refused", "failed"),
    [(CloseConnection("no answer fits"), 1, 0), (RuntimeError("a fault of ours"), 0, 1)],
)
def test_a_failed_response_closes_its_connection(
    desk: Desk, error: Exception, refused: int, failed: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        line, other = desk.connect(), desk.connect()
        line.produce()
        line.produce()
        desk.produced[0].set_exception(error)
        await turn()
        assert line.transport.closed
        assert desk.produced[1].cancelled()
        other.find()
        assert other.answered() == [1]
        counts = desk.listener.counts
        assert (counts.refused, counts.failed) == (refused, failed)

    desk.run(scenario)
    assert str(error) in caplog.text


def test_a_response_that_cannot_be_encoded_closes_its_connection(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        desk.at_once = lambda: ProduceResponse(responses=None, throttle_time_ms=0)  # type: ignore[arg-type]
        line = desk.connect()
        line.produce()
        assert line.transport.closed
        assert desk.listener.counts.failed == 1

    desk.run(scenario)
    assert "its request failed" in caplog.text


def test_nothing_is_served_after_the_connection_was_closed(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        line.wait()
        line.produce()
        line.connection.close()
        await turn()
        assert desk.others[0].cancelled()
        assert desk.produced == []

    desk.run(scenario)


# -- writing


def test_a_client_that_does_not_read_delays_only_its_own_requests(desk: Desk) -> None:
    async def scenario() -> None:
        line, other = desk.connect(), desk.connect()
        line.connection.pause_writing()
        line.produce()
        line.find()
        other.produce()
        assert len(desk.produced) == 1
        line.connection.resume_writing()
        assert len(desk.produced) == 2
        desk.produced[1].set_result(RESPONSE)
        await turn()
        assert line.answered() == [1, 2]

    desk.run(scenario)


def test_responses_known_together_are_sent_together(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        for _ in range(3):
            line.produce()
        for each in reversed(desk.produced):
            each.set_result(RESPONSE)
        await turn()
        assert line.answered() == [1, 2, 3]
        assert len(line.transport.written) == 1

    desk.run(scenario)


def test_a_handler_can_tell_whose_request_it_serves(desk: Desk) -> None:
    async def scenario() -> None:
        seen: list[object] = []

        def look() -> ProduceResponse:
            seen.append(desk.listener.serving)
            return RESPONSE

        desk.at_once = look
        lines = desk.connect(), desk.connect()
        for line in lines:
            line.produce()
        assert seen == [line.connection for line in lines]
        assert desk.listener.serving is None

    desk.run(scenario)


# -- large requests


def large(topics: int = 5000) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=f"{n:06}") for n in range(topics)])


def test_other_connections_are_served_while_a_large_request_is_decoded(desk: Desk) -> None:
    async def scenario() -> None:
        line, other = desk.connect(), desk.connect()
        line.send(large(), 12)
        assert desk.described == []
        served_meanwhile = 0
        while not desk.described:
            other.find()
            served_meanwhile += 1
            await asyncio.sleep(0)
        assert len(other.answered()) == served_meanwhile > 10
        await turn(50)
        assert line.answered() == [1]
        assert desk.described == [5000]

    desk.run(scenario)


def test_a_handler_in_steps_is_finished_before_the_next_request_of_its_connection(
    desk: Desk,
) -> None:
    async def scenario() -> None:
        steps: list[int] = []

        def handle() -> Steps[ProduceResponse]:
            for number in range(3):
                steps.append(number)
                yield
            return RESPONSE

        line = desk.connect()

        def handle_next() -> ProduceResponse:
            steps.append(99)
            return RESPONSE

        desk.at_once = handle
        line.produce()
        desk.at_once = handle_next
        line.produce()
        line.find()
        assert steps == [0]
        assert line.answered() == []
        await turn()
        await turn()
        assert steps == [0, 1, 2, 99]
        assert line.answered() == [1, 2, 3]

    desk.run(scenario)


def test_steps_without_a_pause_are_answered_at_once(desk: Desk) -> None:
    async def scenario() -> None:
        def handle() -> Steps[ProduceResponse]:
            yield from ()
            return RESPONSE

        line = desk.connect()
        desk.at_once = handle
        line.produce()
        assert line.answered() == [1]

    desk.run(scenario)


def test_steps_may_end_with_an_awaitable(desk: Desk) -> None:
    async def scenario() -> None:
        pending: asyncio.Future[ProduceResponse] = asyncio.get_running_loop().create_future()

        def handle() -> Steps[Any]:
            yield
            return pending

        line = desk.connect()
        desk.at_once = handle
        line.produce()
        await turn()
        desk.at_once = lambda: RESPONSE
        line.produce()
        assert line.answered() == []
        pending.set_result(RESPONSE)
        await turn()
        assert line.answered() == [1, 2]

    desk.run(scenario)


def test_a_large_response_is_encoded_in_steps_and_sent_in_order(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        line.produce()
        parts = [TopicProduceResponse(name=f"{n}", partition_responses=[]) for n in range(20_000)]
        desk.at_once = lambda: ProduceResponse(responses=parts)
        line.produce()
        desk.at_once = lambda: RESPONSE
        line.produce()
        desk.produced[0].set_result(RESPONSE)
        await turn()
        assert line.answered() == [1]
        await turn(200)
        assert line.answered() == [1, 2, 3]

    desk.run(scenario)


def test_a_lost_connection_stops_its_work(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        line.send(large(), 12)
        await asyncio.sleep(0)
        line.connection.abort()
        line.connection.connection_lost(None)
        await turn()
        assert len(desk.listener.turns) == 0
        assert desk.described == []

    desk.run(scenario)


def test_a_request_that_exceeds_the_memory_limit_closes_its_connection_with_a_reason(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        line = desk.connect()
        body = (1_000_000).to_bytes(4, "big") + bytes(2_000_000)
        line.send_frame(bytes.fromhex("0003 0001 00000001 ffff") + body)
        await turn()
        assert line.transport.closed
        assert desk.described == []

    desk.run(scenario)
    assert "MetadataRequest.topics has the length 1000000" in caplog.text


def test_corruption_late_in_a_large_request_closes_the_connection(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        body = (5000).to_bytes(4, "big") + b"\0\x01t" * 4999 + b"\xff\xff"
        line.send_frame(bytes.fromhex("0003 0000 00000001 ffff") + body)
        await turn(200)
        assert line.transport.closed
        assert desk.listener.counts.refused == 1

    desk.run(scenario)


def test_other_connections_are_served_after_a_long_request(desk: Desk) -> None:
    async def scenario() -> None:
        line = desk.connect()
        line.send(large(300), 12)
        line.find()
        assert line.answered() == [1]
        await turn()
        assert line.answered() == [1, 2]

    desk.run(scenario)
