"""CRC-32C (Castagnoli), which record batches carry: from the package `crc32c`, but quickly.

Importing that package reads its own version out of its metadata, for which Python imports some
forty modules: a fifth of what a broker takes to start. The extension in it needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crc32c import crc32c
else:

    def _find_crc32c() -> Callable[..., int]:
        package = PathFinder.find_spec("crc32c")
        inside = package and package.submodule_search_locations
        spec = inside and PathFinder.find_spec("crc32c._crc32c", inside)
        if not spec or spec.loader is None:  # another release may be laid out differently
            from crc32c import crc32c

            return crc32c
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.crc32c

    crc32c = _find_crc32c()

__all__ = ["crc32c"]
