"""`trimtab dump-log`: its options, and files that are not of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.dump_log.conftest import FIRST, Dump
from trimtab.cli import main
from trimtab.cli.dump_log import split_paths
from trimtab.cli.dump_log.findings import Findings


def test_paths_are_separated_by_commas_or_blanks(tmp_path: Path) -> None:
    odd = tmp_path / "a,b.log"
    odd.touch()
    assert split_paths(["x.log,y.log", "z.log", str(odd), ","]) == [
        *("x.log", "y.log", "z.log"),
        str(odd),
    ]


def test_a_file_of_another_kind_is_named_and_the_others_are_shown(
    dump: Dump, directory: Path
) -> None:
    checkpoint = directory / "leader-epoch-checkpoint"
    found = dump("--files", checkpoint, directory / f"{FIRST}.log")
    assert found.code == 1
    assert found.errors[0].startswith(
        f"{checkpoint}, position 0: the name of a log's file ends with .log, "
    )
    assert "baseOffset: 0 " in found.lines[2]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.log", "the file's name must begin with an offset, not 'none'"),
        (f"{FIRST}.log", "cannot be read: No such file or directory"),
        ("00.log", "cannot be read: Is a directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    dump: Dump, tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "00.log").mkdir()
    found = dump("--files", tmp_path / name)
    assert found == (1, [], [f"{tmp_path / name}, position 0: {said}"])


@pytest.mark.parametrize(
    "content", [b"\x89PNG\r\n\x1a\n" + bytes(range(256)), b"text\n", b"\xff" * 99]
)
@pytest.mark.parametrize(
    "suffix", [".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint"]
)
def test_other_contents_under_the_name_are_damage(
    dump: Dump, tmp_path: Path, suffix: str, content: bytes
) -> None:
    (tmp_path / f"{FIRST}.log").touch()
    path = tmp_path / f"{FIRST}{suffix}"
    path.write_bytes(content)
    found = dump("--files", path, "--print-data-log")
    assert found.code == 1
    assert found.errors[0].startswith(f"{path}, position ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--value-decoder-class", "a.B"], "trimtab cannot run Java classes"),
        (["--share-group-state-decoder"], "trimtab has no share groups"),
        (["--max-message-size", "5"], "leave it out"),
        (["--offsets-decoder", "--cluster-metadata-decoder"], "not allowed with"),
        (["--max-bytes", "0"], "greater than zero"),
    ],
)
def test_an_option_that_trimtab_lacks_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["dump-log", "--files", "x.log", *words])
    assert said in capsys.readouterr().err


def test_files_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump-log"]) == 1
    assert "add --files FILE" in capsys.readouterr().err


def test_problems_are_counted() -> None:
    findings = Findings(is_json=False)
    findings.note("f", "may be")
    assert findings.problems == 0
    findings.report("f", 3, "wrong")
    assert findings.problems == 1
