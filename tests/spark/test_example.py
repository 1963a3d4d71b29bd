"""`examples/pipeline`, run as its README says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset
import pytest

from trimtab import Cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SECONDS = 300
LATE = [("AA", 33), ("B6", 20), ("UA", 15), ("UA", 48)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("example") / "pipeline"
    return shutil.copytree(EXAMPLES / "pipeline", copy)


@pytest.fixture(scope="module")
def environment(folder: Path) -> Iterator[dict[str, str]]:
    with Cluster(brokers=1) as cluster:
        yield {**os.environ, "KAFKA": cluster.bootstrap_servers, "OUT": str(folder / "out")}


def run(words: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def printed(folder: Path, environment: dict[str, str]) -> list[str]:
    """What each command of the README prints."""
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## pipeline")[2].partition("## ")[0]
    lines = re.findall(r"(?m)^    trimtab (.*)$", section)
    servers = ["--bootstrap-server", environment["KAFKA"]]  # the README's is the default
    return [
        run(
            ["-m", "trimtab", *words, *(servers if words[0] == "topics" else [])],
            folder,
            environment,
        )
        for words in map(shlex.split, lines)
    ]


def late_flights(files: list[str]) -> list[tuple[str, int]]:
    table = pyarrow.dataset.dataset(files, partitioning="hive").to_table()
    return sorted(zip(*(table[name].to_pylist() for name in ("carrier", "delay")), strict=True))


def test_late_flights_go_from_files_through_a_topic_to_parquet(
    folder: Path, printed: list[str]
) -> None:
    assert "fill is done: 7 rows written\n" in printed
    assert "late is done: 1 batch, 7 records read\n" in printed
    assert late_flights([str(each) for each in folder.glob("out/late/*/*.parquet")]) == LATE
