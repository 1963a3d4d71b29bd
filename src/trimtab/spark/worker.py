"""The Python process that Spark runs tasks in, and calls of the driver."""

from __future__ import annotations

import gc
import sys

_DAEMON = "pyspark.daemon"

_is_settled = False


def settle() -> None:
    """Leave what this process has imported out of the garbage collections to come.

    Spark's daemon collects garbage after each task and each call of the driver. Going through some
    50,000 objects of modules, which stay for good, takes 20 to 30 ms of processor time: more than
    a small task. Once in each process that the daemon has forked; elsewhere, such as in a user's
    own program, nothing is done.
    """
    global _is_settled
    if _is_settled or not _is_forked_by_daemon():
        return
    _is_settled = True
    gc.collect()  # what is garbage now would stay for good
    gc.freeze()


def _is_forked_by_daemon() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
