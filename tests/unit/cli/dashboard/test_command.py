"""`trimtab dashboard`: its options, and how it ends."""

from __future__ import annotations

import builtins
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.dashboard.made_source import PATIENCE_S
from tests.unit.cli.live.made_snapshots import make_snapshot, spread
from trimtab import Admin, Cluster
from trimtab.cli import main
from trimtab.cli.live.recording import Recorder
from trimtab.client.measure.probe import PROBE_TOPIC


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    recorder = Recorder(tmp_path / "hour.jsonl.gz")
    recorder.write(make_snapshot({"flights": spread([5000.0, 1.0])}))
    recorder.close()
    return tmp_path / "hour.jsonl.gz"


def refuse(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["dashboard", *map(str, words)]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--window", "1"), "--window 1: write 2 to 3600 seconds"),
        (("--window", "nan"), "--window nan: write 2 to 3600 seconds"),
        (("--cost-per-gb", "-1"), "--cost-per-gb -1: write 0 or more"),
        (("--cost-per-gb", "inf"), "--cost-per-gb inf: write 0 or more"),
        (("--certificate", "a.pem"), "--certificate and --key: give both"),
        (("--key", "a.pem"), "--certificate and --key: give both"),
        (("--certificate", "no.pem", "--key", "no.key"), "--certificate no.pem --key no.key: "),
        (("--token-file", "/none"), "--token-file /none: "),
        (("--host", "no.such.host.invalid"), "--host no.such.host.invalid --port 8780: "),
        (("--port", "70000"), "--port 70000"),
        (("--port", "-1"), "--port -1"),
        (("--replay", "/none"), "/none"),
        (("--replay", "x", "--allow-changes"), "--allow-changes is for a live cluster"),
        (("--replay", "x", "--probe"), "--probe is for a live cluster"),
    ],
)
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    assert why in refuse(capsys, *words)


@pytest.mark.parametrize("token", ["", "short", "with a space in it", "ü" * 20, "a" * 15, "a;" * 9])
def test_a_token_that_is_no_good_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, token: str
) -> None:
    (tmp_path / "token").write_text(token, encoding="utf-8")
    why = refuse(capsys, "--token-file", tmp_path / "token")
    assert "write 16 or more letters and digits" in why
    assert not token or token not in why


@pytest.mark.parametrize("content", [b"", b"{}", b"\x1f\x8b garbage", b"not a recording\n"])
def test_what_is_no_recording_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(content)
    assert "a.jsonl.gz" in refuse(capsys, "--port", 0, "--replay", tmp_path / "a.jsonl.gz")


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str], recording: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        why = refuse(capsys, "--port", port, "--replay", recording)
    assert f"--port {port}: " in why
    assert "port 0 for any free one" in why


def test_the_extra_is_named_where_it_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def miss(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("trimtab.cli.dashboard.server"):
            raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", miss)
    assert "pip install 'trimtab[dashboard]'" in refuse(capsys, "--port", 0)


# Run for real


class Running:
    """The command in a process of its own."""

    def __init__(self, *words: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trimtab", "dashboard", "--port", "0", *map(str, words)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.said: list[str] = []
        for line in self.process.stderr:
            self.said.append(line)
            if line.startswith("Serving "):
                break
        self.address = self.said[-1].split()[-1]

    def end(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, rest

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def running() -> Iterator[Any]:
    started: list[Running] = []

    def start(*words: object) -> Running:
        started.append(Running(*words))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def get(address: str, context: ssl.SSLContext | None = None, **headers: str) -> str:
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_recording_is_served_until_a_signal(
    running: Any, recording: Path, number: int, code: int
) -> None:
    command = running("--replay", recording)
    page = get(command.address)
    assert "flights" in page
    assert "data-live" not in page
    with urllib.request.urlopen(f"{command.address}events?view=/", timeout=PATIENCE_S) as stream:
        assert stream.readline().startswith(b"data: ")
        assert command.end(number) == (code, "")
        assert stream.read() == b"\n"


def test_https_with_a_token(running: Any, recording: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "tls.pem", tmp_path / "tls.key"
    make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost"
    subprocess.run(
        ["openssl", *make.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key),
         "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    (tmp_path / "token").write_text("0123456789abcdef\n")
    command = running(
        "--replay", recording, "--certificate", certificate, "--key", key,
        "--token-file", tmp_path / "token",
    )  # fmt: skip
    assert command.address.startswith("https://127.0.0.1:")
    port = int(re.findall(r":(\d+)/", command.address)[0])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as garbage:
        garbage.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while garbage.recv(4096):
            pass
    trusting = ssl.create_default_context(cafile=str(certificate))
    home = command.address.partition("?")[0]
    page = get(f"{home}topics", trusting, Authorization="Bearer 0123456789abcdef")
    assert "flights" in page
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get(f"{home}topics", trusting)
    assert command.end(signal.SIGTERM)[0] == 143


def test_a_cluster_is_watched_and_left_as_it_was(running: Any, tmp_path: Path) -> None:
    with Cluster(brokers=1) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("flights", partitions=2, replication_factor=1)
        recorded = tmp_path / "hour.jsonl.gz"
        command = running(
            "--bootstrap-server", cluster.bootstrap_servers, "--probe", "--record", recorded,
            "--allow-changes",
        )  # fmt: skip
        address, _, token = command.address.partition("?token=")
        assert len(token) >= 16
        request = urllib.request.Request(
            f"{address}events?view=/topics", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as stream:
            for line in stream:
                if line.startswith(b"data: ") and "flights" in json.loads(line[6:])["main"]:
                    break
        assert PROBE_TOPIC in admin.topics()
        code, rest = command.end(signal.SIGTERM)
        assert (code, rest) == (143, "")
        assert PROBE_TOPIC not in admin.topics()
    again = running("--replay", recorded)
    assert "flights" in get(again.address)
