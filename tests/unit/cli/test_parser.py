from __future__ import annotations

import pytest

from trimtab.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["topics", "--lsit"], "unknown option --lsit: did you mean --list?; see"),
        (["topics", "--list", "--jsno"], "unknown option --jsno: did you mean --json?"),
        (["topics", "--lsit=1"], "unknown option --lsit: did you mean --list?"),
        (["producer-perf", "--recrod-size", "5"], "did you mean --record-size?"),
        (["experiment", "kip794", "--serie", "1"], "did you mean --series?"),
        (
            ["topics", "--list", "--partitions", "x"],
            "argument --partitions: invalid int value: 'x'; see trimtab topics --help",
        ),
        (
            ["producer-perf", "--topic", "t", "--throughput", "-1", "--num-records", "x"],
            "--num-records: 'x' must be a whole number greater than zero",
        ),
        (
            ["experiment", "--bootstrap=h:1", "kip480"],
            "--bootstrap comes after kip794 or kip480: write trimtab experiment kip794 --bootstrap",
        ),
        (["produce", "--broker-list", "h:1"], "name brokers with --bootstrap-server"),
        (["offsets", "--topic", "t", "--broker-list=h:1"], "name brokers with --bootstrap-server"),
        (["topics", "--qqqq"], "unknown option --qqqq; see trimtab topics --help"),
        (["topcis", "--list"], "no command 'topcis': did you mean topics?"),
        (["xyzzy"], "no command 'xyzzy': commands are cluster, broker, "),
    ],
)
def test_what_is_misspelt_is_named_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_what_is_missing_is_said_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["topics"])
    assert "one of the arguments --list" in capsys.readouterr().err
