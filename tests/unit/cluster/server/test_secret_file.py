"""The file with a cluster's secret."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trimtab.client.network.jaas import parse_jaas_config
from trimtab.cluster.server.secret_file import MECHANISM, USER, read_or_make_secret, read_secret
from trimtab.kafka.errors import Unavailable, UsageError
from trimtab.kafka.options import Password


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_missing_file_is_made_once_for_its_owner_only(tmp_path: Path, mask: int) -> None:
    path = tmp_path / "controller" / "cluster.secret"
    before = os.umask(mask)
    try:
        secret = read_or_make_secret(str(path))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_or_make_secret(str(path)) == read_secret(str(path)) == secret
    assert read_or_make_secret(str(tmp_path / "other")) != secret
    assert len(secret) >= 43  # 256 bits


def test_the_file_has_the_options_of_a_client(tmp_path: Path) -> None:
    path = tmp_path / "cluster.secret"
    secret = read_or_make_secret(str(path))
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    options = dict(line.split("=", 1) for line in lines)
    jaas = Password(options.pop("sasl.jaas.config"))
    assert parse_jaas_config(jaas, MECHANISM) == (USER, Password(secret))
    assert options == {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": MECHANISM}


def test_a_copy_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "copy"
    secret = read_or_make_secret(str(path))
    assert not caplog.records
    path.chmod(0o640)
    assert read_secret(str(path)) == secret
    assert [each.getMessage() for each in caplog.records] == [
        f"other users of this machine can use {path}: run chmod 600 {path}"
    ]


def test_a_relative_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_or_make_secret("secret") == read_secret(str(tmp_path / "secret"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no cluster's secret"),
        ("sasl.jaas.config=x required", "has no cluster's secret"),
        ('sasl.jaas.config=x required username="node" password="short";', "could be guessed"),
        ('sasl.jaas.config=x required username="me" password="%s";' % ("a" * 43), "has no"),
    ],
)
def test_a_file_without_a_good_secret_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "cluster.secret"
    path.write_text(text)
    with pytest.raises(UsageError, match=why) as refused:
        read_or_make_secret(str(path))
    assert str(path) in str(refused.value)
    assert "aaaa" not in str(refused.value)
    assert path.read_text() == text


def test_a_file_that_cannot_be_read_or_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"absent: No such file.*--cluster-secret-file"):
        read_secret(str(tmp_path / "absent"))
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="Not a directory"):
        read_or_make_secret(str(tmp_path / "file" / "cluster.secret"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(Unavailable, match="no text"):
        read_secret(str(tmp_path / "binary"))
