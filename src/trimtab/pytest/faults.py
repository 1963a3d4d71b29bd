"""The faults of a cluster that tests use, and their end."""

from __future__ import annotations

from trimtab.cluster import Cluster


class Faults:
    """Makes the brokers of a cluster slow, and stops and kills them.

    Every method raises UsageError if no such broker is up; `start` if it is.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._slow: set[int] = set()
        self._down: set[int] = set()

    def slow(self, broker: int = 0, produce_ms: float = 20) -> None:
        """Delay a broker's produce responses by `produce_ms`; 0 ends the delay."""
        self._cluster.slow(broker, produce_ms)
        self._slow.add(broker)

    def kill(self, broker: int = 0) -> None:
        """End a broker at once, as kill -9 does. Bytes that it has written are kept."""
        self._cluster.kill_broker(broker)
        self._down.add(broker)

    def stop(self, broker: int = 0) -> None:
        """Stop a broker cleanly: it hands over leadership first."""
        self._cluster.stop_broker(broker)
        self._down.add(broker)

    def start(self, broker: int = 0) -> None:
        """Start a broker that was stopped or killed, on its old port."""
        self._cluster.start_broker(broker)
        self._down.discard(broker)

    def end(self) -> None:
        """End all faults; on return every broker is up. Does nothing without faults."""
        for broker in sorted(self._down):
            self.start(broker)
        for broker in sorted(self._slow):
            self._cluster.slow(broker, 0)
        self._slow.clear()
