"""The tour in README.md runs as it is written, and none of its programs warns of anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOUR = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
PYTHON = [code for language, code in TOUR if language == "python"]
SHELL = [code for language, code in TOUR if language == "sh"]
MOVES = re.findall(r"^    (trimtab reassign .*|tail .*)$", (ROOT / "README.md").read_text(), re.M)
SECONDS = 300


def test_the_tour_has_what_is_tried_here() -> None:
    assert len(PYTHON) == 3
    assert [code.split()[:3] for code in SHELL] == [
        ["trimtab", "cluster", "up"],
        ["trimtab", "topics", "--create"],
    ]
    assert [line.split()[2] for line in MOVES] == ["--generate", "1", "--execute", "--verify"]


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (PYTHON[0], "b'UA' b'EWR to IAH'"),
        (PYTHON[1], "records=100000"),
        (PYTHON[2], "|        2|"),
    ],
)
def test_the_python_in_the_tour_runs(code: str, shown: str, tmp_path: Path) -> None:
    # Spark's own workers leave sockets unclosed, which Python says when asked for all warnings.
    env = {**os.environ} if "spark" in code else ALL_WARNINGS
    done = run([sys.executable, "-c", code], tmp_path, env=env)
    assert shown in done.stdout


def test_the_commands_in_the_tour_run(tmp_path: Path) -> None:
    up = re.sub(r"--port 9092", "--port 0", SHELL[0].splitlines()[0]).split()
    with subprocess.Popen(
        [*TRIMTAB, *up[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=ALL_WARNINGS,
    ) as cluster:
        try:
            assert cluster.stdout is not None
            servers = cluster.stdout.readline().split()[1]
            shown = [run_line(line, servers, tmp_path).stdout for line in SHELL[1].splitlines()]
            moved = [run_line(line, servers, tmp_path, MOVED).stdout for line in MOVES]
        finally:
            cluster.terminate()
            _, said = cluster.communicate(timeout=SECONDS)
    assert (cluster.returncode, said) == (0, "trimtab cluster: stopping\n")
    logs = [path.read_text() for path in (tmp_path / "kafka-data" / "logs").iterdir()]
    assert len(logs) == 4
    assert [line for log in logs for line in log.splitlines() if " INFO " not in line] == []
    assert "100000 records sent" in shown[1]
    assert sum(int(line.rpartition(":")[2]) for line in shown[2].split()) == 100_000
    assert sorted(shown[-1].splitlines()) == ["AA\tJFK", "UA\tEWR"]
    assert "Successfully started partition reassignment" in moved[2]
    assert "Status of partition reassignment:" in moved[3]


TRIMTAB = [sys.executable, "-m", "trimtab"]
ALL_WARNINGS = {**os.environ, "PYTHONWARNINGS": "default"}
NOTHING = r""
COUNT = r"(Processed a total of \d+ messages\n)?"  # as Kafka's console consumer does
MOVED = r"(\n.* replicas are copied.*\n.* seconds\.\n)?"
"""What programs may say on standard error, where warnings of Python and of the log go as well."""


def run_line(
    line: str, servers: str, directory: Path, said: str = COUNT
) -> subprocess.CompletedProcess[str]:
    line = re.sub(
        r"trimtab ([^>|#]*)", rf"{' '.join(TRIMTAB)} \1 --bootstrap-server {servers} ", line
    )
    return run(["sh", "-c", line], directory, said)


def run(
    command: list[str], directory: Path, said: str = NOTHING, env: dict[str, str] = ALL_WARNINGS
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        cwd=directory,
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(said, done.stderr, re.S), done.stderr
    return done
