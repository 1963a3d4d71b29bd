from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest

from trimtab.cli.style import ERROR, WARNING, has_colours, paint, say_error, say_warning

RED = "\x1b[31mno\x1b[0m"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_has_colours_and_a_file_has_none() -> None:
    assert paint("no", ERROR, Terminal()) == RED
    assert paint("no", ERROR, io.StringIO()) == "no"
    assert paint("no", None, Terminal()) == "no"
    assert paint("", WARNING, Terminal()) == ""


@pytest.mark.parametrize(
    ("variables", "on_terminal", "in_file"),
    [
        ({"TERM": "dumb"}, False, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_variables_decide(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], on_terminal: bool, in_file: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (has_colours(Terminal()), has_colours(io.StringIO())) == (on_terminal, in_file)


def test_errors_and_warnings_go_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    say_error("no")
    say_warning("maybe")
    assert capsys.readouterr() == ("", f"{RED}\n\x1b[33mmaybe\x1b[0m\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["topics", "--lsit"], "did you mean --list?"),
        (["cluster", "up", "--racks", "a,b"], "2 racks for 1 broker"),
        (["topcis"], "did you mean topics?"),
    ],
)
def test_a_failure_is_red_on_a_terminal_and_plain_in_a_pipe(words: list[str], said: str) -> None:
    command = [sys.executable, "-m", "trimtab", *words]
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal, os.fdopen(theirs, "wb") as error:
        subprocess.run(command, stderr=error, check=False)
        shown = terminal.read(4096).decode()
    assert shown.startswith("\x1b[31m")
    assert said in shown
    plain = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False).stderr
    assert said in plain
    assert "\x1b" not in plain
