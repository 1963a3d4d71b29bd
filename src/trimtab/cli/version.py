"""The installed version of trimtab."""

from __future__ import annotations


def read_version(otherwise: str = "source") -> str:
    """The installed version; `otherwise` in a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trimtab")
    except PackageNotFoundError:
        return otherwise
