"""The faults of a cluster that tests use, and their end.

Tests: test_plugin.py
"""

from __future__ import annotations

from trimtab.cluster.embedded import Cluster
from trimtab.kafka.arguments import checked_flag


class Faults:
    """Makes the brokers of a cluster slow, stops and kills them, cuts them off, fills their disks.

    The methods have the names and the meaning of `VirtualKafka`'s. Every one raises UsageError if
    there is no such broker, or if it is down, `start` if it is up.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._slow: set[int] = set()
        self._full: set[int] = set()
        self._isolates = False

    def slow(self, broker: int = 0, produce_ms: float = 20) -> None:
        """Delay a broker's produce responses by `produce_ms`; 0 ends the delay."""
        self._cluster.slow(broker, produce_ms)
        self._slow.add(broker)

    def kill(self, broker: int = 0) -> None:
        """End a broker at once, as kill -9 does. Bytes that it has written are kept."""
        self._cluster.kill_broker(broker)

    def stop(self, broker: int = 0) -> None:
        """Stop a broker cleanly: it hands over leadership first."""
        self._cluster.stop_broker(broker)

    def power_loss(self, broker: int = 0) -> None:
        """Turn a broker's host off: bytes that were not flushed are lost, and it answers nobody."""
        self._cluster.power_off(broker)

    def start(self, broker: int = 0) -> None:
        """Start a broker that is down, on its old port; returns once it serves requests."""
        self._cluster.start_broker(broker)

    def isolate(self, broker: int = 0, other: int | None = None) -> None:
        """Cut a broker off from all others and all clients, or from one other broker: nothing is
        delivered until `heal`."""
        self._cluster.isolate(broker, other)
        self._isolates = True

    def heal(self) -> None:
        """End every `isolate`; returns once the brokers that are up take part again."""
        self._cluster.heal()
        self._isolates = False

    def disk_full(self, broker: int = 0, is_full: bool = True) -> None:
        """Let a broker's disk be full, or free again. A broker whose disk is full ends at its next
        write; once the disk is free it is up again."""
        if checked_flag("is_full", is_full):
            self._cluster.fill_disk(broker)
            self._full.add(broker)
        else:
            self._cluster.free_disk(broker)
            self._full.discard(broker)

    def end_faults(self) -> None:
        """End all faults; on return every broker is up. Does nothing without faults."""
        if self._isolates:
            self.heal()
        while self._full:
            self._cluster.free_disk(self._full.pop())
        for broker in self._cluster.down:
            self._cluster.start_broker(broker)
        while self._slow:
            self._cluster.slow(self._slow.pop(), 0)
