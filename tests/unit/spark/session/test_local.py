from __future__ import annotations

import importlib.util

import pytest

from trimtab.errors import UsageError
from trimtab.spark.session import start_session


def test_what_spark_needs_and_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="not installed: pip install pyspark pyarrow"):
        start_session("tour")
