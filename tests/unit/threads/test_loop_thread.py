from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from types import CodeType
from typing import Any

import pytest

from tests.unit.forked import in_child
from tests.unit.interrupts import interrupt_at
from trimtab.kafka.errors import Unavailable, UsageError
from trimtab.threads import loop_thread, waiting
from trimtab.threads.event_loop import new_event_loop
from trimtab.threads.loop_thread import LoopThread, shared


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


def test_run_returns_the_result_of_a_coroutine_on_the_threads_loop() -> None:
    async def where() -> tuple[threading.Thread, asyncio.AbstractEventLoop]:
        return threading.current_thread(), asyncio.get_running_loop()

    with LoopThread("road") as thread:
        runner, loop = thread.run(where)
        assert runner.name == "road"
        assert runner.daemon
        assert runner is not threading.current_thread()
        assert loop is thread.loop


def test_new_event_loop_is_uvloop_where_it_can_be_imported_and_asyncio_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = new_event_loop()
    assert type(loop).__module__.startswith("uvloop")
    loop.close()
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    assert isinstance(loop, asyncio.BaseEventLoop)
    loop.close()


def test_run_raises_what_the_coroutine_raises() -> None:
    async def fail() -> None:
        raise ValueError("flights-2")

    async def time_out() -> None:
        raise TimeoutError("the coroutine's own")

    with LoopThread("road") as thread:
        with pytest.raises(ValueError, match="flights-2"):
            thread.run(fail)
        with pytest.raises(TimeoutError, match="the coroutine's own"):
            thread.run(time_out)


def test_run_raises_what_the_call_of_the_function_raises() -> None:
    with LoopThread("road") as thread, pytest.raises(TypeError, match="positional argument"):
        thread.run(_never, 1)  # type: ignore[call-arg]


def test_run_raises_ctrl_c_at_once_and_cancels_the_coroutine() -> None:
    cancelled = threading.Event()

    async def wait(caller: int) -> None:
        signal.pthread_kill(caller, signal.SIGINT)
        try:
            await _never()
        finally:
            cancelled.set()

    with LoopThread("road") as thread:
        with pytest.raises(KeyboardInterrupt):
            thread.run(wait, threading.get_ident())
        assert cancelled.wait(5)


def test_ctrl_c_at_any_instruction_of_run_leaves_no_coroutine_unawaited() -> None:
    def is_of_run(code: CodeType) -> bool:
        return code.co_filename in (__file__, loop_thread.__file__, waiting.__file__)

    with LoopThread("road") as thread:
        step = 1
        while interrupt_at(step, lambda: thread.run(asyncio.sleep, 0), is_of_run, by_opcode=True):
            step += 1
        assert step > 100
        assert thread.run(asyncio.sleep, 0, "still here") == "still here"
    gc.collect()  # A coroutine left unawaited would warn here, and warnings are errors.


def test_ctrl_c_just_after_the_submission_cancels_the_coroutine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin_and_interrupt(*args: Any) -> None:
        waiting.begin_on(*args)
        raise KeyboardInterrupt

    async def others() -> set[asyncio.Task[None]]:
        await asyncio.sleep(0)
        return asyncio.all_tasks() - {asyncio.current_task()}

    with LoopThread("road") as thread:
        with monkeypatch.context() as patch:
            patch.setattr(loop_thread, "begin_on", begin_and_interrupt)
            with pytest.raises(KeyboardInterrupt):
                thread.run(_never)
        assert thread.run(others) == set()


def test_run_refuses_the_loop_thread_itself() -> None:
    with LoopThread("road") as thread:

        async def nest() -> None:
            thread.run(_never)

        async def stop() -> None:
            thread.stop()

        with pytest.raises(UsageError, match="in a coroutine `await` it; in a delivery callback"):
            thread.run(nest)
        with pytest.raises(UsageError, match="from the thread that started it"):
            thread.run(stop)


def test_call_soon_keeps_the_order_of_the_calls() -> None:
    seen: list[int] = []

    async def read() -> list[int]:
        return list(seen)

    with LoopThread("road") as thread:
        for number in range(1000):
            thread.call_soon(seen.append, number)
        assert thread.run(read) == list(range(1000))


def test_stop_cancels_tasks_and_ends_waits_in_run() -> None:
    started = threading.Event()
    outcome: list[BaseException] = []
    wound_up: list[bool] = []

    async def wait() -> None:
        started.set()
        try:
            await _never()
        finally:
            wound_up.append(True)

    def call() -> None:
        try:
            thread.run(wait)
        except Unavailable as error:
            outcome.append(error)

    thread = LoopThread("road")
    caller = threading.Thread(target=call)
    caller.start()
    assert started.wait(5)
    thread.stop()
    caller.join(5)
    assert wound_up == [True]
    assert "'road' was stopped while a call was waiting" in str(outcome[0])
    assert thread.loop.is_closed()


def test_stop_abandons_a_task_that_ignores_its_cancellation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trimtab.threads.loop_thread._CANCEL_GRACE_S", 0.01)
    tasks: list[asyncio.Task[Any]] = []

    async def resist() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            await _never()
        except asyncio.CancelledError:
            await _never()

    thread = LoopThread("road")
    thread.call_soon(asyncio.ensure_future, resist())
    thread.run(asyncio.sleep, 0)
    thread.stop()
    assert "ignored its cancellation" in caplog.text
    assert thread.loop.is_closed()
    # asyncio's destructor would report it once more, after the test.
    tasks[0]._log_destroy_pending = False  # type: ignore[attr-defined]
    tasks[0].get_coro().close()


def test_stop_ends_the_wait_for_a_call_that_ignores_its_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trimtab.threads.loop_thread._CANCEL_GRACE_S", 0.01)
    started = threading.Event()
    outcome: list[BaseException] = []
    tasks: list[asyncio.Task[None]] = []

    async def resist() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        started.set()
        try:
            await _never()
        except asyncio.CancelledError:
            await _never()

    def call() -> None:
        try:
            thread.run(resist)
        except Unavailable as error:
            outcome.append(error)

    thread = LoopThread("road")
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert started.wait(5)
    thread.stop()
    caller.join(5)
    assert "'road' was stopped while a call was waiting" in str(outcome[0])
    assert not thread._engine.calls
    # asyncio's destructor would report it once more, after the test.
    tasks[0]._log_destroy_pending = False  # type: ignore[attr-defined]
    tasks[0].get_coro().close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_task_that_exits_ends_the_thread_and_all_waits() -> None:
    async def exit_and_wait() -> None:
        thread.call_soon(_exit)
        await asyncio.sleep(10)

    def _exit() -> None:
        raise SystemExit(0)

    thread = LoopThread("road")
    with pytest.raises(Unavailable, match="was stopped while"):
        thread.run(exit_and_wait)
    with pytest.raises(UsageError, match="was stopped"):
        thread.run(_never)
    thread.stop()


def test_a_stopped_thread_refuses_work_and_stops_again_without_harm() -> None:
    thread = LoopThread("road")
    thread.stop()
    thread.stop()
    with pytest.raises(UsageError, match="'road' was stopped; start a new one"):
        thread.run(_never)
    with pytest.raises(UsageError, match="'road' was stopped; start a new one"):
        thread.call_soon(print)
    gc.collect()  # A coroutine left unawaited would warn here, and warnings are errors.


@pytest.mark.parametrize("place", ["run", "_refuse_unusable"])
def test_a_second_end_while_the_first_is_finished_in_the_background_does_nothing(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Ctrl-C interrupts a close; the background finishes it while the user closes again."""
    thread = LoopThread("ended-twice")

    def finish_first(*args: object) -> None:
        thread.release_soon()
        thread._engine.thread.join(20)
        monkeypatch.undo()
        thread._refuse_unusable()

    monkeypatch.setattr(thread, place, finish_first)
    thread.close_client(asyncio.sleep, 0)
    assert thread.is_released


def test_shared_is_one_thread_until_its_last_hold_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_thread, "_shared", None)  # another test's client may have a hold
    first, second = shared(), shared()
    loop = first.loop
    assert second.loop is loop
    first.stop()
    first.stop()
    with pytest.raises(UsageError, match="was stopped"):
        first.run(_never)
    assert second.run(asyncio.sleep, 0, "still here") == "still here"
    second.stop()
    assert loop.is_closed()
    with shared() as third:
        assert third.loop is not loop
        assert third.run(asyncio.sleep, 0, "anew") == "anew"


def test_shared_can_be_held_and_stopped_by_many_threads_at_once() -> None:
    failures: list[BaseException] = []

    def hold() -> None:
        try:
            for _ in range(20):
                with shared() as thread:
                    assert thread.run(asyncio.sleep, 0, 1) == 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_use_after_fork_is_refused_with_the_way_out() -> None:
    with LoopThread("road") as thread:
        assert thread.run(asyncio.sleep, 0, 1) == 1
        said = in_child(lambda: thread.run(_never))
        assert said.startswith("UsageError: loop thread 'road' was started in process")
        assert "create the producer, consumer, admin or cluster after the fork" in said
        assert in_child(lambda: thread.call_soon(print)).startswith("UsageError")
        assert in_child(thread.stop) == "None"
        assert thread.run(asyncio.sleep, 0, 2) == 2


def test_shared_in_a_forked_child_is_a_thread_of_its_own() -> None:
    def use() -> int:
        with shared() as own:
            return own.run(asyncio.sleep, 0, os.getpid())

    with shared() as parents:
        assert parents.run(asyncio.sleep, 0, 1) == 1
        assert int(in_child(use)) not in (0, os.getpid())
        assert parents.run(asyncio.sleep, 0, 2) == 2


def test_a_thread_knows_whether_the_caller_is_on_it() -> None:
    async def ask() -> bool:
        return thread.is_current

    with LoopThread("road") as thread:
        assert not thread.is_current
        assert thread.run(ask)


@pytest.mark.parametrize("start", ["LoopThread('road')", "shared()"])
def test_the_interpreter_exits_when_a_thread_was_never_stopped(start: str) -> None:
    script = f"""
import asyncio
from trimtab.threads.loop_thread import LoopThread, shared
thread = {start}
async def wait():
    try:
        await asyncio.Event().wait()
    finally:
        print("wound up", flush=True)
tasks = []
thread.call_soon(lambda: tasks.append(asyncio.ensure_future(wait())))
thread.run(asyncio.sleep, 0)
print("the end", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\nwound up\n", "")
