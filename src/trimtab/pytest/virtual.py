"""A cluster and its clients in virtual time, for tests that are coroutines."""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from random import Random
from types import FrameType
from typing import Any, Final
from unittest.mock import patch

from trimtab.cluster.config.node import EMBEDDED
from trimtab.kafka.arguments import checked_integer, checked_seconds
from trimtab.kafka.errors import UsageError
from trimtab.sim.loop import StalledError
from trimtab.sim.network import ANY
from trimtab.sim.virtual_cluster import VirtualBroker, VirtualCluster, VirtualNode
from trimtab.sim.world import World

_CONFIG: Final[dict[str, object]] = {
    **EMBEDDED,
    # Compiled clients, such as aiokafka, stamp their records with the real time.
    "log.message.timestamp.after.max.ms": 2**63 - 1,
}
_START_S = 60
"""Virtual seconds after which every node must be up."""
_STEP_S = 0.01
_TEST = "the test"
"""The name of its task."""
_FIRST_LOOK_S = 60.0
"""Virtual seconds until the first look whether something can wake the test."""
_FORGOTTEN_AT_MOST = 200
"""Objects that a test which nothing can wake may consist of, at most."""
_TURN_S = 1e-6
"""Without it, clients that ask the clock whether a timeout is over could ask for ever."""


def virtual_options(
    seed: int = 0,
    brokers: int = 3,
    config: Mapping[str, object] | None = None,
    limit_s: float | None = 86_400,
) -> None:
    """The options of the mark `virtual_time`.

    Args:
        seed: of all random numbers of the cluster, its network and its disks.
        brokers: their number.
        config: broker options, dotted.
        limit_s: virtual seconds after which the test fails; None for no limit. A test that waits
            for a thread, such as confluent-kafka's, would never end: threads take no virtual time.
    """


class VirtualKafka:
    """A cluster in virtual time, and its faults.

    An hour passes in seconds, and the same seed gives the same run. Only the random numbers that
    clients draw by themselves differ: pass `random=virtual_kafka.random("client")` to trimtab's.

    Attributes:
        bootstrap_servers: for clients that run on the test's loop.
    """

    def __init__(self, world: World, brokers: int, config: Mapping[str, object] | None) -> None:
        checked_integer("brokers", brokers, 1)
        self._world: Final = world
        self._cluster: Final = VirtualCluster(world, brokers, {**_CONFIG, **(config or {})})
        self.bootstrap_servers: Final = self._cluster.bootstrap_servers

    def __repr__(self) -> str:
        nodes = self._cluster.nodes
        down = ", ".join(str(node) for node in nodes if not node.is_serving) or "no node"
        return f"<VirtualKafka at {self.bootstrap_servers}, {self.now_s:.3f} s, down: {down}>"

    @property
    def now_s(self) -> float:
        """Virtual seconds since the start."""
        return self._world.loop.time()

    def random(self, name: str) -> Random:
        """The stream of random numbers with this name."""
        return self._world.random(name)

    # Faults

    def slow(self, broker: int = 0, produce_ms: float = 20) -> None:
        """Delay a broker's produce responses by `produce_ms`; 0 ends the delay."""
        running = self._up(broker).broker
        assert running is not None
        running.listener.faults.slow(produce_ms)

    def kill(self, broker: int = 0) -> None:
        """End a broker's process, as kill -9 does. Bytes that it has written are kept."""
        self._up(broker).kill()

    async def stop(self, broker: int = 0) -> None:
        """Stop a broker cleanly: it hands over leadership first."""
        await self._up(broker).close()

    def power_loss(self, broker: int = 0) -> None:
        """Turn a broker's host off: bytes that were not flushed are lost, and it answers nobody."""
        self._up(broker).crash()

    async def start(self, broker: int = 0) -> None:
        """Start a broker that is down; returns once it serves requests."""
        node = self._find(broker)
        if node.life is not None:
            raise UsageError(f"broker={broker}: it is up already")
        node.start()
        await self._until_serving([node])

    def isolate(self, broker: int = 0, other: int | None = None) -> None:
        """Cut a broker off from all others and all clients, or from one other broker: nothing is
        delivered until `heal`."""
        host = self._find(broker).host
        self._world.network.cut(host, ANY if other is None else self._find(other).host)

    def heal(self) -> None:
        """End every `isolate`."""
        for node in self._cluster.nodes:
            if node.is_on:
                self._world.network.heal(node.host, ANY)
                for other in self._cluster.nodes:
                    self._world.network.heal(node.host, other.host)

    def disk_full(self, broker: int = 0, is_full: bool = True) -> None:
        """Let a broker's disk be full, or free again. A broker whose disk is full ends, and starts
        again until it can write."""
        disk = self._find(broker).disk
        disk.capacity = disk.used if is_full else None

    def _up(self, broker: int) -> VirtualBroker:
        node = self._find(broker)
        if not node.is_serving:
            raise UsageError(f"broker={broker}: it is not up")
        return node

    def _find(self, broker: int) -> VirtualBroker:
        last = len(self._cluster.brokers) - 1
        return self._cluster.brokers[checked_integer("broker", broker, 0, last)]

    # The plugin's

    def start_all(self) -> None:
        """Start all nodes; on return they serve."""
        self._cluster.start()
        self._world.run(self._until_serving(self._cluster.nodes))

    def close(self) -> None:
        """Shut all nodes down."""
        self._world.run(self._cluster.close())

    async def _until_serving(self, nodes: Sequence[VirtualNode]) -> None:
        try:
            async with asyncio.timeout(_START_S):
                while not all(node.is_serving for node in nodes):  # noqa: ASYNC110
                    await asyncio.sleep(_STEP_S)
        except TimeoutError:
            failed = [error for node in nodes for error in node.failed_starts[-1:]]
            raise UsageError(
                f"{', '.join(map(str, nodes))} after {_START_S} s: {'; '.join(failed)}"
            ) from None


def run_in_virtual_time(
    world: World, test: Coroutine[Any, Any, None], limit_s: float | None
) -> None:
    """Run a coroutine; the functions of the module `time` tell this thread the virtual time.

    Raises:
        StalledError: it has not ended after `limit_s` virtual seconds, or never can.
        UsageError: it waits for a thread.
    """
    thread = threading.get_ident()
    loop = world.loop
    loop.turn_s = _TURN_S
    limit = checked_seconds("limit_s", limit_s)
    end = math.inf if limit is None else loop.time() + limit
    next_look = loop.time() + _FIRST_LOOK_S

    def refuse_more_time() -> None:
        nonlocal next_look
        if loop.time() < min(end, next_look):
            return
        task = next((each for each in loop.tasks() if each.get_name() == _TEST), None)
        if task is None:
            return
        next_look = 2 * loop.time()  # a day takes some ten looks
        if _is_forgotten(task):
            raise StalledError(
                f"deadlock: nothing can wake the test, which waits at {_where(task)}: no timer, "
                "connection or task refers to what it waits for"
            )
        if loop.time() > end:
            raise StalledError(
                f"the test has not ended within {limit_s} virtual seconds (limit_s of the mark "
                f"virtual_time), and waits at {_where(task)}. If it waits for a thread: a thread "
                "takes no virtual time; clients in virtual time are asyncio code, such as "
                "trimtab's AsyncProducer or aiokafka"
            )

    loop.observer = refuse_more_time

    def virtual(real: Callable[[], float], read: Callable[[], float]) -> Callable[[], float]:
        return lambda: read() if threading.get_ident() == thread else real()

    def virtual_ns(real: Callable[[], int], read: Callable[[], float]) -> Callable[[], int]:
        return lambda: int(read() * 1e9) if threading.get_ident() == thread else real()

    with ExitStack() as patched:
        for name, read in (
            ("time", world.wall_clock),
            ("monotonic", loop.time),
            ("perf_counter", loop.time),
        ):
            patched.enter_context(patch.object(time, name, virtual(getattr(time, name), read)))
            ns = f"{name}_ns"
            patched.enter_context(patch.object(time, ns, virtual_ns(getattr(time, ns), read)))
        try:
            world.run(loop.create_task(test, name=_TEST))
        finally:
            loop.observer = None


def _where(task: asyncio.Task[Any]) -> str:
    """The line of the test itself that waits."""
    return ", ".join(f"{each.f_code.co_filename}:{each.f_lineno}" for each in task.get_stack())


def _is_forgotten(task: asyncio.Task[Any]) -> bool:
    """Whether only the task itself refers to what it waits for, so that nothing can ever wake it.

    Looks for the objects that refer to the task, those that refer to them, and so on. If that
    ends, no timer, connection or other task is among them: the event loop refers to all of these,
    and far more than a test that is alone refers to the loop.
    """
    levels: list[list[object]] = [[task, task._fut_waiter]]  # type: ignore[attr-defined]
    known = {id(levels)}
    frame: FrameType | None = sys._getframe()
    while frame is not None:  # this call and its callers wait for the task, and do not wake it
        known.add(id(frame))
        frame = frame.f_back
    while levels[-1]:
        known.update(map(id, levels[-1]), [id(levels[-1])])
        if len(known) > _FORGOTTEN_AT_MOST:
            return False
        found = gc.get_referrers(*levels[-1])
        for holder in levels[-1]:  # a connection refers only weakly to its stream, and wakes it
            if not isinstance(holder, asyncio.Task):  # as the sets of all tasks do, which wake none
                found += weakref.getweakrefs(holder)
        found[:] = [each for each in found if id(each) not in known]
        levels.append(found)
    return True
