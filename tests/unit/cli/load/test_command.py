"""`trimtab load report`: what is refused before Spark is started."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from trimtab.cli import main
from trimtab.cli.load import _check_history, read_topics
from trimtab.errors import UsageError


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr("trimtab.spark.session.local.start_session", refuse)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--since", "yesterday"), "option --since='yesterday': write a time, such as 15m"),
        (("--max-bytes", "lots"), "option --max-bytes='lots': write a number of bytes"),
        (("--top", "0"), "--top 0: write 1 or more"),
        (("--cost-per-gb", "-1"), "--cost-per-gb -1.0: write 0 or more"),
        (("--cost-per-gb", "nan"), "--cost-per-gb nan: write 0 or more"),
        (("--cores", "0"), "--cores 0: write 1 or more"),
        (("--clients", "/none.csv"), "cannot read /none.csv"),
        (("--window", "often"), "--window 'often'"),
    ],
)
def test_a_mistake_is_one_line_and_fails(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    assert main(["load", "report", *words]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("trimtab load: ")
    assert why in err


def test_packages_that_are_missing_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *rest: None if name == "pyspark" else find_spec(name, *rest),
    )
    assert main(["load", "report"]) == 1
    assert "pip install pyspark" in capsys.readouterr().err


def test_topics_are_names_or_patterns_and_each_must_match() -> None:
    names = ["audit.a", "audit.b", "flights"]
    assert read_topics(None, names) == names
    assert read_topics("flights, audit.*,flights", names) == names
    assert read_topics("audit.b", names) == ["audit.b"]
    with pytest.raises(UsageError, match="no topic matches 'carriers'"):
        read_topics("flights,carriers", names)
    with pytest.raises(UsageError, match="names no topic"):
        read_topics(" , ", names)
    assert read_topics(None, []) == []


def test_a_directory_is_for_one_cluster(tmp_path: Path) -> None:
    _check_history(tmp_path, "one")
    summary = tmp_path / "summary.json"
    summary.write_text('{"cluster": "one"}')
    _check_history(tmp_path, "one")
    with pytest.raises(UsageError, match=r"reports of another cluster \(one, this is two\)"):
        _check_history(tmp_path, "two")
    for text in ("{}", "[", "[1]"):
        summary.write_text(text)
        with pytest.raises(UsageError, match="not of a load report: choose another --out"):
            _check_history(tmp_path, "one")
    with pytest.raises(UsageError, match="Not a directory: name a directory"):
        _check_history(summary, "one")
