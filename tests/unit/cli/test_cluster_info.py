"""`trimtab cluster info`, and the verbs that ask a cluster for its brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from trimtab import Admin, Cluster, Producer
from trimtab.cli import main
from trimtab.cli.cluster_info import write_info
from trimtab.client.admin import ClusterDescription, Features, NewTopic
from trimtab.client.network.connection import Node
from trimtab.kafka.errors import BrokerError, ErrorCode


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
    broker = {
        **Node(0, "h", 9092)._asdict(),
        "state": "unfenced",
        "leads": 1,
        "replicas": 1,
        "bytes": 1536,
        "newestMetadataVersion": None,
    }
    text = write_info(
        {
            "clusterId": "c",
            "controllerId": 0,
            "features": {},
            "brokers": [broker],
            "topics": 1,
            "partitions": 1,
            "bytes": 1536,
            "underReplicatedPartitions": 0,
            "leaderlessPartitions": 0,
        }
    )
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
    monkeypatch.setattr("trimtab.cli.cluster_info.connect", lambda _: nullcontext(admin))
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


def test_without_racks_the_column_is_wide(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Kafka's tool."""
    found = ClusterDescription("c", 0, [Node(0, "h", 9092)])
    admin = SimpleNamespace(cluster=lambda include_fenced: found)
    monkeypatch.setattr("trimtab.cli.cluster_info.connect", lambda _: nullcontext(admin))
    assert main(["cluster", "list-endpoints"]) == 0
    assert capfd.readouterr().out.splitlines()[1] == (
        "0          h 9092       null       unfenced   broker         "
    )


def test_a_stopped_broker_is_fenced_and_then_unregistered(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Cluster(brokers=2, racks=["a", "long-rack"]) as cluster:
        ports = [each.rpartition(":")[2] for each in cluster.bootstrap_servers.split(",")]
        server = ("--bootstrap-server", f"127.0.0.1:{ports[0]}")
        listing = ["cluster", "list-endpoints", *server]
        rows = [
            "ID         HOST      PORT       RACK      STATE      ENDPOINT_TYPE  ",
            f"0          127.0.0.1 {ports[0]:<10} a         unfenced   broker         ",
            f"1          127.0.0.1 {ports[1]:<10} long-rack unfenced   broker         ",
        ]
        assert main(listing) == 0
        assert capfd.readouterr() == ("\n".join([*rows, ""]), "")
        cluster.stop_broker(1)
        assert main([*listing, "--include-fenced-brokers", "--json"]) == 0
        told = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert [(each["id"], each["state"]) for each in told] == [(0, "unfenced"), (1, "fenced")]
        assert told[1] == (
            {"id": 1, "host": "127.0.0.1", "port": int(ports[1]), "rack": "long-rack"}
            | {"state": "fenced", "endpoint_type": "broker"}
        )
        unregister = ["cluster", "unregister", "--id", "1", *server]
        assert main(unregister) == 0
        assert capfd.readouterr() == ("Broker 1 is no longer registered.\n", "")
        assert main([*listing, "--include-fenced-brokers"]) == 0
        assert len(capfd.readouterr().out.splitlines()) == 2
        assert main(unregister) == 1
        assert "broker 1: BROKER_ID_NOT_REGISTERED" in capfd.readouterr().err


def test_controllers_are_not_connected_to(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["cluster", "list-endpoints", "--bootstrap-controller", "h:1"])
    assert "use --bootstrap-server" in capfd.readouterr().err
