"""The tour in README.md runs as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOUR = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
PYTHON = [code for language, code in TOUR if language == "python"]
SHELL = [code for language, code in TOUR if language == "sh"]
SECONDS = 120


def test_the_tour_has_what_is_tried_here() -> None:
    assert len(PYTHON) == 3
    assert [code.split()[:3] for code in SHELL] == [
        ["trimtab", "cluster", "up"],
        ["trimtab", "topics", "--create"],
    ]


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (PYTHON[0], "b'UA' b'EWR to IAH'"),
        (PYTHON[1], "records=100000"),
        (PYTHON[2], "|partition|count|"),
    ],
)
def test_the_python_in_the_tour_runs(code: str, shown: str, tmp_path: Path) -> None:
    done = run([sys.executable, "-c", code], tmp_path)
    assert shown in done.stdout


def test_the_commands_in_the_tour_run(tmp_path: Path) -> None:
    up = re.sub(r"--port 9092", "--port 0", SHELL[0].splitlines()[0]).split()
    trimtab = [sys.executable, "-m", "trimtab"]
    with subprocess.Popen(
        [*trimtab, *up[1:]], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as cluster:
        try:
            assert cluster.stdout is not None
            servers = cluster.stdout.readline().split()[1]
            commands = SHELL[1].replace("trimtab ", f"{' '.join(trimtab)} ").splitlines()
            shown = [
                run(["sh", "-c", f"{line} --bootstrap-server {servers}"], tmp_path).stdout
                for line in commands
            ]
        finally:
            cluster.terminate()
            assert cluster.wait(SECONDS) == 0
    assert "100000 records sent" in shown[1]
    assert sum(int(line.rpartition(":")[2]) for line in shown[2].split()) == 100_000
    assert sorted(shown[-1].splitlines()) == ["AA\tJFK", "UA\tEWR"]


def run(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done
