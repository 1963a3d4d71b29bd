"""Brokers in processes of their own: ours and Apache Kafka, started, measured and ended alike."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from benchmarks.jars import find_java, kafka_jars

START_SECONDS = 60
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


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def answers_metadata(port: int) -> bool:
    """Whether a Metadata request (version 1, about no topic) brings at least one broker."""
    body = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.settimeout(5)
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.makefile("rb")
            head = answer.read(12)
            return len(head) == 12 and struct.unpack(">i", head[8:])[0] >= 1
    except OSError:
        return False


def _ordinary_environment() -> dict[str, str]:
    """Ours, but that Python keeps its bytecode, as it does unless told otherwise."""
    unusual = ("PYTHONDONTWRITEBYTECODE", "PYTHONTRACEMALLOC", "PYTHONPROFILEIMPORTTIME")
    return {name: value for name, value in os.environ.items() if name not in unusual}


class Broker:
    """One broker process, of either side. A context manager that starts it and ends it."""

    name: str

    def __init__(self) -> None:
        self.port = free_ports(1)[0]
        self.address = f"127.0.0.1:{self.port}"
        self.directory = Path(tempfile.mkdtemp(prefix="trimtab-bench-"))
        self.start_seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def prepare(self) -> None:
        """What is done before the clock of the start runs."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        try:
            self.prepare()
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        log: IO[bytes]
        with open(self.directory / "log", "wb") as log:
            began = time.perf_counter()
            self._process = subprocess.Popen(
                self.command(),
                env=_ordinary_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        while not answers_metadata(self.port):
            ended = self._process.poll() is not None
            if ended or time.perf_counter() - began > START_SECONDS:
                said = (self.directory / "log").read_text(errors="replace")[-2000:]
                what = "ended" if ended else f"did not answer within {START_SECONDS} s"
                raise RuntimeError(f"{self.name} {what}:\n{said}")
            time.sleep(0.002)
        self.start_seconds = time.perf_counter() - began

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class Trimtab(Broker):
    """One broker of ours, as `trimtab cluster up` starts it."""

    name = "trimtab"

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "trimtab", "cluster", "up", "--port", str(self.port)),
            *("--data", str(self.directory / "data")),
        ]


class ApacheKafka(Broker):
    """One broker of Apache Kafka's, with the controller in the same process and its own JVM flags.

    Raises:
        RivalMissing: on entering, if Java or the jars cannot be had.
    """

    name = "Apache Kafka"

    def prepare(self) -> None:
        controller = free_ports(1)[0]
        self._properties = self.directory / "server.properties"
        self._properties.write_text(
            "process.roles=broker,controller\n"
            "node.id=0\n"
            f"controller.quorum.voters=0@127.0.0.1:{controller}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            f"listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://{self.address}\n"
            "inter.broker.listener.name=PLAINTEXT\n"
            f"log.dirs={self.directory / 'data'}\n"
            "offsets.topic.replication.factor=1\n"
            "transaction.state.log.replication.factor=1\n"
            "transaction.state.log.min.isr=1\n"
            "log.segment.delete.delay.ms=1000\n"
        )
        run_java(
            "kafka.tools.StorageTool",
            *("format", "-t", "trimtab-benchmark-0000", "-c", str(self._properties)),
            heap="256m",
        )

    def command(self) -> list[str]:
        flags = [
            *("-Xmx1g", "-Xms1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
            *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
            *("-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
        ]
        return [
            find_java(),
            *flags,
            "-cp",
            f"{kafka_jars()}/*",
            "kafka.Kafka",
            str(self._properties),
        ]


def run_java(main: str, *arguments: str, heap: str = "512m") -> str:
    """Run one of Apache Kafka's tools to its end; what it printed.

    Raises:
        RivalMissing: no Java or no jars.
        RuntimeError: it failed.
    """
    done = subprocess.run(
        [
            *(find_java(), f"-Xmx{heap}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"),
            *("-cp", f"{kafka_jars()}/*", main, *arguments),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{main} {' '.join(arguments)} failed:\n{done.stdout[-2000:]}")
    return done.stdout
