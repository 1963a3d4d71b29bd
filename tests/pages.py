"""Runs a page of the documentation as its reader would.

A page has blocks of code. What a block is follows from its first line:

    ```python title="send.py"   is saved as that file
    ```python                   is run
    ```sh                       is run line by line; `cluster up` goes on in the background
    ```text                     is what the block before it prints, with … for what differs
    ```console, ```diff         is for the reader's own system, or shows a change: it is not run

The page's cluster is at another port here, so that pages can run side by side.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from lab.processes import free_neighbours

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 300
PORT = "9092"
HERE = {
    "python": sys.executable,
    "pytest": f"{sys.executable} -m pytest -p no:cacheprovider -p no:asyncio",
    "trimtab": f"{sys.executable} -m trimtab",
}
KINDS = ("python", "sh", "text", "console", "diff")


class Block(NamedTuple):
    language: str
    title: str
    text: str


def read_page(page: str) -> list[Block]:
    """The page's blocks of code, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", text, re.M | re.S)
    assert len(found) * 2 == len(re.findall(r"^\s*```", text, re.M)), "a block is not closed"
    blocks = [Block(*each) for each in found]
    unknown = {block.language for block in blocks} - {*KINDS}
    assert not unknown, f"{page} has blocks of {unknown}: say in tests/pages.py what is done"
    return blocks


def run_page(page: str, directory: Path) -> int:
    """Run the page's blocks in this directory, and compare what they print with what is said.

    Returns:
        How many expectations were compared.
    """
    with ExitStack() as stack:
        port = str(free_neighbours(3))  # a cluster takes one for each broker
        printed: str | None = None
        compared = 0
        for language, title, written in read_page(page):
            text = written.replace(PORT, port)
            if language == "sh":
                printed = "".join(
                    _run_line(line, directory, port, stack) for line in text.splitlines()
                )
            elif title:
                (directory / title).write_text(text, encoding="utf-8")
            elif language == "python":
                printed = _run([sys.executable, "-c", text], directory)
            elif language == "text" and printed is not None:
                assert re.fullmatch(_pattern(text.strip()), printed.strip()), (
                    f"{text}\n---- but\n{printed}"
                )
                compared, printed = compared + 1, None
        return compared


def _pattern(expected: str) -> str:
    parts = [re.escape(part) for part in expected.split("…")]
    return r"[^\n]*".join(parts)


def _run_line(line: str, directory: Path, port: str, stack: ExitStack) -> str:
    if " cluster up " in line:
        return _start(_here(line), directory, stack)
    server = rf"\1 --bootstrap-server 127.0.0.1:{port}"
    line = re.sub(r"(?<![\w/.-])(trimtab (?!--version)[^|>;]*[^|>; ])", server, line)
    return _run(["sh", "-c", _here(line)], directory)


def _here(line: str) -> str:
    """The line with this environment's commands."""
    return re.sub(r"(?<![\w/.-])(python|pytest|trimtab)(?= )", lambda at: HERE[at[1]], line)


def _start(command: str, directory: Path, stack: ExitStack) -> str:
    """Start a cluster, and return its first line; it is stopped with the stack."""
    cluster = stack.enter_context(
        subprocess.Popen(command.split(), stdout=subprocess.PIPE, text=True, cwd=directory)
    )
    stack.callback(cluster.terminate)
    assert cluster.stdout is not None
    return cluster.stdout.readline()


def _run(command: list[str], directory: Path) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout
