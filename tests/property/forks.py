"""Copies of worlds for searches: what coordinators and tests own is copied, messages are shared.

`copy.deepcopy` copies every record and every answer of a world's whole past again. Those never
change, so that a fork shares them.
"""

from __future__ import annotations

from copy import copy
from itertools import count
from types import MethodType
from typing import Any, TypeVar

T = TypeVar("T")

_OWNED = ("trimtab.coordinator.", "tests.")
"""The modules whose objects change, but for enumerations and named tuples."""
_CONTAINERS = (dict, list, set, count, MethodType)

_is_shared: dict[type, bool] = {}


def fork(world: T) -> T:
    """A copy that shares nothing with the original that may change."""
    found: T = _fork(world, {})
    return found


def _shares(kind: type) -> bool:
    """Whether values of this type are the same in every fork."""
    known = _is_shared.get(kind)
    if known is None:
        known = kind not in _CONTAINERS and (
            not kind.__module__.startswith(_OWNED) or issubclass(kind, str | int | tuple | type)
        )
        _is_shared[kind] = known
    return known


def _fork(value: Any, done: dict[int, Any]) -> Any:
    kind = type(value)
    if kind is list:
        if value and _shares(type(value[0])):  # lists are of one type
            return value[:]
        return [_fork(each, done) for each in value]
    if kind is dict:
        return {
            key: each if _shares(type(each)) else _fork(each, done) for key, each in value.items()
        }
    if kind is set or kind is count:
        return copy(value)
    if kind is MethodType:
        return MethodType(value.__func__, _fork(value.__self__, done))
    if _shares(kind):
        return value
    known = done.get(id(value))
    if known is not None:
        return known
    made = done[id(value)] = object.__new__(kind)
    for name in getattr(kind, "__slots__", None) or vars(value):
        each = getattr(value, name)
        setattr(made, name, each if _shares(type(each)) else _fork(each, done))
    return made
