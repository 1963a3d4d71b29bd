"""A broker's connection to the controller (`trimtab.cluster.broker.link`), which is faked."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from trimtab.cluster.broker.link import Link, link_to_controller
from trimtab.cluster.config import BROKER
from trimtab.cluster.server.listener import Listener
from trimtab.cluster.server.peer import PeerLost
from trimtab.kafka.options import read
from trimtab.kafka.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from trimtab.sim.world import World

API, VERSION = 67, 0


class FakeController:
    """A controller that gives producer ids, and a link to it.

    Attributes:
        answer: what it does with the next requests; None to give the next id at once.
        asked: the brokers that asked.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.answer: Callable[[], Awaitable[Any]] | None = None
        self.asked: list[int] = []
        self.listener = Listener(3000, {API: self._allocate}, read(BROKER, {}))

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
            self.link = link_to_controller("controller", 9093, "broker-1")
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
def controller() -> Iterator[FakeController]:
    with World(seed=1) as world:
        yield FakeController(world)


async def test_requests_share_one_connection(controller: FakeController) -> None:
    await controller.listen()
    answers = await asyncio.gather(*(controller.link.ask(request(), 5) for _ in range(5)))
    assert [each.producer_id_start for each in answers] == [1, 2, 3, 4, 5]
    await controller.link.ask(request(), 5, VERSION)
    assert controller.listener.counts.accepted == 1


async def test_an_unreachable_controller_raises_peer_lost(controller: FakeController) -> None:
    with pytest.raises(PeerLost, match="controller:9093 cannot be reached"):
        await controller.link.ask(request(), 5)
    await controller.listen()
    assert (await controller.link.ask(request(), 5)).producer_id_start == 1


async def test_a_lost_connection_is_opened_again(controller: FakeController) -> None:
    await controller.listen()
    await controller.link.ask(request(), 5)
    controller.answer = never
    asking = asyncio.ensure_future(controller.link.ask(request(), 5))
    await asyncio.sleep(0.1)
    controller.world.network.reset()
    with pytest.raises(PeerLost, match="lost"):
        await asking
    controller.answer = None
    assert (await controller.link.ask(request(), 5)).producer_id_start == 3
    assert controller.listener.counts.accepted == 2


async def test_a_node_that_has_moved_is_asked_at_its_new_address(
    controller: FakeController,
) -> None:
    await controller.listen()
    moved = Listener(3000, {API: lambda *_: allocated(77)}, read(BROKER, {}))
    await moved.bind("controller", 9094)
    await moved.start()
    address = "controller", 9093
    link = Link("the node", "", lambda: address, "broker-1", None, None)
    assert (await link.ask(request(), 5)).producer_id_start == 1
    address = "controller", 9094
    assert (await link.ask(request(), 5)).producer_id_start == 77
    await asyncio.sleep(0.1)
    assert controller.listener.counts.open == 0
    link.close()
    await moved.close()


async def test_a_controller_that_does_not_answer_is_asked_on_another_connection(
    controller: FakeController,
) -> None:
    await controller.listen()
    controller.answer = never
    with pytest.raises(PeerLost, match="does not answer within 5 s"):
        await controller.link.ask(request(), 5)
    assert controller.time() == pytest.approx(5)
    controller.answer = None
    assert (await controller.link.ask(request(), 5)).producer_id_start == 2


async def test_a_cancelled_request_does_not_affect_others(controller: FakeController) -> None:
    await controller.listen()
    release = asyncio.Event()

    async def late() -> Any:
        await release.wait()
        return allocated(len(controller.asked))

    controller.answer = late
    asking = [asyncio.ensure_future(controller.link.ask(request(), 5)) for _ in range(3)]
    await asyncio.sleep(0.1)
    asking[1].cancel()
    await asyncio.sleep(0.1)
    release.set()
    assert (await asking[0]).producer_id_start == 1
    assert (await asking[2]).producer_id_start == 3


async def test_a_request_cancelled_during_connect_does_not_affect_others(
    controller: FakeController,
) -> None:
    await controller.listen()
    controller.world.network.cut("controller")
    asking = [asyncio.ensure_future(controller.link.ask(request(each), 4)) for each in range(3)]
    await asyncio.sleep(1)
    asking[0].cancel()
    await asyncio.sleep(0)
    assert asking[0].cancelled()
    controller.world.network.heal()
    await asyncio.gather(*asking[1:])
    assert controller.asked == [1, 2]


async def test_insisting_asks_again_until_the_time_is_over(controller: FakeController) -> None:
    insisting = asyncio.ensure_future(controller.link.ask_until_answered(request(), 10))
    await asyncio.sleep(3)
    await controller.listen()
    assert (await insisting).producer_id_start == 1
    assert 3 < controller.time() <= 4.1  # it asks once a second by then
    await controller.listener.close()
    began = controller.time()
    with pytest.raises(PeerLost):
        await controller.link.ask_until_answered(request(), 10)
    assert 8.5 < controller.time() - began <= 10


async def test_insisting_asks_again_when_an_answer_is_lost(controller: FakeController) -> None:
    await controller.listen()
    controller.answer = never
    insisting = asyncio.ensure_future(controller.link.ask_until_answered(request(), 10))
    await asyncio.sleep(1)
    controller.answer = None
    controller.world.network.reset()
    assert (await insisting).producer_id_start == 2


async def test_ask_once_connected_sends_a_request_once_only(controller: FakeController) -> None:
    asking = asyncio.ensure_future(controller.link.ask_once_connected(request(), 10, VERSION))
    await asyncio.sleep(2)
    controller.answer = never
    await controller.listen()
    await asyncio.sleep(2)
    controller.answer = None
    controller.world.network.reset()
    with pytest.raises(PeerLost):
        await asking
    assert controller.asked == [1]


async def test_ask_once_connected_fails_after_its_time(controller: FakeController) -> None:
    with pytest.raises(PeerLost):
        await controller.link.ask_once_connected(request(), 3, VERSION)
    assert 2 < controller.time() <= 3
    began = controller.time()
    controller.world.network.cut("controller")
    with pytest.raises(PeerLost, match="cannot be reached"):
        await controller.link.ask_once_connected(request(), 3, VERSION)
    assert controller.time() - began == pytest.approx(3)


async def test_closing_fails_waiting_requests(controller: FakeController) -> None:
    controller.world.network.cut("controller")
    asking = asyncio.ensure_future(controller.link.ask(request(), 50))
    await asyncio.sleep(1)
    controller.link.close()
    with pytest.raises(PeerLost, match="closed"):
        await asking
    controller.world.network.heal()
    await controller.listen()
    controller.answer = never
    asking = asyncio.ensure_future(controller.link.ask(request(), 50))
    await asyncio.sleep(1)
    controller.link.close()
    with pytest.raises(PeerLost, match="lost"):
        await asking


async def test_a_failed_connection_without_waiting_requests_raises_nothing(
    controller: FakeController,
) -> None:
    controller.world.network.cut("controller")
    with pytest.raises(PeerLost):
        await controller.link.ask_once_connected(request(), 1, VERSION)
    await asyncio.sleep(10)
    controller.link.close()
    gc.collect()  # an exception nobody retrieved is reported when it is freed


async def test_a_connection_that_was_just_made_is_closed_with_the_link(
    controller: FakeController,
) -> None:
    await controller.listen()
    asking = asyncio.ensure_future(controller.link.ask(request(), 5))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert controller.link._connecting is not None

    def end(_: object) -> None:
        asking.cancel()
        controller.link.close()

    controller.link._connecting.add_done_callback(end)
    await asyncio.sleep(1)
    assert asking.cancelled()
    assert controller.listener.counts.accepted == 1
    assert controller.listener.counts.open == 0
