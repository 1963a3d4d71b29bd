"""`trimtab limits`: used and free replicas, and topics that would fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trimtab import Admin, Cluster
from trimtab.balance.limits import ClusterUsage, PartitionLimits
from trimtab.balance.placement import PlacementGoal
from trimtab.balance.replica_counts import ReplicaCounts
from trimtab.cli import main
from trimtab.cli.limits import (
    PlannedTopic,
    describe,
    read_limit,
    read_planned_topic,
    read_usage,
    try_out,
    write_table,
)
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import LONG_MAX

RACKS = {1: "a", 2: "b", 3: None}


def usage(*replicas: int, broker: int = LONG_MAX, cluster: int = LONG_MAX) -> ClusterUsage:
    counts = ReplicaCounts()
    for number, count in enumerate(replicas, 1):
        for _ in range(count):
            counts.add_replicas([number])
    return ClusterUsage(PartitionLimits(broker, cluster), RACKS, counts)


@pytest.mark.kip(578)
def test_the_proposals_own_example_fits_and_one_more_does_not() -> None:
    now = usage(10, 20, 30, broker=40)
    fits, too_many, none_left = try_out(
        now, [PlannedTopic("t", 30, 2), PlannedTopic("u", 1, 1), PlannedTopic("v", 1, 3)]
    )
    assert fits["added"] == {"1": 30, "2": 20, "3": 10}
    assert [each["fits"] for each in (fits, too_many, none_left)] == [True, False, False]
    assert try_out(now, [PlannedTopic("t", 31, 2)])[0]["most_partitions"] == 30


def test_the_clusters_limit_counts_too() -> None:
    (outcome,) = try_out(usage(0, 0, 0, cluster=9), [PlannedTopic("t", 5, 2)])
    assert (outcome["fits"], outcome["most_partitions"]) == (False, 4)
    assert outcome["why"] == "max.partitions=9 leaves 9 replicas"
    (outcome,) = try_out(usage(0, 0, 0), [PlannedTopic("t", 1, 4)])
    assert outcome["why"] == "only 3 of the 4 brokers that it needs are alive"


def test_what_is_nearly_full_is_marked_and_who_is_away_is_counted() -> None:
    shown = describe(usage(79, 80, 90, 100, broker=100, cluster=400))
    assert [each["warning"] for each in shown["brokers"]] == [
        None,
        "80 % used",
        "90 % used",
        "100 % used",
    ]
    assert [each["alive"] for each in shown["brokers"]] == [True, True, True, False]
    table = write_table(
        shown, try_out(usage(0, 0, 0, broker=1), [PlannedTopic("t", 3, 1), PlannedTopic("u", 1, 1)])
    )
    assert table.splitlines() == [
        "                 rack  replicas  limit  free   used",
        "cluster                     349    400    51   87 %  warning: 80 % used",
        "broker 1         a           79    100    21   79 %",
        "broker 2         b           80    100    20   80 %  warning: 80 % used",
        "broker 3                     90    100    10   90 %  warning: 90 % used",
        "broker 4 (down)             100    100     0  100 %  warning: 100 % used",
        "t: 3 partitions of 1 replica fit: broker 1 +1, broker 2 +1, broker 3 +1",
        "u: 1 partition of 1 replica does not fit: at most 0 can be placed: "
        "max.broker.partitions=1 leaves 0 on broker 1, 0 on broker 2, 0 on broker 3",
    ]


def test_no_limit_is_none() -> None:
    shown = describe(usage(1, 2, 3))
    assert shown["max.partitions"] is None
    assert shown["cluster"] == {"replicas": 6, "free": None, "used_percent": None, "warning": None}


@pytest.mark.parametrize("text", ["t", "t:1", "t:0:1", "t:1:x", ":1:1", "t:1:1:1"])
def test_other_wishes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--what-if"):
        read_planned_topic(text)
    with pytest.raises(UsageError, match="--max-partitions"):
        read_limit("--max-partitions", "-1")


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster(brokers=3, config={"max.broker.partitions": 4}) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", assignment={0: [0, 1], 1: [0, 2]})
            admin.create_topic("u0", assignment={0: [0]})
            admin.create_topic("__consumer_offsets", 3, 3)
        yield cluster.bootstrap_servers


def test_a_cluster_is_looked_at(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["limits", "--json", "--bootstrap-server", servers]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["max.broker.partitions"], shown["max.partitions"]) == (4, None)
    assert [each["free"] for each in shown["brokers"]] == [1, 3, 3]
    assert shown["cluster"]["replicas"] == 5


def test_the_exit_code_tells_whether_it_fits(
    servers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["limits", "--bootstrap-server", servers, "--what-if", "u:2:3"]
    assert main(words) == 1
    assert "at most 1 can be placed" in capsys.readouterr().out
    assert main([*words, "--max-broker-partitions", "5"]) == 0


class Described:
    """A cluster of the brokers 1 (rack a) and 2, which limits only the replicas of a broker.

    Args:
        goal: None on a cluster that has no such option, as Apache Kafka.
    """

    def __init__(self, goal: str | None = None) -> None:
        self.goal = goal

    def cluster(self) -> object:
        nodes = [SimpleNamespace(id=1, rack="a"), SimpleNamespace(id=2, rack=None)]
        return SimpleNamespace(nodes=nodes)

    def describe_configs(self, kind: str, name: int) -> list[object]:
        assert (kind, name) == ("broker", 1)
        return [
            SimpleNamespace(name="max.broker.partitions", value="40"),
            SimpleNamespace(name="broker.rack", value="a"),
            SimpleNamespace(name="replica.placement.goal", value=self.goal),
        ]


def topic(*replicas: tuple[int, ...], is_internal: bool = False) -> object:
    partitions = [SimpleNamespace(replicas=each) for each in replicas]
    return SimpleNamespace(partitions=partitions, is_internal=is_internal)


def test_replicas_of_internal_topics_do_not_count_and_those_of_dead_brokers_do() -> None:
    views = cast(Any, [topic((1, 3), (3, 2)), topic((1, 2), is_internal=True)])
    usage = read_usage(cast(Any, Described()), views)
    assert usage.limits == PartitionLimits(40, LONG_MAX)
    assert usage.racks == {1: "a", 2: None}
    assert (usage.counts.on, usage.counts.preferred) == ({1: 1, 2: 1, 3: 2}, {1: 1, 3: 1})
    assert usage.counts.total == 4


def test_a_limit_on_the_command_line_replaces_the_clusters() -> None:
    usage = read_usage(cast(Any, Described()), [], {"max.broker.partitions": 7})
    assert usage.limits == PartitionLimits(7, LONG_MAX)


@pytest.mark.kip(1194)
def test_topics_are_tried_out_as_the_cluster_places_them() -> None:
    assert read_usage(cast(Any, Described()), []).goal is PlacementGoal.RACKS
    assert read_usage(cast(Any, Described("brokers")), []).goal is PlacementGoal.BROKERS
    usage = ClusterUsage(
        PartitionLimits(LONG_MAX, LONG_MAX),
        dict(enumerate("aabbc")),
        ReplicaCounts(),
        PlacementGoal.BROKERS,
    )
    (outcome,) = try_out(usage, [PlannedTopic("t", 50, 3)])
    assert outcome["added"] == {str(broker): 30 for broker in range(5)}
