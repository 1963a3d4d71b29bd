"""A consumer's metrics, under Kafka's names.

    fetches, group, polls ─▶ events ─▶ totals, and windows of the last minute ─▶ snapshot()

Totals and windows are those of a producer (`metrics_cy.py`). What the consumer's own thread does is
recorded there, and all else on the loop: no quantity is recorded on both.

Source: Kafka's `FetchMetricsRegistry`, `KafkaConsumerMetrics`, `ConsumerCoordinatorMetrics`,
`HeartbeatMetrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias

from trimtab.client.metrics_cy import Sensors, SensorsByOwner, Snapshot, Values
from trimtab.kafka.records import TopicPartition

Step: TypeAlias = Literal["commit", "heartbeat", "join", "rebalance", "sync"]
"""What a member does with its coordinator."""

_CONSUMER: Final = (
    *("connection-close", "connection-creation", "failed-authentication"),
    *("successful-authentication", "time-between-poll", "poll-idle"),
)
_FETCH: Final = (
    *("bytes-consumed", "fetch-latency", "fetch-size", "fetch-throttle-time"),
    "records-consumed",
)
_TOPIC: Final = ("bytes-consumed", "records-consumed")
_NODE: Final = ("incoming-byte", "request-latency")
_STEPS: Final[tuple[Step, ...]] = ("commit", "heartbeat", "join", "rebalance", "sync")
_FAILURES: Final = "failed-rebalance"
_LATENCIES: Final = {"join": "join-time", "sync": "sync-time"}
"""Where the name is not that of the step with `-latency`."""
_HOUR: Final = 3600


class ConsumerMetrics:
    """One consumer's measurements.

    Args:
        now: monotonic time in seconds, the same on every thread.
        window: seconds (`metrics.sample.window.ms`).
        samples: `metrics.num.samples`.
    """

    def __init__(self, now: Callable[[], float], window: float, samples: int) -> None:
        self.now = now
        self._consumer = Sensors(window, samples, _CONSUMER)
        self._fetch = Sensors(window, samples, _FETCH)
        self._steps = Sensors(window, samples, (*_STEPS, _FAILURES))
        self._topics: SensorsByOwner[str] = SensorsByOwner(window, samples, _TOPIC)
        self._nodes: SensorsByOwner[int] = SensorsByOwner(window, samples, _NODE)
        self._polled_at = self._polled_before = math.nan
        self._heartbeat_at = self._rebalanced_at = math.nan

    # events of the loop

    def connection_event(self, what: str) -> None:
        """One of `connection-creation`, `connection-close`, `successful-authentication`,
        `failed-authentication`."""
        self._consumer[what].record_amount(1, self.now())

    def fetched(self, node_id: int, size: int, latency: float, throttle: float) -> None:
        """A response to a fetch arrived, of `size` bytes. Times are in seconds; `throttle` is how
        long the broker throttles the consumer (KIP-219)."""
        now = self.now()
        node = self._nodes[node_id]
        node["incoming-byte"].record_amount(size, now)
        node["request-latency"].record_amount(latency * 1000, now)
        self._fetch["fetch-latency"].record_amount(latency * 1000, now)
        self._fetch["fetch-size"].record_amount(size, now)
        self._fetch["fetch-throttle-time"].record_amount(throttle * 1000, now)

    @contextmanager
    def measured(self, step: Step) -> Iterator[None]:
        """Record how long a block takes, if it raises no error."""
        began = self.now()
        yield
        now = self.now()
        self._steps[step].record_amount((now - began) * 1000, now)
        if step == "heartbeat":
            self._heartbeat_at = now
        elif step == "rebalance":
            self._rebalanced_at = now

    def rebalance_failed(self) -> None:
        """The member has to join once more before it gets its partitions."""
        self._steps[_FAILURES].record_amount(1, self.now())

    # events of the consumer's thread

    def poll_began(self) -> None:
        """The application waits for records."""
        before, began = self._polled_at, self.now()
        self._polled_before, self._polled_at = before, began
        if began > before:  # not the first poll
            self._consumer["time-between-poll"].record_amount((began - before) * 1000, began)

    def poll_ended(self) -> None:
        """The poll that began last returns, without an error."""
        before, began = self._polled_before, self._polled_at
        if began > before:
            now = self.now()
            self._consumer["poll-idle"].record_amount((now - began) / (now - before), now)

    def records_consumed(self, topic: str, count: int) -> None:
        """The application got records."""
        now = self.now()
        self._fetch["records-consumed"].record_amount(count, now)
        self._topics[topic]["records-consumed"].record_amount(count, now)

    def bytes_consumed(self, topic: str, size: int) -> None:
        """The application got all records of batches of this size, as they are on the wire."""
        now = self.now()
        self._fetch["bytes-consumed"].record_amount(size, now)
        self._topics[topic]["bytes-consumed"].record_amount(size, now)

    # readings

    def snapshot(
        self,
        lags: Mapping[TopicPartition, int | None],
        gauges: Mapping[str, float],
        is_member: bool,
    ) -> Snapshot:
        """All metrics now. Times are in milliseconds unless a name says otherwise.

        Args:
            lags: of the assigned partitions; None where it is not known.
            gauges: added to `consumer-metrics`.
            is_member: whether the consumer has a group.
        """
        now = self.now()
        known = {partition: lag for partition, lag in lags.items() if lag is not None}
        snapshot: Snapshot = {
            "consumer-metrics": {**self._of_consumer(now), **gauges},
            "consumer-fetch-manager-metrics": {
                **self._of_fetches(now),
                "records-lag-max": max(known.values(), default=math.nan),
            },
            "consumer-fetch-manager-topic-metrics": {
                topic: _rates(sensors, _TOPIC, now)
                for topic, sensors in sorted(self._topics.items())
            },
            "consumer-fetch-manager-partition-metrics": {
                str(partition): {"records-lag": float(lag)}
                for partition, lag in sorted(known.items())
            },
            "consumer-node-metrics": {
                f"node-{node}": self._of_node(sensors, now)
                for node, sensors in sorted(self._nodes.items())
            },
        }
        if is_member:
            coordinator = self._of_coordinator(now)
            coordinator["assigned-partitions"] = len(lags)
            snapshot["consumer-coordinator-metrics"] = coordinator
        return snapshot

    def _of_consumer(self, now: float) -> Values:
        sensors = self._consumer
        between = sensors["time-between-poll"]
        return {
            **_rates(sensors, _CONSUMER[:4], now),
            "last-poll-seconds-ago": now - self._polled_at,
            "poll-idle-ratio-avg": sensors["poll-idle"].average(now),
            "time-between-poll-avg": between.average(now),
            "time-between-poll-max": between.maximum(now),
        }

    def _of_fetches(self, now: float) -> Values:
        sensors = self._fetch
        fetches = sensors["fetch-latency"]
        values = {
            **_rates(sensors, _TOPIC, now),
            "fetch-rate": fetches.frequency(now),
            "fetch-total": fetches.count,
        }
        for name in ("fetch-latency", "fetch-size", "fetch-throttle-time"):
            values[f"{name}-avg"] = sensors[name].average(now)
            values[f"{name}-max"] = sensors[name].maximum(now)
        return values

    def _of_node(self, sensors: Sensors, now: float) -> Values:
        """Of fetches; other requests are not counted."""
        latency = sensors["request-latency"]
        return {
            **_rates(sensors, ("incoming-byte",), now),
            "request-latency-avg": latency.average(now),
            "request-latency-max": latency.maximum(now),
            "request-rate": latency.frequency(now),
            "request-total": latency.count,
        }

    def _of_coordinator(self, now: float) -> Values:
        steps = self._steps
        rebalances, failures = steps["rebalance"], steps[_FAILURES]
        values: Values = {
            "failed-rebalance-rate-per-hour": failures.frequency(now) * _HOUR,
            "failed-rebalance-total": failures.count,
            "heartbeat-response-time-max": steps["heartbeat"].maximum(now),
            "last-heartbeat-seconds-ago": now - self._heartbeat_at,
            "last-rebalance-seconds-ago": now - self._rebalanced_at,
            "rebalance-latency-total": rebalances.total,
            "rebalance-rate-per-hour": rebalances.frequency(now) * _HOUR,
            "rebalance-total": rebalances.count,
        }
        for step in ("commit", "heartbeat", "join", "sync"):
            values[f"{step}-rate"] = steps[step].frequency(now)
            values[f"{step}-total"] = steps[step].count
        for step in ("commit", "join", "rebalance", "sync"):
            name = _LATENCIES.get(step, f"{step}-latency")
            values[f"{name}-avg"] = steps[step].average(now)
            values[f"{name}-max"] = steps[step].maximum(now)
        return values


def _rates(sensors: Sensors, names: tuple[str, ...], now: float) -> Values:
    values: Values = {}
    for name in names:
        values[f"{name}-rate"] = sensors[name].rate(now)
        values[f"{name}-total"] = sensors[name].total
    return values
