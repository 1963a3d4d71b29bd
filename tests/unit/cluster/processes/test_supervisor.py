"""Processes that are kept alive: small Python programs, real signals."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trimtab.cluster.processes import supervisor as module
from trimtab.cluster.processes.supervisor import Program, RestartDelay, Signals, Supervisor
from trimtab.kafka.errors import Unavailable

PATIENCE_S = 30.0

SERVE = "import os, sys; print('ready', os.getpid(), flush=True); sys.stdin.read()"
"""What nodes do: say so when they serve, and end when standard input does."""


def program(name: str, code: str = SERVE, rank: int = 0) -> Program:
    return Program(name, [sys.executable, "-c", code], rank)


@contextmanager
def supervised(logs: Path, *programs: Program) -> Iterator[tuple[Supervisor, list[str]]]:
    told: list[str] = []
    supervisor = Supervisor(programs, str(logs), told.append)
    try:
        yield supervisor, told
    finally:
        supervisor.stop()


def turn_until(supervisor: Supervisor, holds: Callable[[], bool]) -> None:
    while not holds():
        supervisor.turn(PATIENCE_S)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_all_are_started_and_heard_and_end_with_it(tmp_path: Path) -> None:
    with supervised(tmp_path, program("a"), program("b")) as (supervisor, told):
        supervisor.start()
        assert not supervisor.serves
        turn_until(supervisor, lambda: supervisor.serves)
        pids = supervisor.pids
        assert supervisor.first_lines == {name: f"ready {pid}" for name, pid in pids.items()}
    assert [is_gone(pid) for pid in pids.values()] == [True, True]
    assert told == []


def test_one_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with supervised(tmp_path, program("a"), program("b")) as (supervisor, told):
        supervisor.start()
        turn_until(supervisor, lambda: supervisor.serves)
        before = supervisor.pids
        os.kill(before["a"], signal.SIGKILL)
        turn_until(supervisor, lambda: bool(told))
        assert not supervisor.serves
        turn_until(supervisor, lambda: supervisor.serves)
        assert supervisor.pids["a"] != before["a"]
        assert supervisor.pids["b"] == before["b"]
    assert told == [
        f"a was killed by SIGKILL, it is started again at once; its log: {tmp_path}/a.log"
    ]


def test_the_error_of_a_failed_start_has_the_last_log_line_and_the_path(tmp_path: Path) -> None:
    refused = program("b", "import sys; print('x', file=sys.stderr); sys.exit('no such option')")
    with supervised(tmp_path, program("a"), refused) as (supervisor, _):
        supervisor.start()
        pid = supervisor.pids["a"]
        with pytest.raises(
            Unavailable, match=rf"b ended with exit code 1: no such option; its log: {tmp_path}/b"
        ):
            turn_until(supervisor, lambda: supervisor.serves)
    assert is_gone(pid)
    assert (tmp_path / "b.log").read_text() == "x\nno such option\n"


def test_once_all_have_served_an_end_is_no_failed_start(tmp_path: Path) -> None:
    once = f"import os, sys; os.path.exists('{tmp_path}/ran') and sys.exit(3)\n"
    mortal = program("a", f"{once}open('{tmp_path}/ran', 'w')\n{SERVE}")
    with supervised(tmp_path, mortal) as (supervisor, told):
        supervisor.start()
        turn_until(supervisor, lambda: supervisor.serves)
        os.kill(supervisor.pids["a"], signal.SIGKILL)
        turn_until(supervisor, lambda: len(told) == 2)
    assert "a was killed by SIGKILL, it is started again at once" in told[0]
    assert "a ended with exit code 3, it is started again in 0.5 s" in told[1]


def test_lower_ranks_end_before_higher_ones_begin_to(tmp_path: Path) -> None:
    note = f"\nopen('{tmp_path}/order', 'a').write(sys.argv[1])"
    programs = [
        Program(name, [sys.executable, "-c", SERVE + note, name], rank)
        for name, rank in (("c", 1), ("a", 0), ("b", 0))
    ]
    with supervised(tmp_path, *programs) as (supervisor, _):
        supervisor.start()
        turn_until(supervisor, lambda: supervisor.serves)
    assert (tmp_path / "order").read_text() in ("abc", "bac")


def test_one_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 0.01)
    deaf = "import signal; print('ready', flush=True)\nwhile True: signal.pause()"
    with supervised(tmp_path, program("a", deaf)) as (supervisor, told):
        supervisor.start()
        turn_until(supervisor, lambda: supervisor.serves)
        pid = supervisor.pids["a"]
    assert is_gone(pid)
    assert told == [f"a did not end within 0.01 s and is killed; its log: {tmp_path}/a.log"]


def test_all_are_killed_at_once_when_asked(tmp_path: Path) -> None:
    deaf = "import signal; print('ready', flush=True)\nwhile True: signal.pause()"
    supervisor = Supervisor([program("a", deaf), program("b", deaf, 1)], str(tmp_path), pytest.fail)
    supervisor.start()
    turn_until(supervisor, lambda: supervisor.serves)
    pids = supervisor.pids
    supervisor.stop(at_once=lambda: True)
    assert [is_gone(pid) for pid in pids.values()] == [True, True]


def test_a_signal_is_counted_and_ends_the_wait(tmp_path: Path) -> None:
    with (
        Signals((signal.SIGTERM, signal.SIGINT)) as signals,
        supervised(tmp_path) as (supervisor, _),
    ):
        supervisor.watch(signals.descriptor)
        for count, number in enumerate((signal.SIGTERM, signal.SIGINT), 1):
            os.kill(os.getpid(), number)
            supervisor.turn(PATIENCE_S)
            assert signals.count == count
            signals.clear()


def test_the_first_restart_is_at_once_and_later_ones_wait_longer_up_to_ten_seconds() -> None:
    delay = RestartDelay()
    assert [delay.next(1.0) for _ in range(8)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert [delay.next(3.0), delay.next(2.9), delay.next(3600.0)] == [0.0, 0.5, 0.0]
    assert [delay.next(0.0) for _ in range(2000)][-1] == 10.0
