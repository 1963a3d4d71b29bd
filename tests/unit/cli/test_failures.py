from __future__ import annotations

import pytest

from trimtab.cli.failures import Failures
from trimtab.errors import Unavailable


def test_without_failures_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert Failures().report(10) == 0
    assert capsys.readouterr().err == ""


def test_failures_are_counted_and_the_first_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures()
    failures.add(Unavailable("first"))
    failures.add(Unavailable("second"))
    assert failures.report(10) == 1
    assert capsys.readouterr().err == "2 of 10 records failed; the first: first\n"
