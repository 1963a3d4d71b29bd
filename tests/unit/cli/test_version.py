from __future__ import annotations

from importlib import metadata

import pytest

from trimtab.cli.version import read_version


def test_the_version_is_the_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_version() == metadata.version("trimtab")

    def fail(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", fail)
    assert read_version() == "source"
    assert read_version("from source") == "from source"
