"""Three brokers whose processes are killed, and start again with their data: trimtab's, and Apache
Kafka's. `min.insync.replicas` is 2; the coordinators' topics have four partitions."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack
from typing import Any, Self

from benchmarks.processes import KafkaMember, Trimtab, await_brokers, free_ports, nodes_of

BROKERS = 3
_OPTIONS = {
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}


class KillableTrimtab(Trimtab):
    """Three brokers of trimtab; their supervisor starts a killed one again.

    Args:
        options: further broker options.
    """

    def __init__(self, options: dict[str, str] | None = None) -> None:
        chosen = {**_OPTIONS, **(options or {})}
        super().__init__(BROKERS, config=[f"{name}={value}" for name, value in chosen.items()])

    def kill(self, broker: int | None) -> None:
        """Kill a broker, or the controller."""
        name = "controller" if broker is None else f"broker-{broker}"
        pid = nodes_of(self.supervisor_pid).get(name)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


class _KillableMember(KafkaMember):
    def __init__(self, number: int, controller_port: int, options: dict[str, str]) -> None:
        super().__init__(number, controller_port)
        self._options = options

    def settings(self) -> dict[str, str]:
        return {
            **super().settings(),
            **_OPTIONS,
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
            **self._options,
        }

    def restart(self) -> None:
        """Kill it, and start it again with its data."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.start()


class KillableKafka:
    """Three brokers of Apache Kafka; the first is also the controller.

    Args:
        options: further broker options.
    """

    def __init__(self, options: dict[str, str] | None = None) -> None:
        controller = free_ports(1)[0]
        self._members = [
            _KillableMember(number, controller, options or {}) for number in range(BROKERS)
        ]
        self.address = ",".join(member.address for member in self._members)
        self._restarts: list[threading.Thread] = []
        self._parts = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as parts:
            for member in self._members:
                parts.enter_context(member)
            await_brokers(self._members[0].port, BROKERS)
            self._parts = parts.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._await_restarts()
        self._parts.close()

    def kill(self, broker: int | None) -> None:
        """Kill a broker, or the controller, once the one killed before is back."""
        self._await_restarts()
        thread = threading.Thread(target=self._members[broker or 0].restart)
        thread.start()
        self._restarts.append(thread)

    def _await_restarts(self) -> None:
        for thread in self._restarts:
            thread.join()
        self._restarts.clear()
