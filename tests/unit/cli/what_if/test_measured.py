"""Where measured load comes from: a table's days on a recording's brokers, and a live cluster."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.what_if.recordings import record, snapshots
from trimtab import Cluster, Producer
from trimtab.cli import main

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def recording(tmp_path: Path) -> str:
    found = snapshots(brokers=2, topics={"flights": 2}, factor=1, windows=4, readers=3.0)
    return record(tmp_path / "hour.jsonl.gz", found)


def table(path: Path, rates: list[float], minutes: int = 60, topic: str = "flights") -> str:
    """Windows in which partition 0 gets these bytes/s, and partition 1 a tenth."""
    begin = datetime(2026, 11, 2, tzinfo=UTC)
    rows = [
        {
            "window": {
                "start": begin + timedelta(minutes=minutes * number),
                "end": begin + timedelta(minutes=minutes * (number + 1)),
            },
            "topic": topic,
            "partition": partition,
            "TotalBytes": round(rate * 60 * minutes / (10 if partition else 1)),
        }
        for number, rate in enumerate([*rates, 0.0])
        for partition in (0, 1)
    ]
    path.mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(rows), path / "part-0.parquet")
    return str(path)


def forecast(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["what-if", *words, "--growth", "2", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_last_day_of_a_table_is_forecast_and_the_day_before_is_the_back_test(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first day had twice as much, the second 1000 to 3300 bytes/s, the third a tenth more."""
    day = [1000.0 + 100 * hour for hour in range(24)]
    rates = [*(2 * each for each in day), *day, *(1.1 * each for each in day)]
    found = forecast(capsys, "--recording", recording, "--from", table(tmp_path / "t", rates))
    assert found["windows"] == 24
    assert found["back_test"]["written"] == pytest.approx(1 - 1 / 1.1)
    one, other = (each["after"] for each in found["brokers"])
    assert one["written"] == pytest.approx([2200, 1.1 * 4300, 7260])
    assert other["written"] == pytest.approx([220, 0.11 * 4300, 726])
    assert one["sent"][1] == pytest.approx(3 * 1.1 * 4300), "it is read three times"
    assert found["source"] == f"{tmp_path / 't'}, on the brokers of {recording}"


def test_half_of_a_short_table_forecasts_the_other_half(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = [1000.0] * 3 + [2000.0] * 3
    found = forecast(capsys, "--recording", recording, "--from", table(tmp_path / "t", rates))
    assert found["back_test"]["written"] == pytest.approx(0.5)
    assert found["brokers"][0]["after"]["written"][1] == pytest.approx(3000)


@pytest.mark.parametrize(
    ("rates", "topic", "reason"),
    [
        ([1.0] * 3, "flights", "has 3 windows, and a back-test needs 4"),
        ([1.0] * 9, "cargo", "the cluster has none of its partitions"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    rates: list[float],
    topic: str,
    reason: str,
    recording: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--recording", recording, "--from", table(tmp_path / "t", rates, topic=topic)]
    assert main(["what-if", *words, "--growth", "2"]) == 1
    assert reason in capsys.readouterr().err


def test_a_recording_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "--recording", "/nowhere", "--growth", "2"]) == 1
    assert "/nowhere does not exist" in capsys.readouterr().err


def test_a_live_cluster_is_watched_with_probes_that_leave_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Cluster(brokers=2) as cluster:
        with Producer(cluster.bootstrap_servers) as producer:
            for _ in range(100):
                producer.send("flights", b"x" * 1000)
        servers = ["--bootstrap-server", cluster.bootstrap_servers]
        words = ["--partitions", "flights:3", "--for", "11", "--window", "2", "--json"]
        assert main(["what-if", *servers, *words]) == 0
        shown = capsys.readouterr()
        assert main(["topics", "--list", *servers]) == 0
        assert capsys.readouterr().out.split() == ["flights"]
    found = json.loads(shown.out)
    assert shown.err == "Watching the cluster for 11 s …\n"
    assert found["windows"] >= 5
    assert all(each["before"]["p99_s"] > 0 for each in found["brokers"])
