"""Connections that are silent on purpose, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from trimtab.cluster.config import BROKER
from trimtab.cluster.server.faults import BrokerFaults
from trimtab.cluster.server.listener import Listener
from trimtab.cluster.server.peer import Peer, PeerLost
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import read
from trimtab.kafka.wire.messages.api_versions import ApiVersionsRequest
from trimtab.kafka.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

SILENCE_S = 0.05
"""Long enough for many answers on loopback."""

ASK = ApiVersionsRequest(client_software_name="test", client_software_version="1")


class Lab:
    """A node that listens, and the faults of it and of the node that asks it."""

    def __init__(self) -> None:
        self.faults, self.asker = BrokerFaults(), BrokerFaults()
        self.answers: list[asyncio.Future[FindCoordinatorResponse]] = []
        self.listener = Listener(
            1,
            {FindCoordinatorRequest.api_key: self._answer},
            read(BROKER, {}),
            faults=self.faults,
        )
        self.port = 0

    def _answer(self, header: Any, request: Any) -> asyncio.Future[FindCoordinatorResponse]:
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    async def connect(self) -> Peer:
        return await Peer.connect("127.0.0.1", self.port, "test", 5, self.asker)


async def is_silent(asked: asyncio.Future[Any]) -> bool:
    done, _ = await asyncio.wait([asked], timeout=SILENCE_S)
    return not done


def on_each_loop(
    scenario: Callable[[Lab], Coroutine[Any, Any, None]],
) -> Callable[[Callable[[], asyncio.AbstractEventLoop]], None]:
    @pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
    def run(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        async def main() -> None:
            lab = Lab()
            lab.port = await lab.listener.bind("127.0.0.1", 0)
            await lab.listener.start()
            try:
                async with asyncio.timeout(20):
                    await scenario(lab)
            finally:
                lab.faults.heal()
                lab.asker.heal()
                await lab.listener.close()

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main())

    run.__name__ = scenario.__name__
    return run


@on_each_loop
async def test_requests_to_a_node_that_is_cut_off_wait_until_it_is_healed(lab: Lab) -> None:
    before = await lab.connect()
    await before.ask(ASK)
    lab.faults.cut()
    during = await lab.connect()
    asked = [before.ask(ASK), during.ask(ASK), before.ask(ASK)]
    assert [await is_silent(each) for each in asked] == [True] * 3
    lab.faults.heal()
    await asyncio.gather(*asked)
    await asyncio.gather(before.ask(ASK), during.ask(ASK))
    assert [before.is_lost, during.is_lost] == [False, False]
    before.close()
    during.close()


@on_each_loop
async def test_a_response_to_an_earlier_request_waits_too(lab: Lab) -> None:
    peer = await lab.connect()
    asked = peer.ask(FindCoordinatorRequest(coordinator_keys=["a"]))
    while not lab.answers:  # noqa: ASYNC110
        await asyncio.sleep(0)
    lab.faults.cut()
    lab.answers[0].set_result(FindCoordinatorResponse(throttle_time_ms=7))
    assert await is_silent(asked)
    lab.faults.heal()
    assert (await asked).throttle_time_ms == 7
    peer.close()


@on_each_loop
async def test_a_connection_that_was_not_read_is_not_read_after_the_heal(lab: Lab) -> None:
    peer = await lab.connect()
    asked = [peer.ask(FindCoordinatorRequest(coordinator_keys=["a"])) for _ in range(2)]
    (connection,) = lab.listener.connections
    while connection.transport is None or connection.transport.is_reading():  # noqa: ASYNC110
        await asyncio.sleep(0)  # the second request waits for the first
    lab.faults.cut()
    lab.faults.heal()
    assert not connection.transport.is_reading()
    for number, each in enumerate(asked):
        lab.answers[number].set_result(FindCoordinatorResponse())
        await each
    assert connection.transport.is_reading()
    peer.close()


@on_each_loop
async def test_a_node_that_is_cut_off_reaches_nobody(lab: Lab) -> None:
    before = await lab.connect()
    lab.asker.cut()
    during = await lab.connect()
    asked = [before.ask(ASK), during.ask(ASK)]
    assert [await is_silent(each) for each in asked] == [True] * 2
    assert lab.listener.counts.requests == 0
    lab.asker.heal()
    await asyncio.gather(*asked)
    before.close()
    during.close()


@on_each_loop
async def test_a_cut_from_one_address_leaves_others_alone(lab: Lab) -> None:
    peer = await lab.connect()
    lab.asker.cut(("127.0.0.1", 1))
    lab.faults.cut(("127.0.0.1", 1))
    await peer.ask(ASK)
    lab.asker.cut(lab.address)
    asked = peer.ask(ASK)
    assert await is_silent(asked)
    lab.asker.cut()  # twice
    lab.asker.heal()
    await asked
    peer.close()


@on_each_loop
async def test_the_other_side_notices_a_close_only_after_the_heal(lab: Lab) -> None:
    peer = await lab.connect()
    asked = peer.ask(FindCoordinatorRequest(coordinator_keys=["a"]))
    while not lab.answers:  # noqa: ASYNC110
        await asyncio.sleep(0)
    lab.faults.cut()
    lab.listener.abort()
    assert await is_silent(asked)
    assert lab.listener.counts.open == 0  # the node itself is done with it
    assert lab.answers[0].cancelled()
    lab.faults.heal()
    with pytest.raises(PeerLost):
        await asked


@on_each_loop
async def test_a_node_notices_that_the_other_side_has_closed_only_after_the_heal(lab: Lab) -> None:
    peer = await lab.connect()
    await peer.ask(ASK)
    lab.faults.cut()
    peer.close()
    await asyncio.sleep(SILENCE_S)
    assert lab.listener.counts.open == 1
    lab.faults.heal()
    while lab.listener.counts.open:  # noqa: ASYNC110
        await asyncio.sleep(0)


@on_each_loop
async def test_connecting_can_be_cancelled_at_any_time(lab: Lab) -> None:
    for turns in range(12):
        lab.asker.cut()
        connecting = asyncio.ensure_future(lab.connect())
        for _ in range(turns):
            await asyncio.sleep(0.0001)
        connecting.cancel()
        (made,) = await asyncio.gather(connecting, return_exceptions=True)
        lab.asker.heal()
        lab.asker.cut()
        if isinstance(made, Peer):
            made.close()
        lab.asker.heal()
    while lab.asker._connections:  # noqa: ASYNC110
        await asyncio.sleep(0)


@on_each_loop
async def test_connections_that_were_lost_are_not_healed(lab: Lab) -> None:
    peer = await lab.connect()
    await peer.ask(ASK)
    peer.close()
    while lab.listener.counts.open:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for faults in (lab.faults, lab.asker):
        assert not faults._connections
        faults.cut()
        assert not faults._silences


def test_a_time_that_is_none_is_refused() -> None:
    for produce_ms in (-1, float("nan"), 86_400_000):
        with pytest.raises(UsageError, match="produce_ms="):
            BrokerFaults().slow(produce_ms)
