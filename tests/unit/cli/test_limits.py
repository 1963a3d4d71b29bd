"""`trimtab limits`: used and free replicas, and topics that would fit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from trimtab import Admin, Cluster
from trimtab.balance.limits import ClusterUsage, PartitionLimits
from trimtab.balance.replica_counts import ReplicaCounts
from trimtab.cli import main
from trimtab.cli.limits import (
    PlannedTopic,
    describe,
    read_limit,
    read_planned_topic,
    try_out,
    write_table,
)
from trimtab.config import LONG_MAX
from trimtab.errors import UsageError

RACKS = {1: "a", 2: "b", 3: None}


def usage(*replicas: int, broker: int = LONG_MAX, cluster: int = LONG_MAX) -> ClusterUsage:
    counts = ReplicaCounts()
    for number, count in enumerate(replicas, 1):
        for _ in range(count):
            counts.add([number])
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


def test_what_is_nearly_full_is_marked_and_who_is_away_is_counted() -> None:
    shown = describe(usage(79, 80, 90, 100, broker=100, cluster=400))
    assert [each["warning"] for each in shown["brokers"]] == [  # type: ignore[attr-defined]
        None,
        "80 % used",
        "90 % used",
        "100 % used",
    ]
    assert [each["alive"] for each in shown["brokers"]] == [True, True, True, False]  # type: ignore[attr-defined]
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
        "u: 1 partition of 1 replica does not fit: at most 0 can be placed",
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
