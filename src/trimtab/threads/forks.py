"""Functions that are called in a forked process, before it does anything else."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

_callbacks: weakref.WeakKeyDictionary[object, Callable[[Any], object]] = weakref.WeakKeyDictionary()


def call_in_forked_child(target: object, function: Callable[[Any], object]) -> None:
    """Call `function(target)` in every process forked from this one, as long as `target` exists.

    It runs before `fork` returns there. No other thread exists, and locks may be held for ever.
    """
    _callbacks[target] = function


def _begin_as_child() -> None:
    for target, function in list(_callbacks.items()):
        function(target)


os.register_at_fork(after_in_child=_begin_as_child)
