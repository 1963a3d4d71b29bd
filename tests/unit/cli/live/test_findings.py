"""What is found to be wrong in a snapshot, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.live.made_snapshots import Made, make_snapshot, make_tail, spread
from trimtab.balance.cluster_load import BrokerState
from trimtab.balance.limits import PartitionLimits
from trimtab.cli.live.findings import Finding, explain_hottest, find
from trimtab.cli.live.rows import summarize
from trimtab.client.measure.lag import PartitionLag
from trimtab.client.measure.slow import SlowBrokers
from trimtab.client.measure.watch import Answers
from trimtab.kafka.records import TopicPartition

EVEN = {"flights": spread([50_000.0] * 3)}
HOT = {"flights": [Made(90_000.0, (0, 1)), *spread([1000.0] * 3)[1:]]}


def look(topics: dict[str, list[Made]], **parts: Any) -> list[Finding]:
    return find(summarize(make_snapshot(topics, **parts)))


def rules(found: list[Finding]) -> list[tuple[str, str]]:
    return [(each.advice.rule, each.subject) for each in found]


def test_an_even_cluster_has_no_finding() -> None:
    assert look(EVEN) == []
    assert look({}) == []
    assert explain_hottest(summarize(make_snapshot(EVEN))) == ""


def test_a_slow_broker_is_first_and_says_why() -> None:
    found = look(HOT, slow=SlowBrokers({2: "its probes take 90 ms"}, {}, {}))
    assert rules(found)[0] == ("slow-broker", "broker 2")
    assert found[0].evidence == "its probes take 90 ms"
    assert [each.advice.severity for each in found] == sorted(
        each.advice.severity for each in found
    )


def test_a_broker_that_sends_more_than_others_is_found_from_33_kb_a_second_on() -> None:
    assert ("uneven-leaders", "broker 0") in rules(look(HOT))
    little = {"flights": [Made(30_000.0, (0, 1)), *spread([10.0] * 3)[1:]]}
    assert ("uneven-leaders", "broker 0") not in rules(look(little))


def test_a_broker_that_is_down_is_found_if_it_has_replicas() -> None:
    brokers = [BrokerState(0, None, 9), BrokerState(1, None, 9, is_alive=False)]
    found = look({"a": [Made(1.0, (0, 1), in_sync=(0,))]}, brokers=brokers)
    assert ("broker-down", "broker 1") in rules(found)
    assert "1 replica wait" in found[0].evidence
    assert look({"a": [Made(1.0, (0,))]}, brokers=brokers) == []


@pytest.mark.parametrize(
    ("volume", "rule"),
    [
        ((1_000_000_000, 99_000_000), "disk-nearly-full"),
        ((1_000_000_000, 100_000_000), None),
        ((None, None), None),
        ((1_000, None), None),
        ((0, 0), None),
    ],
)
def test_disks_with_less_than_a_tenth_left_are_found(
    volume: tuple[int | None, int | None], rule: str | None
) -> None:
    found = look(EVEN, volumes={1: volume})
    assert rules(found) == ([] if rule is None else [(rule, "broker 1")])


def test_a_limit_is_found_from_four_fifths_on() -> None:
    topics = {"flights": [Made(1.0, (0, 1))] * 8}
    assert rules(look(topics, limits=PartitionLimits(10, 100))) == [
        ("few-partitions-left", "broker 0"),
        ("few-partitions-left", "broker 1"),
    ]
    assert look(topics, limits=PartitionLimits(11, 100)) == []
    assert look(topics) == []


def test_partitions_without_leader_or_in_sync_replicas_are_found() -> None:
    topics = {"lost": [Made(None, leader=-1)], "late": [Made(1.0, in_sync=(0,)), Made(1.0)]}
    assert rules(look(topics)) == [("no-leader", "lost"), ("under-replicated", "late")]


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"LH400": 0.8}, "hot-key"),
        ({"": 0.8}, "uneven-without-keys"),
        ({"a": 0.3, "b": 0.3}, "uneven-by-key"),
        (None, "uneven-by-key"),
    ],
)
def test_an_uneven_topic_is_found_with_its_cause(keys: dict[str, float] | None, rule: str) -> None:
    topics = {"flights": spread([900_000.0, *[20_000.0] * 8])}
    tails = {} if keys is None else {TopicPartition("flights", 0): make_tail(keys)}
    found = [each for each in look(topics, tails=tails) if each.kind == "topic"]
    assert rules(found) == [(rule, "flights")]
    assert "partition 0 gets 85% of the bytes, 7.6 times the mean of 9" in found[0].evidence


def test_small_batches_are_found() -> None:
    flights = TopicPartition("flights", 0)
    small, large = make_tail({"a": 0.1}, size=10_000), make_tail({"a": 0.1}, size=10_241)
    assert rules(look(EVEN, tails={flights: small})) == [("small-batches", "flights")]
    assert look(EVEN, tails={flights: large}) == []


def lag(count: int, written: float | None, read: float | None) -> dict[str, Any]:
    partition = TopicPartition("flights", 0)
    return {"lags": [PartitionLag("g", partition, 0, count, count, written, read, None)]}


def test_a_group_that_falls_behind_is_found_and_one_that_stands() -> None:
    assert rules(look(EVEN, **lag(1000, 50.0, 20.0))) == [("growing-lag", "group g")]
    assert rules(look(EVEN, **lag(1000, 50.0, 0.0))) == [("stalled-group", "group g")]
    assert look(EVEN, **lag(999, 50.0, 0.0)) == []
    assert look(EVEN, **lag(1000, 50.0, 49.0)) == []
    assert look(EVEN, **lag(1000, 20.0, 50.0)) == []
    assert look(EVEN, **lag(1000, None, None)) == []


def test_no_group_is_said_to_stand_before_a_window_has_passed() -> None:
    assert look(EVEN, number=5, **lag(1000, 50.0, 0.0)) == []
    assert rules(look(EVEN, number=6, **lag(1000, 50.0, 0.0))) == [("stalled-group", "group g")]


def test_of_one_rule_twenty_are_shown_and_the_others_counted() -> None:
    topics = {f"t{index:03}": [Made(1.0, in_sync=(0,))] for index in range(33)}
    found = look(topics)
    assert len(found) == 21
    assert found[-1].evidence == "13 more like t000"
    assert found[-1].kind == "cluster"
    assert look({name: topics[name] for name in list(topics)[:20]})[-1].subject == "t019"


def test_the_hottest_broker_is_loaded_or_slow_itself() -> None:
    def explain(**parts: Any) -> str:
        return explain_hottest(summarize(make_snapshot(HOT, **parts)))

    assert explain().startswith("Broker 0 sends 2.9 times the mean: flights-0 alone is 100% of it.")
    quick = {broker: Answers(0.003, None) for broker in range(3)}
    assert "as quickly as the others" in explain(answers=quick)
    late = {**quick, 0: Answers(0.2, None)}
    assert "It answers in 200 ms, the others in 3.0." in explain(answers=late)
    slow = explain(slow=SlowBrokers({1: "its probes take 90 ms"}, {}, {}))
    assert slow.startswith("Broker 1 is slow: its probes take 90 ms. Its load is not above")
    both = explain(slow=SlowBrokers({0: "its probes take 90 ms"}, {}, {}))
    assert both.endswith("It sends 2.9 times the mean, which may be the cause.")
