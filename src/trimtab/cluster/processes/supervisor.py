"""Keeps processes running: starts them, restarts those that end, and stops all together.

    start ─▶ serves ─▶ ended ─▶ restarted: at once, then with growing delays
      └─ ended before all processes served for the first time: the start has failed

A process writes one line to standard output when it serves. It ends when its standard input is
closed: the supervisor closes it to stop the process, and if the supervisor dies, the system does.
Standard error goes to the process's own log.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Sequence

from trimtab.kafka.errors import Unavailable
from trimtab.threads.clock import monotonic_clock

STOP_SECONDS = 15.0
"""How long the processes of one rank may take to end before they are killed."""

_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 10.0
_SETTLED_S = 3.0
_REAP_SECONDS = 5.0
_TAIL_BYTES = 4096
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Program:
    """A program to keep running.

    Args:
        name: its unique name; its log is `<name>.log`.
        command: the command's words.
        rank: programs with a lower rank are stopped first.
    """

    __slots__ = ("command", "name", "rank")

    def __init__(self, name: str, command: Sequence[str], rank: int = 0) -> None:
        self.name = name
        self.command = command
        self.rank = rank


class RestartDelay:
    """The delay before a process is restarted: none the first time, then growing. It starts again
    at none once the process has run for a few seconds, because then it does work."""

    def __init__(self) -> None:
        self._deaths = 0

    def next(self, lived_s: float) -> float:
        """The seconds to wait after a process that ran for `lived_s` seconds."""
        if lived_s >= _SETTLED_S:
            self._deaths = 0
        self._deaths += 1
        if self._deaths == 1:
            return 0.0
        return min(_FIRST_DELAY_S * 2.0 ** min(self._deaths - 2, 32), _MAX_DELAY_S)


class _Running:
    """A program and its process, if it runs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.first_line: str | None = None
        self.began = 0.0
        self.due: float | None = 0.0
        self.delay = RestartDelay()
        self.output = b""


class Supervisor:
    """Keeps programs running. Call `start`, then `turn` repeatedly, and `stop` at the end.

    Args:
        programs: the programs.
        logs: an existing directory for their logs.
        report: called with a sentence about each event.
        now: seconds that never go back.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        logs: str,
        report: Callable[[str], None],
        now: Callable[[], float] = monotonic_clock,
    ) -> None:
        self._logs = logs
        self._report = report
        self._now = now
        self._all = [_Running(program) for program in programs]
        self._selector = selectors.DefaultSelector()
        self._has_served = False

    @property
    def first_lines(self) -> dict[str, str]:
        """The first output line of each program that serves, by name."""
        return {
            child.program.name: child.first_line
            for child in self._all
            if child.first_line is not None
        }

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each program that runs, by name."""
        return {each.program.name: each.process.pid for each in self._all if each.process}

    @property
    def serves(self) -> bool:
        """Whether all of them serve."""
        return all(each.first_line is not None for each in self._all)

    def log_of(self, name: str) -> str:
        """The path of a program's log."""
        return f"{self._logs}/{name}.log"

    def watch(self, descriptor: int) -> None:
        """Make `turn` return also when this descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def start(self) -> None:
        """Start them all."""
        for each in self._all:
            self._spawn(each)

    def turn(self, limit_s: float) -> None:
        """Wait for an event, at most `limit_s` seconds, and handle it.

        Raises:
            Unavailable: a program ended before all of them served for the first time.
        """
        now = self._now()
        dues = [each.due for each in self._all if each.process is None and each.due is not None]
        self._select(min([limit_s, *(max(0.0, due - now) for due in dues)]))
        now = self._now()
        for child in self._all:
            if child.process is None and child.due is not None and child.due <= now:
                self._spawn(child)

    def stop(self, at_once: Callable[[], bool] = lambda: False) -> None:
        """Stop them, lower ranks first. Kills those that take too long, and all if `at_once`
        returns True."""
        for each in self._all:
            each.due = None
        for rank in sorted({each.program.rank for each in self._all}):
            members = [each for each in self._all if each.program.rank == rank and each.process]
            for each in members:
                _close_input(each.process)
            deadline = self._now() + STOP_SECONDS
            while any(each.process for each in members):
                left_s = deadline - self._now()
                if at_once() or left_s <= 0:
                    break
                self._select(left_s, ending=True)
            for child in members:
                if child.process is not None and not at_once():
                    self._report(
                        f"{child.program.name} did not end within {STOP_SECONDS:g} s and is killed;"
                        f" its log: {self.log_of(child.program.name)}"
                    )
                self._kill(child)
        self._selector.close()

    def _spawn(self, each: _Running) -> None:
        each.due = None
        each.began = self._now()
        path = self.log_of(each.program.name)
        with os.fdopen(os.open(path, _APPEND, 0o600), "ab") as log:
            each.process = subprocess.Popen(
                list(each.program.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                process_group=0,  # Ctrl-C in a terminal then reaches only the supervisor
            )
        assert each.process.stdout is not None
        self._selector.register(each.process.stdout, selectors.EVENT_READ, each)

    def _select(self, timeout_s: float, ending: bool = False) -> None:
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, _Running):
                self._read_output(key.data, ending)

    def _read_output(self, each: _Running, ending: bool) -> None:
        assert each.process is not None
        assert each.process.stdout is not None
        output = os.read(each.process.stdout.fileno(), 4096)
        if not output:
            self._handle_end(each, ending)
        elif each.first_line is None:
            each.output += output
            line, newline, _ = each.output.partition(b"\n")
            if newline:
                each.first_line = line.decode("utf-8", "replace")
                self._has_served = self._has_served or self.serves

    def _handle_end(self, each: _Running, ending: bool) -> None:
        code = self._reap(each)
        if ending:
            return
        name = each.program.name
        how = _describe_end(code)
        if not self._has_served and code > 0:
            raise Unavailable(
                f"{name} {how}: {self._last_log_line(name)}; its log: {self.log_of(name)}"
            )
        delay_s = each.delay.next(self._now() - each.began)
        each.due = self._now() + delay_s
        again = f"in {delay_s:g} s" if delay_s else "at once"
        self._report(f"{name} {how}, it is started again {again}; its log: {self.log_of(name)}")

    def _reap(self, each: _Running) -> int:
        """Wait for the end of a process that has closed its output; returns its exit code."""
        process, each.process = each.process, None
        each.first_line, each.output = None, b""
        assert process is not None
        assert process.stdout is not None
        self._selector.unregister(process.stdout)
        process.stdout.close()
        _close_input(process)
        try:
            return process.wait(_REAP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _kill(self, each: _Running) -> None:
        if each.process is not None:
            each.process.kill()
            self._reap(each)

    def _last_log_line(self, name: str) -> str:
        """The last line of a program's log."""
        with open(self.log_of(name), "rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it is empty"


class Signals:
    """A context manager that counts signals instead of letting them end the process.

    Attributes:
        count: signals so far.
        descriptor: readable after a signal.
    """

    def __init__(self, numbers: Sequence[signal.Signals]) -> None:
        self._numbers = numbers
        self.count = 0
        self.descriptor, self._wake = os.pipe()

    def __enter__(self) -> Signals:
        os.set_blocking(self._wake, False)
        self._wake_before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._note) for number in self._numbers}
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._wake_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.descriptor)
        os.close(self._wake)

    def clear(self) -> None:
        """Make `descriptor` readable only after the next signal."""
        os.set_blocking(self.descriptor, False)
        try:
            while os.read(self.descriptor, 64):
                pass
        except BlockingIOError:
            return

    def _note(self, number: int, frame: object) -> None:
        self.count += 1


def _close_input(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.stdin is not None:
        process.stdin.close()


def _describe_end(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
