from __future__ import annotations

import importlib
import itertools
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import version

import pytest

from trimtab.cli import COMMANDS, main, make_parser


def test_what_a_library_in_c_prints_is_no_result() -> None:
    """HiGHS 1.16 prints its name to descriptor 1, whatever its options say."""
    program = (
        "import os, sys, trimtab.cli, trimtab.cli.version as version\n"
        "class Library:\n"
        "    EXAMPLES = ''\n"
        "    configure = staticmethod(lambda parser: None)\n"
        "    def run(arguments):\n"
        "        os.write(1, b'Running HiGHS\\n')\n"
        "        print('{\"größe\": 1}')\n"
        "        os.write(1, b'Done\\n')\n"
        "        return 0\n"
        "sys.modules['library'] = Library\n"
        "trimtab.cli.COMMANDS = {'library': ('library', '')}\n"
        "sys.argv = ['trimtab', 'library']\n"
        "sys.exit(trimtab.cli.main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", program], capture_output=True, check=False
    )
    assert done.stderr.decode() == "Running HiGHS\nDone\n"
    assert (done.returncode, done.stdout.decode()) == (0, '{"größe": 1}\n')


def test_without_a_command_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([])
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself_with_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    shown = capsys.readouterr().out
    module = importlib.import_module(COMMANDS[name][0])
    assert module.EXAMPLES.strip().splitlines()[0].strip() in shown
    assert f"trimtab {name}" in module.EXAMPLES


@pytest.mark.parametrize("name", COMMANDS)
def test_each_example_is_a_command_line_that_is_understood(name: str) -> None:
    text = importlib.import_module(COMMANDS[name][0]).EXAMPLES.replace("\\\n", " ")
    for line in text.splitlines():
        for each in re.findall(rf"(?:^  |\| )trimtab {name} ?(.*)", line):
            text = re.split("  +", each)[0].replace("…", "x")
            lexer = shlex.shlex(text, posix=True, punctuation_chars="|<>;&")
            lexer.whitespace_split = True
            words = list(itertools.takewhile(lambda word: word[0] not in "|<>;&", lexer))
            make_parser(name).parse_args(words)


@pytest.mark.parametrize("words", [["topics", "--lis"], ["cluster", "up", "--brok", "2"]])
def test_options_cannot_be_abbreviated(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Not those of a command's verbs either: an abbreviation may mean another option later."""
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "did you mean --" in capsys.readouterr().err


def test_an_unknown_command_is_refused_and_the_known_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["xyzzy"])
    assert "producer-perf" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("compiled", "said"),
    [(True, ", compiled"), (False, ", interpreted (about ten times slower: ")],
)
def test_the_version_tells_how_the_hot_modules_run(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    compiled: bool,
    said: str,
) -> None:
    monkeypatch.setattr("trimtab._pure.is_compiled", lambda: compiled)
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith(f"trimtab {version('trimtab')}{said}")


@pytest.mark.parametrize("pure", ["0", "1"])
def test_a_process_knows_whether_it_runs_compiled(pure: str) -> None:
    code = (
        "from trimtab._pure import is_compiled; import trimtab.kafka.wire.batch_cy as hot;"
        "print(is_compiled() is not hot.__file__.endswith('.py'))"
    )
    environment = {**os.environ, "TRIMTAB_PURE": pure}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"


def test_a_refusal_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "up", "--brokers", "2", "--racks", "a"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "trimtab cluster: --racks a: 1 rack for 2 brokers; name one for each broker\n"
    )


def test_naming_a_command_does_not_import_the_others() -> None:
    """Start-up is part of the promise: a broker answers within 0.4 s."""
    heavy = (
        *("pyarrow", "pyspark", "rich"),
        *("trimtab.client.blocking", "trimtab.client.producer", "trimtab.cli.consume"),
    )
    code = (
        "import sys, trimtab.cli.cluster_up, trimtab.cli\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
