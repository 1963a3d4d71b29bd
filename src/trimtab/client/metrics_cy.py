# mypy: allow-untyped-decorators, no-warn-return-any
"""A producer's metrics, under Kafka's names.

    sender, connections ─▶ events ─▶ totals, and windows of the last minute ─▶ snapshot()

A total counts from the producer's start. A rate, an average or a maximum covers the last
`metrics.num.samples` windows of `metrics.sample.window.ms` each; as in Kafka, an old window is
dropped as a whole. An event costs a few additions; `snapshot` computes everything else.

Source: `org.apache.kafka.clients.producer.internals.SenderMetricsRegistry`, `KafkaProducerMetrics`,
`BufferPool`; `org.apache.kafka.common.metrics.stats.SampledStat`.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import cython

K = TypeVar("K")

Values: TypeAlias = dict[str, float]
Snapshot: TypeAlias = dict[str, Values | dict[str, Values]]
"""Metrics by group; in the groups of nodes and topics by `node-0`, or the topic name, first."""


class SentBatch(Protocol):
    """A batch, as the metrics see it. `size` is in bytes, uncompressed; `created` is loop time."""

    @property
    def count(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def created(self) -> float: ...


@cython.final
@cython.cclass
class _Window:
    """The samples of one window: its start, their sum, number and maximum."""

    began = cython.declare(cython.double, visibility="readonly")
    amount = cython.declare(cython.double, visibility="readonly")
    count = cython.declare(cython.longlong, visibility="readonly")
    largest = cython.declare(cython.double, visibility="readonly")

    def __init__(self, began: cython.double) -> None:
        self.began = began
        self.amount = 0.0
        self.count = 0
        self.largest = -math.inf


@cython.final
@cython.cclass
class Sampled:
    """One measured quantity: its total, and its recent rate, average and maximum.

    Args:
        length: seconds of a window.
        samples: windows that are kept.
    """

    total = cython.declare(cython.double, visibility="readonly")
    count = cython.declare(cython.longlong, visibility="readonly")
    _length: cython.double
    _samples: cython.int
    _windows: list[Any]
    _current: _Window
    _ends: cython.double

    def __init__(self, length: cython.double, samples: cython.int) -> None:
        self.total = 0.0
        self.count = 0
        self._length = length
        self._samples = samples
        self._windows = []
        self._current = _Window(-math.inf)
        self._ends = -math.inf

    @property
    def windows(self) -> int:
        """How many windows are kept."""
        return len(self._windows)

    @cython.ccall
    def record_amount(self, amount: cython.double, now: cython.double) -> cython.void:
        if now >= self._ends:
            self._begin_window(now)
        current = self._current
        current.amount += amount
        current.count += 1
        if amount > current.largest:
            current.largest = amount
        self.total += amount
        self.count += 1

    def rate(self, now: cython.double) -> float:
        """Amount per second. As in Kafka, over at least the length of all windows but one."""
        windows = self._recent(now)
        return sum(window.amount for window in windows) / self._seconds(windows, now)

    def frequency(self, now: cython.double) -> float:
        """Samples per second, over the same time as `rate`."""
        windows = self._recent(now)
        return sum(window.count for window in windows) / self._seconds(windows, now)

    def _seconds(self, windows: list[Any], now: cython.double) -> float:
        """The seconds over which a rate of these windows is computed."""
        elapsed = now - min((window.began for window in windows), default=now)
        missing = self._samples - 1 - int(elapsed // self._length)
        return max(elapsed + max(0, missing) * self._length, self._length)

    def average(self, now: cython.double) -> float:
        """The mean amount; NaN without samples in the last windows."""
        windows = self._recent(now)
        count = sum(window.count for window in windows)
        return sum(window.amount for window in windows) / count if count else math.nan

    def maximum(self, now: cython.double) -> float:
        """The largest amount; NaN without samples in the last windows."""
        return max((window.largest for window in self._recent(now)), default=math.nan)

    @cython.cfunc
    def _begin_window(self, now: cython.double) -> cython.void:
        self._current = _Window(now)
        self._windows = [*self._recent(now), self._current][-self._samples :]
        self._ends = now + self._length

    def _recent(self, now: cython.double) -> list[Any]:
        """The windows that are not too old. Changes nothing, so any thread may call it."""
        oldest = now - self._length * self._samples
        return [window for window in self._windows if window.began > oldest]


class Sensors:
    """The measured quantities of one client, node or topic, by name.

    Args:
        window, samples: as for `Sampled`.
    """

    __slots__ = ("_by_name", "_samples", "_window")

    def __init__(self, window: float, samples: int, names: tuple[str, ...]) -> None:
        self._window = window
        self._samples = samples
        self._by_name = {name: Sampled(window, samples) for name in names}

    def __getitem__(self, name: str) -> Sampled:
        return self._by_name[name]


class SensorsByOwner(dict[K, Sensors]):
    """The sensors of each node or topic, made when it is first asked for.

    Args:
        window, samples, names: as for `Sensors`.
    """

    def __init__(self, window: float, samples: int, names: tuple[str, ...]) -> None:
        super().__init__()
        self._make = partial(Sensors, window, samples, names)

    def __missing__(self, owner: K) -> Sensors:
        made = self[owner] = self._make()
        return made


_PRODUCER = (
    *("batch-size", "batch-split", "buffer-exhausted", "bufferpool-wait", "compression"),
    *("connection-close", "connection-creation", "failed-authentication"),
    *("produce-throttle-time", "request-size", "successful-authentication"),
    *("record-error", "record-queue-time", "record-retry", "record-send", "record-size"),
    *("records-per-request", "request-latency"),
)
_NODE = ("incoming-byte", "outgoing-byte", "request-latency", "request-size", "batch", "record")
_CALLS = (
    *("flush", "metadata-wait", "txn-init", "txn-begin", "txn-send-offsets", "txn-commit"),
    "txn-abort",
)
"""Calls whose waiting time is measured (KIP-761)."""
_TOPIC = ("byte", "compression", "record-error", "record-retry", "record-send")


class ProducerMetrics:
    """One producer's measurements. Its sender records them on the loop; any thread may read them.

    Args:
        now: the loop's time in seconds, correct on every thread.
        window: seconds (`metrics.sample.window.ms`).
        samples: `metrics.num.samples`.
    """

    def __init__(self, now: Callable[[], float], window: float, samples: int) -> None:
        self._now = now
        self._producer = Sensors(window, samples, _PRODUCER)
        self._nodes: SensorsByOwner[int] = SensorsByOwner(window, samples, _NODE)
        self._topics: SensorsByOwner[str] = SensorsByOwner(window, samples, _TOPIC)
        self._waited = dict.fromkeys(_CALLS, 0.0)

    # events

    def request_sent(self, node_id: int, size: int, records: int, batches: int) -> None:
        """A Produce request of `size` bytes was sent to a broker."""
        now = self._now()
        node = self._nodes[node_id]
        node["outgoing-byte"].record_amount(size, now)
        node["request-size"].record_amount(size, now)
        self._producer["request-size"].record_amount(size, now)
        node["record"].record_amount(records, now)
        node["batch"].record_amount(batches, now)
        self._producer["records-per-request"].record_amount(records, now)

    def response_received(self, node_id: int, size: int, latency: float) -> None:
        """A response of `size` bytes arrived, `latency` seconds after its request was sent."""
        now = self._now()
        node = self._nodes[node_id]
        node["incoming-byte"].record_amount(size, now)
        node["request-latency"].record_amount(latency * 1000, now)
        self._producer["request-latency"].record_amount(latency * 1000, now)

    def batch_sent(self, topic: str, batch: SentBatch, size: int, is_first: bool) -> None:
        """A batch, `size` bytes as built, is part of a request; `is_first`: not sent before."""
        if not is_first:
            return
        now = self._now()
        producer, of_topic, count = self._producer, self._topics[topic], batch.count
        compression = size / batch.size if batch.size else 1.0
        producer["batch-size"].record_amount(size, now)
        producer["compression"].record_amount(compression, now)
        producer["record-queue-time"].record_amount((now - batch.created) * 1000, now)
        producer["record-send"].record_amount(count, now)
        producer["record-size"].record_amount(batch.size / count, now)
        of_topic["byte"].record_amount(size, now)
        of_topic["compression"].record_amount(compression, now)
        of_topic["record-send"].record_amount(count, now)

    def batch_retried(self, topic: str, batch: SentBatch) -> None:
        now = self._now()
        self._producer["record-retry"].record_amount(batch.count, now)
        self._topics[topic]["record-retry"].record_amount(batch.count, now)

    def batch_failed(self, topic: str, batch: SentBatch) -> None:
        now = self._now()
        self._producer["record-error"].record_amount(batch.count, now)
        self._topics[topic]["record-error"].record_amount(batch.count, now)

    def batch_split(self) -> None:
        self._producer["batch-split"].record_amount(1, self._now())

    def throttled(self, seconds: float) -> None:
        """A broker throttled the producer for this long (KIP-219); 0 if it did not."""
        self._producer["produce-throttle-time"].record_amount(seconds * 1000, self._now())

    def waited_for_memory(self, seconds: float) -> None:
        """A send waited this long for buffer memory."""
        self._producer["bufferpool-wait"].record_amount(seconds, self._now())

    def memory_exhausted(self) -> None:
        """A send got no buffer memory within `max.block.ms`."""
        self._producer["buffer-exhausted"].record_amount(1, self._now())

    def connection_event(self, what: str) -> None:
        """One of `connection-creation`, `connection-close`, `successful-authentication`,
        `failed-authentication`."""
        self._producer[what].record_amount(1, self._now())

    def waited(self, what: str, seconds: float) -> None:
        """A call of `flush`, `metadata-wait`, `txn-commit`, … waited this long."""
        self._waited[what] += seconds

    # readings

    def snapshot(self, gauges: Mapping[str, float]) -> Snapshot:
        """All metrics now. Times are in milliseconds unless a name says otherwise.

        Args:
            gauges: values that the producer's parts supply, such as `buffer-available-bytes`;
                added to `producer-metrics`.
        """
        now = self._now()
        return {
            "producer-metrics": {**self._of_producer(now), **gauges},
            "producer-node-metrics": {
                f"node-{node}": self._of_node(sensors, now)
                for node, sensors in sorted(self._nodes.items())
            },
            "producer-topic-metrics": {
                topic: self._of_topic(sensors, now)
                for topic, sensors in sorted(self._topics.items())
            },
        }

    def _of_producer(self, now: float) -> Values:
        sensors, nodes = self._producer, list(self._nodes.values())
        wait = sensors["bufferpool-wait"]
        values = {
            "batch-size-avg": sensors["batch-size"].average(now),
            "batch-size-max": sensors["batch-size"].maximum(now),
            "bufferpool-wait-ratio": wait.rate(now),
            "bufferpool-wait-time-ns-total": wait.total * 1e9,
            "compression-rate-avg": sensors["compression"].average(now),
            "produce-throttle-time-avg": sensors["produce-throttle-time"].average(now),
            "produce-throttle-time-max": sensors["produce-throttle-time"].maximum(now),
            "record-queue-time-avg": sensors["record-queue-time"].average(now),
            "record-queue-time-max": sensors["record-queue-time"].maximum(now),
            "record-size-avg": sensors["record-size"].average(now),
            "records-per-request-avg": sensors["records-per-request"].average(now),
            "request-latency-avg": sensors["request-latency"].average(now),
            "request-latency-max": sensors["request-latency"].maximum(now),
            "request-size-avg": sensors["request-size"].average(now),
            "request-size-max": sensors["request-size"].maximum(now),
        }
        for what, seconds in self._waited.items():
            values[f"{what}-time-ns-total"] = seconds * 1e9
        for name in (
            *("batch-split", "buffer-exhausted", "connection-close", "connection-creation"),
            *("failed-authentication", "record-error", "record-retry", "record-send"),
            "successful-authentication",
        ):
            values[f"{name}-rate"] = sensors[name].rate(now)
            values[f"{name}-total"] = sensors[name].total
        for name, of, is_counted in (
            ("incoming-byte", "incoming-byte", False),
            ("outgoing-byte", "outgoing-byte", False),
            ("request", "request-size", True),
            ("response", "request-latency", True),
        ):
            values[f"{name}-total"] = sum(
                node[of].count if is_counted else node[of].total for node in nodes
            )
            values[f"{name}-rate"] = sum(
                node[of].frequency(now) if is_counted else node[of].rate(now) for node in nodes
            )
        for ending in ("rate", "total"):
            values[f"network-io-{ending}"] = (
                values[f"request-{ending}"] + values[f"response-{ending}"]
            )
        return values

    def _of_node(self, sensors: Sensors, now: float) -> Values:
        return {
            "batch-total": sensors["batch"].total,
            "incoming-byte-rate": sensors["incoming-byte"].rate(now),
            "incoming-byte-total": sensors["incoming-byte"].total,
            "outgoing-byte-rate": sensors["outgoing-byte"].rate(now),
            "outgoing-byte-total": sensors["outgoing-byte"].total,
            "record-total": sensors["record"].total,
            "request-latency-avg": sensors["request-latency"].average(now),
            "request-latency-max": sensors["request-latency"].maximum(now),
            "request-size-avg": sensors["request-size"].average(now),
            "request-size-max": sensors["request-size"].maximum(now),
            "request-rate": sensors["request-size"].frequency(now),
            "request-total": sensors["request-size"].count,
            "response-rate": sensors["request-latency"].frequency(now),
            "response-total": sensors["request-latency"].count,
        }

    def _of_topic(self, sensors: Sensors, now: float) -> Values:
        values = {"compression-rate": sensors["compression"].average(now)}
        for name in ("byte", "record-error", "record-retry", "record-send"):
            values[f"{name}-rate"] = sensors[name].rate(now)
            values[f"{name}-total"] = sensors[name].total
        return values
