"""Where things are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.spark.session.cache import cache_directory, write_atomically


def test_the_cache_is_made_where_the_user_keeps_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_directory() == tmp_path / "x" / "trimtab"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home" / ".cache" / "trimtab"
    assert cache_directory().is_dir()


def test_a_home_that_cannot_be_written_gets_one_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    directory = cache_directory()
    assert directory.is_dir()
    assert directory == cache_directory()
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"one", mode=0o755)
    assert target.read_bytes() == b"one"
    assert target.stat().st_mode & 0o777 == 0o755
    with pytest.raises(TypeError):
        write_atomically(target, "two")  # type: ignore[arg-type]
    assert target.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [target]
