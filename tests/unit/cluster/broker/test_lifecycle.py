"""Registration and heartbeats (`trimtab.cluster.broker.lifecycle`), with a fake controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from trimtab.cluster.broker.lifecycle import Lifecycle
from trimtab.cluster.broker.link import Link, link_to_controller
from trimtab.cluster.config import BROKER
from trimtab.cluster.server.listener import Listener
from trimtab.cluster.server.peer import PeerRefused
from trimtab.kafka.errors import ErrorCode, UsageError
from trimtab.kafka.options import read
from trimtab.kafka.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from trimtab.kafka.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from trimtab.kafka.wire.sentinels import NO_EPOCH
from trimtab.sim.world import World

REGISTRATION, HEARTBEAT = 62, 63
INCARNATION = Random(1).randbytes(16)
DIRECTORY = bytes(range(1, 17))


class FakeController:
    """A controller that answers from lists, and repeats the last answer of each.

    Attributes:
        registrations: error codes of registrations to come. Epochs are 100, 101, …
        heartbeats: answers to heartbeats to come; None for none.
        registered: the registrations that came.
        beats: the heartbeats that came, with their time.
        metadata_offset: that the broker says it has replayed.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.registrations: list[int] = [0]
        self.heartbeats: list[BrokerHeartbeatResponse | None] = [alive()]
        self.registered: list[BrokerRegistrationRequest] = []
        self.beats: list[tuple[float, BrokerHeartbeatRequest]] = []
        self.metadata_offset = 40
        self.listener = Listener(
            3000,
            {REGISTRATION: self._register, HEARTBEAT: self._heartbeat},
            read(BROKER, {}),
        )

    def _register(self, header: Any, request: BrokerRegistrationRequest) -> Any:
        self.registered.append(request)
        return BrokerRegistrationResponse(
            error_code=_next(self.registrations), broker_epoch=99 + len(self.registered)
        )

    def _heartbeat(self, header: Any, request: BrokerHeartbeatRequest) -> Any:
        self.beats.append((self.world.loop.time(), request))
        answer = _next(self.heartbeats)
        return asyncio.get_running_loop().create_future() if answer is None else answer

    async def listen(self) -> None:
        await self.listener.bind("controller", 9093)
        await self.listener.start()

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            link = link_to_controller("controller", 9093, "broker-1")
            self.lifecycle = Lifecycle(
                1, "lab", link, lambda: self.metadata_offset, [DIRECTORY], 2.0, Random(1)
            )
            await scenario()
            await self.lifecycle.stop()
            link.close()
            await self.listener.close()

        self.world.run(run())

    async def registers(self, previous_epoch: int = NO_EPOCH) -> Lifecycle:
        await self.listen()
        await self.lifecycle.register("host", 9092, "rack", previous_epoch)
        return self.lifecycle

    def gaps(self) -> list[float]:
        """Times between heartbeats."""
        times = [time for time, _ in self.beats]
        return [later - earlier for earlier, later in pairwise(times)]


def _next(answers: list[Any]) -> Any:
    return answers.pop(0) if len(answers) > 1 else answers[0]


def alive(fenced: bool = False, ends: bool = False, code: int = 0) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(
        error_code=code, is_caught_up=True, is_fenced=fenced, should_shut_down=ends
    )


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with World(seed=1) as world:
        yield FakeController(world)


@pytest.mark.kip(631)
async def test_a_registration_has_id_and_address(controller: FakeController) -> None:
    lifecycle = await controller.registers(previous_epoch=77)
    assert lifecycle.epoch == 100
    (request,) = controller.registered
    assert (request.broker_id, request.cluster_id) == (1, "lab")
    assert (request.incarnation_id, request.log_dirs) == (INCARNATION, [DIRECTORY])
    (listener,) = request.listeners
    assert (listener.host, listener.port, request.rack) == ("host", 9092, "rack")
    assert request.previous_broker_epoch == 77


async def test_registration_waits_for_an_unreachable_controller(controller: FakeController) -> None:
    registering = asyncio.ensure_future(controller.lifecycle.register("host", 9092, None, NO_EPOCH))
    await asyncio.sleep(60)
    assert not registering.done()
    await controller.registers()
    await registering


@pytest.mark.parametrize(
    "code", [ErrorCode.DUPLICATE_BROKER_REGISTRATION, ErrorCode.NOT_CONTROLLER]
)
async def test_a_temporary_refusal_is_retried(controller: FakeController, code: ErrorCode) -> None:
    controller.registrations = [code, code, 0]
    assert (await controller.registers()).epoch == 102


async def test_a_controller_of_another_cluster_is_an_error(controller: FakeController) -> None:
    controller.registrations = [ErrorCode.INCONSISTENT_CLUSTER_ID]
    with pytest.raises(UsageError, match="broker 1 belongs to cluster lab"):
        await controller.registers()


async def test_heartbeats_have_the_epoch_and_the_metadata_offset(
    controller: FakeController,
) -> None:
    lifecycle = await controller.registers()
    lifecycle.start()
    await asyncio.sleep(1)
    controller.metadata_offset = 41
    await asyncio.sleep(9)
    assert controller.gaps() == pytest.approx([2.0] * 4, abs=0.01)
    beats = [beat for _, beat in controller.beats]
    assert {(each.broker_id, each.broker_epoch) for each in beats} == {(1, 100)}
    assert [each.current_metadata_offset for each in beats] == [40, 41, 41, 41, 41]
    assert not any(each.want_fence or each.want_shut_down for each in beats)


async def test_a_fenced_broker_sends_heartbeats_faster(controller: FakeController) -> None:
    controller.heartbeats = [*[alive(fenced=True)] * 5, alive()]
    lifecycle = await controller.registers()
    lifecycle.start()
    assert not lifecycle.unfenced.is_set()
    await lifecycle.unfenced.wait()
    assert controller.gaps() == pytest.approx([0.05] * 5, abs=0.01)
    controller.heartbeats = [alive(fenced=True)]
    await asyncio.sleep(2.1)
    assert not lifecycle.unfenced.is_set()


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
async def test_a_broker_unknown_to_the_controller_registers_again(
    controller: FakeController, code: ErrorCode
) -> None:
    """Its logs may have changed since, so it does not register as closed cleanly."""
    controller.heartbeats = [alive(), alive(code=code), alive(fenced=True), alive()]
    lifecycle = await controller.registers(previous_epoch=77)
    lifecycle.start()
    await asyncio.sleep(1)
    assert lifecycle.unfenced.is_set()
    await asyncio.sleep(1.02)
    assert not lifecycle.unfenced.is_set()
    assert lifecycle.epoch == 101
    again = controller.registered[1]
    assert (again.incarnation_id, again.rack) == (INCARNATION, "rack")
    assert (again.listeners, again.previous_broker_epoch) == (
        controller.registered[0].listeners,
        -1,
    )
    await lifecycle.unfenced.wait()
    assert [beat.broker_epoch for _, beat in controller.beats] == [100, 100, 101, 101]


async def test_other_errors_are_retried(controller: FakeController) -> None:
    controller.heartbeats = [alive(), alive(code=ErrorCode.NOT_CONTROLLER), alive()]
    lifecycle = await controller.registers()
    lifecycle.start()
    await asyncio.sleep(5)
    assert controller.gaps() == pytest.approx([2.0, 0.2, 2.0], abs=0.01)
    assert lifecycle.unfenced.is_set()
    assert len(controller.registered) == 1


async def test_a_heartbeat_without_an_answer_is_sent_again(controller: FakeController) -> None:
    controller.heartbeats = [alive(), None, alive()]
    lifecycle = await controller.registers()
    lifecycle.start()
    await asyncio.sleep(7)
    assert controller.gaps() == pytest.approx([2.0, 4.2], abs=0.01)


async def test_a_controller_gets_a_heartbeat_soon_after_it_is_back(
    controller: FakeController,
) -> None:
    lifecycle = await controller.registers()
    lifecycle.start()
    await asyncio.sleep(1)
    await controller.listener.close()
    await asyncio.sleep(20)
    beats = len(controller.beats)
    back_s = controller.world.loop.time()
    await controller.listen()
    await asyncio.sleep(0.3)
    assert len(controller.beats) == beats + 1
    assert controller.beats[-1][0] - back_s < 0.3
    assert controller.beats[-1][1].broker_epoch == 100


# -- the end


async def test_shutdown_waits_for_the_controllers_permission(controller: FakeController) -> None:
    lifecycle = await controller.registers()
    lifecycle.start()
    await asyncio.sleep(1)
    controller.heartbeats = [*[alive()] * 6, alive(fenced=True, ends=True)]
    controller.beats.clear()
    await lifecycle.shut_down(5)
    assert [beat.want_shut_down for _, beat in controller.beats] == [True] * 7
    await asyncio.sleep(5)
    assert len(controller.beats) == 7


async def test_shutdown_ends_after_its_time_out(controller: FakeController) -> None:
    lifecycle = await controller.registers()
    began = controller.world.loop.time()
    await lifecycle.shut_down(5)
    assert controller.world.loop.time() - began == pytest.approx(5, abs=0.06)
    controller.heartbeats = [None]
    began = controller.world.loop.time()
    await lifecycle.shut_down(5)
    assert controller.world.loop.time() - began == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize("how", ["away", "error"])
async def test_shutdown_does_not_wait_for_an_unreachable_controller(
    controller: FakeController, how: str
) -> None:
    lifecycle = await controller.registers()
    if how == "away":
        await controller.listener.close()
    else:
        controller.heartbeats = [alive(code=ErrorCode.STALE_BROKER_EPOCH)]
    began = controller.world.loop.time()
    await lifecycle.shut_down(5)
    assert controller.world.loop.time() - began < 0.1


@pytest.mark.parametrize("how", ["abort", "stop"])
async def test_nothing_is_sent_after_the_end(controller: FakeController, how: str) -> None:
    lifecycle = await controller.registers()
    lifecycle.start()
    await asyncio.sleep(1)
    if how == "abort":
        lifecycle.abort()
    else:
        await lifecycle.stop()
    await asyncio.sleep(10)
    assert len(controller.beats) == 1


async def test_heartbeats_go_on_after_an_error(
    controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle = await controller.registers()
    beat, errors = lifecycle._heartbeat, [RuntimeError("out of luck")]

    def fail_once(shut_down: bool = False) -> BrokerHeartbeatRequest:
        if errors:
            raise errors.pop()
        return beat(shut_down)

    monkeypatch.setattr(lifecycle, "_heartbeat", fail_once)
    lifecycle.start()
    await lifecycle.unfenced.wait()
    assert len(controller.beats) == 1


async def test_a_controller_with_another_secret_is_warned_of_once(
    controller: FakeController,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[float] = []

    async def refuse(*_: Any) -> Any:
        asked.append(controller.world.loop.time())
        raise PeerRefused("controller:9093 is not controller of this cluster")

    lifecycle = await controller.registers()
    lifecycle.start()
    monkeypatch.setattr(Link, "ask", refuse)
    await asyncio.sleep(20)
    assert len(asked) > 5
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warned) == 1
    assert "is not controller of this cluster" in warned[0]
