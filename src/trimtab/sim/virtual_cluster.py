"""A cluster in the virtual world: a controller and brokers, each a process on its own host.

    start ─▶ up ─┬─ close   clean shutdown
                 ├─ kill    the process ends at once; its writes survive in the system's cache
                 └─ crash   the host loses power: unflushed writes are lost, and its connections
                            stay silent until the host is back

Each start begins another life, with its own random numbers. If an ended life leaves a task or timer
behind, or uses its disk, that is a bug of the node, which `leftovers` finds.
"""

from __future__ import annotations

import asyncio
import contextvars
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from random import Random
from typing import Any, Final

from trimtab.cluster.broker.broker import Broker
from trimtab.cluster.controller.controller import Controller
from trimtab.cluster.controller.node import ControllerNode
from trimtab.cluster.server.cluster_secret import ClusterSecret
from trimtab.kafka.errors import KafkaError
from trimtab.sim.connection import is_delivery
from trimtab.sim.disk import Mount
from trimtab.sim.loop import context_of
from trimtab.sim.network import ANY
from trimtab.sim.world import World

CONTROLLER: Final = "controller"
CONTROLLER_ID: Final = 3000
PORT: Final = 9092

_CLUSTER_ID = "virtual-virtual-virtua"
_RESTART_S = 0.5
_DEATH_S = 0.001
"""Seconds after which an ended process must have no task or timer left."""


def _secret(world: World) -> ClusterSecret:
    random = world.random("nonces")
    return ClusterSecret("virtual" * 5, lambda: f"{random.getrandbits(192):048x}")


class Life:
    """One run of a node's process."""

    def __init__(self, host: str, number: int) -> None:
        self.host: Final = host
        self.number: Final = number
        self.ended_s: float | None = None

    def __repr__(self) -> str:
        return f"{self.host}/{self.number}"


_life: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


def current_life() -> Life | None:
    """The process of the current task or callback; None outside the cluster's nodes."""
    return _life.get()


def _life_in(context: contextvars.Context) -> Life | None:
    life: Life | None = context.get(_life)
    return life


class VirtualNode(ABC):
    """One host with a disk and, while it is up, a process.

    Attributes:
        host: the name of the host, and of its disk.
        lives: how often the process was started.
        ends: how often the process has ended.
        life: the running process, which may still be starting; None while it is down.
        is_on: whether the host has power.
        is_serving: whether the process has finished starting.
        process: what runs in it; None while it is down.
        failed_starts: the errors of failed starts.
    """

    def __init__(self, world: World, host: str, options: Mapping[str, object]) -> None:
        self.host: Final = host
        self.world: Final = world
        self.disk: Final = world.disk(host)
        self.options: Final = options
        self.lives = 0
        self.ends = 0
        self.life: Life | None = None
        self.is_on = True
        self.is_serving = False
        self.process: Broker | ControllerNode | None = None
        self.failed_starts: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[bool] | None = None

    def __repr__(self) -> str:
        state = "serves" if self.is_serving else "starts" if self.life else "is down"
        return f"<{self.host}/{self.lives} {state}>"

    def start(self) -> None:
        """Turn the host on, if it is off, and start the process. If the start fails, because of a
        failing disk, the process is started again half a second later."""
        assert self.life is None, self
        if not self.is_on:
            self.is_on = True
            self.world.network.heal(self.host, ANY)
        self.lives += 1
        self.life = life = Life(self.host, self.lives)
        self.world.trace.append(f"start {life}")
        random = self.world.random(str(life))
        self._task = self._begin(life, self._run(self.disk.mount(), random))

    def _begin(self, life: Life | None, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of the node's process."""
        context = contextvars.copy_context()
        context.run(_life.set, life)
        context.run(self.world.loop.host.set, self.host)
        return self.world.loop.create_task(work, context=context)

    async def _run(self, mount: Mount, random: Random) -> None:
        try:
            failed = await self._serve(mount, random)
        except (KafkaError, OSError) as error:
            self.failed_starts.append(str(error))
            self._task = None
            self._fail(f"{self.life} failed to start: {error}")
        else:
            self._watching = self._watch(failed)
            self.is_serving = True
            self.world.trace.append(f"up {self.life}")

    def _watch(self, failed: asyncio.Event) -> asyncio.Task[bool]:
        """End the process when it reports a failed disk."""
        life = self.life

        def has_failed(done: asyncio.Task[bool]) -> None:
            if not done.cancelled() and self.life is life:
                self._fail(f"{life} has failed")

        watching = asyncio.create_task(failed.wait())
        watching.add_done_callback(has_failed)
        return watching

    def _fail(self, event: str) -> None:
        """End the process, and start it again half a second later."""
        self.world.trace.append(event)
        self.end_process()
        self.world.loop.call_later(
            _RESTART_S, self._restart_process, self.lives, context=contextvars.Context()
        )

    def _restart_process(self, lives: int) -> None:
        if self.life is None and self.is_on and self.lives == lives:
            self.start()

    async def close(self) -> None:
        """Shut the process down cleanly, as SIGTERM does; kill it if it is still starting."""
        if not self.is_serving:
            self.kill()
            return
        life = self.life
        self.world.trace.append(f"close {life}")
        self.is_serving = False
        self._task = task = self._begin(life, self._close())
        task.add_done_callback(lambda done: self._closed(life, done))
        await asyncio.wait([task])
        await asyncio.sleep(0)

    def _closed(self, life: Life | None, done: asyncio.Task[None]) -> None:
        if self.life is not life or life is None:
            return  # killed meanwhile
        self._task = None
        self.life = None
        self.ends += 1
        life.ended_s = self.world.loop.time()
        self.disk.end_mount()
        self.world.trace.append(f"closed {life}")
        if not done.cancelled() and (error := done.exception()) is not None:
            if not isinstance(error, KafkaError):
                raise error
            self.world.trace.append(f"{life} did not close cleanly: {error}")
            self._abort()

    def kill(self) -> None:
        """End the process as kill -9 does."""
        self.world.trace.append(f"kill {self.life}")
        self.end_process()

    def crash(self) -> None:
        """Turn the power off."""
        self.world.trace.append(f"crash {self.life}")
        self.world.network.cut(self.host, ANY)
        self.is_on = False
        self.end_process()
        self.disk.crash(self.world.random(f"{self.host} loss"))

    def end_process(self) -> None:
        """End the process at once."""
        if self.life is not None:
            self.life.ended_s = self.world.loop.time()
        self.life = None
        self.ends += 1
        self.is_serving = False
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._abort()
        self.world.loop.resume(self.host)
        self.disk.end_mount()

    async def _close(self) -> None:
        process = self.process
        assert process is not None
        if self._watching is not None:
            self._watching.cancel()
        await process.close()
        if self.process is process:
            self.process = None

    def _abort(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self.process is not None:
            self.process.abort()
            self.process = None

    @abstractmethod
    async def _serve(self, mount: Mount, random: Random) -> asyncio.Event:
        """Start the node, which then serves requests; the event is set when its disk fails."""


class VirtualBroker(VirtualNode):
    """A broker's host."""

    process: Broker | None

    def __init__(self, world: World, broker_id: int, options: Mapping[str, object]) -> None:
        super().__init__(world, f"broker-{broker_id}", options)
        self.id: Final = broker_id

    @property
    def broker(self) -> Broker | None:
        """The running broker; None while it does not run."""
        return self.process

    @property
    def incarnation_id(self) -> bytes | None:
        """The incarnation id of the running process; None if it does not run."""
        return None if self.broker is None else self.broker.lifecycle.incarnation_id

    @property
    def has_failed_logs(self) -> bool:
        """Whether partitions are offline until the process is restarted."""
        broker = self.broker
        return broker is not None and (
            bool(broker.replicas.offline)
            or any(partition.log.has_failed for partition in broker.partitions.values())
        )

    async def _serve(self, mount: Mount, random: Random) -> asyncio.Event:
        options = {"node.id": self.id, "broker.id": self.id, **self.options}
        self.process = broker = Broker(
            self.id,
            _CLUSTER_ID,
            mount,
            (CONTROLLER, PORT),
            _secret(self.world),
            options,
            self.world.now_ms,
            random,
        )
        await broker.bind(self.host, PORT)
        await broker.start(self.host, PORT)
        return broker.failed


class VirtualController(VirtualNode):
    """The controller's host."""

    process: ControllerNode | None

    @property
    def controller(self) -> Controller | None:
        """The controller's state; None while the process does not run."""
        return None if self.process is None else self.process.controller

    async def _serve(self, mount: Mount, random: Random) -> asyncio.Event:
        self.process = node = ControllerNode(
            CONTROLLER_ID,
            _CLUSTER_ID,
            mount,
            _secret(self.world),
            self.options,
            self.world.now_ms,
            random,
        )
        await node.listen(self.host, PORT)
        await node.start()
        return node.failed


class VirtualCluster:
    """A controller and brokers.

    Args:
        brokers: number of brokers.
        options: broker options, the same for all nodes.
    """

    def __init__(self, world: World, brokers: int, options: Mapping[str, object]) -> None:
        self.world: Final = world
        self.controller: Final = VirtualController(world, CONTROLLER, options)
        self.brokers: Final = [VirtualBroker(world, number, options) for number in range(brokers)]
        self.nodes: Final[list[VirtualNode]] = [self.controller, *self.brokers]
        self._ends_checked = 0
        self.bootstrap_servers: Final = ",".join(f"{each.host}:{PORT}" for each in self.brokers)

    def start(self) -> None:
        """Start every node that is down."""
        for node in self.nodes:
            if node.life is None:
                node.start()

    async def close(self) -> None:
        """Shut every node down cleanly, the brokers first."""
        for node in reversed(self.nodes):
            if node.life is not None:
                await node.close()

    def leftovers(self) -> list[str]:
        """Callbacks and tasks of processes that have ended, and their uses of disks."""
        latest = self.world.loop.time() - _DEATH_S
        ends = sum(node.ends for node in self.nodes)
        uses = [f"{node.host}: {use}" for node in self.nodes for use in node.disk.used_after_end]
        if ends == self._ends_checked:
            return uses
        self._ends_checked = ends

        def is_over(context: contextvars.Context) -> bool:
            life = _life_in(context)
            return life is not None and life.ended_s is not None and life.ended_s < latest

        found = [
            f"{_life_in(context_of(handle))}: {handle!r}"
            for handle in self.world.loop.handles()
            if not handle.cancelled() and is_over(context_of(handle)) and not is_delivery(handle)
        ]
        found += [
            f"{_life_in(task.context)}: {task!r}"
            for task in self.world.loop.tasks()
            if is_over(task.context)
        ]
        return found + uses
