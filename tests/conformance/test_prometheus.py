"""A real Prometheus scrapes three brokers and their controller under load: it needs `prometheus` on
the path (Debian's package)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

pytest.importorskip("prometheus_client")

from lab.processes import free_neighbours, free_ports
from trimtab import Admin, Consumer, Producer

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="Prometheus is not installed"
)

OURS = Path(__file__).resolve().parents[2] / "observability"
BOARD = json.loads((OURS / "grafana-dashboard.json").read_text())
ALERTS = (OURS / "alerts.yml").read_text()
LIMIT_S = 60.0


class Watched(NamedTuple):
    """A cluster under load, and the Prometheus that watches it."""

    api: str
    nodes: Mapping[str, subprocess.Popen[str]]

    def ask(self, what: str, **parameters: str) -> Any:
        with urlopen(f"{self.api}/{what}?{urlencode(parameters)}", timeout=LIMIT_S) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.ask("query", query=expression)["result"]
        return found

    def firing(self) -> set[str]:
        alerts = self.ask("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}


def until(condition: Callable[[], Any], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what()
        Event().wait(0.1)


def node(directory: Path, name: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "trimtab", *words, "--data", str(directory / name)),
            *("--log-file", str(directory / f"{name}.log"), "--no-fsync"),
            *("--cluster-secret-file", str(directory / "cluster.secret")),
            *("--config", "default.replication.factor=3", "offsets.topic.num.partitions=3"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


def load(servers: str, over: Event) -> None:
    """Write and read until it is over. One group reads, another stays at the first record."""
    with (
        Producer(servers, acks="all", linger_ms=5) as producer,
        Consumer(servers, group_id="reads", auto_offset_reset="earliest") as consumer,
        Consumer(servers, group_id="stays") as other,
    ):
        other.commit({("watched", partition): 0 for partition in range(6)})
        consumer.subscribe(["watched"])
        while not over.wait(0.02):
            for number in range(50):
                producer.send("watched", b"x" * 200, key=b"%d" % number)
            if consumer.poll(0):
                consumer.commit()
        producer.flush()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("watched")
    first = free_neighbours(4)
    controller, web, *ports = free_ports(5)
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    config = (OURS / "prometheus.yml").read_text()
    config = re.sub(
        "localhost:940([0-3])", lambda found: f"127.0.0.1:{first + int(found[1])}", config
    )
    (directory / "prometheus.yml").write_text(re.sub(r"interval: \S+", "interval: 500ms", config))
    (directory / "alerts.yml").write_text(re.sub(r"for: \S+", "for: 1s", ALERTS))
    with ExitStack() as stack:

        def keep(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        metrics = ("--metrics-port", str(first))
        nodes = {
            "controller": keep(
                node(directory, "c", "controller", "--port", str(controller), *metrics)
            )
        }
        for broker, port in enumerate(ports):
            words = (
                "--id",
                str(broker),
                "--port",
                str(port),
                "--controller",
                f"127.0.0.1:{controller}",
            )
            metrics = ("--metrics-port", str(first + 1 + broker))
            nodes[str(broker)] = keep(node(directory, f"b{broker}", "broker", *words, *metrics))
        for each in nodes.values():
            assert each.stdout is not None
            assert each.stdout.readline().startswith("ready")
        with open(directory / "prometheus.log", "w") as log:
            keep(
                subprocess.Popen(
                    [
                        *("prometheus", f"--config.file={directory}/prometheus.yml"),
                        f"--storage.tsdb.path={directory}/tsdb",
                        f"--web.listen-address=127.0.0.1:{web}",
                    ],
                    stderr=log,
                    stdout=log,
                    text=True,
                )
            )
        with Admin(servers) as admin:
            admin.create_topic("watched", 6, replication_factor=3)
        over = Event()
        loading = Thread(target=load, args=(servers, over))
        loading.start()
        try:
            found = Watched(f"http://127.0.0.1:{web}/api/v1", nodes)
            until(lambda: _is_up(found), lambda: (directory / "prometheus.log").read_text())
            yield found
        finally:
            over.set()
            loading.join()


def _is_up(watched: Watched) -> bool:
    try:
        return len(watched.query("up == 1")) == 4
    except OSError:
        return False


def test_every_query_of_the_board_returns_data(watched: Watched) -> None:
    queries = [
        target["expr"].replace("$topic", ".*").replace("$__rate_interval", "10s")
        for panel in BOARD["panels"]
        for target in panel["targets"]
    ]
    assert len(queries) > 25
    empty: list[str] = []

    def have_data() -> bool:
        empty[:] = [each for each in queries if not watched.query(each)]
        return not empty

    until(have_data, lambda: empty)


@pytest.mark.parametrize("way", ["in", "out"])
def test_the_bytes_of_the_load_are_counted(watched: Watched, way: str) -> None:
    rate = f"sum(rate(kafka_server_brokertopicmetrics_bytes{way}_total{{topic='watched'}}[10s]))"
    until(lambda: float(watched.query(rate)[0]["value"][1]) > 1000, lambda: watched.query(rate))


def test_the_lag_of_both_groups_is_that_of_all_partitions(watched: Watched) -> None:
    lags = "count by (consumergroup) (kafka_consumergroup_lag{topic='watched'})"

    def are_complete() -> bool:
        found = {each["metric"]["consumergroup"]: each["value"][1] for each in watched.query(lags)}
        return found == {"reads": "6", "stays": "6"}

    until(are_complete, lambda: watched.query(lags))


def test_every_alert_is_valid_and_a_healthy_cluster_raises_none(watched: Watched) -> None:
    tool = shutil.which("promtool")
    assert tool is not None
    subprocess.run([tool, "check", "rules", str(OURS / "alerts.yml")], check=True)
    rules: list[Any] = []

    def are_evaluated() -> bool:
        (group,) = watched.ask("rules")["groups"]
        rules[:] = group["rules"]
        return all(rule["health"] != "unknown" for rule in rules)

    until(are_evaluated, lambda: rules)
    assert len(rules) == ALERTS.count("alert:")
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    of_the_cluster = watched.firing() - {"DiskNearlyFull", "DiskFullWithinFourHours"}
    assert of_the_cluster == set()  # the disk is the machine's


def test_a_killed_broker_raises_the_alerts(watched: Watched) -> None:
    watched.nodes["2"].kill()
    wanted = {"BrokerDown", "UnderReplicatedPartitions"}
    until(lambda: wanted <= watched.firing(), lambda: watched.ask("alerts"))


def test_a_killed_controller_raises_the_alert(watched: Watched) -> None:
    watched.nodes["controller"].kill()
    until(lambda: "NoActiveController" in watched.firing(), lambda: watched.ask("alerts"))
