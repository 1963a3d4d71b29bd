"""`trimtab groups`: what it refuses before it connects."""

from __future__ import annotations

import json
import sys

import pytest

from trimtab.cli import main

RESET = "--reset-offsets --group g"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--describe", "--describe needs a group: add --group NAME, or --all-groups"),
        ("--delete", "--delete needs a group: add --group NAME, or --all-groups"),
        ("--delete-offsets --topic t", "--delete-offsets needs a group: add --group NAME"),
        ("--delete-offsets --group g", "--delete-offsets needs a topic"),
        ("--delete-offsets --group g h --topic t", "--delete-offsets takes one group"),
        ("--delete-offsets --all-groups --topic t", "--all-groups goes with --describe and"),
        ("--describe --group g --all-groups", "--group and --all-groups are both given"),
        ("--list --group g", "--group goes with --describe and --watch and"),
        ("--list --verbose", "--verbose goes with --describe, not with --list"),
        ("--delete --group g --topic t", "--topic goes with --reset-offsets and --delete-offsets"),
        ("--describe --group g --type", "--type goes with --list, not with --describe"),
        ("--describe --group g --state Stable", "--describe --state takes no value"),
        ("--describe --group g --state --members", "--state and --members are both given"),
        ("--describe --group g --to-offset 0", "--to-offset goes with --reset-offsets"),
        ("--describe --group g --execute", "--execute goes with --reset-offsets"),
        (f"{RESET} --topic t", "--reset-offsets needs to know where to: add one of --to-earliest"),
        (f"{RESET} --to-earliest", "--reset-offsets needs topics: add --topic NAME, or"),
        (f"{RESET} --to-earliest --topic t --all-topics", "--topic and --all-topics are both"),
        (f"{RESET} --from-file f --topic t", "--from-file names the partitions itself"),
        (f"{RESET} --to-offset 0", "--reset-offsets needs topics"),
        ("--watch 0", "--watch 0: write seconds from 0.1 to 86400"),
        ("--watch nan", "--watch nan: write seconds from 0.1 to 86400"),
        ("--watch -1", "--watch -1: write seconds from 0.1 to 86400"),
        ("--watch --group g --all-groups", "--group and --all-groups are both given"),
        ("--watch --topic t", "--topic goes with --reset-offsets and --delete-offsets, not with"),
        ("--describe --group g --top 3", "--top goes with --watch, not with --describe"),
        ("--list --count 3", "--count goes with --watch, not with --list"),
        ("--validate-regex a --group g", "--group goes with --describe and --watch and"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["groups", *words.split()]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith(f"trimtab groups: {why}")


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--list --describe",
        "--list --validate-regex a",
        "--describe --group g --members --offsets",
        f"{RESET} --topic t --to-earliest --to-latest",
        f"{RESET} --topic t --to-earliest --execute --dry-run",
        f"{RESET} --topic t --shift-by many",
        "--list --timeout 0",
        "--watch --describe",
        "--watch often",
        "--watch --count 0",
        "--watch --top 0",
    ],
)
def test_what_excludes_each_other_is_a_misspelt_command_line(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["groups", *words.split()])
    assert ended.value.code == 2
    assert "see trimtab groups --help" in capsys.readouterr().err


def test_the_timeout_is_that_of_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("groups", "--list", "--timeout", "50", "--bootstrap-server", "127.0.0.1:1")
    assert main(words) == 1
    assert "within 0.05 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("regex", "reason"),
    [
        ("load-[0-9]+|flights", None),
        ("", None),
        ("a[", "missing ]: ["),
        ("fo(?=o)", "invalid perl operator: (?="),
    ],
)
def test_an_expression_is_checked(
    regex: str, reason: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("groups", f"--validate-regex={regex}")
    assert main(words) == 0
    verdict = "valid" if reason is None else f"invalid: {reason}"
    assert capsys.readouterr().out == f"The regular expression `{regex}` is {verdict}.\n"
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == (
        {"regex": regex, "valid": reason is None, "reason": reason}
    )


def test_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    assert main(("groups", "--validate-regex=a")) == 1
    assert "pip install 'trimtab[regex]'" in capsys.readouterr().err
