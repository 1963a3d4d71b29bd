"""Forecasts of recordings whose load is known: back-tests, intervals, and checks afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import log
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.what_if.recordings import WINDOW_S, record, snapshots
from trimtab.cli import main
from trimtab.client.collector import Snapshot
from trimtab.client.measure.watch import Answers
from trimtab.kafka.records import TopicPartition


def forecast(capsys: pytest.CaptureFixture[str], recording: str, *words: str) -> dict[str, Any]:
    assert main(["what-if", "--recording", recording, *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(capsys: pytest.CaptureFixture[str], recording: str, *words: str) -> str:
    assert main(["what-if", "--recording", recording, *words]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    return shown.err


def brokers(found: dict[str, Any], word: str) -> dict[int, list[float] | None]:
    return {each["broker"]: (each["after"] or {}).get(word) for each in found["brokers"]}


@pytest.fixture
def make(tmp_path: Path) -> Callable[[Iterator[Snapshot]], str]:
    numbers = iter(range(100))
    return lambda found: record(tmp_path / f"{next(numbers)}.jsonl.gz", found)


def rising(topic: str, partition: int, window: int) -> float:
    """From 100 kB/s to 117 kB/s in windows 0 to 7."""
    return 100_000.0 * (1 + 0.025 * window)


def by_load(bytes_s: float, window: int) -> Answers:
    """A broker that carries 100 MB/s."""
    busy = bytes_s / 100e6
    work_s = 0.001 * (1 + 0.02 * (window % 2))
    return Answers(0.002, 0.002 + work_s * log(100 * busy) / (1 - busy))


def test_intervals_have_all_windows_and_at_least_the_error(
    capsys: pytest.CaptureFixture[str], make: Callable[[Iterator[Snapshot]], str]
) -> None:
    """Six replicas a broker; the first four windows have a mean of 1.0375, the others of 1.1375."""
    found = forecast(capsys, make(snapshots(rate=rising)), "--growth", "2")
    assert found["back_test"]["written"] == pytest.approx(0.1 / 1.1375)
    low, mid, high = brokers(found, "written")[0] or []
    assert mid == pytest.approx(6 * 2 * 108_750)
    assert low == pytest.approx(mid * (1 - 0.1 / 1.1375))
    assert high == pytest.approx(mid * (1 + 0.1 / 1.1375))
    assert found["brokers"][0]["before"]["written"] == pytest.approx(mid / 2)
    assert found["windows"] == 8


def test_a_forecast_of_nothing_is_what_was_measured_of_each_resource(
    capsys: pytest.CaptureFixture[str], make: Callable[[Iterator[Snapshot]], str]
) -> None:
    """A leader sends to two groups and one follower."""
    found = forecast(capsys, make(snapshots(readers=2.0)), "--growth", "flights:1")
    assert brokers(found, "written") == {each: [6e6] * 3 for each in range(6)}
    assert brokers(found, "sent") == {each: [9e6] * 3 for each in range(6)}
    assert brokers(found, "stored") == {each: [6 * 3600e6] * 3 for each in range(6)}
    partition = found["partitions"][0]
    assert (partition["topic"], partition["replicas"]) == ("flights", [0, 1])
    assert partition["written"] == [1e6] * 3
    assert partition["read"] == [2e6] * 3


def test_what_is_left_to_chance_makes_the_interval_wide(
    capsys: pytest.CaptureFixture[str], make: Callable[[Iterator[Snapshot]], str]
) -> None:
    """One partition may come to any broker."""
    found = forecast(capsys, make(snapshots()), "--topic", "new:1:1:bytes=1e6,readers=0,kept=60")
    for low, mid, high in filter(None, brokers(found, "written").values()):
        assert (low, high) == (6e6, 7e6)
        assert 6e6 < mid < 7e6
    total = sum(each[1] for each in filter(None, brokers(found, "written").values()))
    assert total == pytest.approx(37e6)


def test_the_slowest_answers_follow_the_load(
    capsys: pytest.CaptureFixture[str], make: Callable[[Iterator[Snapshot]], str]
) -> None:
    """Brokers have 6 to 36 MB/s."""
    recording = make(
        snapshots(rate=lambda *each: 2e5 * (1 + 3 * (each[1] % 6)), windows=20, answers=by_load)
    )
    found = forecast(capsys, recording, "--growth", "1.5")
    assert found["no_p99"] is None
    assert found["back_test"]["p99_s"] < 0.02
    for each in found["brokers"]:
        load = 1.5 * (each["before"]["written"] + each["before"]["sent"])
        low, mid, high = each["after"]["p99_s"]
        assert mid == pytest.approx(by_load(load, 0).p99_s, rel=0.2)
        assert low < mid < high
        assert each["before"]["p99_s"] == pytest.approx(by_load(load / 1.5, 0).p99_s, rel=0.02)


def test_without_probes_no_answers_are_forecast_and_bytes_are(
    capsys: pytest.CaptureFixture[str], make: Callable[[Iterator[Snapshot]], str]
) -> None:
    found = forecast(capsys, make(snapshots()), "--growth", "2")
    assert found["no_p99"].startswith("no probes were measured: record with")
    assert brokers(found, "p99_s") == dict.fromkeys(range(6))
    assert brokers(found, "written")[0] == [12e6] * 3


def test_answers_whose_back_test_is_off_by_half_are_refused(
    capsys: pytest.CaptureFixture[str], make: Callable[[Iterator[Snapshot]], str]
) -> None:
    def worse(bytes_s: float, window: int) -> Answers:
        return Answers(0.001, 0.01 if window < 10 else 0.03)

    found = forecast(capsys, make(snapshots(windows=20, answers=worse)), "--growth", "2")
    assert found["back_test"]["p99_s"] == pytest.approx(2 / 3)
    assert "off by 67%, and above 50% nothing is said" in found["no_p99"]
    assert brokers(found, "p99_s") == dict.fromkeys(range(6))


def test_answers_at_too_many_bytes_are_refused(
    capsys: pytest.CaptureFixture[str], make: Callable[[Iterator[Snapshot]], str]
) -> None:
    found = forecast(capsys, make(snapshots(windows=20, answers=by_load)), "--growth", "3")
    assert "would have 3.0 times the bytes/s" in found["no_p99"]


def test_few_windows_are_refused(
    capsys: pytest.CaptureFixture[str], make: Callable[[Iterator[Snapshot]], str]
) -> None:
    assert "has 3 windows of 60 s, and a back-test needs 4" in refusal(
        capsys, make(snapshots(windows=3)), "--growth", "2"
    )


def test_what_no_consumer_commits_and_what_nobody_leads_is_noted(
    capsys: pytest.CaptureFixture[str], make: Callable[[Iterator[Snapshot]], str]
) -> None:
    recording = make(snapshots(readers=0.0, factor=1))
    found = forecast(capsys, recording, "--without-broker", "5")
    assert found["brokers"][5]["after"] is None
    consumers, leaders = found["notes"]
    assert consumers.startswith("No consumer commits offsets")
    assert leaders == "3 partitions have no leader then, and are not written."


def test_an_outcome_is_inside_its_interval_or_outside(
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Iterator[Snapshot]], str],
    tmp_path: Path,
) -> None:
    """flights grew as was said, then twice as much; and once a partition has moved from 0 and 1."""
    found = forecast(capsys, make(snapshots(rate=rising, answers=by_load)), "--growth", "2")
    said = tmp_path / "forecast.json"
    said.write_text(json.dumps(found))

    def check(*, times: float, moved: dict[TopicPartition, tuple[int, ...]]) -> tuple[int, Any]:
        later = make(snapshots(rate=lambda *each: times * rising(*each), moved=moved))
        code = main(["what-if", "--check", str(said), "--recording", later, "--json"])
        return code, json.loads(capsys.readouterr().out)

    code, shown = check(times=2, moved={})
    assert (code, shown["inside"], shown["of"]) == (0, 18, 18)
    assert max(row["error"] for row in shown["outcomes"]) == pytest.approx(0)
    code, shown = check(times=4, moved={})
    assert (code, shown["inside"]) == (1, 0)
    assert shown["outcomes"][0]["error"] == pytest.approx(0.5)
    code, shown = check(times=2, moved={TopicPartition("flights", 0): (2, 3)})
    outside = {row["broker"] for row in shown["outcomes"] if not row["is_inside"]}
    assert (code, outside) == (1, {0, 1, 2, 3})


def test_a_check_for_people_names_what_is_outside(
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Iterator[Snapshot]], str],
    tmp_path: Path,
) -> None:
    recording = make(snapshots())
    said = tmp_path / "forecast.json"
    said.write_text(json.dumps(forecast(capsys, recording, "--growth", "2")))
    assert main(["what-if", "--check", str(said), "--recording", recording]) == 1
    shown = capsys.readouterr().out
    words = "broker 0 written 12.0 MB/s 12.0 MB/s to 12.0 MB/s 6.0 MB/s 100% outside"
    assert shown.splitlines()[1].split() == words.split()
    assert shown.endswith("0 of 18 outcomes inside their intervals\n")


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"what_if": 0}'])
def test_a_file_that_is_no_forecast_is_refused(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "forecast.json").write_text(text)
    assert main(["what-if", "--check", str(tmp_path / "forecast.json")]) == 1
    assert "--check" in capsys.readouterr().err
    assert main(["what-if", "--check", "x", "--growth", "2"]) == 1
    assert "--check and --growth are both given" in capsys.readouterr().err


def test_answers_are_checked_where_they_were_forecast(
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Iterator[Snapshot]], str],
    tmp_path: Path,
) -> None:
    recording = make(snapshots(windows=20, answers=by_load))
    said = tmp_path / "forecast.json"
    said.write_text(json.dumps(forecast(capsys, recording, "--growth", "1")))
    assert main(["what-if", "--check", str(said), "--recording", recording, "--json"]) == 0
    rows = [
        row for row in json.loads(capsys.readouterr().out)["outcomes"] if row["what"] == "p99_s"
    ]
    assert len(rows) == 6
    assert all(row["error"] < 0.01 for row in rows)


def test_a_table_for_people(
    capsys: pytest.CaptureFixture[str], make: Callable[[Iterator[Snapshot]], str]
) -> None:
    assert main(["what-if", "--recording", make(snapshots()), "--without-rack", "a"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "What if: without broker 0, 3"
    assert lines[2] == "Back-test: written ±0.0%, sent by leaders ±0.0%, stored ±0.0%"
    assert lines[5].split() == ["broker", "0", "6.0", "MB/s", "-", "-", "-"]
    assert lines[6].split()[2:] == ["6.0", "MB/s"] * 4


def test_windows_are_as_long_as_is_said(
    capsys: pytest.CaptureFixture[str], make: Callable[[Iterator[Snapshot]], str]
) -> None:
    recording = make(snapshots(windows=9, rate=rising))
    found = forecast(capsys, recording, "--growth", "1", "--window", f"{2 * WINDOW_S}")
    assert found["windows"] == 5
    low = (brokers(found, "written")[0] or [])[0]
    assert low <= 6 * 100_000 * 1.0125
