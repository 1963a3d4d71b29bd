"""`trimtab completion`, in real shells where they are installed."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trimtab.cli import COMMANDS, main
from trimtab.cli.completion import SHELLS, write_script
from trimtab.cli.options import RefusedOption
from trimtab.cli.parser import list_verbs
from trimtab.cli.parser_tree import build_tree, walk
from trimtab.threads.clock import monotonic_clock

ASKED = {
    "to": {"topics"},
    "topics --li": {"--list"},
    "topics --list --js": {"--json"},
    "leader-election --election-type ": {"preferred", "unclean"},
    "cluster ": {"up", "cluster-id", "list-endpoints", "unregister"},
    "cluster up --br": {"--brokers"},
    "transactions ": {"list", "describe", "abort"},
    "topics --command-config ": {"client.properties", "folder"},
    "cluster up --data ": {"folder"},
    "broker ": {"client.properties"},
    "consume --property a=1 --fr": {"--from-beginning"},
    "completion ": set(SHELLS),
}
"""What is typed after `trimtab`, and words that complete it."""
FILE = "client.properties"
"""Completes a name of a file, but not one of a directory."""
PATIENCE_S = 30


@pytest.fixture
def script(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The script for the shell that the test is for, in a directory with files to complete."""
    pytest.importorskip("shtab")
    shell = request.node.name.rpartition("_")[2]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "client.properties").touch()
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / f"_trimtab.{shell}"
    path.write_text(write_script(shell))
    return path


def test_completions_in_bash(script: Path) -> None:
    program = f"""
source {script}
ask() {{
    COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
    [[ $asked == *' ' ]] && {{ COMP_WORDS+=(""); COMP_CWORD=$#; }}
    COMPREPLY=(); _shtab_trimtab; echo "${{COMPREPLY[*]}}"
}}
"""
    lines = "\n".join(f"asked='{asked}' ask trimtab {asked}" for asked in ASKED)
    found = run_script(["bash", "-c", program + lines], script)
    for (asked, wanted), line in zip(ASKED.items(), found, strict=True):
        assert wanted <= set(line.split()), asked
        assert (FILE in line) == (FILE in wanted), asked


def test_completions_in_fish(script: Path) -> None:
    lines = "\n".join(
        f"echo (complete -C 'trimtab {asked}' | string split -f1 \\t)" for asked in ASKED
    )
    found = run_script(["fish", "-c", f"source {script}\n{lines}"], script)
    for (asked, wanted), line in zip(ASKED.items(), found, strict=True):
        assert wanted <= {word.rstrip("/") for word in line.split()}, asked
        assert (FILE in line) == (FILE in wanted), asked


def run_script(words: list[str], script: Path) -> list[str]:
    done = subprocess.run(
        words, cwd=script.parent.parent, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_completions_in_zsh(script: Path) -> None:
    with interactive_zsh(script.parent.parent) as shell:
        shell.type(f'autoload -U compinit; compinit -u -D; eval "$(cat {script})"\n')
        shell.type("LISTMAX=9999; zstyle ':completion:*' menu no; echo rea''dy\n")
        shell.wait_for({"ready"})
        for asked, wanted in ASKED.items():
            shell.type(f"trimtab {asked}\t\t")
            shell.wait_for(wanted)
            shell.type("\x15")


class Terminal:
    """What a program shows on a terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = ""

    def type(self, text: str) -> None:
        self._seen = ""
        os.write(self._descriptor, text.encode())

    def wait_for(self, words: set[str]) -> None:
        """Read until all the words were shown."""
        deadline = monotonic_clock() + PATIENCE_S
        while not words <= set(re.split(r"[\s/]+", self._seen)):
            left = deadline - monotonic_clock()
            assert left > 0, f"{words - set(self._seen.split())} not in {self._seen!r}"
            if select.select([self._descriptor], [], [], left)[0]:
                read = os.read(self._descriptor, 65536).decode("utf-8", "replace")
                self._seen += re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]|\x07|\x08", " ", read)


@contextmanager
def interactive_zsh(directory: Path) -> Iterator[Terminal]:
    child, descriptor = pty.fork()
    if child == 0:
        os.chdir(directory)
        environment = {**os.environ, "TERM": "dumb", "PS1": "> ", "COLUMNS": "200"}
        os.execvpe("zsh", ["zsh", "-f", "-i"], environment)
    try:
        yield Terminal(descriptor)
    finally:
        os.close(descriptor)
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_of_every_command_is_completed(shell: str) -> None:
    pytest.importorskip("shtab")
    script = write_script(shell)
    for parser in walk(build_tree()):
        for action in parser._actions:
            if isinstance(action, RefusedOption):
                continue
            for option in action.option_strings:
                word = option if shell != "fish" else option.lstrip("-")
                assert word in re.split(r"[\s\"'()\[\]{},*]+", script), (parser.prog, option)
            for choice in action.choices or ():
                assert str(choice) in script
    assert "zookeeper" not in script  # it is refused everywhere


def test_the_tree_has_every_command_and_its_verbs() -> None:
    progs = [parser.prog for parser in walk(build_tree())]
    assert {f"trimtab {name}" for name in COMMANDS} < set(progs)
    assert "trimtab cluster up" in progs
    assert len(progs) == len(set(progs))
    (commands,) = list_verbs(build_tree())
    assert list(commands.choices) == list(COMMANDS)


def test_without_shtab_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert capsys.readouterr().err == (
        "trimtab completion: completion needs the package shtab: pip install shtab\n"
    )
