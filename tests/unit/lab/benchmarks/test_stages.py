"""`python -m lab.benchmarks STAGE` runs the module of the stage."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lab.benchmarks.__main__ import STAGES, main


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_has_a_module_that_runs_it(stage: str) -> None:
    spec = find_spec(f"lab.benchmarks.{stage}")
    assert spec is not None
    assert "\ndef run(" in Path(str(spec.origin)).read_text(encoding="utf-8")


def test_a_stage_is_run_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr("lab.benchmarks.batch.run", lambda *numbers: given.append(numbers))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "batch", "--runs", "2", "--records", "3"])
    assert main() == 0
    assert given == [(2, 3)]
