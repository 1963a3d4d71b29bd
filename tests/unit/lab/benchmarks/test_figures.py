"""No figure in the tables of README.md and docs is typed by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab.benchmarks import figures
from lab.benchmarks.figures import (
    HEADLINES,
    ROOT,
    STAGES,
    TABLES,
    Stored,
    load,
    marks,
    render,
    write_tables,
)
from lab.benchmarks.partitioning import KIP_480, SERIES
from lab.benchmarks.partitioning import POLICIES as ALL_POLICIES
from lab.benchmarks.turns import POLICIES

MEASURED = "docs/measured.md"
ROW = {
    "metric": "send, tuned",
    "value": 3_180_000,
    "unit": "records/s",
    "rival": "confluent-kafka",
    "rival_value": 1_410_000,
    "ratio": 2.255,
}
WAY = {
    "title": "sticky",
    "kip": "KIP-480",
    "share_by_broker": {"0": 0.772, "1": 0.1, "2": 0.128},
    "latency_ms": {"p50": 8300.0, "p99": 22_600.0},
}
OUTCOME = {
    "scenario": "all well",
    "policy": "adaptive",
    "average": 1.2,
    "p99": 2000.0,
    "share": 0.01,
    "deviation": 0.047,
    "kept": 1.0,
    "batch": 31.0,
    "least": 0.3,
}


def place(rows: Sequence[object], commit: str = "abc1234") -> dict[str, object]:
    return {"commit": commit, "date": "2026-01-02", "machine": "Linux, 2 cores", "rows": rows}


def everything() -> Stored:
    turn = {"partitions": 10, "brokers": 3, "busy": 5, **dict.fromkeys(POLICIES, 1.5)}
    outcomes = [
        {**OUTCOME, "scenario": scenario, "policy": policy}
        for scenario in (KIP_480, *SERIES)
        for policy in ALL_POLICIES
    ]
    rows: dict[str, Sequence[object]] = {"demo": [WAY], "partitioning": outcomes, "turns": [turn]}
    stored: Stored = {stage: place(rows.get(stage, [ROW])) for stage in STAGES}
    for stage, setting in (
        ("kip480", "on trimtab, free"),
        ("kip794", "on trimtab, series 1, sticky"),
    ):
        metrics = ("average_ms", "p99_ms", "spread_of_brokers")
        stored[stage] = place([{**ROW, "metric": f"{name}, {setting}"} for name in metrics])
    return stored


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    for file in {table.file for table in TABLES.values()}:
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


@pytest.mark.parametrize("name", TABLES)
def test_each_table_is_what_the_stored_figures_render(name: str) -> None:
    found = marks(name).search((ROOT / TABLES[name].file).read_text(encoding="utf-8"))
    assert found is not None, f"no marks for {name}"
    drawn = render(TABLES[name], load(ROOT))
    assert drawn is None or found[2] == drawn, "run: python -m lab.benchmarks.figures --write-only"


def test_tables_are_written_between_their_marks_and_the_rest_stays(tree: Path) -> None:
    before = (tree / MEASURED).read_text()
    write_tables(tree, everything())
    after = (tree / MEASURED).read_text()
    assert "| sticky (KIP-480) | 77.2% | 10.0% | 12.8% | 8.3 s | 22.6 s |" in after
    for name, table in TABLES.items():
        found = marks(name).search((tree / table.file).read_text())
        assert found is not None
        assert found[2] == render(table, everything())
        before, after = marks(name).sub("", before), marks(name).sub("", after)
    assert before == after


def test_what_was_never_stored_stays_as_it_is(tree: Path) -> None:
    before = [(tree / file).read_text() for file in ("README.md", MEASURED)]
    stored = everything()
    write_tables(tree, {"producer": stored["producer"]})  # `table` and `java` are missing
    assert [(tree / file).read_text() for file in ("README.md", MEASURED)] == before


def test_the_readme_has_a_line_for_each_headline() -> None:
    drawn = render(TABLES["headlines"], load(ROOT))
    assert drawn is not None
    assert [line.split("|")[1].strip() for line in drawn.splitlines()[2:-2]] == [
        headline.name for headline in HEADLINES
    ]


def test_stages_of_different_commits_say_so_and_a_missing_rival_is_marked() -> None:
    stored = everything()
    stored["java"] = place([{**ROW, "rival_value": None, "ratio": None, "note": "no Java"}], "fff")
    drawn = render(TABLES["producer"], stored)
    assert drawn is not None
    assert "| `java` | send, tuned | **3.18 M records/s** | no Java |  | " in drawn
    assert "`producer`, `table`: 2026-01-02 at commit abc1234 on Linux, 2 cores; `java`:" in drawn
    assert "at commit fff" in drawn


def test_facts_are_told_with_all_that_was_measured() -> None:
    stored = everything()
    kills = {"acknowledged": 3_000_000, "lost": 0}
    stored["kills"] = place([{"stage": "kills", "metric": "kill -9", "seed": 5, "ours": kills}])
    stored["sim"] = place([{"seeds": 2500, "violations": 0, "failed_seeds": []}])
    drawn = render(TABLES["failures"], stored)
    assert drawn is not None
    assert "| `kills` | kill -9 |  |  | ours: acknowledged 3,000,000, lost 0 |" in drawn
    assert "| `sim` |  |  |  | seeds 2,500; violations 0 |" in drawn
    assert "| `patience` | send, tuned | **3.18 M records/s** | 1.41 M records/s |" in drawn


def test_a_table_without_marks_is_an_error(tree: Path) -> None:
    (tree / MEASURED).write_text("nothing")
    with pytest.raises(
        ValueError, match=r"docs/measured.md has no marks <!-- figures: producer -->"
    ):
        write_tables(tree, everything())


def test_one_stage_is_measured_stored_and_written(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "run_stage", lambda stage, runs, records: [WAY])
    assert figures.main(["--only", "demo", "--root", str(tree)]) == 0
    stored = json.loads((tree / "docs" / "figures.json").read_text())
    assert list(stored) == ["demo"]
    assert stored["demo"]["commit"]
    assert "77.2%" in (tree / MEASURED).read_text()
    assert figures.main(["--write-only", "--root", str(tree)]) == 0
