"""Rows of brokers, topics and racks, of snapshots that a test makes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.live.made_snapshots import Made, make_snapshot, make_tail, spread
from trimtab.balance.cluster_load import BrokerState
from trimtab.balance.limits import PartitionLimits
from trimtab.cli.live.rows import (
    TopicRow,
    explain_tail,
    list_lags,
    summarize,
)
from trimtab.client.measure.lag import PartitionLag
from trimtab.client.measure.probe import PROBE_TOPIC
from trimtab.client.measure.slow import SlowBrokers
from trimtab.client.measure.watch import Answers
from trimtab.kafka.options import LONG_MAX
from trimtab.kafka.records import TopicPartition


def make_row(partitions: list[Made], window_s: float = 30.0, **parts: Any) -> TopicRow:
    [row] = summarize(make_snapshot({"flights": partitions}, **parts), window_s).topics
    return row


def test_totals_are_sums_over_what_is_measured() -> None:
    topics = {"a": spread([1000.0, 3000.0, None], factor=3), "b": spread([500.0], factor=1)}
    totals = summarize(make_snapshot(topics)).totals
    assert totals.topics == 2
    assert (totals.partitions, totals.measured) == (4, 3)
    assert (totals.bytes_in, totals.records_in) == (4500, 45)
    assert totals.stored == 7 * 10_000


def test_an_empty_cluster_has_rows_of_its_brokers_only() -> None:
    summary = summarize(make_snapshot({}))
    assert [row.broker for row in summary.brokers] == [0, 1, 2]
    assert [row.level for row in summary.brokers] == [None] * 3
    assert [*summary.topics, *summary.groups, *summary.racks] == []
    assert summary.totals == (0,) * 9


def test_topics_with_most_load_are_first_then_the_largest() -> None:
    topics = {
        "quiet": [Made(0.0, size=1)],
        "large": [Made(0.0, size=9)],
        "busy": [Made(5000.0)],
        "unknown": [Made(None)],
    }
    rows = summarize(make_snapshot(topics)).topics
    assert [row.topic for row in rows] == ["busy", "large", "quiet", "unknown"]
    assert rows[3].bytes_in == 0
    assert rows[3].largest is None


def test_the_topic_for_probes_is_not_shown() -> None:
    summary = summarize(make_snapshot({PROBE_TOPIC: [Made(None)], "a": [Made(1.0)]}))
    assert [row.topic for row in summary.topics] == ["a"]
    assert summary.totals.partitions == 1


def test_skew_is_the_largest_partition_by_the_mean() -> None:
    row = make_row(spread([70_000.0, 10_000.0, 10_000.0, 10_000.0]))
    assert row.skew == pytest.approx(2.8)
    assert (row.largest, row.is_uneven) == (0, True)


@pytest.mark.parametrize("rates", [[900.0, 10.0], [50_000.0], [0.0, 0.0]])
def test_no_skew_is_told_of_little_load_or_one_partition(rates: list[float]) -> None:
    assert make_row(spread(rates)).skew is None


def test_two_partitions_are_uneven_from_one_and_a_half_times_the_mean_on() -> None:
    assert not make_row(spread([7_400_000.0, 2_600_000.0])).is_uneven
    assert make_row(spread([7_700_000.0, 2_300_000.0])).is_uneven


def test_a_short_window_needs_more_skew_than_a_long_one() -> None:
    few = [Made(rate, records=rate / 1000) for rate in (3000.0, 500.0, 500.0, 500.0)]
    assert not make_row(few, window_s=2).is_uneven
    assert make_row(few, window_s=600).is_uneven


def test_replicas_and_leaders_that_are_missing_are_counted() -> None:
    row = make_row([Made(1.0, in_sync=(0, 1)), Made(None, leader=-1), Made(1.0)])
    assert (row.without_leader, row.under_replicated, row.factor) == (1, 1, 3)


def test_the_largest_partition_says_who_writes_it() -> None:
    partitions = spread([90_000.0, 1_000.0])
    largest, other = TopicPartition("flights", 0), TopicPartition("flights", 1)
    tail = make_tail({"LH400": 0.8, "BA7": 0.2})
    assert "key 'LH400' has 80%" in make_row(partitions, tails={largest: tail}).why
    assert make_row(partitions, tails={other: tail}).why == ""


@pytest.mark.parametrize(
    ("keys", "producers", "text"),
    [
        ({"a": 0.5, "b": 0.5}, {"1": 1.0}, "key 'a' has 50%"),
        ({"a": 0.4, "b": 0.3}, {"1": 1.0}, "no key has half of it; most has key 'a' 40%"),
        ({"": 0.9, "b": 0.1}, {"1": 1.0}, "90% has no key, so the producers chose the partition"),
        ({"": 0.4, "b": 0.3}, {"1": 1.0}, "40% has no key"),
        ({"a": 1.0}, {"1": 0.6, "2": 0.4}, "key 'a' has 100%; producer 1 wrote 60%"),
        ({"a": 1.0}, {"1": 0.4, "2": 0.4}, "key 'a' has 100%"),
        ({"a": 1.0}, {"": 0.9, "2": 0.1}, "key 'a' has 100%"),
    ],
)
def test_a_tail_is_explained_in_a_sentence(
    keys: dict[str, float], producers: dict[str, float], text: str
) -> None:
    found = explain_tail(TopicPartition("flights", 3), make_tail(keys, producers))
    assert found == f"of the newest bytes of partition 3, {text}"


def test_a_broker_sends_to_consumers_and_followers() -> None:
    topics = {"a": [Made(1000.0, (0, 1, 2), out=500.0), Made(100.0, (1, 0))]}
    [first, second, third] = summarize(make_snapshot(topics)).brokers
    assert (first.sent, second.sent, third.sent) == (2500, 100, 0)
    assert (first.written, second.written, third.written) == (1100, 1100, 1000)
    assert (first.leaders, first.replicas, third.replicas) == (1, 2, 1)
    assert (first.stored, third.stored) == (20_000, 10_000)
    assert first.level == pytest.approx(2500 / (2600 / 3))


def test_a_hot_broker_says_that_one_partition_is_the_cause() -> None:
    topics = {"a": [Made(9000.0, (0, 1)), Made(500.0, (1, 2)), Made(500.0, (2, 0))]}
    row = summarize(make_snapshot(topics)).brokers[0]
    assert row.why == "sends 2.7 times the mean: a-0 alone is 100% of it"


def test_a_hot_broker_says_that_it_leads_too_much() -> None:
    led = [Made(100.0, (0, 1)) for _ in range(8)] + spread([100.0] * 3)
    row = summarize(make_snapshot({"a": led})).brokers[0]
    assert row.why == "sends 2.5 times the mean: it leads 9 partitions, the mean is 4"


def test_a_hot_broker_names_its_largest_leader_otherwise() -> None:
    quiet = [Made(1.0, (broker, 0)) for broker in (1, 2) for _ in range(3)]
    topics = {"a": [*(Made(1000.0, (0, 1)) for _ in range(3)), *quiet]}
    row = summarize(make_snapshot(topics)).brokers[0]
    assert row.why.endswith("the largest of its 3 leaders, a-0, is 33%")


def test_a_slow_broker_keeps_its_reason_and_a_dead_one_is_down() -> None:
    brokers = [
        BrokerState(0, "a", LONG_MAX),
        BrokerState(1, "b", 70, is_alive=False, takes_replicas=False),
        BrokerState(2, None, LONG_MAX),
    ]
    snapshot = make_snapshot(
        {"a": [Made(10.0, (0, 1, 2))]},
        brokers=brokers,
        slow=SlowBrokers({}, {2: "its probes take 90 ms"}, {}),
        answers={0: Answers(0.002, None), 2: Answers(0.09, 0.3)},
        volumes={0: (1000, 100), 2: (None, None)},
    )
    up, down, slow = summarize(snapshot).brokers
    assert (up.state, up.why, up.answer_s, up.p99_s) == ("up", "sends 2.0 times the mean: "
            "a-0 alone is 100% of it", 0.002, None)  # fmt: skip
    assert (up.disk, up.disk_free, up.free) == (1000, 100, None)
    assert (down.state, down.free, down.answer_s) == ("down", 70, None)
    assert (slow.state, slow.why, slow.p99_s) == ("slow", "its probes take 90 ms", 0.3)
    assert (slow.disk, slow.disk_free, slow.rack) == (None, None, None)


def test_a_leader_that_the_cluster_does_not_list_breaks_nothing() -> None:
    summary = summarize(make_snapshot({"a": [Made(10.0, (9, 0))]}))
    assert [row.leaders for row in summary.brokers] == [0, 0, 0]
    assert [row.replicas for row in summary.brokers] == [1, 0, 0]


def test_bytes_between_racks_are_of_followers_and_estimates_of_clients() -> None:
    topics = {"a": [Made(900.0, (0, 1, 2), out=300.0), Made(60.0, (1, 0))]}
    rows = summarize(make_snapshot(topics, racks=["r", "s", "s"])).racks
    assert [(row.kind, row.source, row.target, row.rate) for row in rows] == [
        ("replicate", "r", "s", 1800),
        ("replicate", "s", "r", 60),
        ("produce", "", "", pytest.approx(480)),
        ("consume", "", "", pytest.approx(150)),
    ]


def test_brokers_without_a_rack_are_no_rack() -> None:
    topics = {"a": spread([100.0] * 4, 4, 4)}
    rows = summarize(make_snapshot(topics, brokers=4, racks=["r", "s"])).racks
    assert {(row.source, row.target) for row in rows if row.kind == "replicate"} == {
        ("r", "s"),
        ("s", "r"),
    }


@pytest.mark.parametrize("racks", [[], ["r", "r", "r"], ["r"]])
def test_one_rack_has_no_bytes_between(racks: list[str]) -> None:
    assert summarize(make_snapshot({"a": spread([100.0] * 3)}, racks=racks)).racks == []


def make_lag(group: str, topic: str, index: int, lag: int | None) -> PartitionLag:
    end = None if lag is None else 100 + lag
    return PartitionLag(group, TopicPartition(topic, index), 100, end, lag, 1.0, 1.0, None)


def test_partitions_and_lags_are_found_by_topic_and_group() -> None:
    lags = [
        make_lag("g", "a", 0, 5),
        make_lag("g", "b", 0, 70),
        make_lag("h", "a", 1, None),
        make_lag("h", "a", 0, 9),
    ]
    snapshot = make_snapshot({"a": [Made(1.0), Made(None)], "b": [Made(1.0)]}, lags=lags)
    by_topic = summarize(snapshot).by_topic
    assert [each.partition for each in by_topic["a"]] == [TopicPartition("a", 0)]
    assert "gone" not in by_topic
    assert [each.lag for each in list_lags(snapshot, "a")] == [9, 5, None]
    assert [each.lag for each in list_lags(snapshot, group="g")] == [70, 5]
    assert [each.group for each in summarize(snapshot).groups] == ["g", "h"]


def test_usage_counts_what_limits_count_on_live_brokers() -> None:
    brokers = [
        BrokerState(0, "r", 1),
        BrokerState(1, None, 1),
        BrokerState(2, "s", 0, is_alive=False),
    ]
    topics = {"a": [Made(1.0)], "__consumer_offsets": [Made(1.0)]}
    limits = PartitionLimits(10, 30)
    usage = summarize(make_snapshot(topics, brokers=brokers, limits=limits)).usage
    assert usage.limits == limits
    assert usage.racks == {0: "r", 1: None}
    assert usage.counts.total == 3
    unlimited = summarize(make_snapshot(topics)).usage.limits
    assert unlimited == (LONG_MAX, LONG_MAX)
