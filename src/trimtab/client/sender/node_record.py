"""What the sender knows of each broker: whether it accepts batches, and its window.

Partitioners read a part of it (`NodeLoad`).
"""

from __future__ import annotations

import asyncio
import math

from trimtab.client.accumulator.queues_cy import NodeLoad
from trimtab.client.network.connection import Connection
from trimtab.client.sender.window import Window
from trimtab.kafka.wire.messages.produce import ProduceRequest


class NodeRecord:
    """The sender's measurements of one broker. Times are the loop's, in seconds.

    Attributes:
        load: the part that partitioners see.
        window: how many requests keep it busy; None if the partitioner does not use that.
        watch: the sender's timer that notices if an answer does not come; None if it is not set.
        watched_until: when it rings; infinite if it is not set.
        throttled_until: the broker throttles the client until then (KIP-219).
        ready_time: when a batch for it was last due, Java's `readyTimeMs`.
        drain_time: when a batch for it was last due and could be sent, Java's `drainTimeMs`.
    """

    __slots__ = (
        "_agreed",
        "drain_time",
        "load",
        "ready_time",
        "throttled_until",
        "watch",
        "watched_until",
        "window",
    )

    def __init__(self, load: NodeLoad, window: Window | None, now: float) -> None:
        self.load = load
        self.window = window
        self.watch: asyncio.TimerHandle | None = None
        self.watched_until = math.inf
        self.throttled_until = -math.inf
        self.ready_time = now
        self.drain_time = now
        self._agreed: tuple[Connection, int | None, int] | None = None

    def version_for(self, connection: Connection, newest: int | None) -> int:
        """The version of Produce to use on a connection, at most `newest`.

        Raises:
            BrokerError: UNSUPPORTED_VERSION, with both ranges.
        """
        agreed = self._agreed
        if agreed is None or agreed[0] is not connection or agreed[1] != newest:
            version = connection.version_of(ProduceRequest, newest)
            agreed = self._agreed = connection, newest, version
        return agreed[2]

    def wait(self, now: float) -> None:
        """A batch is due for it and cannot be sent."""
        self.ready_time = now
        if self.load.not_ready_since < 0:
            self.load.not_ready_since = now

    def take(self, now: float) -> None:
        """A batch is due for it and can be sent."""
        self.ready_time = self.drain_time = now

    def rest(self) -> None:
        """A request was sent to it, or nothing is due for it."""
        self.load.not_ready_since = -1.0

    def has_room(self, now: float) -> bool:
        """Whether batches that are not complete may be sent."""
        return self.window is None or self.window.has_room(now)

    def is_unavailable(self, now: float, timeout: float, is_idle_time_counted: bool) -> bool:
        """Whether it accepted no batch for more than `timeout` seconds."""
        if is_idle_time_counted:  # in whole milliseconds, as in Java
            return round((self.ready_time - self.drain_time) * 1000) > round(timeout * 1000)
        return 0 <= self.load.not_ready_since < now - timeout
