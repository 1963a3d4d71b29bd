from __future__ import annotations

import importlib.util

import pytest

from trimtab.kafka.errors import Unavailable, UsageError
from trimtab.spark.session import local, start_session


def test_what_spark_needs_and_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"needs pyspark and pyarrow, which .* pip install 'trimtab\[spark\]'"
    ):
        start_session("tour")


def test_an_error_of_the_jvm_is_read_before_the_jvm_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    has_ended = False

    def end() -> None:
        nonlocal has_ended
        has_ended = True

    class Captured(Exception):
        """As PySpark's `CapturedException`, whose text comes from the JVM."""

        __module__ = "pyspark.errors.exceptions.captured"

        def __str__(self) -> str:
            assert not has_ended
            return "[BAD_MASTER] no such master"

    monkeypatch.setattr(local, "_jvm_process", lambda: None)  # whatever tests before have started
    monkeypatch.setattr(local, "_end_jvm", end)
    with (
        pytest.raises(Unavailable, match=r"Spark did not start: \[BAD_MASTER\] no such master"),
        local._start_recorded(),
    ):
        raise Captured
    assert has_ended
