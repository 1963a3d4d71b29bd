"""Packages that only some of the calls need."""

from __future__ import annotations

import sys

import pyarrow
import pytest

from trimtab.client.optional import import_pyarrow
from trimtab.kafka.errors import UsageError


def test_a_package_that_is_there_is_imported() -> None:
    assert import_pyarrow("a call") is pyarrow


def test_a_package_that_is_missing_is_named_with_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"a call needs pyarrow.*trimtab\[arrow\]"):
        import_pyarrow("a call")
