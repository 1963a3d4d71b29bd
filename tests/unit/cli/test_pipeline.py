"""`trimtab pipeline`: signals. What it does on Spark is tried in tests/spark/test_pipeline.py."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from trimtab.cli import main, pipeline
from trimtab.spark.session import local

FILE = """
trigger = "batch"
source = { format = "json", path = "/tmp/nothing" }
sink = { format = "json", path = "/tmp/nowhere" }
"""


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No Spark: a session is an object, and what would end the JVM is noted."""
    noted: list[str] = []

    @contextmanager
    def session(
        app: str, cores: int | None, memory: str, config: Mapping[str, str] | None
    ) -> Iterator[object]:
        try:
            yield object()
        finally:
            noted.append("stopped")

    monkeypatch.setattr(local, "any_session", session)
    monkeypatch.setattr(local, "end_jvm_at_once", lambda: noted.append("ended at once"))
    monkeypatch.setattr(pipeline, "_silence_queries", lambda: None)
    return noted


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *signals: signal.Signals) -> int:
    """Run a pipeline to which signals come."""

    def receive(session: object, read: object, arrived: list[int], is_json: bool) -> None:
        for number in signals:
            signal.raise_signal(number)
            assert arrived[-1] == number

    monkeypatch.setattr(pipeline, "_run", receive)
    (tmp_path / "p.toml").write_text(FILE)
    return main(["pipeline", "run", str(tmp_path / "p.toml")])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_the_run_in_good_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ended: list[str], number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    assert run(monkeypatch, tmp_path, number) == 128 + number
    assert ended == ["stopped"]
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_the_second_one_ends_spark_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ended: list[str], first: signal.Signals
) -> None:
    assert run(monkeypatch, tmp_path, first, signal.SIGTERM) == 128 + first
    assert ended == ["ended at once", "stopped"]


def test_without_a_signal_the_run_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ended: list[str]
) -> None:
    assert run(monkeypatch, tmp_path) == 0
    assert ended == ["stopped"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("verb", ["check", "run"])
def test_a_signal_while_spark_starts_ends_the_command_and_what_it_has_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals, verb: str
) -> None:
    """The JVM is a script that signals this process, and ends when its input does."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    for kind, name in (
        (SparkContext, "_gateway"),
        (SparkContext, "_jvm"),
        (SparkContext, "_active_spark_context"),
        (SparkSession, "_instantiatedSession"),
    ):
        monkeypatch.setattr(kind, name, None)  # of a test before
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/pid\nkill -{number:d} $PPID\nread x\nexit 1\n"
    )
    submit.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "set by start_session")
    monkeypatch.setattr(local, "find_java_home", lambda: tmp_path)
    (tmp_path / "p.toml").write_text(FILE)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert main(["pipeline", verb, str(tmp_path / "p.toml")]) == 128 + number
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert local._jvm_process() is None
    assert logging.root.manager.disable == logging.NOTSET


@pytest.mark.parametrize(("is_stopped", "state"), [(False, "done"), (True, "stopped")])
def test_the_end_of_a_run_as_json(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ended: list[str],
    capsys: pytest.CaptureFixture[str],
    is_stopped: bool,
    state: str,
) -> None:
    from trimtab.spark.pipeline import run as running

    outcome = running.Outcome(3, 7, is_stopped)
    monkeypatch.setattr(running, "run", lambda *_, **__: outcome)
    (tmp_path / "p.toml").write_text(FILE)
    assert main(["pipeline", "run", str(tmp_path / "p.toml"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["records"]) == (state, 7)
