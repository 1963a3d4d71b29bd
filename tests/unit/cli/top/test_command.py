"""`trimtab top`: what is refused, and a whole run in a terminal of its own."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.cli.live.made_snapshots import make_snapshot, spread
from trimtab import Admin, Cluster
from trimtab.cli import main
from trimtab.cli.live.recording import Recorder
from trimtab.client.measure.probe import PROBE_TOPIC


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    recorder = Recorder(tmp_path / "r")
    recorder.write(make_snapshot({"flights": spread([9000.0] * 3)}))
    recorder.close()
    return tmp_path / "r"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--window", "1"], "--window 1: write 2 to 3600 seconds"),
        (["--cost-per-gb", "-1"], "--cost-per-gb -1: write 0 or more"),
        (["--recording", "/none"], "/none does not exist"),
        (["--recording", "/none", "--probe"], "--probe is for a live cluster"),
        (["--recording", "/none", "-X", "a=1"], "--command-property is for a live cluster"),
        (["--replay", "/none", "--bootstrap-server", "a:1"], "--bootstrap-server is for a live"),
        ([], "top needs a terminal: `trimtab load` prints"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", *words]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"trimtab top: {why}")


def test_without_textual_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("trimtab.cli.top.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    assert main(["top"]) == 1
    assert "top needs textual: pip install 'trimtab[top]'" in capsys.readouterr().err


def test_the_command_itself_does_not_import_textual() -> None:
    code = "import sys, trimtab.cli.top; print('textual' in sys.modules, 'rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


@contextmanager
def in_terminal(*words: str, **more: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command on a terminal, and its other end."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "LINES": "24", "COLUMNS": "80", **more}
    command = [sys.executable, "-m", "trimtab", "top", *words]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        try:
            yield process, ours
        finally:
            process.kill()
            os.close(ours)


def read_until(ours: int, text: str) -> str:
    """What is printed, up to this text."""
    shown = b""
    while text.encode() not in shown:
        shown += os.read(ours, 65_536)
    return shown.decode(errors="replace")


def drain(ours: int) -> str:
    """What is printed until the end."""
    shown = b""
    while True:
        try:
            data = os.read(ours, 65_536)
        except OSError:  # as Linux says the end of a terminal
            data = b""
        if not data:
            return shown.decode(errors="replace")
        shown += data


@pytest.mark.parametrize(("key", "code"), [(b"q", 0), (b"\x03", 130)])
def test_a_key_ends_the_process_and_gives_the_terminal_back(
    recording: Path, key: bytes, code: int
) -> None:
    with in_terminal("--recording", str(recording)) as (process, ours):
        read_until(ours, "findings")
        os.write(ours, key)
        left = drain(ours)
        assert process.wait(60) == code
    assert "\x1b[?1049l" in left  # the screen as it was before
    assert "\x1b[?25h" in left  # the cursor
    assert "Traceback" not in left


def test_no_color_leaves_the_terminals_own_colours(recording: Path) -> None:
    with in_terminal("--recording", str(recording), NO_COLOR="1") as (_, ours):
        shown = read_until(ours, "q quit")
    assert not re.search(r"\x1b\[(\d+;)*(3[0-8]|4[0-8]|9\d)[;m]", shown)


def test_sigterm_ends_it_and_removes_the_topic_for_probes() -> None:
    with Cluster(brokers=1) as cluster, Admin(cluster.bootstrap_servers) as admin:
        words = ("--bootstrap-server", cluster.bootstrap_servers, "--probe", "--window", "2")
        with in_terminal(*words) as (process, ours):
            read_until(ours, "brokers")
            assert PROBE_TOPIC in admin.topics()
            process.terminate()
            drain(ours)
            assert process.wait(60) == 143
        assert PROBE_TOPIC not in admin.topics()


def test_a_cluster_that_is_not_there_is_an_error() -> None:
    words = ("--bootstrap-server", "127.0.0.1:1", "-X", "default.api.timeout.ms=500")
    with in_terminal(*words) as (process, ours):
        shown = drain(ours)
        assert process.wait(60) == 1
    assert "trimtab top: " in shown
    assert "127.0.0.1:1" in shown
    assert "Traceback" not in shown
