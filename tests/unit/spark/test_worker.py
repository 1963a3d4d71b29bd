"""Spark's worker processes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest

from trimtab.spark import worker
from trimtab.spark.resident import Residents


@pytest.fixture(autouse=True)
def unsettled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "_is_settled", False)
    yield
    gc.unfreeze()


@pytest.fixture
def in_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name="pyspark.daemon")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)


@pytest.mark.usefixtures("in_daemon")
def test_what_was_imported_is_left_out_of_later_collections_once() -> None:
    worker.settle()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    kept: list[list[int]] = [[] for _ in range(100)]
    worker.settle()
    assert gc.get_freeze_count() <= frozen
    assert len(kept) == 100


@pytest.mark.usefixtures("in_daemon")
def test_who_uses_a_client_that_stays_open_settles() -> None:
    with Residents[object](lambda client: None).borrow({}, lambda options: object()):
        assert gc.get_freeze_count() > 0


def test_a_program_of_the_users_is_left_alone() -> None:
    worker.settle()
    assert gc.get_freeze_count() == 0


def test_it_is_the_daemon_that_spark_starts() -> None:
    """Run as Spark runs it: it prints its port first, which here is where it is looked at."""
    looked = (
        "import runpy, sys, pyspark.serializers\n"
        "def look(*_):\n"
        "    from trimtab.spark import worker\n"
        "    print(worker._is_forked_by_daemon()); sys.stdout.flush(); import os; os._exit(0)\n"
        "import os; os.setpgid = look\n"
        "sys.argv = ['daemon']\n"
        "runpy.run_module('pyspark.daemon', run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", looked], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert done.stdout.strip() == "True", done.stderr
