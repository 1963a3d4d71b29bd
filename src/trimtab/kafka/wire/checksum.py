"""CRC-32C (Castagnoli), the checksum of record batches: the package `crc32c`, imported faster.

That package reads its own version from its metadata when imported, for which Python imports some
forty modules: a fifth of a broker's start-up time. Its extension module needs none of them, so only
that is imported here.
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
