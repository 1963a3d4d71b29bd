"""A consumer's metrics: what is measured, and under which of Kafka's names."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.unit.client.group.test_group_consumer import PROTOCOLS, QUICK, consumer, fill, read
from tests.unit.cluster.broker.conftest import Lab, lab
from trimtab.client.consumer_metrics import ConsumerMetrics
from trimtab.client.metrics_cy import Values
from trimtab.kafka.records import TopicPartition

__all__ = ["lab"]


class Clock:
    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


def measured() -> tuple[ConsumerMetrics, Clock]:
    clock = Clock()
    return ConsumerMetrics(clock, 30.0, 2), clock


def of(metrics: ConsumerMetrics, group: str, owner: str = "", **lags: int | None) -> Values:
    known = {TopicPartition("t", int(name[1:])): lag for name, lag in lags.items()}
    values: Any = metrics.snapshot(known, {"connection-count": 2.0}, is_member=True)[group]
    return values[owner] if owner else values  # type: ignore[no-any-return]


def test_a_fetch_counts_for_the_consumer_and_its_broker() -> None:
    metrics, _ = measured()
    metrics.fetched(3, 1000, latency=0.02, throttle=0.005)
    metrics.fetched(3, 3000, latency=0.04, throttle=0)
    fetches = of(metrics, "consumer-fetch-manager-metrics")
    assert fetches["fetch-total"] == 2
    assert fetches["fetch-size-avg"] == 2000
    assert fetches["fetch-latency-max"] == pytest.approx(40)
    assert fetches["fetch-throttle-time-max"] == pytest.approx(5)
    node = of(metrics, "consumer-node-metrics", "node-3")
    assert node["incoming-byte-total"] == 4000
    assert node["request-total"] == 2
    assert of(metrics, "consumer-metrics")["connection-count"] == 2


def test_what_was_consumed_counts_for_its_topic_too() -> None:
    metrics, _ = measured()
    metrics.records_consumed("t", 5)
    metrics.records_consumed("u", 1)
    metrics.bytes_consumed("t", 700)
    whole = of(metrics, "consumer-fetch-manager-metrics")
    assert (whole["records-consumed-total"], whole["bytes-consumed-total"]) == (6, 700)
    topic = of(metrics, "consumer-fetch-manager-topic-metrics", "t")
    assert (topic["records-consumed-total"], topic["bytes-consumed-total"]) == (5, 700)


def test_lags_of_which_none_is_known_are_left_out() -> None:
    metrics, _ = measured()
    assert of(metrics, "consumer-fetch-manager-metrics", p0=4, p1=9)["records-lag-max"] == 9
    assert of(metrics, "consumer-fetch-manager-partition-metrics", "t-1", p0=4, p1=9) == {
        "records-lag": 9
    }
    assert of(metrics, "consumer-fetch-manager-partition-metrics", p0=None) == {}
    assert math.isnan(of(metrics, "consumer-fetch-manager-metrics", p0=None)["records-lag-max"])
    assert of(metrics, "consumer-coordinator-metrics", p0=4, p1=None)["assigned-partitions"] == 2


def test_polls_are_timed() -> None:
    metrics, clock = measured()
    assert math.isnan(of(metrics, "consumer-metrics")["last-poll-seconds-ago"])
    for _ in range(3):
        metrics.poll_began()
        clock.now += 1.0
        metrics.poll_ended()
        clock.now += 3.0
    values = of(metrics, "consumer-metrics")
    assert values["time-between-poll-max"] == values["time-between-poll-avg"] == 4000
    assert values["poll-idle-ratio-avg"] == pytest.approx(0.2)
    assert values["last-poll-seconds-ago"] == 4.0


def test_a_step_that_fails_is_not_one() -> None:
    metrics, clock = measured()
    with metrics.measured("join"):
        clock.now += 0.5
    with pytest.raises(ValueError, match="refused"), metrics.measured("join"):
        raise ValueError("refused")
    metrics.rebalance_failed()
    values = of(metrics, "consumer-coordinator-metrics")
    assert (values["join-total"], values["join-time-avg"]) == (1, 500)
    assert values["failed-rebalance-total"] == 1
    assert values["rebalance-total"] == 0


@pytest.mark.parametrize("protocol", PROTOCOLS[1::2], ids=["classic", "consumer"])
def test_of_a_member(lab: Lab, protocol: dict[str, Any]) -> None:
    async def scenario() -> None:
        await fill(lab, partitions=2)
        async with consumer(lab, **protocol) as reader:
            reader.subscribe(["t"])
            assert len(await read(reader, 20)) == 20
            await reader.commit()
            groups: Any = reader.metrics()
            fetches = groups["consumer-fetch-manager-metrics"]
            assert fetches["records-consumed-total"] == 20
            assert (
                0
                < fetches["bytes-consumed-total"]
                < groups["consumer-node-metrics"]["node-0"]["incoming-byte-total"]
            )
            assert fetches["records-lag-max"] == 0
            assert set(groups["consumer-fetch-manager-partition-metrics"]) == {"t-0", "t-1"}
            assert groups["consumer-metrics"]["connection-creation-total"] > 0
            member = groups["consumer-coordinator-metrics"]
            assert member["assigned-partitions"] == 2
            assert member["commit-total"] == member["rebalance-total"] == 1
            assert member["failed-rebalance-total"] == 0
            assert member["join-total"] == member["sync-total"] == int("strategy" in str(protocol))

    lab.run(scenario, config=QUICK)


def test_an_iteration_counts_the_records_that_it_reached(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab, partitions=1)
        async with consumer(lab, group_id=None) as reader:
            reader.assign([("t", 0)])
            for _ in range(2):
                async for record in reader:
                    if record.offset % 3 == 2:
                        break
            assert len(await reader.poll()) == 4
            groups: Any = reader.metrics()
            assert groups["consumer-fetch-manager-metrics"]["records-consumed-total"] == 10
            assert "consumer-coordinator-metrics" not in groups

    lab.run(scenario, config=QUICK)
