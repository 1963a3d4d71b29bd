"""Run the compiled modules from their Python source.

The hot modules, `*_cy.py`, are compiled if a C compiler is available; the compiled module is in the
same directory as its source, and Python imports it first. `TRIMTAB_PURE=1` makes Python import the
source: to debug, to compare the two forms, or to measure the gain. The source needs Cython's module
`cython`, the compiled form does not.
"""

from __future__ import annotations

import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader

TYPE_CHECKING = False  # `typing`'s, which is costly to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


class SourceFinder:
    """Finds a package's `*_cy` modules as source only (an `importlib.abc.MetaPathFinder`)."""

    def __init__(self, package: str) -> None:
        self._prefix = package + "."

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not (fullname.startswith(self._prefix) and fullname.endswith("_cy")):
            return None
        for directory in path or ():
            finder = FileFinder(directory, (SourceFileLoader, SOURCE_SUFFIXES))
            if spec := finder.find_spec(fullname):
                return spec
        return None


def is_compiled() -> bool:
    """Whether the hot modules run compiled in this process."""
    from importlib.machinery import EXTENSION_SUFFIXES
    from importlib.util import find_spec

    spec = find_spec("trimtab.kafka.wire.batch_cy")
    return (
        spec is not None
        and spec.origin is not None
        and spec.origin.endswith(tuple(EXTENSION_SUFFIXES))
    )


def install() -> None:
    """Import the source of every `trimtab` module from now on.

    Raises:
        ImportError: Cython is missing.
    """
    from importlib.util import find_spec

    if find_spec("cython") is None:
        raise ImportError(
            "TRIMTAB_PURE=1: trimtab's compiled modules run from their source only with Cython; "
            "pip install 'cython>=3.3', or unset TRIMTAB_PURE",
            name="cython",
        )
    sys.meta_path.insert(0, SourceFinder("trimtab"))
