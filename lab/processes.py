"""Clusters in processes of their own: starts, measures and stops them.

`Trimtab` is `trimtab cluster up`; `lab.benchmarks.apache_kafka` has Apache Kafka's.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

from trimtab.cli.cluster_up import answers
from trimtab.kafka.errors import Unavailable

START_SECONDS = 300
STOP_SECONDS = 30


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and all its threads so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Resident memory of a process, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    if found is None:
        raise RuntimeError(f"process {pid} has no VmRSS: it has ended")
    return int(found[1]) / 1024


def reset_peak(pid: int) -> None:
    """Let the peak of a process's memory begin here; see `peak_mib`."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mib(pid: int) -> float:
    """The most resident memory of a process since `reset_peak`, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def free_ports(count: int) -> list[int]:
    """Ports on which no process listened a moment ago.

    They are below those of outgoing connections (32768 and more), so that no such connection takes
    one before a server listens on it.
    """
    ports: set[int] = set()
    while len(ports) < count:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.add(port)
    return list(ports)


def free_neighbours(count: int) -> int:
    """The first of `count` consecutive ports on which no process listened a moment ago."""
    while True:
        first = free_ports(1)[0]
        try:
            sockets = []
            for port in range(first, first + count):
                sockets.append(socket.create_server(("127.0.0.1", port)))  # noqa: PERF401
        except (OSError, OverflowError):
            continue
        else:
            return first
        finally:
            for each in sockets:
                each.close()


def answers_metadata(port: int, brokers: int = 1) -> bool:
    """Whether the answer to a Metadata request (version 1, no topics) has at least `brokers`
    brokers."""
    return answers(f"127.0.0.1:{port}", brokers)


def await_brokers(port: int, brokers: int) -> None:
    """Wait until the broker at this port knows `brokers` brokers.

    Raises:
        Unavailable: it does not within `START_SECONDS`.
    """
    began = time.perf_counter()
    while not answers_metadata(port, brokers):
        if time.perf_counter() - began > START_SECONDS:
            raise Unavailable(f"not {brokers} brokers within {START_SECONDS} s")
        time.sleep(0.05)


def _ordinary_environment() -> dict[str, str]:
    """This process's environment, but Python writes its bytecode files, as by default."""
    unusual = ("PYTHONDONTWRITEBYTECODE", "PYTHONTRACEMALLOC", "PYTHONPROFILEIMPORTTIME")
    return {name: value for name, value in os.environ.items() if name not in unusual}


def children_of(pid: int) -> list[int]:
    """The running child processes of a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def nodes_of(supervisor: int) -> dict[str, int]:
    """The processes of a supervisor's nodes by name: `broker-0`, `controller`."""
    found = {}
    for pid in children_of(supervisor):
        words = words_of(pid)
        if "--data" in words:
            found[Path(words[words.index("--data") + 1]).name] = pid
    return found


def words_of(pid: int) -> list[str]:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):  # it ended before the open, or before the read
        return []


class Side(Protocol):
    """A cluster of either side, whose CPU time and memory can be measured."""

    name: str
    address: str

    def cpu_seconds(self) -> float:
        """CPU time of all its processes so far."""

    def resident_mib(self) -> float:
        """Resident memory of all its processes."""


class Broker:
    """A broker process of either side, with the processes that it has started.

    A context manager that starts and stops it.
    """

    name: str

    def __init__(self) -> None:
        self.port = free_ports(1)[0]
        self.address = f"127.0.0.1:{self.port}"
        try:
            self.directory = Path(tempfile.mkdtemp(prefix="trimtab-bench-"))
        except OSError as error:
            raise Unavailable(f"cannot make a temporary directory: {error}") from error
        self.start_seconds = 0.0
        self._brokers = 1
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def prepare(self) -> None:
        """Prepare the start; its time is not measured."""

    @property
    def pids(self) -> list[int]:
        """The processes of the nodes: the brokers and the controller."""
        assert self._process is not None
        return [self._process.pid]

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self.pids))

    def resident_mib(self) -> float:
        return sum(map(resident_mib, self.pids))

    def __enter__(self) -> Self:
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def start(self) -> None:
        """Start the process, or start it again with its data; return when it answers.

        Raises:
            Unavailable: it ended, or does not answer within `START_SECONDS`.
        """
        log: IO[bytes]
        with open(self.directory / "log", "wb") as log:
            began = time.perf_counter()
            self._process = subprocess.Popen(
                self.command(),
                env=_ordinary_environment(),
                stdin=subprocess.PIPE,  # which ends with this process
                stdout=log,
                stderr=log,
            )
        while not answers_metadata(self.port, self._brokers):
            ended = self._process.poll() is not None
            if ended or time.perf_counter() - began > START_SECONDS:
                said = (self.directory / "log").read_text(errors="replace")[-2000:]
                what = "ended" if ended else f"did not answer within {START_SECONDS} s"
                raise Unavailable(f"{self.name} {what}:\n{said}")
            time.sleep(0.002)
        self.start_seconds = time.perf_counter() - began

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the process this signal, and wait until it has ended."""
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_SECONDS)
        except BaseException as error:  # it takes too long, or Ctrl-C for the second time
            self._process.kill()
            self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        finally:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def restart(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the process with this signal, and start it again with its data."""
        self.stop(number)
        self.start()


class Trimtab(Broker):
    """A cluster of trimtab, as `trimtab cluster up` starts it: brokers and a controller.

    Args:
        brokers: number of brokers.
        slow: milliseconds by which brokers answer produce requests late.
        config: options of the brokers, as NAME=VALUE.
        racks: each broker's rack.
    """

    name = "trimtab"

    def __init__(
        self,
        brokers: int = 1,
        slow: Mapping[int, float] | None = None,
        config: Sequence[str] = (),
        racks: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._brokers = brokers
        self._config = config
        self._racks = ",".join(racks)
        self._slow = [f"{broker}={late:g}" for broker, late in (slow or {}).items()]
        if brokers > 1:
            self.port = free_neighbours(brokers)
            ports = range(self.port, self.port + brokers)
            self.address = ",".join(f"127.0.0.1:{port}" for port in ports)

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "trimtab", "cluster", "up", "--stop-at-eof"),
            *("--port", str(self.port)),
            *("--brokers", str(self._brokers), "--data", str(self.directory / "data")),
            *(("--racks", self._racks) if self._racks else ()),
            *(("--slow", *self._slow) if self._slow else ()),
            *(("--config", *self._config) if self._config else ()),
        ]

    @property
    def pids(self) -> list[int]:
        assert self._process is not None
        return children_of(self._process.pid)  # the process itself is only the supervisor

    @property
    def supervisor_pid(self) -> int:
        """The id of the process that supervises the nodes."""
        assert self._process is not None
        return self._process.pid

    def kill(self, broker: int | None) -> None:
        """Kill a broker, or the controller; the supervisor starts it again with its data."""
        name = "controller" if broker is None else f"broker-{broker}"
        pid = nodes_of(self.supervisor_pid).get(name)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
