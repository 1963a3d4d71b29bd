"""`trimtab load` without a verb: measured on a cluster of two brokers, without Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.unit.cli.live.made_snapshots import Made, make_snapshot, make_tail, spread
from trimtab import Admin, Cluster, Producer
from trimtab.cli import main
from trimtab.cli.live.findings import find
from trimtab.cli.live.rows import summarize
from trimtab.cli.live.source import Source
from trimtab.cli.load.live import describe, measure, show
from trimtab.client.collector import Snapshot
from trimtab.client.measure.lag import PartitionLag
from trimtab.client.measure.probe import PROBE_TOPIC
from trimtab.kafka.errors import Unavailable
from trimtab.kafka.records import TopicPartition

FLIGHTS = TopicPartition("flights", 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Broker 0 leads all of what is written."""
    over = threading.Event()
    with Cluster(brokers=2, racks=["a", "b"]) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("flights", assignment={0: [0, 1], 1: [0, 1]})

        def produce() -> None:
            with Producer(cluster.bootstrap_servers, linger_ms=0) as producer:
                while not over.wait(0.05):
                    for _ in range(100):
                        producer.send("flights", bytes(100), key=b"LH400", partition=0)

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            yield cluster
        finally:
            over.set()
            thread.join()


def test_the_load_is_printed_as_tables(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--bootstrap-server", cluster.bootstrap_servers, "--window", "2"]
    assert main(["load", *words]) == 0
    out, err = capsys.readouterr()
    assert err == "Measuring for 2 s …\n"
    assert out.startswith("Cluster ")
    titles = [line for line in out.splitlines() if line and "  " not in line]
    for title in ("Brokers", "Topics with most load", "Hot keys", "Between racks", "Findings"):
        assert title in titles
    assert "flights-0   100%  LH400" in out
    assert "It costs: flights (hot-key)" in out
    assert "Broker 0 sends 2.0 times the mean: flights-0 alone is 100% of it." in out


def test_the_load_is_one_json_object(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--bootstrap-server", cluster.bootstrap_servers, "--window", "2", "--keys", "none"]
    assert main(["load", "--json", *words]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [each["topic"] for each in shown["topics"]] == ["flights"]
    assert shown["topics"][0]["bytes_in"] > 20_000
    assert shown["levels"]["out"]["level"] == pytest.approx(2, rel=0.01)
    assert shown["newest_records"] == []
    assert "uneven-leaders" in {each["rule"] for each in shown["findings"]}


def test_sigterm_ends_it_and_leaves_no_topic_for_probes(cluster: Cluster) -> None:
    servers = ["--bootstrap-server", cluster.bootstrap_servers]
    command = [sys.executable, "-m", "trimtab", "load", *servers, "--window", "600", "--probe"]
    with (
        Admin(cluster.bootstrap_servers) as admin,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        assert process.stderr.readline() == "Measuring for 600 s …\n"
        while PROBE_TOPIC not in admin.topics():
            assert process.poll() is None
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 143
        assert PROBE_TOPIC not in admin.topics()


def test_a_cluster_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--bootstrap-server", "127.0.0.1:1", "-X", "default.api.timeout.ms=500"]
    assert main(["load", *words]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--window", "1"], "--window 1: write 2 to 3600 seconds"),
        (["--top", "0"], "--top 0: write 1 or more"),
        (["--cost-per-gb", "nan"], "--cost-per-gb nan: write 0 or more"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["load", *words]) == 1
    assert capsys.readouterr() == ("", f"trimtab load: {why}\n")


@pytest.mark.parametrize("words", [["--json"], ["--window", "10"], ["--bootstrap", "a:1"]])
def test_an_option_before_report_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["load", *words, "report"])
    assert "comes before report: write its options after it" in capsys.readouterr().err


def test_spark_is_not_imported() -> None:
    code = (
        "import sys; from trimtab.cli import main; import trimtab.cli.load.live;"
        "main(['load', '--window', '1']); print('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


class Numbered(Source):
    """Snapshots that come one after the other, each a second later."""

    def __init__(self) -> None:
        super().__init__(is_live=True)
        self.now_s = 100.0
        self.limits: list[float] = []

    def wait(self, after: int, timeout_s: float) -> Snapshot:
        self.limits.append(timeout_s)
        self.now_s += 1.0
        self.snapshot = make_snapshot({}, number=after + 1)
        self.summary = summarize(self.snapshot)
        return self.snapshot


def test_the_first_summary_after_the_window_is_taken() -> None:
    source = Numbered()
    assert measure(source, 4.5, lambda: source.now_s).snapshot.number == 5
    assert source.limits == [64.5, 63.5, 62.5, 61.5, 60.5]


def test_a_window_is_not_waited_for_without_end() -> None:
    class Silent(Numbered):
        def wait(self, after: int, timeout_s: float) -> Snapshot:
            raise Unavailable(f"nothing within {timeout_s:g} s")

    with pytest.raises(Unavailable, match="within 70 s"):
        measure(Silent(), 10.0, lambda: 0.0)


def test_names_are_shown_without_what_a_terminal_would_obey() -> None:
    lags = [PartitionLag("g\x1b[31m", FLIGHTS, 0, 5000, 5000, 9.0, 1.0, None)]
    tails = {FLIGHTS: make_tail({"k\x1b": 1.0})}
    topics = {"flights": spread([90_000.0, 1.0, 1.0])}
    summary = summarize(make_snapshot(topics, lags=lags, tails=tails))
    text = describe(summary, find(summary), 10, 0.02)
    assert "\x1b" not in text
    assert r"group g\x1b[31m (growing-lag)" in text
    assert json.dumps(show(summary, find(summary), 10))


def test_of_long_tables_the_first_rows_are_shown() -> None:
    topics = {f"topic-{index:02}": [Made(1000.0 - index)] for index in range(33)}
    summary = summarize(make_snapshot(topics))
    text = describe(summary, [], 10, 0.02)
    assert "topic-09" in text
    assert "topic-10" not in text
    assert "… and 23 more (--top N)" in text
    assert "Nothing to do: no rule is broken." in text
    assert len(show(summary, [], 10)["topics"]) == 10


def test_what_is_not_measured_is_counted() -> None:
    text = describe(summarize(make_snapshot({"a": [Made(1.0), Made(None)]})), [], 10, 0.02)
    assert "1 topic, 2 partitions (1 not measured)" in text
    assert "Groups" not in text
    assert "Between racks" not in text
