from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from contextlib import suppress
from typing import Any

import pytest

from tests.unit.interrupts import interrupt_at
from trimtab.kafka.errors import UsageError
from trimtab.threads.waiting import (
    begin_on,
    guarded,
    loop_time,
    new_gate,
    new_lock,
    refuse_waiting,
    wait_for,
)


class _Slow(concurrent.futures.Future[str]):
    """A future that is done after a number of waits, none of which is long."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.waits = waits

    def result(self, timeout: float | None = None) -> str:
        if not self.done():
            assert timeout is not None
            assert timeout <= 0.1, "a signal would go unheard for so long"
            self.waits -= 1
            if self.waits == 0:
                self.set_result("done")
            raise TimeoutError
        return super().result(timeout)


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_wait_is_many_short_ones_as_a_signal_may_come_just_before_each(
    timeout: float | None,
) -> None:
    assert wait_for(_Slow(50), timeout) == "done"


def test_a_wait_ends_with_its_timeout_or_the_outcome_of_the_future() -> None:
    never: concurrent.futures.Future[str] = concurrent.futures.Future()
    for timeout in (0.0, 0.01):
        with pytest.raises(TimeoutError):
            wait_for(never, timeout)
    never.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        wait_for(never)


def test_a_call_that_is_cancelled_before_it_begins_does_not_begin() -> None:
    begun: list[bool] = []

    async def call() -> None:
        begun.append(True)

    loop = asyncio.new_event_loop()
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    begin_on(loop, call, future)
    future.cancel()
    loop.run_until_complete(asyncio.sleep(0.001))
    loop.close()
    assert begun == []


def test_a_call_whose_loop_is_closed_is_cancelled_silently(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks: list[Any] = []

    async def call() -> None:
        tasks.append(asyncio.current_task())
        await loop.create_future()

    loop = asyncio.new_event_loop()
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    begin_on(loop, call, future)
    loop.run_until_complete(asyncio.sleep(0.001))
    loop.close()
    assert len(tasks) == 1
    assert future.cancel()
    assert caplog.text == ""
    # asyncio's destructor would report it, after the test.
    tasks[0]._log_destroy_pending = False
    tasks[0].get_coro().close()


def test_a_wait_for_the_callers_own_loop_is_refused_at_once() -> None:
    never: concurrent.futures.Future[str] = concurrent.futures.Future()
    done: concurrent.futures.Future[str] = concurrent.futures.Future()
    done.set_result("done")

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(UsageError, match="in a coroutine `await` it"):
            wait_for(never, 60, loop)
        assert wait_for(done, 60, loop) == "done"
        with pytest.raises(TimeoutError):
            wait_for(never, 0.0, other)  # which stands still, but need not for ever

    other = asyncio.new_event_loop()
    asyncio.run(wait())
    with pytest.raises(UsageError, match="the event loop that the client runs on does not run"):
        wait_for(never, None, other)
    other.close()
    with pytest.raises(UsageError, match="the event loop that the client runs on is closed"):
        wait_for(never, 60, other)


def test_a_wait_ends_when_the_loop_is_closed_meanwhile() -> None:
    loop = asyncio.new_event_loop()

    class Closing(concurrent.futures.Future[str]):
        def result(self, timeout: float | None = None) -> str:
            loop.close()
            raise TimeoutError

    with pytest.raises(UsageError, match="is closed"):
        wait_for(Closing(), 60, loop)


def test_a_thread_that_holds_a_lock_of_the_loop_must_not_wait() -> None:
    before = new_lock()
    lock = new_lock()
    refuse_waiting(None)
    with lock:
        with pytest.raises(UsageError, match="a partitioner is called while its producer is lock"):
            refuse_waiting(None)
        del before  # others come and go meanwhile
        thread = threading.Thread(target=refuse_waiting, args=(None,))
        thread.start()
        thread.join()
    refuse_waiting(None)


def test_a_wait_that_is_interrupted_twice_raises_the_interrupt() -> None:
    """`Condition.wait` has given its lock back, and does not get it again if a second Ctrl-C comes:
    `Future.result` then raises that it cannot release it."""
    never: concurrent.futures.Future[str] = concurrent.futures.Future()

    def wait() -> None:
        with suppress(TimeoutError):
            wait_for(never, 0.001)

    step = 1
    while interrupt_at(
        step, wait, lambda code: code is threading.Condition.wait.__code__, by_opcode=True
    ):
        step += 1
    assert step > 20


def test_a_wait_raises_what_the_future_raises() -> None:
    done: concurrent.futures.Future[str] = concurrent.futures.Future()
    error = RuntimeError("its own")
    error.__context__ = KeyboardInterrupt()
    done.set_exception(error)
    with pytest.raises(RuntimeError, match="its own"):
        wait_for(done, 1)


@pytest.mark.parametrize("by_opcode", [False, True])
def test_a_guard_leaves_its_lock_free_wherever_it_is_interrupted(by_opcode: bool) -> None:
    lock = threading.RLock()
    step = 1
    while interrupt_at(
        step, lambda: guarded(lock, int), lambda code: code is guarded.__code__, by_opcode
    ):
        assert not lock._is_owned()  # type: ignore[attr-defined]
        step += 1
    assert step > 4


def test_a_gate_is_closed_until_it_is_opened() -> None:
    gate = new_gate()
    assert not gate.acquire(False)
    gate.release()
    assert gate.acquire(False)


def test_a_loops_time_is_right_on_the_threads_of_other_loops() -> None:
    class Stale(asyncio.SelectorEventLoop):
        def time(self) -> float:
            return super().time() - 1000

    stale = Stale()

    async def ask() -> float:
        return loop_time(stale) - asyncio.get_running_loop().time()

    assert -1 < asyncio.run(ask()) < 1
    assert -1 < stale.run_until_complete(ask()) < 1
    stale.close()
