"""What the sender measures of each broker: latency, throughput, whether it accepts batches.

Partitioners read a part of it (`NodeLoad`).
"""

from __future__ import annotations

import math

from trimtab.client.accumulator.queues_cy import NodeLoad
from trimtab.client.network.connection import Connection
from trimtab.wire.messages.produce import ProduceRequest

SMOOTHING_HALF_LIFE = 0.25
"""Seconds after which a sample's weight in `NodeLoad.latency` and `drain_rate` has halved."""


def smoothed(average: float, sample: float, elapsed: float) -> float:
    """An exponentially weighted moving average after one more sample.

    Args:
        average: the average so far; 0 or less before the first sample.
        elapsed: seconds since the last sample. The old average's weight halves in
            `SMOOTHING_HALF_LIFE`, so the weight of a sample depends on time, not on the number of
            responses.
    """
    if average <= 0:
        return sample
    kept = math.pow(0.5, elapsed / SMOOTHING_HALF_LIFE)
    return average * kept + sample * (1 - kept)


class DrainRate:
    """Bytes per second that a broker acknowledges while it is busy: the ratio of two moving sums.

    Idle time does not count. Of several acknowledgements at the same instant, all bytes count.
    """

    __slots__ = ("_bytes", "_seconds")

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0

    def add(self, size: int, seconds: float) -> float:
        """The rate after `size` more bytes in `seconds` busy seconds; 0 while it is unknown."""
        kept = math.pow(0.5, seconds / SMOOTHING_HALF_LIFE)
        self._bytes = self._bytes * kept + size
        self._seconds = self._seconds * kept + seconds
        return self._bytes / self._seconds if self._seconds > 0 else 0.0


class NodeRecord:
    """The sender's measurements of one broker. Times are the loop's, in seconds.

    Attributes:
        load: the part that partitioners see.
        throttled_until: the broker throttles the client until then (KIP-219).
        ready_time: when a batch for it was last due, Java's `readyTimeMs`.
        drain_time: when a batch for it was last due and could be sent, Java's `drainTimeMs`.
    """

    __slots__ = (
        "_agreed",
        "_answered_at",
        "_drain",
        "drain_time",
        "load",
        "ready_time",
        "throttled_until",
    )

    def __init__(self, load: NodeLoad, now: float) -> None:
        self.load = load
        self.throttled_until = -math.inf
        self.ready_time = now
        self.drain_time = now
        self._answered_at = -math.inf
        self._drain = DrainRate()
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

    def acknowledge(self, size: int, sent_at: float, now: float) -> None:
        """It answered a request with `size` bytes of records."""
        busy_since = max(sent_at, self._answered_at)
        load = self.load
        load.latency = smoothed(load.latency, now - sent_at, now - load.last_acknowledged)
        load.drain_rate = self._drain.add(size, now - busy_since)
        load.last_acknowledged = now
        self._answered_at = now

    def is_unavailable(self, now: float, timeout: float, is_idle_time_counted: bool) -> bool:
        """Whether it accepted no batch for more than `timeout` seconds."""
        if is_idle_time_counted:  # in whole milliseconds, as in Java
            return round((self.ready_time - self.drain_time) * 1000) > round(timeout * 1000)
        return 0 <= self.load.not_ready_since < now - timeout
