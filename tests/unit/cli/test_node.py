"""Options, files and signals of `trimtab broker` and `trimtab controller`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trimtab.cli import broker, controller
from trimtab.cli.node import advertise, read_node_options, serve_metrics
from trimtab.cluster.config.node import CONTROLLER_ROLE, NodeConfig
from trimtab.kafka.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from trimtab.cluster.processes.metrics_server import MetricsServer


def read_broker(*words: str) -> NodeConfig:
    parser = argparse.ArgumentParser()
    broker.configure(parser)
    return broker.read_node(parser.parse_args([*words, "--insecure"]))


def read_controller(*words: str) -> NodeConfig:
    parser = argparse.ArgumentParser()
    controller.configure(parser)
    return read_node_options(parser.parse_args([*words, "--insecure"]), CONTROLLER_ROLE, {})


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "server.properties"
    path.write_text(
        "broker.id=1\ncontroller.quorum.bootstrap.servers=file:1\nbroker.rack=file\n"
        "listeners=PLAINTEXT://file:1\nlog.dirs=/file\nnum.partitions=2\nlog.retention.ms=2\n"
    )
    return str(path)


def test_a_file_alone_will_do(file: str) -> None:
    node = read_broker(file)
    assert node[:5] == (1, ("file", 1), None, ("file", 1), "/file")
    assert (node.options["broker.rack"], node.options["num.partitions"]) == ("file", 2)


def test_the_command_line_beats_config_beats_the_file(file: str) -> None:
    flags = ("--id", "3", "--controller", "flag:3", "--data", "/flag", "--rack", "flag")
    config = ("--config", "node.id=2", "log.dirs=/config", "num_partitions=6")
    node = read_broker(file, *config, *flags, "--host", "flag", "--port", "0")
    assert node[:5] == (3, ("flag", 0), None, ("flag", 3), "/flag")
    given = ("node.id", "broker.id", "broker.rack", "num.partitions", "log.retention.ms")
    assert [node.options[name] for name in given] == [3, 3, "flag", 6, 2]


def test_flags_alone_will_do() -> None:
    node = read_broker("--id", "0", "--controller", "c:1")
    assert node[:5] == (0, ("127.0.0.1", 9092), None, ("c", 1), None)
    assert read_controller()[:2] == (3000, ("127.0.0.1", 9093))
    assert read_controller("--node-id", "9", "--port", "1")[:2] == (9, ("127.0.0.1", 1))


def test_a_directory_may_have_a_comma_in_its_name() -> None:
    node = read_broker("--id", "0", "--controller", "c:1", "--data", "/a,b")
    assert (node.directory, node.options["log.dirs"]) == ("/a,b", ("/a,b",))


def test_a_directory_is_absolute_whoever_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (("--data", "d"), ("--config", "log.dirs=d"), ("--config", "log.dir=d")):
        node = read_broker("--id", "0", "--controller", "c:1", *words)
        assert node.directory == f"{tmp_path}/d"
        assert node.options["log.dirs"] == (f"{tmp_path}/d",)


def test_a_listener_that_the_command_line_beats_is_forgotten(file: str) -> None:
    assert read_broker(file).options["listeners"] == ("PLAINTEXT://file:1",)
    assert "listeners" not in read_broker(file, "--port", "2").options


def test_an_error_names_where_the_option_stands(file: str) -> None:
    for words, reason in (
        (("--config", "num.partitions=x"), "--config: .*num.partitions='x'"),
        (("--controller", "nowhere"), "--controller: .*'nowhere' is no address"),
        (("--port", "70000"), "--port 70000: choose from 0 to 65535"),
    ):
        with pytest.raises(UsageError, match=reason):
            read_broker(file, *words)
    with open(file, "a") as more:
        more.write("sasl.enabled.mechanisms=PLAIN\n")
    with pytest.raises(UsageError, match=r"server\.properties, line 8: .*sasl\.enabled"):
        read_broker(file)


def test_what_nobody_knows_is_ignored_in_a_file_and_refused_on_the_command_line(file: str) -> None:
    with open(file, "a") as more:
        more.write("a.plugin=1\nnum.partitons=4\n")
    node = read_broker(file)
    assert node.options["num.partitions"] == 2
    assert "a.plugin" not in node.options
    assert node.ignored == (
        f"{file}, line 8: a.plugin",
        f"{file}, line 9: num.partitons; did you mean num.partitions?",
    )
    with pytest.raises(UsageError, match=r"unknown broker option 'num\.partitons': did you mean"):
        read_broker(file, "--config", "num.partitons=4")


def test_others_are_told_an_address_that_they_can_come_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda: "this.machine")
    node = read_controller("--host", "h")
    assert advertise(node, 5) == ("h", 5)
    assert advertise(node._replace(listen=("0.0.0.0", 0)), 5) == ("this.machine", 5)
    assert advertise(node._replace(advertised=("name", 0)), 5) == ("name", 5)
    assert advertise(node._replace(advertised=("name", 6)), 5) == ("name", 6)


async def serve(*words: str) -> MetricsServer | None:
    parser = argparse.ArgumentParser()
    controller.configure(parser)
    arguments = parser.parse_args(words)
    node = read_node_options(arguments, CONTROLLER_ROLE, {})
    return await serve_metrics(lambda module: Nothing(), node, arguments)


class Nothing:
    """A node without metrics."""

    async def measure(self) -> list[Any]:
        return []

    def close(self) -> None:
        pass


def test_metrics_are_served_on_the_port_that_is_asked_for() -> None:
    pytest.importorskip("prometheus_client")

    async def scenario() -> None:
        assert await serve() is None
        first = await serve("--metrics-port", "0", "--metrics-host", "127.0.0.1", "--host", "::1")
        assert first is not None
        with pytest.raises(
            Unavailable, match=r"cannot serve metrics .* name another --metrics-port"
        ):
            await serve("--metrics-port", str(first.port))
        first.close()
        with pytest.raises(UsageError, match="--metrics-port 65536: choose from 0 to 65535"):
            await serve("--metrics-port", "65536")

    asyncio.run(scenario())


def test_metrics_need_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trimtab.cluster.processes.metrics_server", None)
    monkeypatch.delattr("trimtab.cluster.processes.metrics_server", raising=False)
    with pytest.raises(UsageError, match="pip install prometheus_client"):
        asyncio.run(serve("--metrics-port", "0"))
