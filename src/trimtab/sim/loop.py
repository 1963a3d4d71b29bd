"""An asyncio event loop in virtual time: it never waits, and the same seed gives the same run."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import inspect
import math
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple

from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.sim.network import Network

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_TURNS_MAX_AT_ONE_INSTANT = 1_000_000
"""Turns of the loop at one virtual time after which the run counts as stuck in a busy loop."""

_CANCELLED_TIMERS_MIN = 1000
"""Cancelled timers are removed from the heap only if there are more than this."""


class StalledError(RuntimeError):
    """The virtual world is stuck: all tasks wait for each other, or one loops without waiting."""


class VirtualLoop(asyncio.BaseEventLoop):
    """A deterministic event loop whose clock jumps to the next timer when nothing is ready.

    Ordinary asyncio code runs in it unchanged: tasks, timeouts, queues, streams, Protocols and
    BufferedProtocols. Code takes no virtual time; only timers and the network do. (`turn_s` is for
    code that polls the clock until it has moved.) Threads, executors, real sockets and TLS raise an
    error, as they are not deterministic.

    - `time()` starts at 0 and is in seconds. Timers due at the same time run in the order in
      which they were set.
    - Connections and servers live in `network`, which a `Network` sets.
    - `StalledError` is raised if `run_until_complete` waits and no timer or delivery is left, or if
      a million turns pass at one virtual time. It lists the tasks and where they wait.
    - `host` is the host on which the current task or callback runs; `pause` stops a host.
    - `observer` is called before virtual time advances.
    - Tasks hash by their order of creation, so that asyncio's own sets of tasks (TaskGroup,
      `asyncio.wait`) have the same order in every run. Sets of other objects do not: code whose
      decisions depend on the order must not iterate over them.
    """

    network: Network | None = None
    turn_s = 0.0
    """Virtual seconds that each turn of the loop takes."""

    # BaseEventLoop's own state, which the type stubs leave out.
    _ready: deque[asyncio.Handle]
    _stopping: bool
    _thread_id: int | None

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._turns = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_set = 0
        self._timers_cancelled = 0
        self._tasks_created = 0
        self._paused: dict[str, list[asyncio.Handle]] = {}
        self.host: contextvars.ContextVar[str] = contextvars.ContextVar("host", default="localhost")
        self.observer: Callable[[], None] | None = None
        self._living_tasks: weakref.WeakValueDictionary[int, _Task[Any]] = (
            weakref.WeakValueDictionary()
        )

    def time(self) -> float:
        """Virtual seconds since the loop was created."""
        return self._now

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        timer = _Timer(when, callback, args, self, context)
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        # Most timeouts are cancelled; they would otherwise stay in the heap until they are due.
        self._timers_cancelled += 1
        if self._timers_cancelled > max(_CANCELLED_TIMERS_MIN, len(self._timers) // 2):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """`call_soon`; while the loop runs, raises UsageError in any other thread, and ends the
        run: something may wait for this call for ever."""
        if self._thread_id not in (None, threading.get_ident()):
            error = UsageError(
                f"thread {threading.current_thread().name!r} called into the virtual world; "
                "threads make a run unrepeatable, use the async face on the loop itself"
            )
            self._ready.append(asyncio.Handle(self._end_run, (error,), self, None))
            raise error
        return self.call_soon(callback, *args, context=context)

    def _end_run(self, error: UsageError) -> None:
        self.call_exception_handler({"message": str(error), "exception": error})
        self.stop()

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        self._tasks_created += 1
        number = self._tasks_created
        if name is None:
            name = f"task-{number}"  # asyncio's own count is the process's, not the loop's.
        if context is None:
            context = contextvars.copy_context()
        task: _Task[T] = _Task(number, coro, loop=self, name=name, context=context, **options)
        self._living_tasks[number] = task
        return task

    def tasks(self) -> list[_Task[Any]]:
        """The tasks that are not done, in the order of their creation."""
        return [task for _, task in sorted(self._living_tasks.items()) if not task.done()]

    def handles(self) -> Iterator[asyncio.Handle]:
        """All pending callbacks and timers, in no order."""
        yield from self._ready
        for *_, timer in self._timers:
            yield timer
        for held in self._paused.values():
            yield from held

    def pause(self, host: str) -> None:
        """Stop a host's process until `resume`; time goes on.

        Timers and deliveries that become due meanwhile run after `resume`, in their order.
        """
        self._paused.setdefault(host, [])

    def resume(self, host: str) -> None:
        """End a `pause`: run everything that became due meanwhile. Does nothing if not paused."""
        self._ready.extend(self._paused.pop(host, ()))

    def resume_all(self) -> None:
        """`resume` every host."""
        for host in tuple(self._paused):
            self.resume(host)

    def close(self) -> None:
        super().close()
        self._timers.clear()
        self._paused.clear()

    # One turn ------------------------------------------------------------------------------

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        self._now += self.turn_s
        if ready or self._stopping:
            self._turns += 1
            if self._turns > _TURNS_MAX_AT_ONE_INSTANT:
                self._turns = 0
                raise StalledError(
                    f"{_TURNS_MAX_AT_ONE_INSTANT:,} turns of the loop passed at virtual time "
                    f"{self._now:.6f} s: a task loops without waiting for a timer\n"
                    + self._describe_tasks()
                )
        else:
            if self.observer is not None:
                self.observer()
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
                self._timers_cancelled -= 1
            if not timers or timers[0][0] == math.inf:
                raise StalledError(
                    f"deadlock at virtual time {self._now:.6f} s: the awaited result is missing, "
                    "but no timer is set and no bytes are in flight\n" + self._describe_tasks()
                )
            self._turns = 0
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            timer = heapq.heappop(timers)[2]
            if timer.cancelled():
                self._timers_cancelled -= 1
            else:
                ready.append(timer)
        if self._paused:
            self._run_unpaused()
        else:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()

    def _run_unpaused(self) -> None:
        ready, paused = self._ready, self._paused
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.cancelled():
                continue
            held = paused.get(context_of(handle).get(self.host, "localhost"))
            if held is not None:
                held.append(handle)
            else:
                handle._run()

    def _describe_tasks(self) -> str:
        lines = [f"  {task.get_name()} waits at {_where(task)}" for task in self.tasks()]
        return "\n".join(lines) or "  (no task is left)"

    # The network ---------------------------------------------------------------------------

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        local_addr: tuple[str, int] | None = None,
        **_options: object,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to a virtual server, from the host `local_addr[0]` or `network.host`.

        Raises:
            ConnectionRefusedError: no server listens at the address.
            TimeoutError: the route was cut for the network's `connect_timeout_s`.
            UsageError: TLS or a socket was asked for, or host or port is missing.
        """
        network = self._require_network(ssl, sock)
        if host is None or port is None:
            raise UsageError(f"create_connection needs host and port, got {host!r} and {port!r}")
        return await network.connect(protocol_factory, host, port, local_addr)

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | Sequence[str] | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        start_serving: bool = True,
        **_options: object,
    ) -> asyncio.AbstractServer:
        """Listen on virtual hosts; port 0 is any free port, no host means `network.host`.

        Raises:
            OSError: EADDRINUSE, another server uses the address.
            UsageError: TLS or a socket was asked for.
        """
        network = self._require_network(ssl, sock)
        hosts = [host] if host is None or isinstance(host, str) else list(host)
        server = network.listen(protocol_factory, hosts, port or 0)
        if start_serving:
            await server.start_serving()
        return server

    def _require_network(self, ssl: object, sock: object) -> Network:
        if ssl is not None or sock is not None:
            raise UsageError(
                "the virtual network has neither TLS nor real sockets; leave out ssl=/sock="
            )
        if self.network is None:
            raise UsageError(
                "this VirtualLoop has no network; create a World, or Network(loop, ...)"
            )
        return self.network

    async def getaddrinfo(  # type: ignore[override]
        self, host: str, port: int, **_options: object
    ) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        """The address of a virtual host is its name."""
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    def run_in_executor(self, executor: object, func: object, *args: object) -> NoReturn:
        raise UsageError(
            f"run_in_executor({func!r}) in the virtual world: threads make a run unrepeatable; "
            "call the function directly"
        )


class _Timer(asyncio.TimerHandle):
    """A timer without `when`, which uvloop's lack if their time is up when they are set."""

    __slots__ = ()

    def when(self) -> NoReturn:
        raise UsageError("a late timer of uvloop has no when(); keep the time where it is needed")


class _Task(asyncio.Task[T]):
    """A task that hashes by its number instead of its address, and keeps its context."""

    def __init__(
        self, number: int, coro: Any, context: contextvars.Context, **options: Any
    ) -> None:
        self._number = number  # First: asyncio's constructor puts the task into a set.
        self.context = context
        super().__init__(coro, context=context, **options)

    def __hash__(self) -> int:
        return self._number


def context_of(handle: asyncio.Handle) -> contextvars.Context:
    """The context in which a callback runs; asyncio has no public name for it."""
    context: contextvars.Context = handle._context  # type: ignore[attr-defined]
    return context


def _where(task: asyncio.Task[Any]) -> str:
    """The innermost coroutine and line at which a suspended task waits."""
    place = "its first step"
    coroutine: object = task.get_coro()
    while inspect.iscoroutine(coroutine) and coroutine.cr_frame is not None:
        frame = coroutine.cr_frame
        place = f"{coroutine.__qualname__} ({frame.f_code.co_filename}:{frame.f_lineno})"
        coroutine = coroutine.cr_await
    return place
