"""How much a coordinator remembers, and whether there is room for more."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class Usage(NamedTuple):
    """What is remembered.

    Attributes:
        things: groups, or transactional ids.
        members: of the groups.
        size: bytes of what clients have told of them, about.
    """

    things: int = 0
    members: int = 0
    size: int = 0

    def plus(self, more: Usage) -> Usage:
        return Usage(self.things + more.things, self.members + more.members, self.size + more.size)


Admit: TypeAlias = Callable[[Usage], str | None]
"""Takes note that something is about to be remembered; returns why there is no room for it."""

MEMBER_SIZE = 500
"""Bytes of memory for a member, a group, an offset or a transactional id, beside their texts."""
