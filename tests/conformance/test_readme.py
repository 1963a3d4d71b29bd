"""The examples of README.md and docs/guide.md run as written, and print no warnings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300


def read_blocks(document: str, language: str) -> list[str]:
    """The code blocks of a document that are marked as of this language."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


IN_README, IN_GUIDE = read_blocks("README.md", "python"), read_blocks("docs/guide.md", "python")


def test_the_documents_have_the_examples_that_are_tried_here() -> None:
    assert (len(IN_README), len(IN_GUIDE)) == (2, 6)
    starts = [
        [block.split()[:3] for block in read_blocks(document, "sh")]
        for document in ("README.md", "docs/guide.md")
    ]
    up, create = ["trimtab", "cluster", "up"], ["trimtab", "topics", "--create"]
    assert starts == [[up, create], [up, create, ["trimtab", "reassign", "--generate"]]]


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (IN_README[0], "b'UA' b'EWR to IAH'"),
        (IN_README[1], "|        2|"),
        (IN_GUIDE[0], "records=100000"),
        (IN_GUIDE[1], "TopicPartition(topic='flights', partition=5)]"),
        (IN_GUIDE[2], "not JSON: b'no JSON'"),
        (IN_GUIDE[3], "1000 bills, of 1000 orders"),
        (IN_GUIDE[4], "committed 0:0:0:billing-1"),
        (IN_GUIDE[5], " s ago"),
    ],
)
def test_the_python_programs_run(code: str, shown: str, tmp_path: Path) -> None:
    # Spark's workers leave sockets open, which Python reports if all warnings are enabled.
    env = {**os.environ} if "spark" in code else ALL_WARNINGS
    done = run([sys.executable, "-c", code], tmp_path, env=env)
    assert shown in done.stdout


def test_the_commands_in_the_readme_run(tmp_path: Path) -> None:
    shown = run_commands("README.md", tmp_path)
    assert "100000 records sent" in shown["producer-perf"]
    assert "Successfully started partition reassignment" in shown["reassign --execute"]
    assert "Status of partition reassignment:" in shown["reassign --verify"]
    assert "PartitionCount: 6" in shown["topics --describe"]


def test_the_commands_in_the_guide_run(tmp_path: Path) -> None:
    shown = run_commands("docs/guide.md", tmp_path)
    assert "100000 records sent" in shown["producer-perf"]
    assert sum(int(line.rpartition(":")[2]) for line in shown["offsets"].split()) == 100_000
    assert sorted(shown["consume"].splitlines()) == ["AA\tJFK", "UA\tEWR"]
    lags = [int(line.split()[5]) for line in shown["groups --describe"].splitlines()[2:]]
    assert sum(lags) == 40_000
    assert "a lag of 40,000" in shown["groups --watch"]
    assert " 100000, " in shown["consumer-perf"]
    assert "partition: load-0\tlow_watermark: 9" in shown["delete-records --offset"]
    assert shown["cluster cluster-id"].startswith("Cluster ID: ")
    assert "Successfully started partition reassignment" in shown["reassign --execute"]
    assert "Status of partition reassignment:" in shown["reassign --verify"]


def run_commands(document: str, directory: Path) -> dict[str, str]:
    """Start the document's cluster and run its other commands; what each printed.

    The keys are the command and, if it has one, the option that says what to do.
    """
    first, *others = read_blocks(document, "sh")
    up = re.sub(r"--port 9092", "--port 0", first.splitlines()[0]).split()
    shown = {}
    with subprocess.Popen(
        [*TRIMTAB, *up[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env=ALL_WARNINGS,
    ) as cluster:
        try:
            assert cluster.stdout is not None
            servers = cluster.stdout.readline().split()[1]
            for line in "".join(others).splitlines():
                name = re.search(r"trimtab (cluster )?[\w-]+( --(?!topic)\w+)?|tail", line)
                assert name is not None
                shown[name[0].removeprefix("trimtab ")] = run_line(line, servers, directory).stdout
        finally:
            cluster.terminate()
            _, said = cluster.communicate(timeout=SECONDS)
    assert (cluster.returncode, said) == (0, "trimtab cluster: stopping\n")
    logs = [path.read_text() for path in directory.glob("*-data/logs/*")]
    assert len(logs) == 4
    assert [line for log in logs for line in log.splitlines() if " INFO " not in line] == []
    return shown


TRIMTAB = [sys.executable, "-m", "trimtab"]
ALL_WARNINGS = {**os.environ, "PYTHONWARNINGS": "default"}
NOTHING = r""
COUNT = r"Processed a total of \d+ messages\n"  # as from Kafka's console consumer
PLAN = r"\n.* replicas? (?:is|are) copied.*\n.*\n"
EMPTY = r"\nConsumer group '\w+' has no active members\.\n"
"""The allowed lines on standard error, where warnings of Python and of the log would appear."""


def run_line(line: str, servers: str, directory: Path) -> subprocess.CompletedProcess[str]:
    line = re.sub(
        r"trimtab ([^>|#]*)", rf"{' '.join(TRIMTAB)} \1 --bootstrap-server {servers} ", line
    )
    return run(["sh", "-c", line], directory, f"({COUNT}|{PLAN}|{EMPTY})?")


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
