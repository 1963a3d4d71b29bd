"""What the tests of streams have alike."""

from __future__ import annotations

import pytest

from trimtab.spark.stream import plan


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long for sizes: their thread may get no processor for seconds on a busy machine."""
    monkeypatch.setattr(plan, "_STALL_SECONDS", 60.0)
