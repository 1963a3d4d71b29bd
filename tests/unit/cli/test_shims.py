"""`trimtab shims`: scripts with the names of Kafka's tools."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from trimtab.cli import COMMANDS, main
from trimtab.cli.shims import SHIMS, write_shim, write_shims
from trimtab.kafka.errors import UsageError


def test_every_shim_runs_a_command_that_there_is() -> None:
    assert set(SHIMS.values()) <= set(COMMANDS)


def test_shims_are_executable_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "new" / "bin"
    assert main(["shims", str(directory)]) == 0
    assert f"{directory}/kafka-topics.sh: trimtab topics\n" in capsys.readouterr().out
    assert sorted(path.name for path in directory.iterdir()) == sorted(SHIMS)
    assert all(os.access(path, os.X_OK) for path in directory.iterdir())
    assert main(["shims", str(directory), "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"shim": f"{directory}/kafka-log-dirs.sh", "command": "trimtab log-dirs"} in shown


def test_a_shim_hands_over_all_words_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for Python, in a place with a blank and a quote, prints its words."""
    python = tmp_path / "it's a python"
    python.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    shim = tmp_path / "shim"
    shim.write_text(write_shim("topics"))
    done = subprocess.run(
        ["/bin/sh", str(shim), "--topic", "a b", "", "$HOME"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "<-P><-m><trimtab><topics><--topic><a b><><$HOME>"


def test_a_shim_runs_this_pythons_trimtab_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "trimtab.py").write_text("raise SystemExit('the wrong one')")
    write_shims(tmp_path / "bin")
    done = subprocess.run(
        [tmp_path / "bin" / "kafka-topics.sh", "--zookeeper", "z:2181", "--list"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "trimtab topics: error: argument --zookeeper: Kafka 4 removed ZooKeeper" in done.stderr


def test_other_files_stay_and_nothing_is_written_beside_them(tmp_path: Path) -> None:
    (tmp_path / "kafka-configs.sh").write_text("#!/bin/sh\nexec kafka\n")
    with pytest.raises(UsageError, match=r"did not write: kafka-configs\.sh; .*--force"):
        write_shims(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kafka-configs.sh"]
    assert main(["shims", str(tmp_path), "--force"]) == 0
    assert "trimtab configs" in (tmp_path / "kafka-configs.sh").read_text()
    write_shims(tmp_path)


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    kafka = tmp_path / "kafka"
    kafka.write_text(write_shim("topics"))
    before = kafka.read_text()
    link = tmp_path / "bin" / "kafka-get-offsets.sh"
    link.parent.mkdir()
    link.symlink_to(kafka)
    with pytest.raises(UsageError, match=r"kafka-get-offsets\.sh"):
        write_shims(link.parent)
    write_shims(link.parent, force=True)
    assert not link.is_symlink()
    assert kafka.read_text() == before


def test_a_directory_that_cannot_be_written_to_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert main(["shims", str(file)]) == 1
    assert f"cannot write shims to {file}" in capsys.readouterr().err
    (tmp_path / "kafka-topics.sh").mkdir()
    assert main(["shims", str(tmp_path), "--force"]) == 1
    assert "kafka-topics.sh: Is a directory" in capsys.readouterr().err
