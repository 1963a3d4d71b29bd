"""`trimtab cluster info`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from trimtab import Admin, Cluster, Producer
from trimtab.cli import main
from trimtab.cli.cluster_info import BrokerInfo, ClusterInfo, write_info
from trimtab.client.admin import ClusterDescription, Features, NewTopic
from trimtab.client.network.connection import Node
from trimtab.errors import BrokerError, ErrorCode


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Broker 2 is down; it has the only replica of `lost` and one of the two of `few`."""
    with Cluster(brokers=3, racks=["a", "b", "c"]) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics(
                [
                    NewTopic("whole", assignment={0: [0, 1], 1: [1, 0]}),
                    NewTopic("few", assignment={0: [1, 2]}),
                    NewTopic("lost", assignment={0: [2]}),
                ]
            )
            with Producer(cluster.bootstrap_servers, acks="all") as producer:
                producer.send("whole", b"x" * 5000, partition=0).result()
            cluster.stop_broker(2)
        yield cluster


def ask(cluster: Cluster, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    code = main(["cluster", "info", "--bootstrap-server", cluster.bootstrap_servers, *words])
    return code, capsys.readouterr().out.splitlines()


def test_people_see_what_is_wrong_and_each_broker(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = ask(cluster, capsys)
    assert code == 0
    assert lines[0].startswith("Cluster ID: ")
    assert lines[3].startswith("3 brokers, 3 topics, 4 partitions, ")
    assert lines[3].endswith(" KiB")
    assert lines[4:6] == ["1 partition without a leader", "2 partitions under-replicated"]
    head, *rows = (line.split() for line in lines[7:])
    assert head == ["BROKER", "ADDRESS", "RACK", "LEADS", "REPLICAS", "SIZE", "VERSION", "STATE"]
    assert [(row[0], row[2], row[-1]) for row in rows] == [
        ("0", "a", "unfenced"),
        ("1", "b", "unfenced"),
        ("2", "c", "fenced"),
    ]
    assert [row[3:5] for row in rows] == [["1", "2"], ["2", "3"], ["0", "2"]]


def test_json_has_the_same_as_numbers(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, (line,) = ask(cluster, capsys, "--json")
    shown = json.loads(line)
    assert code == 0
    assert (shown["topics"], shown["partitions"]) == (3, 4)
    assert (shown["underReplicatedPartitions"], shown["leaderlessPartitions"]) == (2, 1)
    assert [each["state"] for each in shown["brokers"]] == ["unfenced", "unfenced", "fenced"]
    sizes = [each["bytes"] for each in shown["brokers"]]
    assert sizes[0] > 5000
    assert sizes[2] is None
    assert shown["bytes"] == sizes[0] + sizes[1]
    first = shown["brokers"][0]
    assert (first["id"], first["rack"], first["replicas"], first["leads"]) == (0, "a", 2, 1)


def test_one_of_each_is_one() -> None:
    node = Node(0, "h", 9092)
    info = ClusterInfo("c", 0, {}, [BrokerInfo(node, 1, 1, 1536, None, False)], 1, 1, 0, 0)
    text = write_info(info)
    assert "1 broker, 1 topic, 1 partition, 1.5 KiB" in text
    assert "all partitions have their replicas in sync" in text
    assert (
        text.splitlines()[-1]
        == "0       h:9092   -         1         1  1.5 KiB  -        unfenced"
    )


def test_an_older_cluster_that_hides_its_sizes_is_shown_without_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cluster(include_fenced: bool = False) -> ClusterDescription:
        if include_fenced:
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, "", "cluster")
        return ClusterDescription("c", 0, [Node(0, "h", 1)])

    def describe_log_dirs(brokers: list[int]) -> None:
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "", "log directories")

    admin = SimpleNamespace(
        cluster=cluster,
        describe_log_dirs=describe_log_dirs,
        describe_topics=dict,
        describe_features=lambda broker=None: Features(
            {"metadata.version": (7, 25)}, {"metadata.version": 25, "group.version": 0}, 3
        ),
        list_reassignments=dict,
    )
    monkeypatch.setattr("trimtab.cli.cluster_info.connect_admin", lambda _: nullcontext(admin))
    assert main(["cluster", "info"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[2:4] == [
        "Features: metadata.version=4.0-IV3",
        "1 broker, 0 topics, 0 partitions, an unknown size",
    ]
    assert shown.out.splitlines()[-1].split() == [
        "0",
        "h:1",
        "-",
        "0",
        "0",
        "-",
        "4.0-IV3",
        "unfenced",
    ]
    assert shown.err == ("sizes are unknown: log directories: CLUSTER_AUTHORIZATION_FAILED (31)\n")
