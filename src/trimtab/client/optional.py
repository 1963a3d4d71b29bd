"""Packages that only some of the calls need: imported when these are called."""

from __future__ import annotations

from typing import Any

from trimtab.kafka.errors import UsageError


def import_pyarrow(caller: str) -> Any:
    """pyarrow, with its functions for columns.

    Args:
        caller: the call that needs it, for the error.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError as error:
        raise UsageError(
            f"{caller} needs pyarrow, which is not installed: pip install pyarrow, or install"
            " trimtab with its extra: trimtab[arrow]"
        ) from error
    return pyarrow
