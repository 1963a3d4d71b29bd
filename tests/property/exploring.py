"""Search through all states of small worlds: groups with clients, time and coordinators.

A world is forked for each of its actions. `copy.deepcopy` would copy every record and every answer
of its whole past again. Those never change, so that a fork shares them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from hashlib import blake2b
from itertools import count
from types import MethodType
from typing import Any, Protocol, TypeVar


class Violation(Exception):
    """A world broke a rule."""


class World(Protocol):
    """What is searched. It raises `Violation`."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for worlds that differ in the past only."""

    def actions(self) -> Iterable[tuple[str, int]]:
        """What may happen next."""

    def act(self, what: str, number: int) -> None:
        """Have it happen."""

    def is_settled(self) -> bool:
        """Whether nothing is left to do while nothing disturbs it."""

    def proceed(self) -> None:
        """Let every client that lives go on for a while, undisturbed."""


W = TypeVar("W", bound=World)
T = TypeVar("T")

_OWNED = ("trimtab.cluster.coordinator.", "tests.")
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


class Settling:
    """Checks that worlds settle once nothing disturbs them any more.

    A world is not followed further from where another one came by that settled.

    Args:
        steps: in which a world must settle.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._known: set[bytes] = set()

    def check(self, world: World) -> None:
        """Let a world settle.

        Raises:
            Violation: it does not.
        """
        passed: list[bytes] = []
        for _ in range(self._steps):
            digest = _digest(world.key)
            if digest in self._known or world.is_settled():
                self._known.update(passed)
                return
            passed.append(digest)
            world.proceed()
        raise Violation(f"the group does not settle: {world.key}")


def explore(
    roots: Sequence[W],
    states: int,
    settling: Settling,
    claim: Callable[[W], bool] = lambda world: True,
) -> int:
    """Go through the states that differ, breadth first; returns how many there are, up to `states`
    and those of one more world.

    Args:
        claim: what is said to be true of every state.

    Raises:
        Violation: a rule is broken, or the claim is false.
    """
    seen = {_digest(each.key) for each in roots}
    left = deque(roots)
    while left and len(seen) < states:
        world = left.popleft()
        for what, number in world.actions():
            after = fork(world)
            after.act(what, number)
            if not claim(after):
                raise Violation("the claim is false")
            digest = _digest(after.key)
            if digest not in seen:
                seen.add(digest)
                left.append(after)
                settling.check(fork(after))
    return len(seen)


def _digest(key: tuple[Any, ...]) -> bytes:
    return blake2b(repr(key).encode(), digest_size=16).digest()
