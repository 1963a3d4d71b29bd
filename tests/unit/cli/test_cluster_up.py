from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.cli import main
from trimtab.cli.cluster_up import (
    choose_metrics_ports,
    choose_ports,
    choose_racks,
    hold_ports,
    list_programs,
    open_data,
    read_config,
    read_delays,
    refuse_missing_brokers,
    refuse_unreachable,
)
from trimtab.cluster.config.node import EMBEDDED
from trimtab.cluster.processes.supervisor import Program
from trimtab.kafka.errors import Unavailable, UsageError


def test_one_rack_for_each_broker() -> None:
    assert choose_racks(3, "a,b,c") == ["a", "b", "c"]
    assert choose_racks(3, None) is None


@pytest.mark.parametrize(("brokers", "racks"), [(2, "a,b,c"), (3, "a"), (0, None)])
def test_a_number_of_racks_that_does_not_fit_is_refused(brokers: int, racks: str | None) -> None:
    with pytest.raises(UsageError):
        choose_racks(brokers, racks)


def test_delays_by_broker() -> None:
    assert read_delays(["0=20", "2=1.5"], 3) == {0: 20.0, 2: 1.5}


@pytest.mark.parametrize("word", ["3=20", "x=20", "0=x", "-1=5"])
def test_a_delay_of_no_broker_or_no_number_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match=r"--slow"):
        read_delays([word], 3)


def test_every_node_gets_its_own_words() -> None:
    controller, *brokers = list_programs(
        *("h", 9000, [1, 2], ["a", "b"], {1: 20.0}, "/d", ["num.partitions=6"]), temporary=True
    )
    common = ["--stop-at-eof", "--no-fsync", "--config", "num.partitions=6"]
    shared = controller.command.index("controller")
    assert (controller.name, controller.rank) == ("controller", 0)
    assert controller.command[shared:] == [
        *("controller", "--host", "127.0.0.1", "--port", "9000", "--data", "/d/controller"),
        *("--log-file", "/d/logs/controller.log", *common),
    ]
    assert [(each.name, each.rank) for each in brokers] == [("broker-0", 1), ("broker-1", 1)]
    assert brokers[1].command[shared:] == [
        *("broker", "--id", "1", "--controller", "127.0.0.1:9000", "--host", "h", "--port", "2"),
        *("--data", "/d/broker-1", "--cluster-secret-file", "/d/controller/cluster.secret"),
        *("--log-file", "/d/logs/broker-1.log"),
        *("--slow", "20", "--rack", "b", *common),
    ]
    assert "--slow" not in brokers[0].command


def test_brokers_advertise_the_given_host_with_their_own_ports() -> None:
    for host, written in (("localhost", "localhost"), ("fd00::1", "[fd00::1]")):
        refuse_unreachable(host)
        controller, *brokers = list_programs(
            *("0.0.0.0", 9000, [1, 2], None, {}, "/d", []), temporary=True, advertised_host=host
        )
        assert "--config" not in controller.command
        for port, broker in enumerate(brokers, 1):
            place = broker.command.index("--config")
            assert broker.command[place + 1] == f"advertised.listeners=PLAINTEXT://{written}:{port}"


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "localhost:9092", "[::1]"])
def test_a_host_that_clients_cannot_connect_to_is_not_advertised(host: str) -> None:
    with pytest.raises(UsageError, match=r"--advertised-host .*host"):
        refuse_unreachable(host)


def test_every_node_gets_its_own_port_for_metrics() -> None:
    nodes = list_programs(
        *("h", 9000, [1, 2], None, {}, "/d", []), temporary=True, metrics_ports=[5, 6, 7]
    )
    for node, port in zip(nodes, "567", strict=True):
        words = list(node.command)
        assert words[words.index("--metrics-port") + 1] == port
    assert list(nodes[0].command)[list(nodes[0].command).index("--metrics-host") + 1] == "h"


def test_ports_for_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client")
    assert choose_metrics_ports(None, 2) == []
    assert choose_metrics_ports(9400, 2) == [9400, 9401, 9402]
    assert choose_metrics_ports(0, 1) == [0, 0]
    with pytest.raises(UsageError, match="--metrics-port 65534: 3 ports"):
        choose_metrics_ports(65534, 2)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install prometheus_client"):
        choose_metrics_ports(9400, 2)


def test_the_command_passes_the_advertised_host_on_and_refuses_one_that_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Program] = []
    monkeypatch.setattr(
        "trimtab.cli.cluster_up._supervise", lambda programs, *_: started.extend(programs)
    )
    up = ["cluster", "up", "--port", "0", "--advertised-host"]
    assert main([*up, "kafka"]) == 0
    (_, broker) = started
    assert [each for each in broker.command if "PLAINTEXT://kafka:" in each]
    started.clear()
    assert main([*up, "kafka:9092"]) == 1
    assert "--advertised-host kafka:9092: write a host without a port" in capsys.readouterr().err
    assert started == []


def test_data_that_are_kept_are_forced_to_disk() -> None:
    programs = list_programs("h", 9000, [1], None, {}, "/d", [], temporary=False)
    assert not [each for each in programs if "--no-fsync" in each.command]


def test_options_of_all_nodes_are_checked_before_any_starts() -> None:
    defaults = [f"{name}={value}" for name, value in EMBEDDED.items()]
    assert read_config([]) == defaults
    assert read_config(["num_partitions=6", "log.retention.ms=5"]) == [
        *defaults,
        "num.partitions=6",
        "log.retention.ms=5",
    ]
    for word, reason in (
        ("num.partition=6", "did you mean num.partitions"),
        ("num.partitions=x", "must be a whole number"),
        ("node.id=1", "node.id differs from broker to broker"),
        ("listeners=PLAINTEXT://:1", "listeners differs from broker to broker"),
        ("group.consumer.session.timeout.ms=70000", "max.session.timeout.ms=60000"),
    ):
        with pytest.raises(UsageError, match=reason):
            read_config([word])


def test_ports_are_consecutive_or_free() -> None:
    assert choose_ports(9092, 3) == [9092, 9093, 9094]
    assert choose_ports(0, 2) == [0, 0]
    for first, brokers in ((65535, 2), (-1, 1), (65536, 1)):
        with pytest.raises(UsageError, match="exceed 0 to 65535"):
            choose_ports(first, brokers)


def test_ports_that_are_held_are_given_to_nobody_else_but_can_be_listened_on() -> None:
    with hold_ports("127.0.0.1", [0, 0]) as ports:
        assert len({*ports}) == 2
        with (
            socket.create_server(("127.0.0.1", ports[0])),
            pytest.raises(Unavailable, match=r"in use.*name another --port"),
            hold_ports("127.0.0.1", [ports[0]]),
        ):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", ports[1]))


def test_data_of_more_brokers_are_refused(tmp_path: Path) -> None:
    for name in ("broker-0", "broker-2", "broker-x", "controller"):
        (tmp_path / name).mkdir()
    refuse_missing_brokers(str(tmp_path), 3)
    refuse_missing_brokers(str(tmp_path / "none"), 1)
    with pytest.raises(UsageError, match=r"--brokers 2: .* holds the data of 3 brokers"):
        refuse_missing_brokers(str(tmp_path), 2)


def test_temporary_data_go_and_the_logs_of_a_start_that_failed_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with open_data(None, 1) as given:
        (Path(given) / "broker-0").mkdir()
    assert list(tmp_path.iterdir()) == []

    def fail() -> None:
        with open_data(None, 1) as data:
            (Path(data) / "broker-0").mkdir()
            raise Unavailable("no start")

    with pytest.raises(Unavailable, match="no start"):
        fail()
    (data,) = tmp_path.iterdir()
    assert [path.name for path in data.iterdir()] == ["logs"]


def test_whoever_only_supervises_imports_little() -> None:
    heavy = (
        "asyncio",
        "uvloop",
        "typing",
        "pathlib",
        "trimtab.cluster.broker",
        "trimtab.kafka.wire",
    )
    code = (
        "import sys, trimtab.cli.cluster_up, trimtab.cluster.processes.supervisor\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
