"""The verbs of `trimtab cluster` that ask a cluster for its brokers."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from trimtab import Cluster
from trimtab.cli import main
from trimtab.client.admin import ClusterDescription
from trimtab.client.network.connection import Node


def test_without_racks_the_column_is_wide(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Kafka's tool."""
    found = ClusterDescription("c", 0, [Node(0, "h", 9092)])
    admin = SimpleNamespace(cluster=lambda include_fenced: found)
    monkeypatch.setattr("trimtab.cli.membership.connect_admin", lambda options: nullcontext(admin))
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
