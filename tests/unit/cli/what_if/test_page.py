from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.cli.what_if.recordings import record, snapshots
from trimtab.cli import main
from trimtab.client.measure.watch import Answers


def write(tmp_path: Path, probes: bool, *words: str) -> str:
    """The page of a forecast; a topic has a name with markup, and broker 0 gets 10.2 MB/s."""

    def answers(bytes_s: float, window: int) -> Answers:
        return Answers(0.001, 0.002 + bytes_s / 1e9 + window / 1e5)

    topics = {"<b>flights": 12, "trips": 6}
    found = snapshots(
        windows=20,
        topics=topics,
        rate=lambda *each: 2e5 * (1 + 3 * (each[1] % 6)),
        answers=answers if probes else None,
    )
    recording = record(tmp_path / "hour.jsonl.gz", found)
    page = tmp_path / "page.html"
    assert main(["what-if", "--recording", recording, *words, "--page", str(page)]) == 0
    return page.read_text(encoding="utf-8")


def test_each_broker_has_a_bar_before_and_one_after_in_both_widths(tmp_path: Path) -> None:
    page = write(tmp_path, True, "--growth", "1.2", "--without-broker", "5")
    assert page.count("<svg") == 2 * 4
    assert page.count("<title>broker 0, before: 10.2 MB/s</title>") == 2
    assert "<title>broker 0, after: 12.2 MB/s</title>" in page
    assert "<title>broker 5, after: no longer there</title>" in page
    assert page.count('class="span"') == 2 * 4 * 5
    assert "<p>all topics: 1.2 x</p>\n<p>without broker 5</p>" in page


def test_nothing_leaves_its_picture_and_nothing_is_loaded(tmp_path: Path) -> None:
    page = write(tmp_path, True, "--growth", "1.2")
    assert not re.search(r"(src|href)=|@import|url\(", page)
    for width, drawn in re.findall(r'viewBox="0 0 (\d+) \d+"[^>]*>(.*?)</svg>', page, re.S):
        ends = [
            float(x) + float(w)
            for x, w in re.findall(r'x="([\d.]+)" y="\d+" width="([\d.]+)"', drawn)
        ]
        ends += map(float, re.findall(r'x2="([\d.]+)"', drawn))
        assert max(ends) < float(width)


def test_names_are_no_markup(tmp_path: Path) -> None:
    page = write(tmp_path, False, "--growth", "<b>flights:2")
    assert "<b>flights" not in page
    assert "<p>&lt;b&gt;flights: 2 x</p>" in page
    assert "&lt;b&gt;flights-0" in page


def test_why_no_answers_are_forecast_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = write(tmp_path, False, "--growth", "2")
    assert "<p>Not forecast: no probes were measured" in page
    assert page.count("<svg") == 2 * 3
    assert "p99 of answers: not forecast: no probes were measured" in capsys.readouterr().out
