"""Runs clusters of trimtab and Apache Kafka in processes: starts, measures and stops them.

A cluster has one broker, or three with replicas (`Trimtab(brokers=3)`, `KafkaCluster`), or three of
which the first answers produce requests late, as in KIP-794.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

from benchmarks.jars import java_command, kafka_jars

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
    body = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.settimeout(5)
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.makefile("rb")
            head = answer.read(12)
            return len(head) == 12 and struct.unpack(">i", head[8:])[0] >= brokers
    except OSError:
        return False


def await_brokers(port: int, brokers: int) -> None:
    """Wait until the broker at this port knows `brokers` brokers.

    Raises:
        RuntimeError: it does not within `START_SECONDS`.
    """
    began = time.perf_counter()
    while not answers_metadata(port, brokers):
        if time.perf_counter() - began > START_SECONDS:
            raise RuntimeError(f"not {brokers} brokers within {START_SECONDS} s")
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
        self.directory = Path(tempfile.mkdtemp(prefix="trimtab-bench-"))
        self.start_seconds = 0.0
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
        """Start the process, or start it again with its data; return when it answers."""
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
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def stop(self) -> None:
        """Stop the process with SIGTERM."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Stop the process cleanly, and start it again with its data."""
        self.stop()
        self.start()


class Trimtab(Broker):
    """A cluster of trimtab, as `trimtab cluster up` starts it: brokers and a controller.

    Args:
        brokers: number of brokers.
        slow: milliseconds by which brokers answer produce requests late.
        config: options of the brokers, as NAME=VALUE.
    """

    name = "trimtab"

    def __init__(
        self,
        brokers: int = 1,
        slow: Mapping[int, float] | None = None,
        config: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._brokers = brokers
        self._config = config
        self._slow = [f"{broker}={late:g}" for broker, late in (slow or {}).items()]
        if brokers > 1:
            self.port = free_neighbours(brokers)
            ports = range(self.port, self.port + brokers)
            self.address = ",".join(f"127.0.0.1:{port}" for port in ports)

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "trimtab", "cluster", "up", "--port", str(self.port)),
            *("--brokers", str(self._brokers), "--data", str(self.directory / "data")),
            *(("--slow", *self._slow) if self._slow else ()),
            *(("--config", *self._config) if self._config else ()),
        ]

    def start(self) -> None:
        super().start()
        await_brokers(self.port, self._brokers)

    @property
    def pids(self) -> list[int]:
        assert self._process is not None
        return children_of(self._process.pid)  # the process itself is only the supervisor

    @property
    def supervisor_pid(self) -> int:
        """The id of the process that supervises the nodes."""
        assert self._process is not None
        return self._process.pid


KAFKAS_FLAGS = [
    *("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
]
"""The JVM flags of Apache Kafka's scripts, unless KAFKA_JVM_PERFORMANCE_OPTS replaces them."""


class ApacheKafka(Broker):
    """One broker of Apache Kafka with the controller in the same process, and Kafka's JVM flags.

    Raises:
        RivalMissing: on entering, if Java or the jars are not available.
    """

    name = "Apache Kafka"

    heap = "1g"

    def settings(self) -> dict[str, str]:
        """What `server.properties` holds."""
        controller = free_ports(1)[0]
        return {
            "process.roles": "broker,controller",
            "node.id": "0",
            "controller.quorum.voters": f"0@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "log.segment.delete.delay.ms": "1000",
        }

    def prepare(self) -> None:
        self._properties = self.directory / "server.properties"
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in self.settings().items()))
        run_java(
            "kafka.tools.StorageTool",
            *("format", "-t", "trimtab-benchmark-0000", "-c", str(self._properties)),
            heap="256m",
        )

    def command(self) -> list[str]:
        flags = [] if "KAFKA_JVM_PERFORMANCE_OPTS" in os.environ else KAFKAS_FLAGS
        return [
            *(*java_command(self.heap, "warn"), f"-Xms{self.heap}", *flags),
            *("-cp", f"{kafka_jars()}/*", "kafka.Kafka", str(self._properties)),
        ]


class KafkaMember(ApacheKafka):
    """One of several brokers of Apache Kafka; broker 0 is also the controller.

    Args:
        number: its node id, from 0.
        controller_port: the controller's port.
        advertised_port: the port that clients connect to, if it is another than the broker's.
    """

    heap = "512m"

    def __init__(
        self, number: int, controller_port: int, advertised_port: int | None = None
    ) -> None:
        super().__init__()
        self._number = number
        self._controller_port = controller_port
        self._advertised_port = advertised_port or self.port

    def settings(self) -> dict[str, str]:
        between = f"INTERNAL://127.0.0.1:{free_ports(1)[0]}"
        listeners = [f"PLAINTEXT://{self.address}", between]
        if self._number == 0:
            listeners.append(f"CONTROLLER://127.0.0.1:{self._controller_port}")
        return {
            **super().settings(),
            "process.roles": "broker,controller" if self._number == 0 else "broker",
            "node.id": str(self._number),
            "controller.quorum.voters": f"0@127.0.0.1:{self._controller_port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
            "INTERNAL:PLAINTEXT",
            "listeners": ",".join(listeners),
            # Brokers connect to each other without the proxy.
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._advertised_port},{between}",
            "inter.broker.listener.name": "INTERNAL",
            "broker.rack": f"r{self._number}",
        }


class KafkaCluster:
    """Brokers of Apache Kafka with replicas; the first is also the controller.

    Args:
        brokers: number of brokers.

    Raises:
        RivalMissing: on entering, if Java or the jars are not available.
    """

    name = "Apache Kafka"

    def __init__(self, brokers: int = 3) -> None:
        controller = free_ports(1)[0]
        self._members = [KafkaMember(number, controller) for number in range(brokers)]
        self._parts = ExitStack()
        self.address = ",".join(member.address for member in self._members)

    @property
    def pids(self) -> list[int]:
        return [pid for member in self._members for pid in member.pids]

    def cpu_seconds(self) -> float:
        return sum(member.cpu_seconds() for member in self._members)

    def resident_mib(self) -> float:
        return sum(member.resident_mib() for member in self._members)

    def __enter__(self) -> Self:
        with ExitStack() as parts:
            for member in self._members:
                parts.enter_context(member)
            await_brokers(self._members[0].port, len(self._members))
            self._parts = parts.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._parts.close()

    def restart(self) -> None:
        """Stop all processes cleanly, and start them again with their data."""
        # The first process, which is the controller, last: the others need it to shut down.
        for member in reversed(self._members):
            member.stop()
        for member in self._members:
            member.start()
        await_brokers(self._members[0].port, len(self._members))


class KafkaBehindProxy:
    """Three brokers of Apache Kafka; clients reach the slow ones through `benchmarks.proxy`.

    Args:
        slow: by broker, the proxy's delay of responses to produce requests, in milliseconds.

    Raises:
        RivalMissing: on entering, if Java or the jars are not available.
    """

    name = "Apache Kafka"

    def __init__(self, slow: Mapping[int, float]) -> None:
        self._slow = slow
        self._parts = ExitStack()
        self.address = ""

    def __enter__(self) -> Self:
        controller, *ports = free_ports(1 + len(self._slow))
        proxies = dict(zip(self._slow, ports, strict=True))
        with ExitStack() as parts:
            brokers = []
            for number in range(3):  # the first one is also the controller
                broker = parts.enter_context(KafkaMember(number, controller, proxies.get(number)))
                brokers.append(broker)
            for number, port in proxies.items():
                proxy = _Proxy(f"127.0.0.1:{port}", brokers[number].address, self._slow[number])
                parts.enter_context(proxy)
            self.address = ",".join(
                f"127.0.0.1:{proxies.get(number, broker.port)}"
                for number, broker in enumerate(brokers)
            )
            await_brokers(brokers[0].port, 3)
            self._parts = parts.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._parts.close()


class _Proxy:
    """`benchmarks.proxy` as a process."""

    def __init__(self, listen: str, to: str, delay_ms: float) -> None:
        self._command = [
            *(sys.executable, "-m", "benchmarks.proxy", "--listen", listen, "--to", to),
            *("--delay-ms", f"{delay_ms:g}"),
        ]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said.startswith("listening "):
            raise RuntimeError(f"the proxy does not listen: {' '.join(self._command)}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def call_java(
    main: str,
    *arguments: str,
    heap: str = "512m",
    level: str = "error",
    jars: Path | None = None,
    stderr: int | None = subprocess.STDOUT,
) -> subprocess.CompletedProcess[str]:
    """Run one of Apache Kafka's tools, or a program that uses its classes, to its end.

    Args:
        main: the class, or the path of a `.java` file.
        heap: the heap's size, as java writes it.
        level: the least severe messages that it logs.
        jars: the directory of the class path; default: that of Apache Kafka.
        stderr: as in `subprocess.run`; by default its messages are in `stdout`.

    Raises:
        RivalMissing: there is no Java, or no jars.
    """
    class_path = ("-cp", f"{jars or kafka_jars()}/*")
    return subprocess.run(
        [*java_command(heap, level), *class_path, main, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        check=False,
    )


def run_java(
    main: str,
    *arguments: str,
    heap: str = "512m",
    jars: Path | None = None,
    stderr: int | None = subprocess.STDOUT,
) -> str:
    """As `call_java`; returns the output.

    Raises:
        RivalMissing: there is no Java, or no jars.
        RuntimeError: it failed.
    """
    done = call_java(main, *arguments, heap=heap, jars=jars, stderr=stderr)
    if done.returncode != 0:
        raise RuntimeError(f"{main} {' '.join(arguments)} failed:\n{done.stdout[-2000:]}")
    return done.stdout
