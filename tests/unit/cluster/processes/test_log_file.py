"""A log of bounded size (`trimtab.cluster.processes.log_file`), in a process of its own: it takes
stderr."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from trimtab.cluster.processes.log_file import KEPT

WRITER = """
import logging, os, sys
from trimtab.cluster.processes.log_file import RotatingLog
logging.basicConfig(handlers=[RotatingLog(sys.argv[1], max_bytes=1000)], format="%(message)s")
for number in range(int(sys.argv[2])):
    logging.error("record %03d %s", number, "x" * 80)
print("said without a logger", file=sys.stderr)
"""


def write(path: Path, records: int) -> None:
    subprocess.run([sys.executable, "-c", WRITER, str(path), str(records)], check=True)


def test_a_full_log_is_put_aside_and_few_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    write(path, 200)
    names = [each.name for each in tmp_path.iterdir()]
    assert sorted(names) == ["node.log", *(f"node.log.{number}" for number in range(1, KEPT + 1))]
    older = [tmp_path / f"node.log.{number}" for number in range(KEPT, 0, -1)]
    lines = [line for each in [*older, path] for line in each.read_text().splitlines()]
    assert lines[-1] == "said without a logger"
    numbers = [int(line.split()[1]) for line in lines[:-1]]
    assert numbers == list(range(numbers[0], 200))
    assert all(each.stat().st_size < 1100 for each in older)
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}


def test_a_log_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    write(path, 2)
    write(path, 2)
    lines = path.read_text().splitlines()
    assert [line[:10] for line in lines] == ["record 000", "record 001", "said witho"] * 2
