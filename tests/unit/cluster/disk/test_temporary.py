"""A directory that is gone with the process (`trimtab.cluster.disk.temporary`)."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path

import pytest

from trimtab.cluster.disk.temporary import temporary_directory


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_its_owners_alone_and_gone_in_the_end(parent: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with temporary_directory() as directory:
        assert list(parent.iterdir()) == [Path(directory.path)]
        assert os.stat(directory.path).st_mode & 0o777 == 0o700
        os.makedirs(f"{directory.path}/a/b")
    assert list(parent.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_removes_it(parent: Path, number: signal.Signals) -> None:
    expected = {signal.SIGTERM: SystemExit, signal.SIGINT: KeyboardInterrupt}
    with pytest.raises(expected[number]), temporary_directory():
        os.kill(os.getpid(), number)
    assert list(parent.iterdir()) == []


def test_a_second_signal_does_not_interrupt_the_removal(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trimtab.cluster.disk import temporary

    remove = shutil.rmtree

    def interrupted(path: str, ignore_errors: bool) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        remove(path, ignore_errors)

    monkeypatch.setattr(temporary, "rmtree", interrupted)
    with temporary_directory():
        pass
    assert list(parent.iterdir()) == []


def test_kept_entries_are_not_removed(parent: Path) -> None:
    with temporary_directory() as directory:
        for name in ("logs", "data"):
            os.mkdir(f"{directory.path}/{name}")
        directory.kept = ("logs",)
    assert os.listdir(directory.path) == ["logs"]


def test_on_another_thread_signals_are_left_alone(parent: Path) -> None:
    handlers = []

    def use() -> None:
        with temporary_directory():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]
    assert list(parent.iterdir()) == []
