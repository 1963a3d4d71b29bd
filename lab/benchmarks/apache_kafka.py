"""Apache Kafka in processes: one broker, or several with replicas, slow or killed; its tools."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.benchmarks.jars import java_command, kafka_jars
from lab.processes import STOP_SECONDS, Broker, await_brokers, free_ports

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
        options: further options.
        advertised_port: the port that clients connect to, if it is another than the broker's.
    """

    heap = "512m"

    def __init__(
        self,
        number: int,
        controller_port: int,
        options: Mapping[str, str] | None = None,
        advertised_port: int | None = None,
    ) -> None:
        super().__init__()
        self._number = number
        self._controller_port = controller_port
        self._options = dict(options or {})
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
            **self._options,
        }


class KafkaCluster:
    """Brokers of Apache Kafka with replicas; the first is also the controller.

    Args:
        brokers: number of brokers.
        slow: milliseconds by which brokers answer produce requests late: clients reach these
            through `lab.benchmarks.proxy`.
        options: further options of the brokers.

    Raises:
        RivalMissing: on entering, if Java or the jars are not available.
    """

    name = "Apache Kafka"

    def __init__(
        self,
        brokers: int = 3,
        slow: Mapping[int, float] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._slow = slow or {}
        controller, *ports = free_ports(1 + len(self._slow))
        self._proxies = dict(zip(self._slow, ports, strict=True))
        self._members = [
            KafkaMember(number, controller, options, self._proxies.get(number))
            for number in range(brokers)
        ]
        self.address = ",".join(
            f"127.0.0.1:{self._proxies.get(number, member.port)}"
            for number, member in enumerate(self._members)
        )
        self._restart: threading.Thread | None = None
        self._parts = ExitStack()

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
            for number, port in self._proxies.items():
                address = self._members[number].address
                parts.enter_context(_Proxy(f"127.0.0.1:{port}", address, self._slow[number]))
            await_brokers(self._members[0].port, len(self._members))
            self._parts = parts.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._await_restart()
        self._parts.close()

    def restart(self) -> None:
        """Stop all processes cleanly, and start them again with their data."""
        # The first process, which is the controller, last: the others need it to shut down.
        for member in reversed(self._members):
            member.stop()
        for member in self._members:
            member.start()
        await_brokers(self._members[0].port, len(self._members))

    def kill(self, broker: int | None) -> None:
        """Kill a broker, or the controller, once the one killed before is back; it starts again
        with its data."""
        self._await_restart()
        member = self._members[broker or 0]
        self._restart = threading.Thread(target=member.restart, args=(signal.SIGKILL,))
        self._restart.start()

    def _await_restart(self) -> None:
        if self._restart is not None:
            self._restart.join()


class _Proxy:
    """`lab.benchmarks.proxy` as a process."""

    def __init__(self, listen: str, to: str, delay_ms: float) -> None:
        self._command = [
            *(sys.executable, "-m", "lab.benchmarks.proxy", "--listen", listen, "--to", to),
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
