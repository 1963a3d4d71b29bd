"""Addresses that other machines can reach are listened on only with `--insecure`."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.cli import main
from trimtab.cluster.server.open_host import refuse_open_host
from trimtab.kafka.errors import UsageError

OPEN = ["0.0.0.0", "::", "192.0.2.1", "2001:db8::1"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_loopback_needs_no_consent(host: str) -> None:
    refuse_open_host(host, insecure=False)


@pytest.mark.parametrize("host", OPEN)
def test_other_addresses_do(host: str) -> None:
    with pytest.raises(UsageError, match=r"can be reached from other machines.* --insecure"):
        refuse_open_host(host, insecure=False)
    refuse_open_host(host, insecure=True)


def test_a_host_that_is_none_is_named() -> None:
    with pytest.raises(UsageError, match=r"cannot listen on no\.such\.host\.invalid"):
        refuse_open_host("no.such.host.invalid", insecure=False)


@pytest.mark.parametrize(
    "words",
    [
        "cluster up --port 0 --data DIR",
        "controller --port 0 --data DIR",
        "broker --id 0 --controller 127.0.0.1:1 --port 0 --data DIR",
    ],
)
def test_each_command_that_listens_refuses(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    given = words.replace("DIR", str(data)).split()
    assert main([*given, "--host", "0.0.0.0"]) == 1
    said = capsys.readouterr().err
    assert "anyone who connects may read, write and delete everything" in said
    assert "--insecure" in said
    assert not data.exists()


def test_a_file_that_listens_on_all_addresses_needs_consent_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "node.id=1\nlisteners=PLAINTEXT://:9092\ncontroller.quorum.voters=3000@127.0.0.1:1\n"
    )
    assert main(["broker", str(file)]) == 1
    assert "0.0.0.0 can be reached from other machines" in capsys.readouterr().err
