"""`trimtab` leaves no temporary data on the disk, and its files are not readable by others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.processes import free_ports
from trimtab.cluster.server.secret_file import read_or_make_secret

EXIT_SECONDS = 60
SITES = {
    "cluster": ("cluster", "up", "--brokers", "2", "--port", "0"),
    "controller": ("controller", "--port", "0"),
    "broker": ("broker", "--port", "0", "--id", "1"),
}


@contextmanager
def started(temporary: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    temporary.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab", *words],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        umask=0,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("site", ["cluster", "controller"])
@pytest.mark.parametrize("signals", [1, 2])
def test_a_node_that_is_ended_leaves_no_temporary_data(
    tmp_path: Path, site: str, signals: int
) -> None:
    with started(tmp_path / "tmp", *SITES[site]) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        assert len(list((tmp_path / "tmp").iterdir())) == 1
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
        process.wait(EXIT_SECONDS)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("site", SITES)
def test_a_node_that_is_ended_while_it_starts_leaves_no_temporary_data(
    tmp_path: Path, site: str
) -> None:
    """The node is ended when its directory exists; the broker waits for a missing controller."""
    words = SITES[site]
    if site == "broker":
        (nobody,) = free_ports(1)
        words += ("--controller", f"127.0.0.1:{nobody}")
        secret = tmp_path / "cluster.secret"
        read_or_make_secret(str(secret))
        words += ("--cluster-secret-file", str(secret))
    with started(tmp_path / "tmp", *words) as process:
        while process.poll() is None and not list((tmp_path / "tmp").iterdir()):
            pass
        process.terminate()
        process.wait(EXIT_SECONDS)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_data_can_be_read_by_their_owner_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    words = (*SITES["cluster"], "--data", str(data))
    with started(tmp_path / "tmp", *words) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready")
        produce = [
            *(sys.executable, "-m", "trimtab", "produce", "--topic", "t"),
            *("--bootstrap-server", ready.split()[1].split(",")[0]),
        ]
        subprocess.run(produce, input="a\nb\n", text=True, check=True, stdout=subprocess.DEVNULL)
        process.terminate()
        process.wait(EXIT_SECONDS)
    found = [data, *data.rglob("*")]
    assert any(each.suffix == ".log" and each.stat().st_size for each in found)
    modes = {each: each.stat().st_mode & 0o777 for each in found}
    assert {each: mode for each, mode in modes.items() if mode & 0o077} == {}
