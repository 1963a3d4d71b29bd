"""The pages of the documentation run as they are written, and print what they say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.pages import read_page, run_page


@pytest.mark.parametrize(
    ("page", "expectations"),
    [
        ("docs/start.md", 7),
        ("docs/partitioners.md", 1),
        ("docs/production.md", 2),
        ("docs/from-spark-connector.md", 1),
    ],
)
def test_a_page_prints_what_it_says(page: str, expectations: int, tmp_path: Path) -> None:
    assert run_page(page, tmp_path) == expectations


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_program_for_a_secured_cluster_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its options are taken; nobody has its address, so nothing is sent."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")
    certificate = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out authority.pem -subj /CN=a"
    subprocess.run(["openssl", *certificate.split()], check=True, capture_output=True)
    (block,) = (each for each in read_page("docs/production.md") if each.title == "secured.py")
    typed: dict[str, Any] = {}
    exec(block.text, typed)
    typed["new_producer"]().close()
