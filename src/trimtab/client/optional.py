"""Packages that only some of the calls need: imported when these are called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from trimtab.kafka.errors import UsageError


def import_pyarrow(caller: str) -> Any:
    """pyarrow, with its functions for columns.

    Args:
        caller: the call that needs it, for the error.

    Raises:
        UsageError: it is not installed.
    """
    extra = ", or install trimtab with its extra: trimtab[arrow]"
    return import_package("pyarrow", caller, "pyarrow.compute", extra)


def import_package(name: str, caller: str, module: str | None = None, extra: str = "") -> Any:
    """A package by its name on the package index.

    Args:
        module: one of its modules that is needed, too.
        extra: another way to install it, for the error.

    Raises:
        UsageError: it is not installed, or too old to have the module.
    """
    try:
        import_module(module or name)
        return import_module(name)
    except ImportError as error:
        raise UsageError(
            f"{caller} needs {name}, which is not installed, or too old: pip install -U"
            f" {name}{extra}"
        ) from error
