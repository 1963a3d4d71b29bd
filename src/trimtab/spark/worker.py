"""Set-up of the Python processes in which Spark runs tasks and calls of the driver."""

from __future__ import annotations

import gc
import sys

_DAEMON = "pyspark.daemon"

_is_settled = False


def settle() -> None:
    """Exclude the objects of imported modules from garbage collection.

    Spark's daemon collects garbage after each task and each call of the driver. Visiting the some
    50,000 objects of modules, which are never freed, takes 20 to 30 ms of CPU: more than a small
    task. Takes effect once in each process that the daemon has forked; does nothing in any other
    process, such as a user's own program.
    """
    global _is_settled
    if _is_settled or not _is_forked_by_daemon():
        return
    _is_settled = True
    gc.collect()  # otherwise present garbage would never be freed
    gc.freeze()


def _is_forked_by_daemon() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
