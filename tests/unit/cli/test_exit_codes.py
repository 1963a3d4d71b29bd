"""Exit codes, the same for every command: 0 done, 1 failed or refused, 2 misspelt, 130 Ctrl-C."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.cli import COMMANDS, main
from trimtab.cli.options import RefusedOption
from trimtab.cli.parser_tree import build_tree, list_commands, walk

REFUSED = {
    "cluster": "cluster up --brokers 0",
    "broker": "broker /nowhere.properties",
    "controller": "controller /nowhere.properties",
    "recover": "recover",
    "topics": "topics --create",
    "configs": "configs --describe",
    "features": "features upgrade",
    "log-dirs": "log-dirs --broker-list x",
    "dump-log": "dump-log --files /nowhere.log",
    "produce": "produce --topic t --line-reader x",
    "consume": "consume --topic t --max-messages -5",
    "copy": "copy --topic t --where x",
    "groups": "groups --describe",
    "transactions": "transactions describe",
    "offsets": "offsets --time x",
    "delete-records": "delete-records --offset-json-file /nowhere",
    "leader-election": "leader-election --election-type preferred --topic t",
    "reassign": "reassign --execute",
    "balance": "balance --window 1",
    "what-if": "what-if --growth 0 --recording /nowhere.jsonl.gz",
    "skew": "skew /nowhere.csv",
    "limits": "limits --what-if x",
    "shims": "shims /dev/null/x",
    "completion": "completion bash",
    "producer-perf": "producer-perf --topic t --num-records 1 --throughput -1 --record-size 1 "
    "--warmup-records 5",
    "consumer-perf": "consumer-perf --topic t --num-records 1 --command-config /nowhere",
    "experiment": "experiment kip794 --records 0",
    "dashboard": "dashboard --window 1",
    "top": "top --window 1",
    "load": "load report --top 0",
    "pipeline": "pipeline check /nowhere",
    "demo": "demo --records 0",
}
"""For each command a line that it refuses."""


@pytest.mark.parametrize("name", COMMANDS)
def test_what_fails_ends_with_1_and_a_reason(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(REFUSED[name].split()) == 1
    shown = capfd.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1


def list_lines() -> list[list[str]]:
    """Each command, with each of its verbs, and without where it may be left out."""
    return [parser.prog.split()[1:] for parser in list_commands()]


@pytest.mark.parametrize("words", list_lines(), ids=" ".join)
def test_a_misspelt_option_ends_with_2_and_a_hint(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--hlep"])
    error = capsys.readouterr().err
    assert ": unknown option --hlep: did you mean --help?; see trimtab " in error
    assert error.count("\n") == 1


def list_choices() -> list[tuple[list[str], str, str]]:
    """Each argument with choices: its command, its option or "", and one of the choices."""
    found = []
    for parser in walk(build_tree()):
        words = parser.prog.split()[1:]
        for action in parser._actions:
            if action.choices and words and not isinstance(action, RefusedOption):
                option = action.option_strings[0] if action.option_strings else ""
                longest = max(map(str, action.choices), key=len)
                if len(longest) > 3:
                    found.append((words, option, longest))
    return found


@pytest.mark.parametrize(("words", "option", "choice"), list_choices())
def test_a_misspelt_value_ends_with_2_and_a_hint(
    words: list[str], option: str, choice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    misspelt = (
        choice[0] + choice[2] + choice[1] + choice[3:] if choice[1] != choice[2] else choice[:-1]
    )
    with pytest.raises(SystemExit, match="2"):
        main([*words, *([option] if option else []), misspelt])
    assert f": did you mean {choice}?; see trimtab " in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_ends_with_130_and_no_traceback(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    module = importlib.import_module(COMMANDS[name][0])
    monkeypatch.setattr(module, "run", interrupt)
    assert main(REFUSED[name].split()) == 130
    monkeypatch.setattr(module, "configure", interrupt)  # while the command is loaded
    assert main(REFUSED[name].split()) == 130
    assert capsys.readouterr() == ("", "")


def test_ctrl_c_ends_a_command_that_waits_for_a_silent_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = ["topics", "--list", "--bootstrap-server", f"127.0.0.1:{server.getsockname()[1]}"]
        command = [sys.executable, "-m", "trimtab", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            connection, _ = server.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                out, error = process.communicate(timeout=60)
    assert (process.returncode, out, error) == (130, b"", b"")


def test_an_output_that_nobody_reads_ends_with_1_and_no_word(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "trimtab", "shims", str(tmp_path / "bin"), "--json"]
    try:
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")
