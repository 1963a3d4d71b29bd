"""A broker's connection to the controller (`trimtab.broker.controller_link`), which is faked."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from trimtab import config
from trimtab.broker.controller_link import ControllerLink
from trimtab.config import BROKER
from trimtab.server.listener import Listener
from trimtab.server.peer import PeerLost
from trimtab.sim.world import World
from trimtab.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

API, VERSION = 67, 0


class Stage:
    """A controller that gives producer ids, and a link to it.

    Attributes:
        answer: what it does with the next requests; None to give the next id at once.
        asked: the brokers that asked.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.answer: Callable[[], Awaitable[Any]] | None = None
        self.asked: list[int] = []
        self.listener = Listener(3000, {API: self._allocate}, config.read(BROKER, {}))

    def _allocate(self, header: Any, request: AllocateProducerIdsRequest) -> Any:
        self.asked.append(request.broker_id)
        if self.answer is not None:
            return self.answer()
        return allocated(len(self.asked))

    async def listen(self) -> None:
        await self.listener.bind("controller", 9093)
        await self.listener.start()

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            self.link = ControllerLink("controller", 9093, "broker-1")
            async with asyncio.timeout(100):
                await scenario()
            self.link.close()
            await self.listener.close()

        self.world.run(run())

    def time(self) -> float:
        return self.world.loop.time()


def allocated(number: int) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(producer_id_start=number, producer_id_len=1)


def request(broker_id: int = 1) -> AllocateProducerIdsRequest:
    return AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=11)


async def never() -> Any:
    await asyncio.get_running_loop().create_future()


@pytest.fixture
def stage() -> Iterator[Stage]:
    with World(seed=1) as world:
        yield Stage(world)


def test_requests_share_one_connection(stage: Stage) -> None:
    async def scenario() -> None:
        await stage.listen()
        answers = await asyncio.gather(*(stage.link.ask(request(), 5) for _ in range(5)))
        assert [each.producer_id_start for each in answers] == [1, 2, 3, 4, 5]
        await stage.link.ask(request(), 5, VERSION)
        assert stage.listener.counts.accepted == 1

    stage.run(scenario)


def test_an_unreachable_controller_raises_peer_lost(stage: Stage) -> None:
    async def scenario() -> None:
        with pytest.raises(PeerLost, match="controller:9093 cannot be reached"):
            await stage.link.ask(request(), 5)
        await stage.listen()
        assert (await stage.link.ask(request(), 5)).producer_id_start == 1

    stage.run(scenario)


def test_a_lost_connection_is_opened_again(stage: Stage) -> None:
    async def scenario() -> None:
        await stage.listen()
        await stage.link.ask(request(), 5)
        stage.answer = never
        asking = asyncio.ensure_future(stage.link.ask(request(), 5))
        await asyncio.sleep(0.1)
        stage.world.network.reset()
        with pytest.raises(PeerLost, match="lost"):
            await asking
        stage.answer = None
        assert (await stage.link.ask(request(), 5)).producer_id_start == 3
        assert stage.listener.counts.accepted == 2

    stage.run(scenario)


def test_a_controller_that_does_not_answer_is_asked_on_another_connection(stage: Stage) -> None:
    async def scenario() -> None:
        await stage.listen()
        stage.answer = never
        with pytest.raises(PeerLost, match="does not answer within 5 s"):
            await stage.link.ask(request(), 5)
        assert stage.time() == pytest.approx(5)
        stage.answer = None
        assert (await stage.link.ask(request(), 5)).producer_id_start == 2

    stage.run(scenario)


def test_a_cancelled_request_does_not_affect_others(stage: Stage) -> None:
    async def scenario() -> None:
        await stage.listen()
        release = asyncio.Event()

        async def late() -> Any:
            await release.wait()
            return allocated(len(stage.asked))

        stage.answer = late
        asking = [asyncio.ensure_future(stage.link.ask(request(), 5)) for _ in range(3)]
        await asyncio.sleep(0.1)
        asking[1].cancel()
        await asyncio.sleep(0.1)
        release.set()
        assert (await asking[0]).producer_id_start == 1
        assert (await asking[2]).producer_id_start == 3

    stage.run(scenario)


def test_a_request_cancelled_during_connect_does_not_affect_others(stage: Stage) -> None:
    async def scenario() -> None:
        await stage.listen()
        stage.world.network.cut("controller")
        asking = [asyncio.ensure_future(stage.link.ask(request(each), 4)) for each in range(3)]
        await asyncio.sleep(1)
        asking[0].cancel()
        await asyncio.sleep(0)
        assert asking[0].cancelled()
        stage.world.network.heal()
        await asyncio.gather(*asking[1:])
        assert stage.asked == [1, 2]

    stage.run(scenario)


def test_insisting_asks_again_until_the_time_is_over(stage: Stage) -> None:
    async def scenario() -> None:
        insisting = asyncio.ensure_future(stage.link.ask_until_answered(request(), 10))
        await asyncio.sleep(3)
        await stage.listen()
        assert (await insisting).producer_id_start == 1
        assert 3 < stage.time() <= 4.1  # it asks once a second by then
        await stage.listener.close()
        began = stage.time()
        with pytest.raises(PeerLost):
            await stage.link.ask_until_answered(request(), 10)
        assert 8.5 < stage.time() - began <= 10

    stage.run(scenario)


def test_insisting_asks_again_when_an_answer_is_lost(stage: Stage) -> None:
    async def scenario() -> None:
        await stage.listen()
        stage.answer = never
        insisting = asyncio.ensure_future(stage.link.ask_until_answered(request(), 10))
        await asyncio.sleep(1)
        stage.answer = None
        stage.world.network.reset()
        assert (await insisting).producer_id_start == 2

    stage.run(scenario)


def test_ask_once_connected_sends_a_request_once_only(stage: Stage) -> None:
    async def scenario() -> None:
        asking = asyncio.ensure_future(stage.link.ask_once_connected(request(), 10, VERSION))
        await asyncio.sleep(2)
        stage.answer = never
        await stage.listen()
        await asyncio.sleep(2)
        stage.answer = None
        stage.world.network.reset()
        with pytest.raises(PeerLost):
            await asking
        assert stage.asked == [1]

    stage.run(scenario)


def test_ask_once_connected_fails_after_its_time(stage: Stage) -> None:
    async def scenario() -> None:
        with pytest.raises(PeerLost):
            await stage.link.ask_once_connected(request(), 3, VERSION)
        assert 2 < stage.time() <= 3
        began = stage.time()
        stage.world.network.cut("controller")
        with pytest.raises(PeerLost, match="cannot be reached"):
            await stage.link.ask_once_connected(request(), 3, VERSION)
        assert stage.time() - began == pytest.approx(3)

    stage.run(scenario)


def test_closing_fails_waiting_requests(stage: Stage) -> None:
    async def scenario() -> None:
        stage.world.network.cut("controller")
        asking = asyncio.ensure_future(stage.link.ask(request(), 50))
        await asyncio.sleep(1)
        stage.link.close()
        with pytest.raises(PeerLost, match="closed"):
            await asking
        stage.world.network.heal()
        await stage.listen()
        stage.answer = never
        asking = asyncio.ensure_future(stage.link.ask(request(), 50))
        await asyncio.sleep(1)
        stage.link.close()
        with pytest.raises(PeerLost, match="lost"):
            await asking

    stage.run(scenario)


def test_a_failed_connection_without_waiting_requests_raises_nothing(stage: Stage) -> None:
    async def scenario() -> None:
        stage.world.network.cut("controller")
        with pytest.raises(PeerLost):
            await stage.link.ask_once_connected(request(), 1, VERSION)
        await asyncio.sleep(10)
        stage.link.close()
        gc.collect()  # an exception nobody retrieved is reported when it is freed

    stage.run(scenario)


def test_a_connection_that_was_just_made_is_closed_with_the_link(stage: Stage) -> None:
    async def scenario() -> None:
        await stage.listen()
        asking = asyncio.ensure_future(stage.link.ask(request(), 5))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert stage.link._connecting is not None

        def end(_: object) -> None:
            asking.cancel()
            stage.link.close()

        stage.link._connecting.add_done_callback(end)
        await asyncio.sleep(1)
        assert asking.cancelled()
        assert stage.listener.counts.accepted == 1
        assert stage.listener.counts.open == 0

    stage.run(scenario)
