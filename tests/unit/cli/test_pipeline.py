"""`trimtab pipeline`: what is refused before Spark is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.cli import main
from trimtab.cli.pipeline import _list

FILE = """
trigger = "batch"
[source]
format = "json"
path = "/in"
[sink]
format = "parquet"
path = "/out"
"""


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr("trimtab.spark.session.local.start_session", refuse)


@pytest.mark.parametrize("verb", ["check", "run"])
@pytest.mark.parametrize(
    ("text", "words", "why"),
    [
        (FILE.replace("trigger", "triger"), (), "p.toml: unknown key triger (did you mean trigg"),
        (FILE, ("--cores", "0"), "--cores 0: write 1 or more"),
    ],
)
def test_a_mistake_is_one_line_and_fails(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    text: str,
    words: tuple[str, ...],
    why: str,
) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    assert main(["pipeline", verb, str(path), *words]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("trimtab pipeline: ")
    assert why in err


@pytest.mark.parametrize("variable", ["PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"])
def test_the_size_of_a_session_that_is_given_is_not_ours_to_set(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    (tmp_path / "p.toml").write_text(FILE)
    monkeypatch.setenv(variable, "1")
    assert main(["pipeline", "run", str(tmp_path / "p.toml"), "--memory", "4g"]) == 1
    assert "--memory is for Spark's local mode" in capsys.readouterr().err


def test_a_verb_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pipeline"])
    assert ended.value.code == 2
    assert "check|run" in capsys.readouterr().err


def test_what_is_secret_is_not_printed() -> None:
    options = {"kafka.sasl.jaas.config": "s", "kafka.ssl.key.password": "s", "topic": "t"}
    assert _list("/in", options) == "/in, topic=t"


def test_nothing_of_spark_is_imported_to_find_a_mistake(tmp_path: Path) -> None:

    (tmp_path / "p.toml").write_text(FILE.replace("json", "jason"))
    code = (
        "import sys; from trimtab.cli import main; "
        f"code = main(['pipeline', 'check', {str(tmp_path / 'p.toml')!r}]); "
        "print(code, 'pyspark' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "1 False\n"
