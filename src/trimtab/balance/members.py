"""The members of a group and their partitions, as far as it matters who reads which."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

TopicKey: TypeAlias = Any
"""A topic's name, or its id: the same for all topics of a group."""
Partition: TypeAlias = tuple[TopicKey, int]
"""Its topic, and its index; a `TopicPartition` is one."""


class Member(Protocol):
    """A member: its id, the topics to which it subscribes, and its rack, None if it has none.
    Topics that do not exist may be among them."""

    @property
    def member_id(self) -> str: ...

    @property
    def topics(self) -> frozenset[TopicKey]: ...

    @property
    def rack(self) -> str | None: ...


class Group(NamedTuple):
    """What members have alike that may take each other's place.

    Attributes:
        topics: their class: members of one class subscribe to the same topics that exist.
    """

    topics: int
    rack: str | None


def find_groups(
    members: Sequence[Member], existing: Collection[TopicKey]
) -> tuple[list[Group], list[frozenset[TopicKey]]]:
    """By place each member's group; by class the topics."""
    existing = frozenset(existing)
    class_of: dict[frozenset[TopicKey], int] = {}
    groups = [
        Group(class_of.setdefault(member.topics & existing, len(class_of)), member.rack)
        for member in members
    ]
    return groups, list(class_of)
