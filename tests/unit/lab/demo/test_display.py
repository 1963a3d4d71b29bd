"""What the demo says where nobody looks at a terminal."""

from __future__ import annotations

import pytest

from lab.demo.display import Display, tabulate
from lab.demo.experiment import WAYS, Run
from tests.unit.lab.demo.test_report import make_summary, make_way


def test_progress_is_a_line_for_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [Run(way, 100) for way in WAYS[:2]]
    with Display().follow(WAYS[:2], 100) as show:
        for done in range(0, 101, 5):
            runs[0].acknowledged = 100
            runs[1].acknowledged = done
            show(runs)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[0] == "  round robin 100%, sticky 10%"
    assert lines[-1] == "  round robin 100%, sticky 100%"


def test_what_happens_now_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    display.say("first [1/2]")
    with display.busy("second …"):
        pass
    assert capsys.readouterr().out.splitlines() == ["first [1/2]", "second …"]


def test_no_table_is_wider_than_80_columns() -> None:
    third = 1 / 3
    ways = {way.name: make_way(way.title, (third, third, third), 24_800) for way in WAYS}
    lines = [line for table in tabulate(make_summary(ways)) for line in table.splitlines()]
    assert max(map(len, lines)) <= 80
    assert len(lines) > 3 * len(WAYS)
