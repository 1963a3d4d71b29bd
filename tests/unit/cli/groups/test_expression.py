"""`trimtab groups --validate-regex`, which needs no cluster."""

from __future__ import annotations

import json

import pytest

from trimtab.cli import main


@pytest.mark.parametrize(
    ("regex", "reason"),
    [
        ("load-[0-9]+|flights", None),
        ("", None),
        ("a[", "it ends in the middle"),
        ("fo(?=o)", "(?= is not supported"),
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
