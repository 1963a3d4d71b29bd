from __future__ import annotations

import socket
from threading import Event

import pytest

from lab.processes import free_ports
from trimtab.cli import reach
from trimtab.cli.reach import report_unreachable

DONE = Event()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "PATIENCE_S", 0.0)


def wait_for(capsys: pytest.CaptureFixture[str]) -> str:
    said = ""
    for _ in range(500):
        said += capsys.readouterr().err
        if said.endswith("\n"):
            break
        DONE.wait(0.01)
    return said


def test_one_line_says_that_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with report_unreachable({"bootstrap.servers": address}):
        said = wait_for(capsys)
    assert said == (
        f"cannot reach {address} (Connection refused); is it running? start a cluster with "
        "`trimtab cluster up`, or name another with --bootstrap-server. Still trying …\n"
    )


def test_the_default_address_needs_no_other_name() -> None:
    said = reach.describe("127.0.0.1:9092", "Connection refused")
    assert said.endswith("is it running? start a cluster with `trimtab cluster up`. Still trying …")


def test_nothing_is_said_if_one_of_them_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        servers = f"127.0.0.1:{free_ports(1)[0]},127.0.0.1:{server.getsockname()[1]}"
        with report_unreachable({"bootstrap.servers": servers}):
            server.accept()[0].close()
            DONE.wait(0.05)
    assert capsys.readouterr().err == ""


def test_nothing_is_said_after_the_command_has_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "PATIENCE_S", 0.05)
    with report_unreachable({"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}"}):
        pass
    DONE.wait(0.1)
    assert capsys.readouterr().err == ""


def test_servers_that_are_no_addresses_are_left_to_the_client(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with report_unreachable({"bootstrap.servers": "nonsense"}):
        DONE.wait(0.05)
    assert capsys.readouterr().err == ""
